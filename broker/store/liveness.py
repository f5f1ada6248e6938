"""Counts of the live entries of each file, by which dead files are found without reading them.

An entry is live while recovery needs it. A message is live while a queue holds it. Of the entries
about one packet identifier, retained message, stream, producer or delivery mark, the last is live.
(A PUBREC and a delivery count are not counted: they are needed as long as their message.) Each
LogFile has these attributes:

    live, balance   the number of live entries in the file, and the sum of their `entry_hash`. A
                    settlement subtracts what its message added: 1, and the hash. The file is dead
                    if both values are 0. The hashes guard against errors: if a message was settled
                    twice and another message never, `live` may be 0, but `balance` is not. Such a
                    file is never dropped. Only a checkpoint, which reads the file, replaces it.
    needs           the other files that entries of this file are about, such as the files of the
                    messages that this file settles. While one of those files exists, this file must
                    stay: without its settlements, a restart would restore the settled messages.

Only durable entries are counted. A settlement that is not durable may be lost in a crash, so the
file of its message must not be removed yet.
"""

from __future__ import annotations

from librt.strings import read_i64_be
from mypy_extensions import i64

from broker.store.batch_records import Records
from broker.store.entries import (
    DeliveryMark,
    PacketIdHeld,
    PacketIdReleased,
    RetainedSet,
    Sequenced,
    StoreEntry,
    StreamExtended,
)
from broker.store.files import SUM_MASK, LogFile, entry_hash, file_holding


class Liveness:
    """Keeps the number of live entries of each file of the log up to date.

    For each packet identifier, stream, producer and delivery mark, the object has the position of
    the last entry.
    """

    def __init__(self) -> None:
        #: Grows by one before and after each change, so it is odd while counts change. Another
        #: thread has read consistent counts if this number was even before the read, and had the
        #: same value after it.
        self.changes: i64 = 0
        #: Session -> packet identifier -> position of the entry that holds the identifier.
        self._held: dict[int, dict[int, int]] = {}
        #: Stream -> position of the last entry about its end.
        self._streams: dict[int, int] = {}
        #: (scope, producer) -> position of the entry with its last sequence number.
        self._sequences: dict[tuple[str, str], int] = {}
        #: Queue -> rank -> position of the entry with its last delivery mark.
        self._marks: dict[int, dict[int, int]] = {}

    def recovered(
        self,
        held: dict[int, dict[int, int]],
        streams: dict[int, int],
        sequences: dict[tuple[str, str], int],
        marks: dict[int, dict[int, int]],
    ) -> None:
        """Set the position of the last entry about each key, as recovery found it.

        `held` maps session -> packet identifier -> position, `streams` maps stream -> position,
        `sequences` maps (scope, producer) -> position, `marks` maps queue -> rank -> position.
        """
        self._held, self._streams, self._sequences = held, streams, sequences
        self._marks = marks

    def count(self, files: list[LogFile], file: LogFile, records: Records) -> None:
        """Add a batch's records, which are durable in `file`, to the counts of the files. Hot path.

        `file` is the last of `files`. The caller adds 1 to `changes` before and after the call, so
        an odd number tells other threads that the counts are incomplete.
        """
        file.live += records.copies
        file.balance = (file.balance + records.balance) & SUM_MASK
        covering: LogFile | None = None
        needed: i64 = 0
        data = records.settled.getvalue()
        at: i64 = 0
        while at < len(data):
            queue: i64 = read_i64_be(data, at)
            position: i64 = read_i64_be(data, at + 8)
            at += 16
            if covering is None or position < covering.first or position > covering.last:
                _need(file, covering, needed)
                needed = 0
                covering = _covering(files, position)
            if covering is not None:
                needed += 1
                covering.settled += 1
                covering.live -= 1
                covering.balance = (covering.balance - entry_hash(queue, position)) & SUM_MASK
        _need(file, covering, needed)
        data = records.noted.getvalue()
        at = 8
        while at < len(data):
            _need(file, _covering(files, read_i64_be(data, at)), 1)
            at += 16
        for position_, entry in records.keyed:
            self._count_keyed(files, file, position_, entry)

    def settle(self, files: list[LogFile], queue: i64, position: i64) -> None:
        """Count a message of a deleted queue as settled, without an entry in the log."""
        self.changes += 1
        file = _covering(files, position)
        if file is not None:
            file.settled += 1
            file.live -= 1
            file.balance = (file.balance - entry_hash(queue, position)) & SUM_MASK
        self.changes += 1

    def remove_holder(self, files: list[LogFile], number: int) -> None:
        """Count the entries about a removed queue, session or stream as no longer live.

        The removal must be durable. Do nothing if `number` belongs to a definition of another kind.
        """
        self.changes += 1
        for position in self._held.pop(number, {}).values():
            _end(files, position)
        for position in self._marks.pop(number, {}).values():
            _end(files, position)
        end = self._streams.pop(number, 0)
        if end:
            _end(files, end)
        self.changes += 1

    def _count_keyed(
        self, files: list[LogFile], file: LogFile, position: i64, entry: StoreEntry
    ) -> None:
        previous: i64 = 0
        lasts = True
        if isinstance(entry, PacketIdHeld):
            held = self._held.setdefault(entry.session, {})
            previous = held.get(entry.packet_id, 0)
            held[entry.packet_id] = position
        elif isinstance(entry, PacketIdReleased):
            held = self._held.get(entry.session, {})
            previous = held.pop(entry.packet_id, 0)
            lasts = False
            if previous and not held:
                del self._held[entry.session]
        elif isinstance(entry, RetainedSet):
            previous = entry.previous
            lasts = entry.message is not None
        elif isinstance(entry, StreamExtended):
            previous = self._streams.get(entry.stream, 0)
            self._streams[entry.stream] = position
        elif isinstance(entry, DeliveryMark):
            marks = self._marks.setdefault(entry.queue, {})
            previous = marks.get(entry.rank, 0)
            marks[entry.rank] = position
        elif isinstance(entry, Sequenced):
            key = (entry.scope, entry.producer)
            previous = self._sequences.pop(key, 0)
            lasts = entry.sequence >= 0
            if lasts:
                self._sequences[key] = position
        if lasts:
            file.live += 1
            file.balance = (file.balance + entry_hash(0, position)) & SUM_MASK
        if previous < 0:
            file.counted = False
        elif previous > 0:
            _need(file, _end(files, previous), 1)


def _end(files: list[LogFile], position: i64) -> LogFile | None:
    """Count the entry at a position as no longer live; return its file, None if it is removed."""
    file = _covering(files, position)
    if file is not None:
        file.live -= 1
        file.balance = (file.balance - entry_hash(0, position)) & SUM_MASK
    return file


def _covering(files: list[LogFile], position: i64) -> LogFile | None:
    """Return the file that holds a position; None if that file no longer exists."""
    file = file_holding(files, position)
    return file if file is not None and position <= file.last else None


def _need(file: LogFile, other: LogFile | None, entries: i64) -> None:
    """Add `entries` to the number of entries of `file` that refer to entries of the file `other`.

    For example, a settlement refers to the message that it settles. Do nothing if `other` is None.
    """
    if other is not None and other is not file and entries > 0:
        file.needs[other.name] = file.needs.get(other.name, 0) + int(entries)
