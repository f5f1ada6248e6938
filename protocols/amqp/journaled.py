"""How messages stand in a stream: their content header as a reader of queues would get it, and their properties as columns."""

from __future__ import annotations

from typing import Final

from broker.message import PLAIN, Amended, Message
from broker.store.values import dump
from broker.stream.rows import PLACES, PROPERTIES, Scribe
from protocols.amqp.contents import Frames
from protocols.amqp.properties import amended, split_properties, write_properties
from protocols.amqp.tables import read_table

#: Class and weight of a content header.
_BASIC: Final = b"\x00\x3c\x00\x00"
#: Octets of a header before flags and properties.
_FIXED: Final = 12
#: Headers whose columns are remembered: publishers repeat themselves.
_KNOWN_MAX: Final = 4_096
_KNOWN_OCTETS: Final = 256


class HeaderScribe(Scribe):
    """Content headers are those of class basic, whatever protocol a message came in by."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[tuple[int, bytes]]] = {}

    def header(self, message: Message) -> bytes:
        encoding, content = message.encoding, message.content
        if isinstance(encoding, Frames):
            return encoding.whole_header(content)
        size = int(encoding.size(content)).to_bytes(8, "big")
        if encoding is PLAIN:
            return _BASIC + size + (b"\x10\x00\x02" if message.assurance else b"\x10\x00\x01")
        mode = {"delivery_mode": 2 if message.assurance else 1}
        if isinstance(encoding, Amended) and isinstance(encoding.source, Frames):
            return _BASIC + size + amended(encoding.source.header(content), encoding.headers, encoding.changed)
        return _BASIC + size + write_properties(mode | encoding.properties(content))

    def properties(self, header: bytes) -> list[tuple[int, bytes]]:
        said = header[_FIXED:]
        known = self._known.get(said)
        if known is None:
            known = _columns(said)
            if len(said) <= _KNOWN_OCTETS:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[said] = known
        return known


def _columns(octets: bytes) -> list[tuple[int, bytes]]:
    """(place, octets) of the properties that can be read, places rising."""
    found: list[tuple[int, bytes]] = []
    for name, kind, value in split_properties(octets):
        if kind == "text":
            found.append((PLACES[name], value[1:].decode("utf-8", "replace").encode()))
        elif kind == "table":
            try:
                found.append((PLACES[name], dump(read_table(value, 0, len(value))[0]).encode()))
            except (ValueError, TypeError):
                continue
        elif len(value) == PROPERTIES[name]:
            found.append((PLACES[name], value[::-1]))  # Big-endian there, little-endian here.
    return sorted(found)
