"""The membership of a node in its cluster, from its start to the stop of its process.

following   the node follows the log, and tells clients the address of the active node
claiming    the node asks the log to become the owner
opening     the node owns the log, and opens its data directory
active      the node serves clients
fenced      another node owns the log, or may own it: the process ends
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import trellis
from broker.broker import Broker
from broker.replication.contract import LogUnreachable, Timing
from broker.replication.description import NodeDescription
from broker.replication.directory import ReplicaDirectory
from broker.replication.engine import ReplicatedLog
from broker.replication.errors import ReplicationError
from broker.replication.figures import ClusterFigures
from broker.replication.formats import FORMATS, Formats
from broker.replication.records import ClusterState
from broker.replication.report import NodeReport
from broker.store.catalog import Catalog
from broker.store.codecs import Codecs
from broker.store.disk import Disk
from broker.store.opening import OpenedStore
from trellis import logs
from trellis.cluster.clock import wall_ms
from trellis.cluster.following import Following, FollowingStopped
from trellis.cluster.listed_nodes import ListedNodes
from trellis.cluster.ownership import Ownership
from trellis.cluster.retention import Retention
from trellis.cluster.succession import BATCHES_MAX, successor

State = Literal["following", "opening", "active", "fenced"]

#: Seconds between two attempts to connect to the replicated log.
RETRY_SECONDS: Final = 1.0
#: Exit code of a process whose node no longer owns the log.
FENCED: Final = 3


class Membership:
    """One node of a cluster."""

    def __init__(
        self,
        name: str,
        timing: Timing,
        open_log: Callable[[], ReplicatedLog],
        formats: Formats = FORMATS,
    ) -> None:
        """Create the membership. `name` is the name of the broker, the same on all its nodes.

        `open_log` connects to the replicated log, in a thread, and returns the log. `open_log`
        raises LogUnreachable if the membership should call it again later. The `formats` are the
        encodings of batches that this node reads and writes.
        """
        self.name = name
        self.state: State = "following"
        #: The log that this node owns; None while the node follows.
        self.ownership: Ownership | None = None
        self._following: Following | None = None
        #: Discards the unsent output of all client connections. May run in any thread.
        self.discard_output: Callable[[], None] = _do_nothing
        #: The description of this node, for its claims.
        self.description = NodeDescription()
        self._timing = timing
        self._open_log = open_log
        self._formats = formats

    async def follow(
        self,
        disk: Disk,
        directory: Path,
        segment_size: int,
        codecs: Codecs,
        report_lost: Callable[[str], None],
        stop: asyncio.Event,
    ) -> tuple[Ownership, OpenedStore] | None:
        """Follow the log until this node owns it.

        Return the replicated log as its owner uses it, and the open store of the data directory.
        Return None if `stop` is set before this node owns the log. `directory` is the data
        directory, and `segment_size` the size in bytes of a segment of its log. `report_lost` is
        called with a sentence about each message that cannot be read. Raises ReplicationError or
        StoreError if the node cannot continue.
        """
        log = await self._connect(stop)
        if log is None:
            return None
        try:
            following = await asyncio.to_thread(
                self._begin, disk, directory, segment_size, codecs, report_lost, log
            )
            self._following = following
            logs.info(
                "cluster_following",
                cluster=self.name,
                batch=following.standby.state.number,
                offset=following.standby.follower.next,
            )
            running = asyncio.create_task(asyncio.to_thread(following.run))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            following.stop()
            owner = await running
        except FollowingStopped:
            log.close()
            return None
        except BaseException:
            log.close()
            raise
        opened, following.opened = following.opened, None
        assert opened is not None
        self.state = "opening"
        self.ownership = Ownership(owner, log, self.end, formats=self._formats)
        self.ownership.start()
        logs.info("cluster_owner", cluster=self.name, epoch=owner.epoch, offset=owner.next - 1)
        return self.ownership, opened

    def active_server(self, listener: str) -> str:
        """Return HOST:PORT at which the active node serves the clients of a listener.

        Return "" if this node knows no other active node, or if that node has no such listener.
        """
        if self._following is None:
            return ""
        owner = NodeDescription.decode(self._following.standby.state.owner)
        if owner.node == self.description.node:
            return ""  # This node was active before it was started again.
        return owner.server(listener)

    def keep_log(
        self,
        broker: Broker,
        catalog: Catalog,
        limits: Retention,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """Begin to report this node as the active node, and to trim the log within `limits`.

        Trimming removes the oldest records of the log. `catalog` is the catalog of this node's data
        directory. `call_soon` calls a function in the event loop's thread.
        """
        ownership, following = self.ownership, self._following
        assert ownership is not None and following is not None

        def report() -> NodeReport:
            known = ownership.owner.judge.state
            return NodeReport(
                ClusterState.decode(catalog.replica_state).last + 1,
                trellis.__version__,
                self.state,
                known.epoch,
                known.number,
                wall_ms(),
                0,
                self.description.encode(),
                position=known.position,
                format=known.format,
                oldest=self._formats.oldest,
                newest=self._formats.newest,
                unreported=ownership.unreported,
                place=following.place,
            )

        nodes = ListedNodes(broker, call_soon, ownership.log.identity)
        read = following.standby.follower.sizes
        ownership.keep(report, self.description.node, limits, nodes, read)

    def successor(self, wanted: str = "", has_all: bool = False) -> tuple[str, NodeReport]:
        """Return the name and the report of the standby to hand the log over to. May block.

        `wanted` is the name of the standby; "" chooses the standby that has most of the log. If
        `has_all` is True, the standby must have all batches of the log; if False, it may lack up to
        BATCHES_MAX batches. Raises ReplicationError if no such standby can take over.
        """
        ownership = self.ownership
        assert ownership is not None
        try:
            reports = ownership.log.reports()
        except LogUnreachable as error:
            raise ReplicationError(f"the nodes of the cluster cannot be listed: {error}") from error
        known = ownership.owner.judge.state
        name, lacking = self.description.node, 0 if has_all else BATCHES_MAX
        return successor(reports, name, known.number, wall_ms(), wanted, lacking)

    def figures(self) -> ClusterFigures:
        """Return the metrics of this node in its cluster."""
        ownership, following = self.ownership, self._following
        if following is None:
            return ClusterFigures(self.name, self.state)
        standby = following.standby
        claiming = self.state == "following" and standby.claiming
        retention = None if ownership is None else ownership.retention
        known = standby.state if ownership is None else ownership.owner.judge.state
        return ClusterFigures(
            self.name,
            "claiming" if claiming else self.state,
            known.epoch,
            known.last,
            known.number,
            standby.quiet if ownership is None else 0.0,
            0.0 if ownership is None else ownership.lease_left,
            0 if ownership is None else ownership.appended,
            0.0 if ownership is None else ownership.append_seconds,
            -1 if retention is None else retention.trimmed,
            0 if retention is None else retention.size,
            0 if retention is None else len(retention.nodes.listed),
            0 if retention is None else len(retention.nodes.struck),
            following.survivor_bytes if ownership is None else 0,
        )

    async def _connect(self, stop: asyncio.Event) -> ReplicatedLog | None:
        """Connect to the replicated log, with retries while it is unreachable.

        Return None if `stop` is set before a connection is open.
        """
        known = ""
        while not stop.is_set():
            try:
                return await asyncio.to_thread(self._open_log)
            except LogUnreachable as error:
                if str(error) != known:
                    known = str(error)
                    logs.warning("cluster_unreachable", cluster=self.name, reason=known)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
        return None

    def _begin(
        self,
        disk: Disk,
        directory: Path,
        segment_size: int,
        codecs: Codecs,
        report_lost: Callable[[str], None],
        log: ReplicatedLog,
    ) -> Following:
        replica = ReplicaDirectory(
            disk, str(directory), self.name, codecs, segment_size, self._formats
        )
        try:
            log.expect(NodeDescription.decode(replica.state.owner).log)
        except BaseException:
            replica.close()
            raise
        description = replace(self.description, log=log.identity)
        return Following(
            replica,
            log,
            self._timing,
            description,
            trellis.__version__,
            formats=self._formats,
            place=place_of(directory),
            report_lost=report_lost,
        )

    def end(self, reason: str) -> None:
        """End the process at once: this node no longer owns the log, or may have lost it.

        Unsent output to clients is discarded. A clean stop is not possible, because only the owner
        may write to the data directory and answer clients.
        """
        self.state = "fenced"
        self.discard_output()
        sys.stderr.write(f"trellis: fenced: {reason}\n")
        sys.stderr.flush()
        os._exit(FENCED)


def place_of(directory: Path) -> int:
    """Return a number that identifies this host and a data directory, the same after a restart."""
    status = directory.stat()
    text = f"{socket.gethostname()} {directory.resolve()} {status.st_dev} {status.st_ino}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) | 1


def _do_nothing() -> None:
    """Do nothing: the default of `discard_output` while no client is connected."""
