"""The names of headers that change what the broker does with a message, found without decoding.

A message with such a header takes the slow path. Most messages with headers have none, and so the
entries of the table are walked over, in compiled code: reading a table into objects costs several
times as much.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from broker.messages.message import TRACEPARENT
from broker.routing.deduplication import PRODUCER
from protocols.crossing import MARK

#: Bits of the result: `CC` or `BCC`, which name further routing keys; a name that begins with
#: `x-mqtt-`; the producer's name for deduplication; and `traceparent`.
COPIES: Final[i64] = 1
MQTT_HEADER: Final[i64] = 2
NUMBERED: Final[i64] = 4
TRACED: Final[i64] = 8

_CC: Final = b"CC"
_BCC: Final = b"BCC"
_PRODUCER: Final = PRODUCER.encode()
_TRACEPARENT: Final = TRACEPARENT.encode()
#: The names by the bits of the result, for a search in an invalid table.
_NAMES: Final = {
    COPIES: (b"\x02" + _CC, b"\x03" + _BCC),
    MQTT_HEADER: (MARK,),
    NUMBERED: (_PRODUCER,),
    TRACED: (_TRACEPARENT,),
}

#: The size of a value in bytes, by its type (tables.py has the types): a value of the type PREFIXED
#: begins with its length in four bytes, and the size of a value of an UNKNOWN type is unknown.
_PREFIXED: Final[i64] = 254
_UNKNOWN: Final[i64] = 255
_TYPES: Final = {0: b"V\0", 1: b"tbB", 2: b"su", 4: b"Iif", 5: b"D", 8: b"lLdT", 254: b"SxAF"}
_SIZES: Final = bytes(
    next((size for size, kinds in _TYPES.items() if kind in kinds), 255) for kind in range(256)
)


def special_headers(data: bytes, at: i64, end: i64) -> i64:
    """Return the bits of the special names in a table of headers; 0 if it has none.

    The table begins with its length, at the position `at` of `data`, and must end at or before
    `end`. Names in nested tables do not count. If the table is invalid, the result is the bits of
    the names that occur anywhere in data[at:end].
    """
    begin = at
    size: i64 = i64(read_i32_be(data, at)) if at + 4 <= end else -1
    at += 4
    if size < 0 or at + size > end:
        return _in_invalid_table(data, begin, end)
    stop: i64 = at + size
    bits: i64 = 0
    while at < stop:
        size = data[at]
        value: i64 = at + 1 + size
        if value >= stop:
            return _in_invalid_table(data, begin, end)
        if size >= 2:
            bits |= _special_name(data, at + 1, size)
        kind: i64 = data[value]
        size = _SIZES[kind]
        at = value + 1
        if size >= _PREFIXED:
            if size == _UNKNOWN or at + 4 > stop:
                return _in_invalid_table(data, begin, end)
            size = i64(read_i32_be(data, at)) & 0xFFFFFFFF
            at += 4
        at += size
    return bits if at == stop else _in_invalid_table(data, begin, end)


def _special_name(data: bytes, at: i64, size: i64) -> i64:
    """Return the bit of the name with `size` bytes, at least 2, at the position `at` of `data`."""
    first: i64 = data[at]
    if first == 67:  # C
        if size == 2 and data[at + 1] == 67:
            return COPIES
    elif first == 66:  # B
        if size == 3 and data[at : at + 3] == _BCC:
            return COPIES
    elif first == 120:  # x
        if size >= 7 and data[at + 1] == 45:  # -
            if data[at + 2] == 109 and data[at : at + 7] == MARK:  # m
                return MQTT_HEADER
            if size == 18 and data[at + 2] == 116 and data[at : at + 18] == _PRODUCER:  # t
                return NUMBERED
    elif first == 116 and size == 11 and data[at : at + 11] == _TRACEPARENT:  # t
        return TRACED
    return 0


def _in_invalid_table(data: bytes, at: i64, end: i64) -> i64:
    bits: i64 = 0
    for bit, names in _NAMES.items():
        for name in names:
            if data.find(name, at, end) >= 0:
                bits |= bit
    return bits
