"""Designs that are known to be wrong: the checks must catch each of them, or they catch nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mypy_extensions import i64

from broker.store.contract import (
    EntryGroup,
    MessageSettled,
    MessageStored,
    Sequenced,
    StoreEntry,
    StreamWrite,
    WriteBatch,
)
from broker.store.disk import File, StoreError
from broker.store.files import LogFile
from broker.store.segments import LogReader
from tests.store.simulated import SimulatedDisk
from tests.store.simulation.journal import WatchedStore
from tests.store.simulation.life import Crash, Life
from tests.store.test_powerloss import InPlace


def moved_forward(life: Life, files: list[LogFile]) -> Iterator[None]:
    """What is live of the first files goes to the end of the log, under new positions."""
    store, last = life.durable_store, int(files[-1].last)
    reader = store.log.reader()
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
    """The new checkpoint is written where the last one stands.

    (What it is made of is read before: only the crash is wrong.)
    """
    log = life.durable_store.log
    for file in files:
        file.take(_copy(life.disk, file.path))
    checkpointing = InPlace(log, files, set(life.durable_store.holder_numbers))
    while checkpointing.step():
        yield


def _copy(disk: SimulatedDisk, path: str) -> File:
    return SimulatedDisk({path: bytes(disk.names[path].now)}).open(path, False)


class WithoutSerials(WatchedStore):
    """Sessions count anew after a start."""

    def read_stored(self, reader: LogReader, position: i64) -> MessageStored | None:
        kept = super().read_stored(reader, position)
        return None if kept is None else MessageStored(kept.vhost, kept.message, kept.queues)


class Apart(WatchedStore):
    """Some entries are kept back until the batch after the one in which they should be."""

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
    """A dead letter is a record, and its settlement another one, which comes when the letter is on
    its way to the disk.
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
    """The number of a producer is a record of its own, which comes when its message is on its way
    to the disk.
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
    """Segments are written when it is said that they are."""

    def __init__(self, share: StreamWrite) -> None:
        self._share = share

    def write(self) -> None:
        """Later."""

    def settle(self) -> None:
        try:
            self._share.write()
        except StoreError as error:
            raise Crash from error
        self._share.settle()


class LogFirst(WatchedStore):
    """The log says how far a stream is before the stream is so far."""

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
