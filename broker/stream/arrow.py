"""Record batches of Arrow's IPC format: built by patching a template, read in place.

    message   FFFFFFFF | size of the metadata i32 | metadata (template.BATCH, patched) |
              buffers, each padded to 8 bytes
    metadata  number of rows; number of nulls of each column; start and length of each buffer;
              CRC-32 of the message

All segments have the same columns in the same order (template.COLUMNS), so buffers are found by
number. All numbers are little-endian. The checksum is custom metadata of the batch (`crc32`), which
Arrow's tools ignore.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i64_le
from mypy_extensions import i64

from broker.stream.columns import SparseColumn
from broker.stream.template import (
    BATCH,
    BODY,
    BUFFERS,
    BUFFERS_COUNT,
    COLUMNS,
    LENGTH,
    NODES,
    SCHEMA,
    SCHEMA_BASE,
    SCHEMA_EPOCH,
    SCHEMA_STREAM,
    SUM,
)

#: Size of a schema, and of a batch before its buffers, in bytes.
SCHEMA_SIZE: Final[i64] = len(SCHEMA)
BATCH_HEADER_SIZE: Final[i64] = len(BATCH)
#: The end marker after the batches of a full segment.
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

_CHECKSUM_DIGITS: Final[i64] = 8
_NUMBER_DIGITS: Final[i64] = 20
#: Buffers begin at multiples of 8 bytes.
_PADDING: Final = [bytes(count) for count in range(8)]
#: Widths of the columns of numbers, in bytes. The other columns are texts, with one buffer for
#: their ends and one for their bytes.
_WIDTHS: Final = {
    "offset": 8,
    "published_at": 8,
    "qos": 1,
    "routed": 4,
    "size": 8,
    "delivery_mode": 1,
    "priority": 1,
    "timestamp": 8,
}


def _first_buffers() -> dict[str, int]:
    indices: dict[str, int] = {}
    at = 0
    for name in COLUMNS:
        indices[name] = at
        at += 2 if name in _WIDTHS else 3
    assert at == int(BUFFERS_COUNT)
    return indices


#: Column -> number of its first buffer, the bitmap of values that are not null.
FIRST_BUFFER: Final = _first_buffers()
_OFFSETS_BUFFER: Final[i64] = FIRST_BUFFER["offset"] + 1
_TIMES_BUFFER: Final[i64] = FIRST_BUFFER["published_at"] + 1


def encode_schema(stream: int, epoch: int, base: int) -> bytes:
    """Return the schema of a segment, with its stream's number, its epoch and its first offset."""
    data = bytearray(SCHEMA)
    for at, value in ((SCHEMA_STREAM, stream), (SCHEMA_EPOCH, epoch), (SCHEMA_BASE, base)):
        data[at : at + _NUMBER_DIGITS] = b"%020d" % value
    return bytes(data)


def read_schema(data: bytes) -> tuple[int, int, int] | None:
    """Return (stream, epoch, base) from the start of a segment; None if it is damaged."""
    if len(data) < SCHEMA_SIZE:
        return None
    try:
        stream, epoch, base = (
            int(data[at : at + _NUMBER_DIGITS]) for at in (SCHEMA_STREAM, SCHEMA_EPOCH, SCHEMA_BASE)
        )
    except ValueError:
        return None
    return (
        (stream, epoch, base) if data[:SCHEMA_SIZE] == encode_schema(stream, epoch, base) else None
    )


