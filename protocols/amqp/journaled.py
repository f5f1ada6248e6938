"""How messages stand in a stream: their content header as a reader of queues would get it, and their properties as columns."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

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
#: ... and of a header frame before its payload.
_FRAME: Final = 7
#: Headers whose columns are remembered: publishers repeat themselves.
_KNOWN_MAX: Final = 4_096
_KNOWN_OCTETS: Final = 256


class HeaderScribe(Scribe):
    """Content headers are those of class basic, whatever protocol a message came in by."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[tuple[int, bytes]]] = {}
        #: The header frame of the last message, as it came, and what of it a reader gets.
        self._frame = b"\0"
        self._header = b""
        #: Flags and properties that were asked for last, and their columns.
        self._said = b"\0"
        self._columns: list[tuple[int, bytes]] = []
        #: Headers of messages without properties, by mode and size.
        self._plain: dict[int, bytes] = {}

    def header(self, message: Message) -> bytes:
        encoding, content = message.encoding, message.content
        if isinstance(encoding, Frames):
            if not content.startswith(self._frame):
                header = self._header = encoding.whole_header(content)
                self._frame = content[:_FRAME + len(header)]
            return self._header
        if encoding is PLAIN:
            return self._plain_header(len(content), 2 if message.assurance else 1)
        size = int(encoding.size(content)).to_bytes(8, "big")
        mode = {"delivery_mode": 2 if message.assurance else 1}
        if isinstance(encoding, Amended) and isinstance(encoding.source, Frames):
            return _BASIC + size + amended(encoding.source.header(content), encoding.headers, encoding.changed)
        return _BASIC + size + write_properties(mode | encoding.properties(content))

    def _plain_header(self, size: i64, mode: i64) -> bytes:
        header = self._plain.get(int(size << 2 | mode))
        if header is None:
            header = _BASIC + int(size).to_bytes(8, "big") + (b"\x10\x00\x02" if mode == 2 else b"\x10\x00\x01")
            if len(self._plain) >= _KNOWN_MAX:
                self._plain.clear()
            self._plain[int(size << 2 | mode)] = header
        return header

    def properties(self, header: bytes) -> list[tuple[int, bytes]]:
        if len(header) == _FIXED + len(self._said) and header.endswith(self._said):
            return self._columns
        said = header[_FIXED:]
        known = self._known.get(said)
        if known is None:
            known = _columns(said)
            if len(said) <= _KNOWN_OCTETS:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[said] = known
        self._said = said
        self._columns = known
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
