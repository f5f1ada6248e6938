"""Reads the headers of Arrow IPC messages: size, number of rows and checksum.

    FFFFFFFF | size of the metadata i32 | metadata, a flatbuffer | body

Pyarrow reads all other parts of a message. The broker's record batches have a checksum in their own
metadata: `crc32`, the hexadecimal CRC-32 of the whole message with zeros in place of the digits.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final
from zlib import crc32

Buffer = mmap.mmap | bytes | memoryview

_CONTINUES: Final = 0xFFFFFFFF
#: The largest metadata of a message, in bytes; a larger size means that the segment is damaged.
_METADATA_MAX: Final = 1 << 24
_SUM: Final = b"crc32"
_SUM_DIGITS: Final = 8
_NO_SUM: Final = b"0" * _SUM_DIGITS
#: Field numbers of the flatbuffer table Message.
_HEADER, _BODY_LENGTH, _CUSTOM_METADATA = 2, 3, 4
#: Field numbers of the flatbuffer table KeyValue.
_KEY, _VALUE = 0, 1
#: Field number of the flatbuffer table RecordBatch.
_LENGTH: Final = 0


class DamagedSegment(ValueError):
    """Raised if a segment contains data that is not an Arrow message."""


def end_of(data: Buffer, at: int, size: int) -> int:
    """Return the end of the message that begins at `at`, or 0 if there is no complete message.

    `data` is the beginning of a segment of `size` bytes. The result is also 0 if the message's
    metadata ends after the end of `data`, or if nothing was written at `at`. Raises DamagedSegment.
    """
    start = at + 8
    if start > len(data):
        return 0
    mark, metadata = struct.unpack_from("<Ii", data, at)
    if metadata == 0 and mark in (_CONTINUES, 0):
        # The end of the stream, or unwritten space at the end of the file after a machine failed.
        return 0
    if mark != _CONTINUES or not 0 < metadata < _METADATA_MAX:
        raise DamagedSegment(f"there is no Arrow message at byte {at}")
    if start + metadata > min(len(data), size):
        return 0
    at_length = _field(data, _follow(data, start), _BODY_LENGTH)
    body = struct.unpack_from("<q", data, at_length)[0] if at_length else 0
    if body < 0:
        raise DamagedSegment(f"there is no Arrow message at byte {at}")
    end = start + metadata + int(body)
    return end if end <= size else 0


def rows_of(data: Buffer, at: int) -> int:
    """Return the number of rows of the record batch that begins at `at`."""
    batch = _follow(data, _field(data, _follow(data, at + 8), _HEADER))
    length = _field(data, batch, _LENGTH)
    return int(struct.unpack_from("<q", data, length)[0]) if length else 0


def checksum_ok(message: memoryview) -> bool:
    """True if the message (all of its bytes) has a checksum, and the checksum is correct."""
    try:
        position = _checksum_position(message)
    except struct.error:
        return False
    after = position + _SUM_DIGITS
    return position > 0 and message[position:after] == b"%08x" % crc32(
        message[after:], crc32(_NO_SUM, crc32(message[:position]))
    )


def _checksum_position(message: memoryview) -> int:
    """Return the position of the checksum's digits in the message; 0 if it has no checksum."""
    pairs = _field(message, _follow(message, 8), _CUSTOM_METADATA)
    if not pairs:
        return 0
    pairs = _follow(message, pairs)
    for number in range(_u32(message, pairs)):
        pair = _follow(message, pairs + 4 + 4 * number)
        key = _follow(message, _field(message, pair, _KEY)) + 4
        value = _follow(message, _field(message, pair, _VALUE))
        if (
            bytes(message[key : key + len(_SUM)]) == _SUM
            and _u32(message, key - 4) == len(_SUM)
            and _u32(message, value) == _SUM_DIGITS
        ):
            return value + 4
    return 0


def _u32(data: Buffer, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _follow(data: Buffer, at: int) -> int:
    """Return the position to which the flatbuffer reference at the position `at` points."""
    return at + _u32(data, at)


def _field(data: Buffer, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer table; 0 if the field has its default."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    inside = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + inside if inside else 0
