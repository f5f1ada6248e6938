"""Finds the live records of the log (survivors): recovery restores them, a checkpoint copies them.

Only the positions of messages are kept (live_messages.py).
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.store.disk import DamagedStore
from broker.store.files import LogFile, file_holding
from broker.store.layout import (
    COUNTED_SIZE,
    DELIVERY_COUNTED,
    DELIVERY_MARK,
    GROUP,
    MARK_SIZE,
    PACKET_ID_HELD,
    PACKET_ID_RELEASED,
    PUBREC_RECEIVED,
    QUEUE_SIZE,
    RETAINED,
    SEQUENCED,
    SETTLED,
    STORED,
    STREAM_EXTENDED,
)
from broker.store.live_messages import LiveMessages, ScannedMessages
from broker.store.reading import group_members
from broker.store.replay import Replay
from broker.store.segments import SegmentLog

_U16: Final[i64] = 0xFFFF
_U32: Final[i64] = 0xFFFFFFFF
_ALL: Final = (1 << 63) - 1
_NO_ENTRY: Final = (0, 0)


class Survivors(Replay):
    """A Replay that finds the live records.

    `holder_numbers` are the numbers of all existing queues, sessions, streams and delayed
    exchanges; a message that none of them holds is dead. `newest_number` is the last position in
    the catalog. `copies` is an empty collection that gets the messages. The default is
    ScannedMessages, which also lists settled messages, as a checkpoint requires.
    """

    def __init__(
        self,
        holder_numbers: set[int],
        newest_number: i64 = 0,
        copies: LiveMessages | None = None,
    ) -> None:
        self.holder_numbers = holder_numbers
        self.newest_number: i64 = newest_number
        #: Number of references in the log to queues and streams with numbers above `newest_number`:
        #: `unknown_holders` in all batches before the last, `unconfirmed_holders` in the last
        #: batch. References in the last batch are no damage: a crash came between the write of the
        #: log and the write of the catalog, so the declarations were never confirmed.
        self.unknown_holders: i64 = 0
        self.unconfirmed_holders: i64 = 0
        self.copies: LiveMessages = ScannedMessages() if copies is None else copies
        #: (queue, position) of QoS 2 messages whose PUBREC came.
        self.pubrec_received: set[tuple[int, int]] = set()
        #: Session -> held packet identifier -> position of the last entry about it.
        self.held_packet_ids: dict[int, dict[int, int]] = {}
        #: (virtual host, topic) -> position of its retained message.
        self.retained: dict[tuple[str, str], int] = {}
        #: Stream -> its end (offset of the next row), and the position of the last entry about it.
        self.streams: dict[int, tuple[int, int]] = {}
        #: (scope, producer) -> last sequence number, and the position of its entry; see Sequenced.
        #: The number that was stored last is at the end.
        self.sequences: dict[tuple[str, str], tuple[int, int]] = {}
        #: Queue -> rank -> its delivery mark, and the position of the mark's entry.
        self.marks: dict[int, dict[int, tuple[int, int]]] = {}
        #: (queue, position) of a message -> its delivery count, and the position of the entry.
        self.counts: dict[tuple[int, int], tuple[int, int]] = {}
        #: (file, queue, position) of each PUBREC and each delivery count that stands behind a
        #: checkpoint, in `file`, and is about a message of the checkpoint.
        self.late_notes: list[tuple[str, int, int]] = []
        self._files: list[LogFile] = []
        self._first: i64 = 0

    def file(self, files: list[LogFile]) -> None:
        self._files = files
        self._first = files[-1].first

    def batch(self) -> None:
        self.unknown_holders += self.unconfirmed_holders
        self.unconfirmed_holders = 0

    def record(self, kind: i64, position: i64, data: bytes, start: i64, end: i64) -> None:
        """Process a record. Raises DamagedStore if its payload is impossible. Hot path."""
        if kind == GROUP:
            for member in group_members(data, position, start, end):
                self.record(member.kind, member.position, data, member.start, member.end)
        elif kind == STORED:
            size: i64 = end - start
            left: i64 = i64(read_i32_be(data, start)) & _U32
            start += 4
            if start + left * QUEUE_SIZE > end:
                raise DamagedStore("the record ends within the message that it stores")
            queues: list[int] = []
            while left > 0:
                queue: i64 = read_i64_be(data, start)
                start += QUEUE_SIZE
                left -= 1
                if queue in self.holder_numbers:
                    queues.append(queue)
                elif queue > self.newest_number:
                    self.unconfirmed_holders += 1
            self.copies.add(position, queues, size)
        elif kind in (SETTLED, PUBREC_RECEIVED, DELIVERY_COUNTED):
            settled: i64 = read_i64_be(data, start + 8)
            if settled < self._first and self.copies.is_held(read_i64_be(data, start), settled):
                self._need(settled)
            if kind == PUBREC_RECEIVED:
                self.pubrec_received.add((read_i64_be(data, start), settled))
                return
            if kind == DELIVERY_COUNTED:
                if end - start != COUNTED_SIZE:
                    raise DamagedStore("the record of a delivery count has a wrong size")
                if self.copies.is_held(read_i64_be(data, start), settled):
                    self.counts[read_i64_be(data, start), settled] = (
                        read_i32_be(data, start + 16),
                        position,
                    )
                return
            self.copies.settle(read_i64_be(data, start), settled)
            if self.counts:
                self.counts.pop((read_i64_be(data, start), settled), None)
            if self.pubrec_received:
                self.pubrec_received.discard((read_i64_be(data, start), settled))
        else:
            previous = self._end(kind, data, start, end)
            if 0 < previous < self._first:
                self._need(previous)
            self._begin(kind, position, data, start, end)

    def late(
        self, file: LogFile, last: i64, kind: i64, position: i64, data: bytes, start: i64, end: i64
    ) -> None:
        """Process a durable record of `file` that comes after `last`, a checkpoint's last position.

        If the record settles or supersedes an entry, the checkpoint omits this entry.
        """
        if kind == GROUP:
            for member in group_members(data, position, start, end):
                self.late(file, last, member.kind, member.position, data, member.start, member.end)
        elif kind == SETTLED:
            self.copies.settle(read_i64_be(data, start), read_i64_be(data, start + 8))
        elif kind in (PUBREC_RECEIVED, DELIVERY_COUNTED):
            if read_i64_be(data, start + 8) <= last:
                self.late_notes.append(
                    (file.name, read_i64_be(data, start), read_i64_be(data, start + 8))
                )
        elif kind != STORED:
            self._end(kind, data, start, end)

    def _end(self, kind: i64, data: bytes, start: i64, end: i64) -> i64:
        """Remove the entry that this record supersedes; return its position, 0 if there is none.

        A record supersedes the last entry about the same packet identifier, retained message,
        stream, delivery mark or producer.
        """
        if kind in (PACKET_ID_HELD, PACKET_ID_RELEASED):
            session: i64 = read_i64_be(data, start)
            return self.held_packet_ids.get(session, {}).pop(_u16(data, start + 8), 0)
        if kind == RETAINED:
            return self.retained.pop(retained_key(data, start), 0)
        if kind == STREAM_EXTENDED:
            return self.streams.pop(read_i64_be(data, start), _NO_ENTRY)[1]
        if kind == DELIVERY_MARK:
            if end - start != MARK_SIZE:
                raise DamagedStore("a delivery mark has a wrong size")
            marks = self.marks.get(read_i64_be(data, start))
            return 0 if marks is None else marks.pop(_u16(data, start + 16), _NO_ENTRY)[1]
        if kind == SEQUENCED:
            return self.sequences.pop(producer_key(data, start, end), _NO_ENTRY)[1]
        return 0

    def _begin(self, kind: i64, position: i64, data: bytes, start: i64, end: i64) -> None:
        """Add an entry. The caller must first call `_end` for the entry that the new entry
        supersedes.
        """
        if kind == PACKET_ID_HELD:
            session: i64 = read_i64_be(data, start)
            if session in self.holder_numbers:
                self.held_packet_ids.setdefault(session, {})[_u16(data, start + 8)] = position
        elif kind == RETAINED:
            names: i64 = start + 4 + _u16(data, start) + _u16(data, start + 2)
            if names < end:
                self.retained[retained_key(data, start)] = position
        elif kind == STREAM_EXTENDED:
            stream: i64 = read_i64_be(data, start)
            if stream in self.holder_numbers:
                self.streams[stream] = (read_i64_be(data, start + 8), position)
            elif stream > self.newest_number:
                self.unconfirmed_holders += 1
        elif kind == DELIVERY_MARK:
            queue: i64 = read_i64_be(data, start)
            if queue in self.holder_numbers:
                self.marks.setdefault(queue, {})[_u16(data, start + 16)] = (
                    read_i64_be(data, start + 8),
                    position,
                )
            elif queue > self.newest_number:
                self.unconfirmed_holders += 1
        elif kind == SEQUENCED:
            sequence: i64 = read_i64_be(data, start)
            if sequence >= 0:
                self.sequences[producer_key(data, start, end)] = (sequence, position)

    def _need(self, position: i64) -> None:
        """Count an entry of the current file that refers to the entry at `position`.

        The other entry is in an earlier file. The attribute `needs` of the current file has the
        number of such entries by the name of the earlier file.
        """
        other = file_holding(self._files, position)
        if other is not None and position <= other.last:
            needs = self._files[-1].needs
            needs[other.name] = needs.get(other.name, 0) + 1

    def follow(self) -> None:
        """Expect the records of new batches from now on, after the scan of the log.

        From now on, the log itself counts the live entries of its files. Each queue, session or
        stream of a record is known, because its definition comes before the batch or with it.
        """
        self._files = []
        self._first = 0
        self.newest_number = _ALL

    def remove_holder(self, number: int) -> None:
        """Remove the entries about a removed queue, session or stream, except its messages."""
        self.held_packet_ids.pop(number, None)
        self.streams.pop(number, None)
        self.marks.pop(number, None)

    def count_live(self, log: SegmentLog) -> None:
        """Add the live records to the counts of their files, after recovery."""
        self.copies.count_live(log.files)
        held = {session: dict(packet_ids) for session, packet_ids in self.held_packet_ids.items()}
        streams = {stream: position for stream, (_, position) in self.streams.items()}
        sequences = {producer: position for producer, (_, position) in self.sequences.items()}
        marks = {
            queue: {rank: position for rank, (_, position) in ranks.items()}
            for queue, ranks in self.marks.items()
        }
        log.liveness.recovered(held, streams, sequences, marks)
        for packet_ids in held.values():
            log.count_live(packet_ids.values())
        log.count_live(streams.values())
        log.count_live(sequences.values())
        log.count_live(self.retained.values())
        for ranks in marks.values():
            log.count_live(ranks.values())
        for file in log.files:
            file.counted = True

    def marks_of(self, queue: int) -> dict[int, int]:
        """Return the delivery marks of a queue by rank: 0, or the priority in a priority queue."""
        return {rank: mark for rank, (mark, _) in self.marks.get(queue, {}).items()}

    def counts_by_queue(self) -> dict[int, dict[int, int]]:
        """Return the delivery counts of messages by queue number, then by position."""
        counts: dict[int, dict[int, int]] = {}
        for (queue, position), (count, _) in self.counts.items():
            counts.setdefault(queue, {})[position] = count
        return counts

    def known_number(self) -> int:
        """Return the highest number up to which the catalog is known to have all definitions.

        If the catalog has lost its end, definitions with higher numbers may be missing. If the
        catalog is whole, the result is _ALL, which is higher than every number.
        """
        return int(self.newest_number) if self.unknown_holders else _ALL

    def holds_packet_id(self, data: bytes, start: i64, position: i64) -> bool:
        """True if the PACKET_ID_HELD record at `position` is the last record about its packet
        identifier.
        """
        return (
            self.held_packet_ids.get(read_i64_be(data, start), {}).get(_u16(data, start + 8))
            == position
        )

    def pubrec_received_by_queue(self) -> dict[int, set[int]]:
        """Return the positions of the messages with a PUBREC, by inbox number."""
        positions: dict[int, set[int]] = {}
        for queue, position in self.pubrec_received:
            positions.setdefault(queue, set()).add(position)
        return positions


def retained_key(data: bytes, start: i64) -> tuple[str, str]:
    """Return the virtual host and the topic of a RetainedSet, encoded from data[start] on."""
    vhost: i64 = start + 4 + _u16(data, start)
    return data[start + 4 : vhost].decode(), data[vhost : vhost + _u16(data, start + 2)].decode(
        "utf-8", "surrogateescape"
    )


def producer_key(data: bytes, start: i64, end: i64) -> tuple[str, str]:
    """Return the scope and the producer of a Sequenced, encoded in data[start:end]."""
    scope: i64 = start + 10 + _u16(data, start + 8)
    return data[start + 10 : scope].decode(), data[scope:end].decode("utf-8", "surrogateescape")


def _u16(data: bytes, at: i64) -> i64:
    return i64(read_i16_be(data, at)) & _U16
