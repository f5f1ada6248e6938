"""How messages stand in a stream: their content header as a reader of queues would get it, and
their properties as columns.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from broker.messages.message import PLAIN, AmendedEncoding, Message
from broker.store.values import dump
from broker.stream.rows import PROPERTY_COLUMNS, HeaderCodec
from protocols.amqp.codec.contents import Frames
from protocols.amqp.codec.properties import LAYOUT, amended, write_properties
from protocols.amqp.codec.tables import read_table

#: Class and weight of a content header.
_BASIC: Final = b"\x00\x3c\x00\x00"
#: Octets of a header before flags and properties.
_FIXED: Final = 12
#: ... and of a header frame before its payload.
_FRAME: Final = 7
#: Of each property, in the order of its flag: its place, and its octets; or what it is.
_TEXT: Final[i64] = -1
_TABLE: Final[i64] = -2
_PLACES: Final = [PROPERTY_COLUMNS[name] for name, _ in LAYOUT]
_WIDTHS: Final[list[i64]] = [
    {"text": _TEXT, "table": _TABLE, "octet": 1, "time": 8}[kind] for _, kind in LAYOUT
]
#: Headers have the last column, and not the last flag.
_LAST: Final = PROPERTY_COLUMNS["headers"]
#: Headers whose columns are remembered: publishers repeat themselves.
_KNOWN_MAX: Final = 1_024
_KNOWN_OCTETS: Final = 256


class AmqpHeaderCodec(HeaderCodec):
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
                self._frame = content[: _FRAME + len(header)]
            return self._header
        if encoding is PLAIN:
            return self._plain_header(len(content), 2 if message.qos else 1)
        size = int(encoding.size(content)).to_bytes(8, "big")
        mode = {"delivery_mode": 2 if message.qos else 1}
        if isinstance(encoding, AmendedEncoding) and isinstance(encoding.source, Frames):
            return (
                _BASIC
                + size
                + amended(encoding.source.header(content), encoding.headers, encoding.changed)
            )
        return _BASIC + size + write_properties(mode | encoding.properties(content))

    def _plain_header(self, size: i64, mode: i64) -> bytes:
        header = self._plain.get(int(size << 2 | mode))
        if header is None:
            header = (
                _BASIC
                + int(size).to_bytes(8, "big")
                + (b"\x10\x00\x02" if mode == 2 else b"\x10\x00\x01")
            )
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
    """(place, octets) of the properties that can be read, places rising: up to the first that is
    cut off, as `split_properties`.
    """
    found: list[tuple[int, bytes]] = []
    headers: bytes | None = None
    end: i64 = len(octets)
    flags: i64 = i64(read_i16_be(octets, 0)) & 0xFFFF if end >= 2 else 0
    at: i64 = 2
    flag: i64 = 1 << 15
    for number, width in enumerate(_WIDTHS):
        if flags & flag:
            stop: i64 = at + width
            if width == _TEXT:
                stop = at + 1 + octets[at] if at < end else end + 1
            elif width == _TABLE:
                stop = (
                    at + 4 + (i64(read_i32_be(octets, at)) & 0xFFFFFFFF)
                    if at + 4 <= end
                    else end + 1
                )
            if stop > end:
                break
            if width == _TEXT:
                found.append((_PLACES[number], _text(octets[at + 1 : stop])))
            elif width == _TABLE:
                headers = _json(octets[at:stop])
            else:
                found.append(
                    (_PLACES[number], octets[at:stop] if width == 1 else octets[at:stop][::-1])
                )  # Little-endian here.
            at = stop
        flag >>= 1
    if headers is not None:
        found.append((_LAST, headers))
    return found


def _text(octets: bytes) -> bytes:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return octets.decode("utf-8", "replace").encode()
    return octets


def _json(table: bytes) -> bytes | None:
    try:
        return dump(read_table(table, 0, len(table))[0]).encode()
    except (ValueError, TypeError):
        return None
