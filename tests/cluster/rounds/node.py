"""The process of one node of a cluster, which can stop itself at a point of its work.

    python -m tests.cluster.rounds.node SETTINGS

SETTINGS is JSON: `directory`, `control`, `times` (silence, lease, beat), `cluster` (the name of the
broker), and `server` (the port of a LogServer) or `kafka` (the servers of a cluster on Kafka). With
`amqp` (a port), the node does not redirect clients (`cluster.redirect`), and has this AMQP port.
`control` is a directory. Its file `point` names the point at which the process stops itself once
(SIGSTOP). While its file `full` exists, writes to the disk fail with the error number in the file.
If the number is 0, writes do not end before the file is removed. The points:

    claim      before the claim of a standby is appended: between the decision and the claim
    flush      between the test of the lease and the flush that follows
    answer     between the answer of the log to a batch and the write to the local disk
    chunk      between two chunks of a batch
    catalog    between the local log and the catalog
    opening    between the claim and the takeover of the data directory by the broker
    restoring  before the broker restores queues and sessions from the directory
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from broker.lease import Lease
from broker.replication.contract import LogSpan, Timing
from broker.replication.directory import ReplicaDirectory
from broker.replication.engine import ReplicatedLog
from broker.replication.records import BatchChunk, Claim, decode
from broker.store.catalog import Catalog
from tests.cluster.log_server import SocketLog
from tests.top.disks import HandledDisk
from trellis.app import run
from trellis.cluster.kafka_log import KafkaLog
from trellis.cluster.membership import Membership
from trellis.server.node import BrokerNode
from trellis.settings import Settings

#: Size of a chunk in bytes: small, so that most batches have several chunks.
CHUNK = 300
#: Seconds between two checks whether a disk that hangs has recovered.
LOOK_SECONDS = 0.05
#: Operations of the disk that fail while the disk is full.
WRITES = ("write", "allocate", "create")


class Control:
    """The directory of files (`point`, `full`) by which the test controls this process."""

    def __init__(self, directory: Path) -> None:
        self._point = directory / "point"
        self._full = directory / "full"

    def reach(self, name: str) -> None:
        """Stop this process (SIGSTOP) if the file `point` names this point; remove the file."""
        try:
            if self._point.read_text() != name:
                return
            self._point.unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGSTOP)

    def refuse(self, operation: str, path: str) -> int:
        """Return the error number with which an operation of the disk must fail; 0 for success."""
        if operation not in WRITES:
            return 0
        try:
            error = int(self._full.read_text())
        except FileNotFoundError:
            return 0
        while error == 0 and self._full.exists():
            threading.Event().wait(LOOK_SECONDS)
        return error


class PausingLog:
    """A `ReplicatedLog` that can stop the process at the points claim, chunk and answer."""

    #: The largest payload of a chunk, in bytes.
    chunk_size = CHUNK

    def __init__(self, log: ReplicatedLog, control: Control) -> None:
        self._log = log
        self._control = control

    def append(self, data: bytes) -> int:
        record = decode(data)
        if isinstance(record, Claim):
            self._control.reach("claim")
        elif isinstance(record, BatchChunk) and record.chunk:
            self._control.reach("chunk")
        offset = self._log.append(data)
        if isinstance(record, BatchChunk) and record.chunk == record.chunks - 1:
            self._control.reach("answer")
        return offset

    def read(self, offset: int) -> LogSpan:
        return self._log.read(offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def install(control: Control) -> None:
    """Patch the broker so that it calls `control.reach` at the points `flush`, `catalog`, `opening`
    and `restoring`. (The log of the node reaches the other points.)
    """
    lasts, write, take_over = Lease.lasts, Catalog.write, ReplicaDirectory.take_over
    restore = BrokerNode.__init__

    def tested(self: Lease) -> bool:
        holds = lasts(self)
        if holds:
            control.reach("flush")
        return holds

    def written(self: Catalog, *arguments: Any) -> None:
        control.reach("catalog")
        write(self, *arguments)

    def opened(self: ReplicaDirectory, *arguments: Any) -> Any:
        control.reach("opening")
        return take_over(self, *arguments)

    def restored(self: BrokerNode, *arguments: Any) -> None:
        control.reach("restoring")
        restore(self, *arguments)

    BrokerNode.__init__ = restored  # type: ignore[assignment, method-assign]
    Lease.lasts = tested  # type: ignore[method-assign]
    Catalog.write = written  # type: ignore[assignment, method-assign]
    ReplicaDirectory.take_over = opened  # type: ignore[assignment, method-assign]


def settings_of(given: dict[str, Any]) -> Settings:
    """Return the settings of the broker, from the JSON in SETTINGS."""
    listeners = ("amqp", "mqtt", "metrics", "http")
    sections: dict[str, Any] = {name: {"port": 0, "host": "127.0.0.1"} for name in listeners}
    silence, lease, beat = given["times"]
    sections["node"] = {"name": Path(given["directory"]).name}
    sections["cluster"] = {
        "name": given["cluster"],
        "servers": given.get("kafka", ""),
        "advertised": "127.0.0.1",
        "silence": silence,
        "lease": lease,
        "beat": beat,
        "keep_time": 1.0,
        "grace": 2.0,
    }
    if "amqp" in given:
        sections["cluster"]["redirect"] = False
        sections["amqp"]["port"] = given["amqp"]
    sections["data"] = {"dir": given["directory"]}
    sections["store"] = {"segment": 1 << 20, "reserve": False}
    sections["limits"] = {"disk_free": 0}
    return msgspec.convert(sections, Settings)


def main(given: dict[str, Any]) -> int:
    """Run the node until it is stopped, or ends itself; return the exit code."""
    control, settings = Control(Path(given["control"])), settings_of(given)
    name = settings.node.name

    def open_log() -> ReplicatedLog:
        if "server" in given:
            return PausingLog(SocketLog(given["server"], name), control)
        log = KafkaLog(settings.cluster, name)
        try:
            log.connect()
        except BaseException:
            log.close()
            raise
        return PausingLog(log, control)

    install(control)
    disk = HandledDisk()
    disk.refuse = control.refuse
    membership = Membership(given["cluster"], Timing(*given["times"]), open_log)
    return run(settings, disk=disk, membership=membership)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
