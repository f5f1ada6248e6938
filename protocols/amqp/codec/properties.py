"""The properties of a content: a word of flags, and behind it those whose flag is set, in order
(section 4.2.6.1).

    flags   15 content_type  14 content_encoding  13 headers  12 delivery_mode  11 priority  10 correlation_id  9 reply_to
            8 expiration  7 message_id  6 timestamp  5 type  4 user_id  3 app_id  2 cluster_id  (1 and 0 mean nothing)

Contents are relayed unread, so anything may stand here. What cannot be read, and what follows it,
is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from broker.messages.message import Properties
from protocols.amqp.codec.tables import (
    moment,
    read_name,
    read_octets,
    read_table,
    without,
    write_entry,
    write_table,
)

#: Names and types, from flag 15 down.
LAYOUT: Final = (
    ("content_type", "text"),
    ("content_encoding", "text"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
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


def read_properties(octets: bytes) -> Properties:
    """Names and values, from flags and properties. Never raises."""
    properties: Properties = {}
    for name, kind, value in split_properties(octets):
        try:
            properties[name] = _value(kind, value)
        except ValueError:
            continue
    return properties


def write_properties(properties: Properties) -> bytes:
    """Flags and properties, without those that cannot be written."""
    written: dict[str, bytes] = {}
    for name, kind in LAYOUT:
        if name in properties:
            try:
                written[name] = _octets(kind, properties[name])
            except (ValueError, OverflowError):
                continue
    return _join(written)


def amended(octets: bytes, headers: Mapping[str, object], changed: Mapping[str, object]) -> bytes:
    """The flags and properties as they were, but with these headers and properties, and without
    those that are None.
    """
    kept = {name: value for name, _, value in split_properties(octets)}
    if kept.get("delivery_mode", _MODES[0]) not in _MODES:
        del kept["delivery_mode"]  # No client writes another, and some refuse to read one.
    for name, kind in LAYOUT:
        if name in changed:
            kept.pop(name, None)
            if changed[name] is not None:
                kept[name] = _octets(kind, changed[name])
    if headers:
        table = without(kept.get("headers", b"")[4:], {name.encode() for name in headers})
        table += b"".join(
            write_entry(name, value) for name, value in headers.items() if value is not None
        )
        kept["headers"] = len(table).to_bytes(4, "big") + table
    return _join(kept)


def split_properties(octets: bytes) -> list[tuple[str, str, bytes]]:
    """Name, type and octets of every property, up to the first that is cut off."""
    found: list[tuple[str, str, bytes]] = []
    flags = int.from_bytes(octets[:2], "big")
    at, end = 2, len(octets)
    flag = 1 << 15
    for name, kind in LAYOUT:
        if flags & flag:
            try:
                if kind == "text":
                    stop = read_name(octets, at, end)[1]
                elif kind == "table":
                    stop = read_octets(octets, at, end)[1]
                else:
                    stop = at + (8 if kind == "time" else 1)
            except ValueError:
                break
            if stop > end:
                break
            found.append((name, kind, octets[at:stop]))
            at = stop
        flag >>= 1
    return found


def _join(properties: dict[str, bytes]) -> bytes:
    flags = 0
    for place, (name, _) in enumerate(LAYOUT):
        if name in properties:
            flags |= 1 << 15 - place
    return flags.to_bytes(2, "big") + b"".join(
        properties[name] for name, _ in LAYOUT if name in properties
    )


def _value(kind: str, octets: bytes) -> object:
    if kind == "table":
        return read_table(octets, 0, len(octets))[0]
    if kind == "octet":
        return octets[0]
    return moment(octets) if kind == "time" else octets[1:].decode()


def _octets(kind: str, value: object) -> bytes:
    """Raises ValueError."""
    if kind == "text" and isinstance(value, str) and len(value.encode()) <= 255:
        return bytes([len(value.encode())]) + value.encode()
    if kind == "table" and isinstance(value, dict):
        return write_table(value)
    if kind == "octet" and isinstance(value, int):
        return bytes([value])
    if kind == "time" and isinstance(value, datetime):
        return int(value.timestamp()).to_bytes(8, "big")
    raise ValueError(f"a property holds no {type(value).__name__}")
