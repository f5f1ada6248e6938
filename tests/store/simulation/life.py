"""One life of the broker, from its start to its crash, in single steps of the server."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from random import Random

from broker.definitions.restore import restore_broker
from broker.store.checkpoint import Checkpointing
from broker.store.checkpoint_schedule import files_worth_checkpoint
from broker.store.contract import MARK_PATIENCE
from broker.store.disk import StoreError, WriteFailed
from broker.store.dropping import drop_dead_files
from broker.store.durable_batch import DurableBatch
from broker.store.entries import Defined, Undefined
from broker.store.files import LogFile
from broker.store.opening import OpenedStore, open_store
from broker.store.segments import SegmentLog
from broker.store.state import State, StoredMessage
from tests.clients import World
from tests.store.simulated import SimulatedDisk
from tests.store.simulation.journal import Journal, WatchedStore, watched
from trellis.server.recovery import codecs


class Crash(BaseException):
    """Raised when the simulated process crashes. The broker must not catch this exception."""


class Faults:
    """The faults of the disk until the next start: a crash at an operation, or errors."""

    def __init__(self, random: Random) -> None:
        self.random = random
        #: Number of operations until the crash; negative: no crash.
        self.left = -1
        #: Number of syncs before the sync at which the process crashes: each write since the last
        #: sync is then kept, lost or torn. Negative: no such crash.
        self.syncs = -1
        #: True if writes at times find the disk full.
        self.full = False
        #: True if the next sync fails.
        self.rotten = False

    def ask(self, operation: str, path: str) -> int:
        self._count()
        if operation == "sync":
            if self.syncs == 0:
                raise Crash
            self.syncs -= 1
        if operation == "write" and self.full and self.random.random() < 0.3:
            return errno.ENOSPC
        if operation == "sync" and self.rotten:
            self.rotten = False
            return errno.EIO
        return 0

    def done(self, operation: str, path: str) -> None:
        self._count()

    def _count(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1


Design = Callable[["Life", list[LogFile]], Iterator[None]]
Drop = Callable[[SegmentLog], int]


def checkpoint(life: Life, files: list[LogFile]) -> Iterator[None]:
    """Make a checkpoint of these files as the broker does, one step in each iteration."""
    checkpointing = Checkpointing(
        life.durable_store.log, files, set(life.durable_store.holder_numbers)
    )
    while checkpointing.step():
        yield


class Life(World):
    """A broker on a simulated disk and a catalog, from one start to the next crash or stop.

    `design` is the function that makes checkpoints, `drop` the one that drops dead files. With
    `hasty`, the broker is wrong on purpose: it confirms before it writes.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        directory: str,
        journal: Journal,
        faults: Faults,
        clock: tuple[int, float],
        look: Callable[[OpenedStore], None],
        kind: type[WatchedStore] = WatchedStore,
        design: Design = checkpoint,
        hasty: bool = False,
        drop: Drop = drop_dead_files,
        segment_size: int = 2_000,
        window: int = 8,
        marking: tuple[int, int] = (3, 20),
        patience: int = MARK_PATIENCE,
        opened: OpenedStore | None = None,
    ) -> None:
        """Start a broker on the disk.

        `clock` has the monotonic clock in milliseconds and the wall clock in seconds. `look` is
        called with the opened store before the broker uses the store. `window` is the number of
        messages of a queue in memory, `marking` sets the store's `waiting_marked` and `mark_span`,
        and `patience` its `mark_patience`. `opened` is the store of a standby that takes over; None
        opens the store of the directory.
        """
        self.disk, self.faults, self.journal = disk, faults, journal
        self.design, self.hasty, self.drop = design, hasty, drop
        self.dropped = 0
        self.unreadable: list[str] = []
        self._flying: DurableBatch | None = None
        self._wrote = False
        self._steps: Iterator[None] | None = None
        disk.refuse, disk.done = faults.ask, faults.done
        opened = opened or open_store(
            disk,
            directory,
            codecs(),
            7,
            self.unreadable.append,
            lambda recovery: None,
            segment_size,
        )
        store = self.durable_store = watched(opened, journal, kind)
        store.window = window
        store.waiting_marked, store.mark_span = marking
        store.mark_patience = patience
        super().__init__(store=store)
        self.broker.agenda.advance(*clock)
        store.set_clocks(*clock)
        look(opened)
        restore_broker(self.broker, opened, self.mqtt_front.sessions)

    @property
    def position(self) -> int:
        """The position of the last appended entry."""
        return int(self.durable_store.position)

    def live(self) -> list[int]:
        """Return the positions of the messages that a queue holds in the model (the journal)."""
        messages = dict(self.journal.state.messages)
        state = State()
        state.messages = {
            position: StoredMessage(live.vhost, live.message, list(live.queues))
            for position, live in messages.items()
        }
        for position, entry in self.journal.entries:
            if not isinstance(entry, (Defined, Undefined)):
                state.apply(position, entry)
        return sorted(state.messages)

    def tell_time(self, now: int, wall: float) -> None:
        self.broker.agenda.advance(now, wall)
        self.durable_store.set_clocks(now, wall)

    # -- steps

    def work(self) -> None:
        """Do the broker's work of a turn of the event loop, without a sync of the disk."""
        self.broker.agenda.turn()

    def take(self) -> None:
        if self._flying is None and self.durable_store.unbatched:
            batch = self.durable_store.take()
            assert isinstance(batch, DurableBatch)
            self._flying, self._wrote = batch, False
            if self.hasty:
                self.durable_store.written(batch)

    def write(self) -> None:
        """Do the work of the writer's thread.

        If the disk is full, the next call repeats the write. Raises Crash if the store is stopped.
        """
        batch = self._flying
        if batch is None or self._wrote:
            return
        self.journal.begun = int(batch.last)
        try:
            batch.write()
        except WriteFailed as error:
            if self.durable_store.log.poisoned or error.errno != errno.ENOSPC:
                raise Crash from error
            return
        except StoreError as error:
            raise Crash from error
        self.journal.durable = int(batch.last)
        self._wrote = True

    def written(self) -> None:
        batch = self._flying
        if batch is not None and self._wrote:
            self._flying = None
            if not self.hasty:
                self.durable_store.written(batch)

    def sync(self) -> None:
        """Run turns and write batches until all changes are durable."""
        self.work()
        self.take()
        self.write()
        self.written()
        self.work()

    def compact(self, random: Random) -> None:
        """Take a step of a checkpoint, or drop dead files, or begin a checkpoint.

        At times, begin a checkpoint that saves too little space for the real broker to begin one.
        """
        if self._steps is None:
            log = self.durable_store.log
            if random.random() < 0.7:
                try:
                    self.dropped += self.drop(log)
                except StoreError:
                    pass
                return
            files = files_worth_checkpoint(log)
            sealed = log.sealed()
            barred = log.poisoned or log.unsure_head is not None
            if not files and sealed and not barred and random.random() < 0.3:
                files = sealed[: random.randrange(len(sealed)) + 1]
            if files and not files[-1].checkpoint:
                self._steps = self.design(self, files)
            return
        try:
            if next(self._steps, self) is self:
                self._steps = None
        except StoreError:
            self._steps = None

    # -- the end of a life

    def stop(self) -> None:
        """Stop cleanly: write everything, and close the files."""
        self.broker.write_deliveries()
        while self._flying is not None or self.durable_store.unbatched:
            self.sync()
        self.durable_store.close()

    def crash(self, random: Random, kept: tuple[float, ...]) -> SimulatedDisk:
        """Return the disk after a crash of the process or a power loss.

        Each unsynced change survives with the same chance, drawn from `kept`.
        """
        self.disk.refuse, self.disk.done = _allow, _nothing
        self.durable_store.catalog.close()
        return self.disk.crashed(random, random.choice(kept))


def _allow(operation: str, path: str) -> int:
    return 0


def _nothing(operation: str, path: str) -> None:
    pass