class BatchBuilder:
    """A builder of one batch of `rows` rows. Columns must be added in their order."""

    def __init__(self, rows: i64) -> None:
        self.rows: i64 = rows
        self._nodes = BytesWriter()
        self._table = BytesWriter()
        #: The metadata, which `build` sets, and the buffers.
        self._parts: list[bytes | bytearray] = [b""]
        self._size: i64 = 0
        #: The bitmap and the ends of a text column that has only nulls.
        self._no_bits = bytes((int(rows) + 7) // 8)
        self._no_ends = bytes(4 * (int(rows) + 1))

    def _add_node(self, nulls: i64) -> None:
        write_i64_le(self._nodes, self.rows)
        write_i64_le(self._nodes, nulls)

    def _add_buffer(self, data: bytes) -> None:
        """Add the next buffer of the batch, padded to 8 bytes."""
        size: i64 = len(data)
        write_i64_le(self._table, self._size)
        write_i64_le(self._table, size)
        if size > 0:
            self._parts.append(data)
            rest: i64 = -size & 7
            if rest > 0:
                self._parts.append(_PADDING[rest])
            self._size += size + rest

    def add_numbers(self, data: bytes) -> None:
        """Add a column of numbers, encoded in `data`, without nulls."""
        self._add_node(0)
        self._add_buffer(b"")
        self._add_buffer(data)

    def add_encoded(self, nulls: i64, buffers: list[bytes]) -> None:
        """Add a column with `nulls` nulls, whose buffers are encoded already."""
        self._add_node(nulls)
        for data in buffers:
            self._add_buffer(data)

    def add_texts(self, ends: bytes, data: bytes) -> None:
        """Add a column of texts without nulls.

        `ends` are the encoded end offsets of the texts, `data` is the concatenated texts.
        """
        self._add_node(0)
        self._add_buffer(b"")
        self._add_buffer(ends)
        self._add_buffer(data)

    def add_long_texts(self, ends: bytes, parts: list[bytes], size: i64) -> None:
        """Add a column of texts without nulls.

        `ends` are the encoded end offsets of the texts. `parts` are pieces of the concatenated
        texts, which have `size` bytes in all.
        """
        self._add_node(0)
        self._add_buffer(b"")
        self._add_buffer(ends)
        write_i64_le(self._table, self._size)
        write_i64_le(self._table, size)
        self._parts += parts
        rest: i64 = -size & 7
        if rest > 0:
            self._parts.append(_PADDING[rest])
        self._size += size + rest

    def add_sparse(self, column: SparseColumn) -> None:
        """Add a column of numbers or texts that may be null."""
        nulls: i64 = self.rows - column.count
        self._add_node(nulls)
        self._add_buffer(
            b""
            if nulls == 0
            else self._no_bits
            if column.count == 0
            else column.encode_validity(self.rows)
        )
        if column.width > 0:
            self._add_buffer(column.encode_numbers(self.rows))
        elif column.count == 0:
            self._add_buffer(self._no_ends)
            self._add_buffer(b"")
        else:
            ends, texts = column.encode_texts(self.rows)
            self._add_buffer(ends)
            self._add_buffer(texts)

    def build(self) -> bytearray:
        """Return the batch as a complete Arrow message, with its checksum."""
        meta = bytearray(BATCH)
        _patch(meta, BODY, self._size)
        _patch(meta, LENGTH, self.rows)
        table, nodes = self._table.getvalue(), self._nodes.getvalue()
        meta[BUFFERS : BUFFERS + len(table)] = table
        meta[NODES : NODES + len(nodes)] = nodes
        self._parts[0] = meta
        # Join once, into a bytearray to which the checksum can be written: copying bodies is most
        # of the cost of a stream.
        message = bytearray().join(self._parts)
        message[SUM : SUM + _CHECKSUM_DIGITS] = b"%08x" % crc32(message)
        return message


def _patch(meta: bytearray, at: i64, number: i64) -> None:
    meta[at : at + 8] = int(number).to_bytes(8, "little")


def _with_checksum(meta: bytearray, body: bytes) -> bytes:
    """Return an Arrow message with its checksum; `meta` must have zeros in the checksum's place."""
    meta[SUM : SUM + _CHECKSUM_DIGITS] = b"%08x" % crc32(body, crc32(meta))
    return bytes(meta) + body


class BatchView:
    """A batch that is read in place: it begins at index `at` of `data` and ends before `end`.

    The batch has `rows` rows, from offset `base` of the stream on.
    """

    def __init__(self, data: bytes, at: i64) -> None:
        self.data = data
        self.at: i64 = at
        self.buffers_start: i64 = at + BATCH_HEADER_SIZE
        self.end: i64 = self.buffers_start + read_i64_le(data, at + BODY)
        self.rows: i64 = read_i64_le(data, at + LENGTH)
        self.base: i64 = read_i64_le(
            data, self.buffers_start + read_i64_le(data, at + BUFFERS + 16 * _OFFSETS_BUFFER)
        )

    def buffer_start(self, buffer: i64) -> i64:
        """Return the index in `data` at which a buffer begins; `buffer` is its number."""
        return self.buffers_start + read_i64_le(self.data, self.at + BUFFERS + 16 * buffer)

    def published_at(self, row: i64) -> i64:
        """Return the time when a row was published, in microseconds of Unix time."""
        return read_i64_le(self.data, self.buffer_start(_TIMES_BUFFER) + 8 * row)

    def has_no_nulls(self, column: str) -> bool:
        """True if no row of a column is null."""
        first: i64 = FIRST_BUFFER[column]
        return read_i64_le(self.data, self.at + BUFFERS + 16 * first + 8) == 0

    def is_null(self, column: str, row: i64) -> bool:
        """True if the value of a column is null in a row."""
        first: i64 = FIRST_BUFFER[column]
        if self.has_no_nulls(column):
            return False
        bits: i64 = self.data[self.buffer_start(first) + (row >> 3)]
        return bits >> (row & 7) & 1 == 0

    def text(self, column: str, row: i64) -> bytes:
        """Return the bytes of the text in a column and row; empty for null."""
        data = self.data
        ends: i64 = self.buffer_start(i64(FIRST_BUFFER[column]) + 1) + 4 * row
        texts: i64 = self.buffer_start(i64(FIRST_BUFFER[column]) + 2)
        return data[texts + i64(read_i32_le(data, ends)) : texts + i64(read_i32_le(data, ends + 4))]

    def value(self, column: str, row: i64) -> object:
        """Return a value as pyarrow does, except that times are numbers in the column's unit."""
        if self.is_null(column, row):
            return None
        width = _WIDTHS.get(column)
        if width is not None:
            at: i64 = self.buffer_start(i64(FIRST_BUFFER[column]) + 1) + width * row
            return int.from_bytes(self.data[at : at + width], "little", signed=width > 1)
        data = self.text(column, row)
        return data if column in ("content_header", "routing_key", "body") else data.decode()

    def is_intact(self) -> bool:
        """True if the checksum of the batch is correct."""
        meta = bytearray(self.data[self.at : self.buffers_start])
        checksum = bytes(meta[SUM : SUM + _CHECKSUM_DIGITS])
        meta[SUM : SUM + _CHECKSUM_DIGITS] = b"00000000"
        return checksum == b"%08x" % crc32(
            memoryview(self.data)[self.buffers_start : self.end], crc32(meta)
        )

    def first_rows(self, count: i64) -> bytes:
        """Return an Arrow message that has only the first `count` rows of the batch.

        The buffers still have the values of the other rows, which readers ignore.
        """
        meta = bytearray(self.data[self.at : self.buffers_start])
        meta[SUM : SUM + _CHECKSUM_DIGITS] = b"00000000"
        _patch(meta, LENGTH, count)
        for number, column in enumerate(COLUMNS):
            nulls: i64 = 0
            row: i64 = 0
            while row < count:
                if self.is_null(column, row):
                    nulls += 1
                row += 1
            _patch(meta, NODES + 16 * number, count)
            _patch(meta, NODES + 16 * number + 8, nulls)
        return _with_checksum(meta, self.data[self.buffers_start : self.end])


def view_batch(data: bytes, at: i64) -> BatchView | None:
    """Return the batch at index `at`; None if no complete batch begins there."""
    size: i64 = len(data)
    if at + BATCH_HEADER_SIZE > size or data[at : at + 8] != BATCH[:8]:
        return None
    body: i64 = read_i64_le(data, at + BODY)
    if body < 8 or body > size - at - BATCH_HEADER_SIZE or read_i64_le(data, at + LENGTH) <= 0:
        return None
    # In each batch, the offsets are the first buffer.
    if read_i64_le(data, at + BUFFERS + 16 * _OFFSETS_BUFFER) != 0:
        return None
    return BatchView(data, at)


def batch_size(data: bytes, at: i64) -> i64:
    """Return the size, in bytes, of the batch at index `at`; 0 if no batch begins there.

    If `data` ends before a whole header, return the size of a header.
    """
    if at + BATCH_HEADER_SIZE > len(data):
        return BATCH_HEADER_SIZE
    body: i64 = read_i64_le(data, at + BODY)
    return BATCH_HEADER_SIZE + body if data[at : at + 8] == BATCH[:8] and 8 <= body < 1 << 40 else 0
