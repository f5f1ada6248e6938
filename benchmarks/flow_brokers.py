"""The brokers that flows.py measures, and the replacements for their disk, threads and timers."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from flow_clients import (
    RULES,
    long,
    method,
    packet,
    short,
    table,
    text,
)

from broker.access.identity import Authenticator, Credentials, Identity, Verdict
from broker.access.rules import UserPermissions
from broker.broker import Broker
from broker.definitions.restore import restore_broker
from broker.messages.sampled import SampledSteps
from broker.replication.contract import Timing
from broker.replication.judge import Judge
from broker.replication.memory import MemoryLog, MemoryNodeLog
from broker.replication.owner import LogOwner
from broker.replication.records import CLAIM, Claim, ClusterState
from broker.routing.sampling import MessageSampler
from broker.routing.tracing import TraceFilter
from broker.store.contract import Store
from broker.store.disk import Disk, File
from broker.store.durable import DurableStore
from broker.store.memory import MemoryStore
from broker.store.opening import open_store
from protocols.amqp.front import AmqpFront
from protocols.connection import Connection
from protocols.mqtt.front import MqttFront
from protocols.peer import Peer
from trellis.cluster.clock import boot_seconds
from trellis.cluster.ownership import Ownership
from trellis.server.durable_store_writer import LOOK_SECONDS, DurableStoreWriter
from trellis.server.recovery import codecs


class AcceptAll(Authenticator):
    """An authenticator that accepts every client; if `ruled`, RULES apply to the user's topics."""

    ruled = False

    def __init__(self) -> None:
        rights = UserPermissions("guest", "/", (".*", ".*", ".*"), RULES).identity("")
        self._identity = rights if self.ruled else Identity("guest")

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        answer(Verdict(self._identity))


