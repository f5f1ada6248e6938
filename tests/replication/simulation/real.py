"""A node with the real directory: the segment log on a simulated disk, and a SQLite catalog.

The node crashes at single operations of its disk. To find the messages of a directory, the test
starts a broker on a copy of the directory.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.replication.contract import Apply
from broker.replication.directory import ReplicaDirectory
from broker.store.codecs import Codecs
from broker.store.entries import Defined, MessageSettled, MessageStored, StoreEntry
from broker.store.findings import MISSING, QUARANTINED, WRONG
from broker.store.log_reader import LogReader
from broker.store.opening import open_store
from tests.replication.batches import Killed, encode_entries, kill_at, message
from tests.replication.simulation.directory import Directory, Entry
from tests.replication.simulation.node import Node
from tests.replication.simulation.world import World
from tests.replication.survivors import compare
from tests.store.simulated import SimulatedDisk

if TYPE_CHECKING:
    from tests.replication.simulation.cluster import Cluster

#: Fraction of the batches during which the process is killed at an operation of the disk. A batch
#: of more than LARGE bytes has several records, so a part of them may survive.
KILLED = 0.004
KILLED_LARGE = 0.15
LARGE = 500
#: Size of a segment in bytes: small, so that checkpoints have work.
SEGMENT = 3_000
#: Number of pages by which a catalog may grow.
_PAGES_MAX = 1 << 30


class RealDirectory(Directory):
    """The real data directory of a node, with the interface of the model in `directory.py`."""

    replica_type: type[ReplicaDirectory] = ReplicaDirectory
    copied_any_time = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.path = tempfile.mkdtemp(prefix="trellis-replica-", dir=shared)
        weakref.finalize(self, shutil.rmtree, self.path, True)
        self.disk = SimulatedDisk()
        self.replica: ReplicaDirectory | None = None
        #: The last position of the log that the latest recovery found, and message position ->
        #: queue.
        self.recovered = 0
        self.queue_of: dict[int, int] = {}
        #: Largest number of consecutive batches for which no state is stored.
        self.unstored = 1

    @property
    def restart_offset(self) -> int:
        # A node reads again from the stored state, and not every batch stores a state.
        return (self.state if self.replica is None else self.replica.stored_state).last + 1

    def open(self) -> None:
        self.replica = self.replica_type(self.disk, self.path, self.name, Codecs(), SEGMENT)
        self._refresh()

    def _refresh(self) -> None:
        replica = self.replica
        assert replica is not None
        self.state, self.salt = replica.state, replica.state.salt
        if replica._log is not None:
            replica._log.unstored_batches_max = self.unstored
            self.queues = replica._holder_numbers

    def apply_step(self, step: Apply) -> None:
        assert self.replica is not None
        try:
            self.replica.apply(step)
        finally:
            self._refresh()

    def fill(self, chance: random.Random | None) -> None:
        """Make the disk refuse half of its writes, as if it were full.

        If `chance` is None, the disk has space again.
        """

        def refuse(operation: str, path: str) -> int:
            full = chance is not None and operation in ("write", "create")
            return errno.ENOSPC if full and chance is not None and chance.random() < 0.5 else 0

        self.disk.refuse, self.disk.done = refuse, lambda operation, path: None
        assert self.replica is not None
        database = self.replica.catalog._db
        [pages] = database.execute("PRAGMA page_count").fetchone()
        limit = pages if chance is not None and chance.random() < 0.5 else _PAGES_MAX
        database.execute(f"PRAGMA max_page_count = {limit}")

    def crash(self, chance: random.Random) -> None:
        if self.replica is not None:
            self.state = self.replica.stored_state
            self.replica.catalog.close()
            self.replica = None
        if chance.random() < 0.8:
            self._tear_writes(chance)
        self.disk = self.disk.crashed(chance, chance.choice((0.0, 0.5, 1.0, 1.0)))
        self.unstored = chance.choice((1, 4, 30))

    def _tear_writes(self, chance: random.Random) -> None:
        """Cut each unsynced write to a part of its bytes, as a crash may do."""
        for inode in self.disk.names.values():
            inode.pending = [
                (offset, data and data[: chance.randrange(len(data) + 1)])
                for offset, data in inode.pending
            ]

    # -- checkpoints

    def may_checkpoint(self) -> bool:
        return self.replica is not None and self.replica._compaction is not None

    def checkpoint(self) -> None:
        assert self.replica is not None and self.replica._compaction is not None
        before = self.replica._compaction.completed
        while self.replica.compact():
            pass
        self.checkpoints += self.replica._compaction.completed - before

    # -- the messages

    def live(self) -> dict[int, int]:
        with tempfile.TemporaryDirectory(dir=self.path) as copy:
            self.copy_catalog_to(Path(copy))
            return self._recover(SimulatedDisk(self._files_in(copy)), copy)

    def _files_in(self, copy: str) -> dict[str, bytes]:
        return {
            path.replace(self.path, copy, 1): data for path, data in self.disk.contents().items()
        }

    def _recover(self, disk: SimulatedDisk, path: str) -> dict[int, int]:
        reports: list[str] = []
        opened = open_store(disk, path, Codecs(), 0, reports.append, lambda _: None, SEGMENT)
        reader, messages = LogReader(opened.store.log), {}
        for queue, positions in opened.survivors.copies.by_queue().items():
            for position in positions:
                entry = opened.store.read_stored(reader, position)
                assert entry is not None, reports
                messages[position] = int(entry.message.content.rstrip(b"x"))
                self.queue_of[position] = queue
        self.recovered = int(opened.store.position)
        damage = (MISSING, QUARANTINED, WRONG)
        assert not [messages for messages in opened.recovery.findings if messages.kind in damage]
        opened.store.close()
        return dict(sorted(messages.items()))

    def warm_differences(self) -> list[str]:
        assert self.replica is not None
        disk = self.disk
        # The simulation makes this comparison, not the node. So a kill or a full disk must not
        # interrupt the comparison.
        faults = disk.refuse, disk.done
        disk.refuse, disk.done = (lambda operation, path: 0), (lambda operation, path: None)
        try:
            return compare(self.replica, disk, SEGMENT)
        finally:
            disk.refuse, disk.done = faults

    @property
    def log_end(self) -> int:
        return max(self.recovered, self.state.position)

    # -- seeding

    def copy_catalog_to(self, directory: Path) -> None:
        for name in ("catalog.sqlite", "catalog.sqlite-wal"):
            source = Path(self.path) / name
            if source.exists():
                (directory / name).write_bytes(source.read_bytes())

    def copy_catalog(self) -> Any:
        copy = tempfile.TemporaryDirectory(dir=self.path)
        self.copy_catalog_to(Path(copy.name))
        return copy

    def copy_log(self) -> Any:
        return self._files_in("")

    def seed(self, catalog: Any, log: Any) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(catalog.name, self.path)
        catalog.cleanup()
        self.disk = SimulatedDisk({self.path + path: data for path, data in log.items()})


class RealNode(Node):
    """A simulated node with a real data directory: segment log and SQLite catalog."""

    directory_type = RealDirectory
    directory: RealDirectory

    def __init__(self, world: World, name: str, cluster: Cluster) -> None:
        super().__init__(world, name, cluster)
        self.directory.unstored = world.random.choice((1, 4, 30))

    def check_disk(self) -> None:
        """Do nothing: the simulated disk itself refuses writes."""

    def apply(self, step: Apply) -> Iterator[None]:
        yield
        large = step.batch is not None and len(step.batch.payload) > LARGE
        self._prepare_faults(KILLED_LARGE if large else KILLED)
        try:
            self.directory.apply_step(step)
        except Killed:
            self.world.say(f"{self.name} is killed while it applies a batch")
            self.cluster.crash(self)
            return
        self.synced = self.directory.restart_offset
        yield

    def checkpoint(self) -> None:
        if not self.running or not self.directory.may_checkpoint():
            return
        self._prepare_faults(10 * KILLED)
        try:
            self.directory.checkpoint()
        except Killed:
            self.world.say(f"{self.name} is killed while it makes a checkpoint")
            self.cluster.crash(self)

    def _prepare_faults(self, killed: float) -> None:
        """Make the disk full if the node has this fault now, and perhaps schedule a kill.

        `killed` is the probability of the kill.
        """
        chance = self.world.random
        self.directory.fill(chance if self.full_until > self.world.now else None)
        if self.world.faulty and chance.random() < killed:
            kill_at(self.directory.disk, chance.choice((1, 2, 2, 2, 2, 2, 3, 4, 5, 8)))

    def encode(self, entries: list[Entry]) -> bytes:
        queue_of = self.directory.queue_of
        stored_entries: list[tuple[int, StoreEntry]] = []
        for kind, position, queue, what in entries:
            if kind == "define":
                stored_entries.append((position, Defined("/", "queue", f"queue {position}", {})))
            elif kind == "store":
                queue_of[position] = queue
                content = b"%d" % what + b"x" * (what % 7 * 20)
                stored_entries.append((position, MessageStored("/", message(content), [queue])))
            else:
                stored_entries.append((position, MessageSettled(queue_of[what], what)))
        assert self.owner is not None
        return encode_entries(stored_entries, self.owner.judge.state.salt)
