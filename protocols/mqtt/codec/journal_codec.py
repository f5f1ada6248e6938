"""Parses the MQTT packets that the journal of a virtual host has captured.

The event loop captures adjacent packets as one piece of the input, a run, without parsing them. The
thread that writes the journal parses the packets of each run.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i16_be, read_i64_le
from mypy_extensions import i64

from broker.messages.message import SWAP_SEPARATORS
from broker.stream.row_codecs import PacketParser, PublishRun, RowName, StreamRows

_EXCHANGE: Final = b"amq.topic"
#: Name of the protocol by its level.
_PROTOCOLS: Final = {3: b"mqtt310", 4: b"mqtt311", 5: b"mqtt50"}
#: Number of slots of the cache of topic names; a hash of the name's bytes chooses the slot. A name
#: of more than _LONGEST bytes, its two bytes of size included, is not cached.
_SLOTS: Final[i64] = 1_024
_LONGEST: Final[i64] = 256
#: Factor in the hash, an odd number, which spreads each bit of a name over many bits.
_SPREAD: Final[i64] = 0x1E3779B97F4A7C15


@final
class CachedName:
    """A cached topic name, with its bytes as in a packet: two bytes of size, then the name."""

    def __init__(self, encoded: bytes, name: RowName) -> None:
        self.encoded = encoded
        self.name = name


class MqttPacketParser(PacketParser):
    """The parser of captured runs. A run is a sequence of adjacent PUBLISH packets.

    The packets of a run are valid, and have QoS 0 and no properties. A packet of level 5 has one
    byte more than a packet of the older levels: the length 0 of its properties.
    """

    def __init__(self) -> None:
        empty = CachedName(b"", RowName(b"", b""))
        self._cache = [empty] * int(_SLOTS)
        #: The cached names that are too short to be compared eight bytes at a time.
        self._short: dict[bytes, RowName] = {}

    def parse(self, packets: PublishRun, rows: StreamRows) -> None:
        data = packets.packets
        size: i64 = len(data)
        at: i64 = 0
        properties: i64 = 1 if packets.level == 5 else 0
        while at < size:
            at += 1
            length: i64 = 0
            shift: i64 = 0
            digit: i64 = 128
            while digit >= 128:
                digit = data[at]
                at += 1
                length |= (digit & 127) << shift
                shift += 7
            end: i64 = at + length
            mark: i64 = at + 2 + (i64(read_i16_be(data, at)) & 0xFFFF)
            rows.add_plain(self._name(data, at, mark), data[mark + properties : end])
            at = end

    def _name(self, data: bytes, start: i64, end: i64) -> RowName:
        """Return the topic name in `data[start:end]`, converted to a routing key.

        `data[start:end]` is the name's size in two bytes, then the name. Hot path: a cached name is
        found without creating an object.
        """
        size: i64 = end - start
        if size < 8:
            short = data[start + 2 : end]
            return self._short.get(short) or self._short_name(short)
        if size > _LONGEST:
            return RowName(_EXCHANGE, data[start + 2 : end].translate(SWAP_SEPARATORS))
        last: i64 = size - 8
        mixed: i64 = read_i64_le(data, start + last) ^ size
        at: i64 = 0
        while at < last:
            mixed = (mixed ^ mixed >> 29) * _SPREAD ^ read_i64_le(data, start + at)
            at += 8
        mixed *= _SPREAD
        slot: i64 = mixed >> 40 & (_SLOTS - 1)
        cached = self._cache[slot]
        known = cached.encoded
        if len(known) == size and read_i64_le(known, last) == read_i64_le(data, start + last):
            at = 0
            while at < last and read_i64_le(known, at) == read_i64_le(data, start + at):
                at += 8
            if at >= last:
                return cached.name
        name = RowName(_EXCHANGE, data[start + 2 : end].translate(SWAP_SEPARATORS))
        self._cache[slot] = CachedName(data[start:end], name)
        return name

    def _short_name(self, topic: bytes) -> RowName:
        if len(self._short) >= _SLOTS:
            self._short.clear()
        name = self._short[topic] = RowName(_EXCHANGE, topic.translate(SWAP_SEPARATORS))
        return name

    def protocol(self, packets: PublishRun) -> bytes:
        return _PROTOCOLS[int(packets.level)]
