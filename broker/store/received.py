"""Records of a batch that another node encoded, for a directory that follows a replicated log.

The bytes are appended as they are. They are also read, to check every checksum, and to find the
counts that a Recorder collects while it encodes entries (records.py).
"""

from __future__ import annotations

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i64_be
from mypy_extensions import i64

from broker.store.batch_records import Records
from broker.store.codecs import Codecs
from broker.store.disk import DamagedStore
from broker.store.files import SUM_MASK, entry_hash
from broker.store.layout import (
    CLOSED,
    DELIVERY_COUNTED,
    GROUP,
    INDEX_STRIDE,
    PUBREC_RECEIVED,
    QUEUE_SIZE,
    SETTLED,
    STORED,
)
from broker.store.reading import END, MEMBER_HEADER_SIZE, Decoder, RecordReader, group_members
from broker.store.replay import Replay


class ReceivedRecords:
    """A reader of the records of received batches."""

    def __init__(self, codecs: Codecs, seed: i64) -> None:
        """Create a reader. `seed` is the seed of the log's checksums (SegmentLog.seed)."""
        self._decoder = Decoder(codecs)
        self._seed: i64 = seed

    def read(self, data: bytes, after: i64) -> Records:
        """Return the records in `data`, whose positions must be above `after`.

        Raises DamagedStore if the bytes are not the records of one whole batch of this log.
        """
        records = Records()
        if not data:
            return records
        records.parts.append(data)
        records.size = len(data)
        reader = RecordReader(self._seed, after)
        reader.load(data, 0)
        marked: i64 = -INDEX_STRIDE
        while reader.advance():
            if reader.first_of_batch != (records.count == 0) or reader.kind == CLOSED:
                text = f"the records up to position {reader.position} are not one whole batch"
                raise DamagedStore(text)
            if records.count == 0:
                records.first = reader.position
            records.count += 1
            records.last = reader.last
            if reader.record_start - marked >= INDEX_STRIDE:
                marked = reader.record_start
                records.marks.append((int(reader.position), int(marked)))
            self._count_record(records, reader)
        if reader.stop != END:
            raise DamagedStore(reader.reason or "the last record of a batch is cut off")
        return records

    def replay(self, data: bytes, replay: Replay) -> None:
        """Pass the records in `data`, which `read` has checked, to a Replay."""
        reader = RecordReader(self._seed, 0)
        reader.skip_checksums = True
        reader.load(data, 0)
        while reader.advance():
            replay.record(reader.kind, reader.position, data, reader.start, reader.end)

    def _count_record(self, records: Records, reader: RecordReader) -> None:
        data = reader.data
        if reader.kind != GROUP:
            size: i64 = reader.end - reader.record_start
            self._count(records, reader.kind, reader.position, data, reader.start, reader.end, size)
            return
        for member in group_members(data, reader.position, reader.start, reader.end):
            size = MEMBER_HEADER_SIZE + member.end - member.start
            self._count(records, member.kind, member.position, data, member.start, member.end, size)

    def _count(
        self,
        records: Records,
        kind: i64,
        position: i64,
        data: bytes,
        start: i64,
        end: i64,
        size: i64,
    ) -> None:
        """Add an entry to the counts that schedule checkpoints and find dead files."""
        if kind == STORED:
            _count_copies(records, position, data, start, end)
            records.stored_size += size
            return
        records.transient_size += size
        if kind == SETTLED:
            _copy_numbers(records.settled, data, start)
        elif kind in (PUBREC_RECEIVED, DELIVERY_COUNTED):
            _copy_numbers(records.noted, data, start)
        else:
            entry = self._decoder.entry(kind, position, data, start, end)
            records.keyed.append((int(position), entry))


def _copy_numbers(out: BytesWriter, data: bytes, start: i64) -> None:
    """Write to `out` the queue number and the position with which the payload at `start` begins."""
    write_i64_be(out, read_i64_be(data, start))
    write_i64_be(out, read_i64_be(data, start + 8))


def _count_copies(records: Records, position: i64, data: bytes, start: i64, end: i64) -> None:
    count: i64 = i64(read_i32_be(data, start)) & 0xFFFFFFFF
    if start + 4 + count * QUEUE_SIZE > end:
        raise DamagedStore(f"the record ends within the message at position {position}")
    records.copies += count
    at: i64 = start + 4
    balance: i64 = records.balance
    while count > 0:
        balance += entry_hash(read_i64_be(data, at), position)
        at += QUEUE_SIZE
        count -= 1
    records.balance = balance & SUM_MASK
