"""Messages of Arrow's IPC format: where one ends, how many rows it has, and whether its checksum is
right.

    FFFFFFFF | size of the metadata i32 | metadata, a flatbuffer | body

Only heads are read here; pyarrow reads the rest. The broker's record batches carry a checksum in
their own metadata: `crc32`, in hexadecimal, of the whole message with zeros in its place.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final
from zlib import crc32

Octets = mmap.mmap | bytes | memoryview

_CONTINUES: Final = 0xFFFFFFFF
#: What the metadata of a message may be: more is no message.
_METADATA_MAX: Final = 1 << 24
_SUM: Final = b"crc32"
_SUM_DIGITS: Final = 8
_NO_SUM: Final = b"0" * _SUM_DIGITS
#: Fields of the tables Message and KeyValue, and of RecordBatch.
_HEADER, _BODY_LENGTH, _CUSTOM_METADATA = 2, 3, 4
_KEY, _VALUE = 0, 1
_LENGTH: Final = 0


class DamagedSegment(ValueError):
    """What stands there is no message."""


def end_of(octets: Octets, at: int, size: int) -> int:
    """Where the message ends that begins at `at`, in a segment of `size` octets of which `octets`
    are the first ones; 0 when it is not whole, its head is not here, or nothing is written there.
    Raises Damaged.
    """
    start = at + 8
    if start > len(octets):
        return 0
    mark, metadata = struct.unpack_from("<Ii", octets, at)
    if metadata == 0 and mark in (_CONTINUES, 0):
        # The end of the stream; or octets that the file has and nobody wrote: a machine failed.
        return 0
    if mark != _CONTINUES or not 0 < metadata < _METADATA_MAX:
        raise DamagedSegment(f"at octet {at} there is no Arrow message")
    if start + metadata > min(len(octets), size):
        return 0
    place = _field(octets, _follow(octets, start), _BODY_LENGTH)
    body = struct.unpack_from("<q", octets, place)[0] if place else 0
    if body < 0:
        raise DamagedSegment(f"at octet {at} there is no Arrow message")
    end = start + metadata + int(body)
    return end if end <= size else 0


def rows_of(octets: Octets, at: int) -> int:
    """Rows of the record batch that begins there."""
    batch = _follow(octets, _field(octets, _follow(octets, at + 8), _HEADER))
    length = _field(octets, batch, _LENGTH)
    return int(struct.unpack_from("<q", octets, length)[0]) if length else 0


def sound(message: memoryview) -> bool:
    """Whether the checksum of a whole message is there, and right."""
    try:
        place = _sum_place(message)
    except struct.error:
        return False
    after = place + _SUM_DIGITS
    return place > 0 and message[place:after] == b"%08x" % crc32(
        message[after:], crc32(_NO_SUM, crc32(message[:place]))
    )


def _sum_place(message: memoryview) -> int:
    """Where the digits of the checksum begin; 0 when there is none."""
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


def _u32(octets: Octets, at: int) -> int:
    return int(struct.unpack_from("<I", octets, at)[0])


def _follow(octets: Octets, at: int) -> int:
    """Where the thing stands that the reference at `at` means."""
    return at + _u32(octets, at)


def _field(octets: Octets, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0 when it has its default."""
    vtable = table - int(struct.unpack_from("<i", octets, table)[0])
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", octets, vtable)[0]:
        return 0
    inside = int(struct.unpack_from("<H", octets, vtable + 4 + 2 * number)[0])
    return table + inside if inside else 0
