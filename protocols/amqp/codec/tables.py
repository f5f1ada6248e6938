"""Field tables (AMQP 0-9-1 section 4.2.5.5, with the types that RabbitMQ's clients write).

    table   length(4)  name: length(1) octets, value   name, value   ...
    array   length(4)  value   value   ...
    value   type(1)    octets, as many as the type says

pamqp reads tables too, but copies the rest of a table for every entry of it (0.9 s for a frame full
of them), and writes what it read in other types: a double as a float, a long integer as an octet, a
name cut at 128 octets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

Table = dict[str, object]

#: Tables and arrays inside each other that are read; deeper ones are refused.
DEPTH_MAX: Final = 100
#: Numbers of one layout, by type.
_NUMBERS: Final[dict[int, struct.Struct]] = {
    kind: struct.Struct(layout)
    for kind, layout in zip(
        b"tbBsuIilLfd",
        (">?", ">b", ">B", ">h", ">H", ">i", ">I", ">q", ">q", ">f", ">d"),
        strict=True,
    )
}
#: Values without octets. (0 stands in no book, but comes.)
_VOID: Final = b"V\0"
_DECIMAL: Final = struct.Struct(">Bi")
_TIMESTAMP: Final = struct.Struct(">Q")
_SPLIT: Final = b"SxAF"


def read_table(octets: bytes, at: int, end: int, depth: int = 0) -> tuple[Table, int]:
    """The table at `at`, and where it ends: at `end` or before. Raises ValueError."""
    at, stop = _body(octets, at, end, depth)
    table: Table = {}
    while at < stop:
        name, at = read_name(octets, at, stop)
        table[name.decode()], at = _read(octets, at, stop, depth)
    return table, stop


def read_name(octets: bytes, at: int, end: int) -> tuple[bytes, int]:
    """The short string at `at`, and where it ends. Raises ValueError."""
    stop = at + 1 + octets[at] if at < end else end + 1
    if stop > end:
        raise ValueError("a short string is cut off")
    return octets[at + 1 : stop], stop


def read_octets(octets: bytes, at: int, end: int) -> tuple[bytes, int]:
    """The long string at `at`, and where it ends. Raises ValueError."""
    stop = at + 4 + int.from_bytes(octets[at : at + 4], "big")
    if at + 4 > end or stop > end:
        raise ValueError("a long string, table or array is cut off")
    return octets[at + 4 : stop], stop


def _body(octets: bytes, at: int, end: int, depth: int) -> tuple[int, int]:
    """Where the entries of a table or array begin and end."""
    stop = at + 4 + int.from_bytes(octets[at : at + 4], "big")
    if at + 4 > end or stop > end:
        raise ValueError("a table or array is cut off")
    if depth > DEPTH_MAX:
        raise ValueError(f"tables more than {DEPTH_MAX} deep")
    return at + 4, stop


def _read(octets: bytes, at: int, end: int, depth: int) -> tuple[object, int]:
    """The value at `at`, and where it ends."""
    stop = _skip(octets, at, end)
    kind = octets[at]
    at += 1
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(octets, at)[0], stop
    if kind in b"S":
        try:
            return octets[at + 4 : stop].decode(), stop
        except UnicodeDecodeError:
            return octets[at + 4 : stop], stop
    if kind in b"F":
        return read_table(octets, at, stop, depth + 1)
    if kind in b"A":
        return _read_array(octets, at, stop, depth + 1)
    if kind in b"T":
        return moment(octets[at:stop]), stop
    if kind in b"D":
        scale, digits = _DECIMAL.unpack_from(octets, at)
        return Decimal(digits).scaleb(-scale), stop
    return octets[at + 4 : stop] if kind in b"x" else None, stop


def _read_array(octets: bytes, at: int, end: int, depth: int) -> tuple[list[object], int]:
    at, stop = _body(octets, at, end, depth)
    array: list[object] = []
    while at < stop:
        value, at = _read(octets, at, stop, depth)
        array.append(value)
    return array, stop


def _skip(octets: bytes, at: int, end: int) -> int:
    """Where the value at `at` ends. Raises ValueError."""
    if at >= end:
        raise ValueError("a name without a value")
    kind = octets[at]
    at += 1
    number = _NUMBERS.get(kind)
    if number is not None:
        stop = at + number.size
    elif kind in _SPLIT:
        stop = at + 4 + int.from_bytes(octets[at : at + 4], "big")
        if at + 4 > end:
            stop = end + 1
    elif kind in b"T":
        stop = at + _TIMESTAMP.size
    elif kind in b"D":
        stop = at + _DECIMAL.size
    elif kind in _VOID:
        stop = at
    else:
        raise ValueError(f"unknown type {bytes([kind])!r} in a table")
    if stop > end:
        raise ValueError("a value is cut off")
    return stop


def moment(octets: bytes) -> datetime | int:
    """A timestamp; what no calendar knows (milliseconds, mostly) stays a number."""
    seconds: int = _TIMESTAMP.unpack(octets)[0]
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


# -- writing


def write_table(table: Mapping[str, object]) -> bytes:
    """A table with its length. Raises ValueError, or OverflowError, for what no table can hold."""
    return _sized(b"".join(write_entry(name, value) for name, value in table.items()))


def write_entry(name: str, value: object) -> bytes:
    """A name and its value, as they stand in a table."""
    octets = name.encode()
    if len(octets) > 255:
        raise ValueError(f"the name '{name}' has more than 255 octets")
    return bytes([len(octets)]) + octets + _write(value)


def without(table: bytes, names: set[bytes]) -> bytes:
    """The entries of a table (given without its length) that have other names, as they stand, up to
    the first odd one.
    """
    kept: list[bytes] = []
    at = begin = 0
    while at < len(table):
        try:
            name, value_at = read_name(table, at, len(table))
            stop = _skip(table, value_at, len(table))
        except ValueError:
            break
        if name in names:
            kept.append(table[begin:at])
            begin = stop
        at = stop
    kept.append(table[begin:at])
    return b"".join(kept)


def _write(value: object) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        if value >= 1 << 63:
            return b"T" + value.to_bytes(8, "big")  # Only a timestamp is read as a number so large.
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, str):
        return b"S" + _sized(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bytes):
        return b"x" + _sized(value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, Decimal):
        scale = -int(value.as_tuple().exponent)
        digits = int(value.scaleb(scale))
        if not (0 <= scale <= 255 and -1 << 31 <= digits < 1 << 31):
            raise ValueError(f"a table holds no {value}")
        return b"D" + _DECIMAL.pack(scale, digits)
    if isinstance(value, datetime):
        return b"T" + _TIMESTAMP.pack(int(value.timestamp()))
    if isinstance(value, dict):
        return b"F" + write_table(value)
    if isinstance(value, list):
        return b"A" + _sized(b"".join(_write(one) for one in value))
    raise ValueError(f"a table holds no {type(value).__name__}")


def _sized(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "big") + octets
