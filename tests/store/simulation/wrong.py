"""Wrong designs, each of which the checks must catch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mypy_extensions import i64

from broker.agenda import Task
from broker.store.contract import Ticket, Waiter, WriteBatch
from broker.store.disk import File, StoreError
from broker.store.dropping import dead_files, drop_dead_files
from broker.store.entries import (
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    Sequenced,
    StoreEntry,
)
from broker.store.files import SUM_MASK, LogFile, entry_hash, file_holding
from broker.store.log_reader import LogReader
from broker.store.segments import SegmentLog
from broker.store.stream_contract import StreamWrite
from tests.store.simulated import SimulatedDisk
from tests.store.simulation.journal import WatchedStore
from tests.store.simulation.life import Crash, Life
from tests.store.test_powerloss import InPlace


def moved_forward(life: Life, files: list[LogFile]) -> Iterator[None]:
    """Wrong on purpose: a checkpoint appends live messages again, under new positions.

    The right checkpoint copies them with their positions.
    """
    store, last = life.durable_store, int(files[-1].last)
    reader = LogReader(store.log)
    held = [position for position in life.live() if position <= last]
    yield
    for position in held:
        kept = store.read_stored(reader, position)
        if kept is not None:
            store.append(MessageStored(kept.vhost, kept.message, kept.queues), None)
    wanted = life.position
    while life.journal.durable < wanted:
        yield
    del store.log.files[: len(files)]
    for file in files:
        store.log.disk.remove(file.path)
    store.log.disk.sync_directory(store.log.directory)
    yield


def in_place(life: Life, files: list[LogFile]) -> Iterator[None]:
    """Wrong on purpose: a checkpoint overwrites the file of the checkpoint before it.

    All records of that file are in memory by then, so no record is lost unless the broker crashes.
    """
    log = life.durable_store.log
    for file in files:
        file.attach(_copy(life.disk, file.path))
    checkpointing = InPlace(log, files, set(life.durable_store.holder_numbers))
    while checkpointing.step():
        yield


def _copy(disk: SimulatedDisk, path: str) -> File:
    return SimulatedDisk({path: bytes(disk.names[path].now)}).open(path, False)


def drop_without_needs(log: SegmentLog) -> int:
    """Wrong on purpose: drop dead files whose settlements are still needed.

    The settlements are for messages in files that stay, so these messages are live again after a
    start.
    """
    for file in log.files:
        file.needs.clear()
    return drop_dead_files(log)


def drop_unmarked(log: SegmentLog) -> int:
    """Wrong on purpose: drop dead files without a note in the log that the files are missing."""
    runs = dead_files(log)
    for run in runs:
        log.files[log.files.index(run[-1]) + 1].previous_last = run[0].previous_last
        log.unlist(run)
    files = [file for run in runs for file in run]
    for file in files:
        log.disk.remove(file.path)
    if files:
        log.disk.sync_directory(log.directory)
    return sum(int(file.size) for file in files)


class WithoutSerials(WatchedStore):
    """Wrong on purpose: a store that loses annotations, the numbers stored with a message.

    After a start, sessions number their messages from 1 again.
    """

    def read_stored(self, reader: LogReader, position: i64) -> MessageStored | None:
        kept = super().read_stored(reader, position)
        return None if kept is None else MessageStored(kept.vhost, kept.message, kept.queues)


class MarksBehind(WatchedStore):
    """Wrong on purpose: a store that lets a queue deliver before its delivery mark is durable.

    A delivery mark is the record that says which messages of a queue may have been delivered.
    """

    def append(self, entry: StoreEntry, ticket: Ticket | None) -> int:
        if isinstance(entry, DeliveryMark) and ticket is not None:
            position = super().append(entry, None)
            self.agenda.add(WaiterCall(ticket.waiter))
            return position
        return super().append(entry, ticket)


class WaiterCall(Task):
    """Wrong on purpose: a task that tells a queue too early that its delivery mark is durable."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def run(self) -> None:
        self._waiter.settled()


class MarksOnce(WatchedStore):
    """Wrong on purpose: a store that never writes a delivery mark a second time.

    The right store writes the mark again in a new segment, so that the old segment can be dropped.
    """

    def _refresh_marks(self) -> None:
        """Do nothing, so that a segment with the last mark of a queue cannot be dropped."""


def drop_with_marks(log: SegmentLog) -> int:
    """Wrong on purpose: drop files although they have the last delivery marks of queues."""
    for marks in log.liveness._marks.values():
        for position in marks.values():
            file = file_holding(log.files, position)
            if file is not None and position <= file.last:
                file.live -= 1
                file.balance = (file.balance - entry_hash(0, position)) & SUM_MASK
    log.liveness._marks.clear()
    return drop_dead_files(log)


class Apart(WatchedStore):
    """Wrong on purpose: the base class of stores that write some entries one batch too late."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._later: list[StoreEntry] = []

    def take(self) -> WriteBatch:
        batch = super().take()
        later, self._later = self._later, []
        for entry in later:
            self.append(entry, None)
        return batch


class TwoRecords(Apart):
    """Wrong on purpose: a store that writes a dead letter without the original's settlement.

    The settlement is in the next batch, so after a crash both messages may be there.
    """

    def apply(self, position: i64, entry: StoreEntry) -> None:
        if isinstance(entry, EntryGroup) and _buries(entry):
            *letters, settled = entry.entries
            self._later.append(settled)
            for one in letters:
                super().apply(position, one)
                position += 1
        else:
            super().apply(position, entry)


class SequenceApart(Apart):
    """Wrong on purpose: a store that writes a producer's sequence number too late.

    The sequence number is in the batch after the batch of its message.
    """

    def apply(self, position: i64, entry: StoreEntry) -> None:
        sequenced = (
            [one for one in entry.entries if isinstance(one, Sequenced)]
            if isinstance(entry, EntryGroup)
            else []
        )
        if not isinstance(entry, EntryGroup) or not sequenced:
            super().apply(position, entry)
            return
        self._later += sequenced
        for one in entry.entries:
            if one not in sequenced:
                super().apply(position, one)
            position += 1


class Lazy(StreamWrite):
    """Wrong on purpose: a write of stream rows that follows the write to the log."""

    def __init__(self, share: StreamWrite) -> None:
        self._share = share

    def write(self) -> None:
        """Do nothing: `settle` writes the rows."""

    def settle(self) -> None:
        try:
            self._share.write()
        except StoreError as error:
            raise Crash from error
        self._share.settle()


class LogFirst(WatchedStore):
    """Wrong on purpose: a store that logs the new end of a stream before it writes the rows."""

    def take(self) -> WriteBatch:
        batch = super().take()
        batch.stream_writes = [Lazy(share) for share in batch.stream_writes]
        return batch


def _buries(entry: EntryGroup) -> bool:
    letter = entry.entries[0]
    headers = (
        letter.message.properties.get("headers") if isinstance(letter, MessageStored) else None
    )
    return (
        isinstance(headers, dict)
        and "x-death" in headers
        and isinstance(entry.entries[-1], MessageSettled)
    )
