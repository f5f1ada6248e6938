"""Field tables (AMQP 0-9-1, section 4.2.5.5, with the types that RabbitMQ's clients write).

    table   length(4)  name: length(1) bytes, value   name, value   ...
    array   length(4)  value   value   ...
    value   type(1)    as many bytes as the type requires

pamqp is not used for tables. When it reads a table, it copies the rest of the table for every entry
(0.9 s for a frame full of entries). When it writes this table again, it changes types: a double
becomes a float, a long integer becomes a single byte, and a name is cut at 128 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from broker.nesting import NESTING_MAX

Table = dict[str, object]

#: Layouts of the numeric types.
_NUMBERS: Final[dict[int, struct.Struct]] = {
    kind: struct.Struct(layout)
    for kind, layout in zip(
        b"tbBsuIilLfd",
        (">?", ">b", ">B", ">h", ">H", ">i", ">I", ">q", ">q", ">f", ">d"),
        strict=True,
    )
}
#: Types whose values have no bytes. (Type 0 is in no specification, but some clients send it.)
_VOID: Final = b"V\0"
_DECIMAL: Final = struct.Struct(">Bi")
_TIMESTAMP: Final = struct.Struct(">Q")
_SPLIT: Final = b"SxAF"


def read_table(data: bytes, at: int, end: int, depth: int = 0) -> tuple[Table, int]:
    """Return the table at position `at`, and the position after it.

    `depth` is the number of tables and arrays around the table. Raises ValueError if the table is
    invalid, nested too deep, or ends after `end`.
    """
    at, stop = _body(data, at, end, depth)
    table: Table = {}
    while at < stop:
        name, at = read_name(data, at, stop)
        table[name.decode()], at = _read(data, at, stop, depth)
    return table, stop


def read_name(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the short string at position `at`, and the position after it.

    Raises ValueError if the string ends after `end`.
    """
    stop = at + 1 + data[at] if at < end else end + 1
    if stop > end:
        raise ValueError("a short string is cut off")
    return data[at + 1 : stop], stop


def read_bytes(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the long string at position `at`, and the position after it.

    Raises ValueError if the string ends after `end`.
    """
    stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
    if at + 4 > end or stop > end:
        raise ValueError("a long string, table or array is cut off")
    return data[at + 4 : stop], stop


def _body(data: bytes, at: int, end: int, depth: int) -> tuple[int, int]:
    """Return the positions where the entries of the table or array at `at` begin and end.

    Raises ValueError if the table or array is cut off, or nested too deep.
    """
    stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
    if at + 4 > end or stop > end:
        raise ValueError("a table or array is cut off")
    if depth > NESTING_MAX:
        raise ValueError(f"tables are nested more than {NESTING_MAX} levels deep")
    return at + 4, stop


def _read(data: bytes, at: int, end: int, depth: int) -> tuple[object, int]:
    """Return the value at position `at`, and the position after it.

    Raises ValueError for an invalid value, or a value that ends after `end`.
    """
    stop = _skip(data, at, end)
    kind = data[at]
    at += 1
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(data, at)[0], stop
    if kind in b"S":
        try:
            return data[at + 4 : stop].decode(), stop
        except UnicodeDecodeError:
            return data[at + 4 : stop], stop
    if kind in b"F":
        return read_table(data, at, stop, depth + 1)
    if kind in b"A":
        return _read_array(data, at, stop, depth + 1)
    if kind in b"T":
        return read_timestamp(data[at:stop]), stop
    if kind in b"D":
        scale, digits = _DECIMAL.unpack_from(data, at)
        return Decimal(digits).scaleb(-scale), stop
    return data[at + 4 : stop] if kind in b"x" else None, stop


def _read_array(data: bytes, at: int, end: int, depth: int) -> tuple[list[object], int]:
    at, stop = _body(data, at, end, depth)
    array: list[object] = []
    while at < stop:
        value, at = _read(data, at, stop, depth)
        array.append(value)
    return array, stop


def _skip(data: bytes, at: int, end: int) -> int:
    """Return the position after the value at position `at`.

    Raises ValueError for an unknown type, or a value that ends after `end`.
    """
    if at >= end:
        raise ValueError("an entry of a table has no value")
    kind = data[at]
    at += 1
    number = _NUMBERS.get(kind)
    if number is not None:
        stop = at + number.size
    elif kind in _SPLIT:
        stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
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
        raise ValueError("a value in a table or array is cut off")
    return stop


def read_timestamp(data: bytes) -> datetime | int:
    """Return a timestamp as a datetime in UTC.

    Return the number itself if it is too large for a datetime: some clients write ms instead of
    seconds.
    """
    seconds: int = _TIMESTAMP.unpack(data)[0]
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


# -- writing


def write_table(table: Mapping[str, object]) -> bytes:
    """Encode a table, preceded by its length.

    Raises ValueError or OverflowError for an unsupported value.
    """
    return _with_length(b"".join(write_entry(name, value) for name, value in table.items()))


def write_entry(name: str, value: object) -> bytes:
    """Encode one entry of a table: a name and its value.

    Raises ValueError or OverflowError for an unsupported name or value.
    """
    name_bytes = name.encode()
    if len(name_bytes) > 255:
        raise ValueError(f"a table cannot hold the name '{name}', which has more than 255 bytes")
    return bytes([len(name_bytes)]) + name_bytes + _write(value)


def without_entries(table: bytes, names: set[bytes]) -> bytes:
    """Return the entries of a table whose names are not in `names`, up to the first invalid entry.

    Both `table` and the result are encoded entries without the length of the table.
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
            # Only a timestamp can be so large: `read_timestamp` returns it as an integer.
            return b"T" + value.to_bytes(8, "big")
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, str):
        return b"S" + _with_length(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bytes):
        return b"x" + _with_length(value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, Decimal):
        scale = -int(value.as_tuple().exponent)
        digits = int(value.scaleb(scale))
        if not (0 <= scale <= 255 and -1 << 31 <= digits < 1 << 31):
            raise ValueError(
                f"a table cannot hold the decimal number {value}: it must have 0 to 255 decimal "
                "places, and its digits must fit into 32 bits"
            )
        return b"D" + _DECIMAL.pack(scale, digits)
    if isinstance(value, datetime):
        return b"T" + _TIMESTAMP.pack(int(value.timestamp()))
    if isinstance(value, dict):
        return b"F" + write_table(value)
    if isinstance(value, list):
        return b"A" + _with_length(b"".join(_write(one) for one in value))
    raise ValueError(f"a table cannot hold a value of type {type(value).__name__}")


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
