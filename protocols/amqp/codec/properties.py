"""The properties of a content: 16 flags, then the properties whose flag is set, in order.

    flags   15 content_type    14 content_encoding   13 headers      12 delivery_mode   11 priority
            10 correlation_id   9 reply_to            8 expiration    7 message_id       6 timestamp
             5 type             4 user_id             3 app_id        2 cluster_id       1, 0 unused

Source: AMQP 0-9-1, section 4.2.6.1. The broker relays contents without reading their properties, so
the properties can be invalid here. If a property is cut off, this property and all later ones are
omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from broker.messages.message import Properties
from protocols.amqp.codec.tables import (
    read_bytes,
    read_name,
    read_table,
    read_timestamp,
    without_entries,
    write_entry,
    write_table,
)

#: Names and types of the properties, from flag 15 down.
LAYOUT: Final = (
    ("content_type", "text"),
    ("content_encoding", "text"),
    ("headers", "table"),
    ("delivery_mode", "byte"),
    ("priority", "byte"),
    ("correlation_id", "text"),
    ("reply_to", "text"),
    ("expiration", "text"),
    ("message_id", "text"),
    ("timestamp", "time"),
    ("type", "text"),
    ("user_id", "text"),
    ("app_id", "text"),
    ("cluster_id", "text"),
)
_MODES: Final = (b"\x01", b"\x02")


def read_properties(data: bytes) -> Properties:
    """Return the properties by name. `data` has the received flags and properties.

    Invalid properties are omitted. Raises nothing.
    """
    properties: Properties = {}
    for name, kind, value in split_properties(data):
        try:
            properties[name] = _value(kind, value)
        except ValueError:
            continue
    return properties


def write_properties(properties: Properties) -> bytes:
    """Return flags and properties for a content; omit a property with an unsupported value."""
    written: dict[str, bytes] = {}
    for name, kind in LAYOUT:
        if name in properties:
            try:
                written[name] = _write_value(kind, properties[name])
            except (ValueError, OverflowError):
                continue
    return _join(written)


def amended(data: bytes, headers: Mapping[str, object], changed: Mapping[str, object]) -> bytes:
    """Return the flags and properties in `data` with some headers and properties changed.

    `headers` maps names of headers to their new values. `changed` maps names of properties other
    than the headers to their new values. The value None removes a header or property.
    """
    kept = {name: value for name, _, value in split_properties(data)}
    if kept.get("delivery_mode", _MODES[0]) not in _MODES:
        # Some clients cannot read a message with an invalid delivery_mode.
        del kept["delivery_mode"]
    for name, kind in LAYOUT:
        if name in changed:
            kept.pop(name, None)
            if changed[name] is not None:
                kept[name] = _write_value(kind, changed[name])
    if headers:
        table = without_entries(kept.get("headers", b"")[4:], {name.encode() for name in headers})
        table += b"".join(
            write_entry(name, value) for name, value in headers.items() if value is not None
        )
        kept["headers"] = len(table).to_bytes(4, "big") + table
    return _join(kept)


def split_properties(data: bytes) -> list[tuple[str, str, bytes]]:
    """Return name, type and bytes of each property before the first property that is cut off."""
    properties: list[tuple[str, str, bytes]] = []
    flags = int.from_bytes(data[:2], "big")
    at, end = 2, len(data)
    flag = 1 << 15
    for name, kind in LAYOUT:
        if flags & flag:
            try:
                if kind == "text":
                    stop = read_name(data, at, end)[1]
                elif kind == "table":
                    stop = read_bytes(data, at, end)[1]
                else:
                    stop = at + (8 if kind == "time" else 1)
            except ValueError:
                break
            if stop > end:
                break
            properties.append((name, kind, data[at:stop]))
            at = stop
        flag >>= 1
    return properties


def _join(properties: dict[str, bytes]) -> bytes:
    flags = 0
    for position, (name, _) in enumerate(LAYOUT):
        if name in properties:
            flags |= 1 << 15 - position
    return flags.to_bytes(2, "big") + b"".join(
        properties[name] for name, _ in LAYOUT if name in properties
    )


def _value(kind: str, data: bytes) -> object:
    if kind == "table":
        return read_table(data, 0, len(data))[0]
    if kind == "byte":
        return data[0]
    return read_timestamp(data) if kind == "time" else data[1:].decode()


def _write_value(kind: str, value: object) -> bytes:
    """Return a property's value, encoded for a content.

    Raises ValueError or OverflowError if the type `kind` cannot represent the value.
    """
    if kind == "text" and isinstance(value, str) and len(value.encode()) <= 255:
        return bytes([len(value.encode())]) + value.encode()
    if kind == "table" and isinstance(value, dict):
        return write_table(value)
    if kind == "byte" and isinstance(value, int):
        return bytes([value])
    if kind == "time" and isinstance(value, datetime):
        return int(value.timestamp()).to_bytes(8, "big")
    if kind == "time" and isinstance(value, int):
        # `read_timestamp` returns an integer if a datetime cannot hold the time.
        return value.to_bytes(8, "big")
    raise ValueError(f"a property cannot hold a value of type {type(value).__name__}")
