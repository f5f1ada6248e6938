"""Record batches of Arrow's IPC format, as octets: written by patching a template, read where they
stand.

    message   FFFFFFFF | size of the metadata i32 | metadata (template.BATCH, patched) | buffers, each padded to 8 octets
    metadata  rows, and of each column its nulls; of each buffer where it begins and its length; crc32 of the message

All columns have the same order in every segment (template.COLUMNS), so a buffer is found by its
number. All numbers are little-endian. The checksum stands in the batch's own metadata (`crc32`),
which Arrow's tools pass over.
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

#: Octets of a schema, and of a batch before its buffers.
SCHEMA_SIZE: Final[i64] = len(SCHEMA)
BATCH_HEADER_SIZE: Final[i64] = len(BATCH)
#: Ends a stream of batches.
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

_CHECKSUM_DIGITS: Final[i64] = 8
_NUMBER_DIGITS: Final[i64] = 20
#: Buffers begin at multiples of 8 octets.
_PADDING: Final = [bytes(count) for count in range(8)]
#: Kinds of columns: their widths in octets; texts have two buffers of data.
_TEXT: Final = 0
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
    found: dict[str, int] = {}
    at = 0
    for name in COLUMNS:
        found[name] = at
        at += 2 if name in _WIDTHS else 3
    assert at == int(BUFFERS_COUNT)
    return found


#: Column -> number of its first buffer, which says what is null.
FIRST_BUFFER: Final = _first_buffers()
_OFFSETS_BUFFER: Final[i64] = FIRST_BUFFER["offset"] + 1
_TIMES_BUFFER: Final[i64] = FIRST_BUFFER["published_at"] + 1


def encode_schema(stream: int, epoch: int, base: int) -> bytes:
    """How a segment begins: whose it is, which epoch, and its first offset."""
    data = bytearray(SCHEMA)
    for at, value in ((SCHEMA_STREAM, stream), (SCHEMA_EPOCH, epoch), (SCHEMA_BASE, base)):
        data[at : at + _NUMBER_DIGITS] = b"%020d" % value
    return bytes(data)


def read_schema(data: bytes) -> tuple[int, int, int] | None:
    """(stream, epoch, base) of a segment that begins so; None when it does not begin like one of
    ours.
    """
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
    """The buffers of a batch that is made, in the order of the columns, all for so many `rows`."""

    def __init__(self, rows: i64) -> None:
        self.rows: i64 = rows
        self._nodes = BytesWriter()
        self._table = BytesWriter()
        #: The first is where the metadata will stand.
        self._parts: list[bytes | bytearray] = [b""]
        self._size: i64 = 0
        #: Of a column in which all is null: which are not, and where its texts end.
        self._no_bits = bytes((int(rows) + 7) // 8)
        self._no_ends = bytes(4 * (int(rows) + 1))

    def _add_node(self, nulls: i64) -> None:
        write_i64_le(self._nodes, self.rows)
        write_i64_le(self._nodes, nulls)

    def _add_buffer(self, data: bytes) -> None:
        """The next buffer."""
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
        """A column of numbers."""
        self._add_node(0)
        self._add_buffer(b"")
        self._add_buffer(data)

    def add_texts(self, ends: bytes, data: bytes) -> None:
        """A column of octets."""
        self._add_node(0)
        self._add_buffer(b"")
        self._add_buffer(ends)
        self._add_buffer(data)

    def add_long_texts(self, ends: bytes, parts: list[bytes], size: i64) -> None:
        """A column of octets, `size` in all, that come in parts."""
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
        """A column with nulls."""
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
            ends, octets = column.encode_texts(self.rows)
            self._add_buffer(ends)
            self._add_buffer(octets)

    def build(self) -> bytearray:
        """The message with all of it."""
        meta = bytearray(BATCH)
        _patch(meta, BODY, self._size)
        _patch(meta, LENGTH, self.rows)
        table, nodes = self._table.getvalue(), self._nodes.getvalue()
        meta[BUFFERS : BUFFERS + len(table)] = table
        meta[NODES : NODES + len(nodes)] = nodes
        self._parts[0] = meta
        # Put together once, where the checksum can still be written: bodies are most of what a
        # stream costs.
        message = bytearray().join(self._parts)
        message[SUM : SUM + _CHECKSUM_DIGITS] = b"%08x" % crc32(message)
        return message


def _patch(meta: bytearray, at: i64, number: i64) -> None:
    meta[at : at + 8] = int(number).to_bytes(8, "little")


def _with_checksum(meta: bytearray, body: bytes) -> bytes:
    """The message with its checksum; the metadata has zeros there."""
    meta[SUM : SUM + _CHECKSUM_DIGITS] = b"%08x" % crc32(body, crc32(meta))
    return bytes(meta) + body


class BatchView:
    """A batch where it stands in octets: `rows` from offset `base` on.

    `end` is where the next message begins.
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
        """Where a buffer begins, by its number."""
        return self.buffers_start + read_i64_le(self.data, self.at + BUFFERS + 16 * buffer)

    def published_at(self, row: i64) -> i64:
        """In microseconds."""
        return read_i64_le(self.data, self.buffer_start(_TIMES_BUFFER) + 8 * row)

    def has_no_nulls(self, column: str) -> bool:
        """Whether there is something in every row."""
        first: i64 = FIRST_BUFFER[column]
        return read_i64_le(self.data, self.at + BUFFERS + 16 * first + 8) == 0

    def is_null(self, column: str, row: i64) -> bool:
        """Whether there is nothing."""
        first: i64 = FIRST_BUFFER[column]
        if self.has_no_nulls(column):
            return False
        bits: i64 = self.data[self.buffer_start(first) + (row >> 3)]
        return bits >> (row & 7) & 1 == 0

    def text(self, column: str, row: i64) -> bytes:
        """The octets of a text; none for a null."""
        octets = self.data
        ends: i64 = self.buffer_start(i64(FIRST_BUFFER[column]) + 1) + 4 * row
        data: i64 = self.buffer_start(i64(FIRST_BUFFER[column]) + 2)
        return octets[
            data + i64(read_i32_le(octets, ends)) : data + i64(read_i32_le(octets, ends + 4))
        ]

    def value(self, column: str, row: i64) -> object:
        """What pyarrow would say; instants are numbers, in the column's unit."""
        if self.is_null(column, row):
            return None
        width = _WIDTHS.get(column, _TEXT)
        if width:
            at: i64 = self.buffer_start(i64(FIRST_BUFFER[column]) + 1) + width * row
            return int.from_bytes(self.data[at : at + width], "little", signed=width > 1)
        data = self.text(column, row)
        return data if column in ("content_header", "routing_key", "body") else data.decode()

    def is_intact(self) -> bool:
        """Whether the checksum is right."""
        meta = bytearray(self.data[self.at : self.buffers_start])
        found = bytes(meta[SUM : SUM + _CHECKSUM_DIGITS])
        meta[SUM : SUM + _CHECKSUM_DIGITS] = b"00000000"
        return found == b"%08x" % crc32(
            memoryview(self.data)[self.buffers_start : self.end], crc32(meta)
        )

    def first_rows(self, count: i64) -> bytes:
        """The same message with only its first rows: what follows them in the buffers is not looked
        at any more.
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
    """The batch that begins there; None when it is not all here, or is none."""
    size: i64 = len(data)
    if at + BATCH_HEADER_SIZE > size or data[at : at + 8] != BATCH[:8]:
        return None
    body: i64 = read_i64_le(data, at + BODY)
    if body < 8 or body > size - at - BATCH_HEADER_SIZE or read_i64_le(data, at + LENGTH) <= 0:
        return None
    if (
        read_i64_le(data, at + BUFFERS + 16 * _OFFSETS_BUFFER) != 0
    ):  # The offsets are the first of all buffers.
        return None
    return BatchView(data, at)


def batch_size(data: bytes, at: i64) -> i64:
    """Octets of the batch that begins there, as far as can be told; 0 when it is none."""
    if at + BATCH_HEADER_SIZE > len(data):
        return BATCH_HEADER_SIZE
    body: i64 = read_i64_le(data, at + BODY)
    return BATCH_HEADER_SIZE + body if data[at : at + 8] == BATCH[:8] and 8 <= body < 1 << 40 else 0
