"""The AMQP form of a message in a stream: its content header, and its properties as columns.

A row of a stream contains the content header that an AMQP consumer gets, so that streaming.py can
copy the header. The row also has one column for each property, for readers outside the broker
(docs/streams.md).
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from broker.messages.message import PLAIN, Message
from broker.store.values import dump
from broker.stream.row_codecs import PROPERTY_COLUMNS, HeaderCodec
from protocols.amqp.codec.contents import Frames, written_properties
from protocols.amqp.codec.properties import LAYOUT
from protocols.amqp.codec.tables import read_table

#: Class id and weight at the start of a content header.
_BASIC: Final = b"\x00\x3c\x00\x00"
#: Size of a content header before its flags and properties, in bytes.
_FIXED: Final = 12
#: Size of a header frame before its content header, in bytes.
_FRAME: Final = 7
#: Markers in _WIDTHS for properties of variable size.
_TEXT: Final[i64] = -1
_TABLE: Final[i64] = -2
#: Column and size in bytes of each property, in the order of the flags.
_COLUMNS: Final = [PROPERTY_COLUMNS[name] for name, _ in LAYOUT]
_WIDTHS: Final[list[i64]] = [
    {"text": _TEXT, "table": _TABLE, "byte": 1, "time": 8}[kind] for _, kind in LAYOUT
]
#: Column of the headers: the last column, although the flag of the headers is not the last flag.
_LAST: Final = PROPERTY_COLUMNS["headers"]
#: Largest number of entries in each of the two caches: content headers of messages without
#: properties (`_plain`), and results of `properties` (`_known`). Properties of more than
#: _KNOWN_SIZE_MAX bytes are not cached.
_KNOWN_MAX: Final = 1_024
_KNOWN_SIZE_MAX: Final = 256


class AmqpHeaderCodec(HeaderCodec):
    """The codec that converts messages of any protocol to AMQP content headers, and AMQP content
    headers to columns.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, list[tuple[int, bytes]]] = {}
        #: The header frame of the last message as it was received, and its content header.
        self._last_frame = b"\0"
        self._last_header = b""
        #: Flags and properties of the last call of `properties`, and their columns.
        self._last_properties = b"\0"
        self._columns: list[tuple[int, bytes]] = []
        #: Headers of messages without properties, by delivery mode and size.
        self._plain: dict[int, bytes] = {}

    def header(self, message: Message) -> bytes:
        encoding, content = message.encoding, message.content
        if isinstance(encoding, Frames):
            if not content.startswith(self._last_frame):
                header = self._last_header = encoding.whole_header(content)
                self._last_frame = content[: _FRAME + len(header)]
            return self._last_header
        if encoding is PLAIN:
            return self._plain_header(len(content), 2 if message.qos else 1)
        size = int(encoding.size(content)).to_bytes(8, "big")
        return _BASIC + size + written_properties(encoding, content, message.qos)

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
        if len(header) == _FIXED + len(self._last_properties) and header.endswith(
            self._last_properties
        ):
            return self._columns
        properties = header[_FIXED:]
        known = self._known.get(properties)
        if known is None:
            known = _columns(properties)
            if len(properties) <= _KNOWN_SIZE_MAX:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[properties] = known
        self._last_properties = properties
        self._columns = known
        return known


def _columns(data: bytes) -> list[tuple[int, bytes]]:
    """Return a pair (column, value) for each property, in ascending order of the columns.

    `data` is flags and properties. If a property is cut off, this property and all later ones are
    omitted.
    """
    columns: list[tuple[int, bytes]] = []
    headers: bytes | None = None
    end: i64 = len(data)
    flags: i64 = i64(read_i16_be(data, 0)) & 0xFFFF if end >= 2 else 0
    at: i64 = 2
    flag: i64 = 1 << 15
    for number, width in enumerate(_WIDTHS):
        if flags & flag:
            stop: i64 = at + width
            if width == _TEXT:
                stop = at + 1 + data[at] if at < end else end + 1
            elif width == _TABLE:
                stop = (
                    at + 4 + (i64(read_i32_be(data, at)) & 0xFFFFFFFF) if at + 4 <= end else end + 1
                )
            if stop > end:
                break
            if width == _TEXT:
                columns.append((_COLUMNS[number], _text(data[at + 1 : stop])))
            elif width == _TABLE:
                headers = _json(data[at:stop])
            else:
                # Columns are little-endian; properties are big-endian.
                value = data[at:stop] if width == 1 else data[at:stop][::-1]
                columns.append((_COLUMNS[number], value))
            at = stop
        flag >>= 1
    if headers is not None:
        columns.append((_LAST, headers))
    return columns


def _text(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data


def _json(table: bytes) -> bytes | None:
    try:
        return dump(read_table(table, 0, len(table))[0]).encode()
    except (ValueError, TypeError):
        return None