class Bench:
    """A broker with its AMQP and MQTT front ends, driven by calls instead of sockets.

    If `traced`, a trace runs whose filter matches no message of a flow. If `sampled`, the broker
    samples messages with a `traceparent`, which no message of a flow has. If `on_disk`, the flows
    use a `ClusterBench` in place of this class.
    """

    traced = sampled = on_disk = False

    def __init__(self, store: Store | None = None) -> None:
        self.broker = Broker(store or MemoryStore(), AcceptAll(), lambda: "id")
        self.amqp_front, self.mqtt_front = AmqpFront(self.broker), MqttFront(self.broker)
        if self.traced:
            self.broker.vhosts["/"].traces.begin(TraceFilter(topic="not/of/a/flow"), 1)
        if self.sampled:
            steps = SampledSteps(time.time_ns)
            sampler = MessageSampler(self.broker.agenda, steps, random.getrandbits)
            self.broker.sample_messages(sampler)

    def mqtt(self, name: str, persistent: bool = False) -> Connection:
        """Connect an MQTT 3.1.1 client with the identifier `name`, and with a persistent session if
        `persistent`, otherwise with a clean session.
        """
        connection = self.mqtt_front.connect(Peer())
        flags = b"\x00" if persistent else b"\x02"
        connection.receive_data(
            packet(0x10, text("MQTT") + b"\x04" + flags + b"\x00\x00" + text(name))
        )
        assert self.drain(connection) == b"\x20\x02\x00\x00"
        return connection

    def amqp(self) -> Connection:
        """Connect an AMQP client that has channel 1 open."""
        connection = self.amqp_front.connect(Peer())
        connection.receive_data(
            b"AMQP\0\0\x09\x01"
            + method(0, 10, 11, table() + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"))
            + method(0, 10, 31, b"\x07\xff\x00\x02\x00\x00\x00\x00")
            + method(0, 10, 40, short("/") + b"\0\0")
            + method(1, 20, 10, b"\0")
        )
        assert b"\x00\x14\x00\x0b" in self.drain(connection)
        return connection

    def drain(self, *connections: Connection) -> bytes:
        """Run the pending work of the core; return the bytes to send to these connections."""
        self.broker.agenda.turn()
        self.broker.store.sync()
        return b"".join(connection.data_to_send() for connection in connections)


class BenchFile(File):
    """A file of the log in memory: the written parts, in order, and how many bytes are synced."""

    def __init__(self, disk: BenchDisk) -> None:
        self.parts: list[bytes] = []
        self.written = 0
        self.synced = 0
        self._disk = disk

    def read(self, offset: int, count: int) -> bytes:
        return b"".join(self.parts)[offset : offset + count]

    def write(self, offset: int, data: bytes | memoryview) -> None:
        assert offset == self.written, (
            f"a segment was written at byte {offset} instead of at its end"
        )
        self.parts.append(cast(bytes, data))
        self.written += len(data)

    def sync(self) -> None:
        self._disk.on_sync()
        self.synced = self.written

    def truncate(self, size: int) -> None:
        raise AssertionError("a segment was truncated, although no write fails in this program")

    def size(self) -> int:
        return self.written

    def close(self) -> None:
        pass


class BenchDisk(Disk):
    """A disk in memory: the files of the log by path. Every directory counts as existing."""

    def __init__(self) -> None:
        self.files: dict[str, BenchFile] = {}
        #: Called at the beginning of every sync of a file.
        self.on_sync: Callable[[], None] = _ignore

    def open(self, path: str, writable: bool) -> File:
        return self.files[path]

    def open_directory(self, path: str) -> File:
        return BenchFile(self)

    def create(self, path: str) -> File:
        file = self.files[path] = BenchFile(self)
        return file

    def list(self, directory: str) -> list[str]:
        return sorted(Path(path).name for path in self.files if path.startswith(directory + "/"))

    def make_directory(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def remove(self, path: str) -> None:
        del self.files[path]

    def remove_directory(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def free(self, directory: str) -> int:
        return 1 << 60


class InlineTimer:
    """A timer that never runs on its own: `callback` is None once the timer is cancelled."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Drop the callback, so that it never runs."""
        self.callback = None


class InlineLoop:
    """The part of an event loop that the store writer uses.

    Callbacks run only when `run_calls` or `run_timers` is called.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._timers: list[InlineTimer] = []

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        """Store a callback for the next `run_calls`."""
        self._calls.append((callback, arguments))

    def call_later(self, delay: float, callback: Callable[[], object]) -> InlineTimer:
        """Return a timer that the next call of `run_timers` runs, whatever its `delay` in seconds.

        A timer of LOOK_SECONDS or more never runs: it is the store writer's search for dead files
        of the log.
        """
        timer = InlineTimer(callback)
        if delay < LOOK_SECONDS:
            self._timers = [timer]  # The store writer never has a second timer for pending writes.
        return timer

    def run_calls(self) -> None:
        """Run the callbacks that were passed to `call_soon_threadsafe`."""
        calls, self._calls = self._calls, []
        for callback, arguments in calls:
            callback(*arguments)

    def run_timers(self) -> None:
        """Run every timer that is not cancelled."""
        timers, self._timers = self._timers, []
        for timer in timers:
            if timer.callback is not None:
                timer.callback()


class DurableBench(Bench):
    """A broker on the durable store, without threads.

    `turn` passes a batch of entries to the store writer; `write` does the writer thread's work.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.disk = BenchDisk()
        opened = open_store(self.disk, self._directory.name, codecs(), 1, _fail, _ignore)
        super().__init__(opened.store)
        restore_broker(self.broker, opened, self.mqtt_front.sessions)
        self.log = opened.store.log
        self._loop = InlineLoop()
        self._writer = DurableStoreWriter(
            opened.store, cast(asyncio.AbstractEventLoop, self._loop), _fail
        )
        self._sync_due = False
        opened.store.request_batch = self._want_sync
        # The threads end at once, because `write` does the work of the writer thread.
        self._writer._write_queue.put(None)
        self._writer._checkpoint_queue.put(None)
        for thread in self._writer._threads:
            thread.join()

    def _want_sync(self) -> None:
        self._sync_due = True

    def turn(self) -> None:
        """Run one loop turn: the agenda; then pass the appended entries to the store writer."""
        self.broker.agenda.turn()
        if self._sync_due:
            self._sync_due = False
            self._writer.sync()

    def write(self) -> None:
        """Write and sync the batch that the store writer holds, then settle its tickets."""
        self._writer._write_queue.put(None)  # End `_run_writes` after this batch.
        self._writer._run_writes()
        self._loop.run_calls()

    def write_rest(self) -> None:
        """Run the timer that writes entries for which no client waits, such as settlements."""
        self._loop.run_timers()
        self.write()

    def drain(self, *connections: Connection) -> bytes:
        self.turn()
        self.write()
        self.broker.agenda.turn()
        return b"".join(connection.data_to_send() for connection in connections)

    def watch_syncs(self, publisher: Connection) -> None:
        """Make each later sync fail if replies to the publisher wait in its output.

        A reply must not be written before the sync of its message. The check is an assertion.
        """

        def check() -> None:
            assert len(publisher.out) == 0, (
                "a reply to the publisher was written before the sync of its message"
            )

        self.disk.on_sync = check

    def check_log(self, messages: int) -> None:
        """Fail unless the log has all messages and their settlements, and is synced to its end."""
        self.write_rest()
        kept = sum(file.copies for file in self.log.files)
        settled = sum(file.settled for file in self.log.files)
        assert (kept, settled) == (messages, messages)
        assert all(file.synced == file.written for file in self.disk.files.values())


class ClusterBench(DurableBench):
    """A broker on the durable store that can own the replicated log of a cluster.

    If `owned`, the broker owns a log in memory: it checks its lease before each turn and before
    each output, as in trellis/server/turn.py, and appends its batches to the log. Otherwise the
    broker has no cluster.
    """

    owned = False

    def __init__(self) -> None:
        super().__init__()
        self._may_act: Callable[[], bool] | None = None
        if not self.owned:
            return
        log, state = MemoryNodeLog(MemoryLog(), "node"), ClusterState("bench")
        claimed = replace(state, salt=int(self.log.salt), format=1)
        claim = Claim(CLAIM, 1, 1, 0, -1, claimed, bytes(32))
        judge = Judge(state)
        assert judge.judge(log.append(claim.encode()), claim)
        # No thread appends beats, which would renew the lease. So the lease is longer than a run.
        timing = Timing(silence=7_200.0, lease=3_600.0)
        owner = LogOwner(judge, 1, boot_seconds(), timing, boot_seconds, lambda: 0)
        ownership = Ownership(owner, log, _fail)
        self._may_act = owner.lease.lasts
        store = self.broker.store
        assert isinstance(store, DurableStore)
        store.shipping = ownership

    def drain(self, *connections: Connection) -> bytes:
        may_act = self._may_act
        assert may_act is None or may_act()
        self.turn()
        if not self._writer.idle:
            self.write_rest()
            self.broker.agenda.turn()
        chunks: list[bytes] = []
        for connection in connections:
            assert may_act is None or may_act()
            chunks.append(connection.data_to_send())
        return b"".join(chunks)


def _ignore(*_: object) -> None:
    pass


def _fail(reason: str) -> None:
    raise AssertionError(f"the store failed: {reason}")
