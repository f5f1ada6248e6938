"""Runs of packets in a stream: they were captured as they came, and are taken apart in the writer's
thread.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i16_be, read_i64_le
from mypy_extensions import i64

from broker.messages.message import SWAP_SEPARATORS
from broker.stream.rows import PacketParser, PublishRun, RowName, StreamRows

_EXCHANGE: Final = b"amq.topic"
#: Names that are remembered, each in a place that follows from its octets; longer ones are not.
_PLACES: Final[i64] = 1_024
_LONGEST: Final[i64] = 256
#: An odd number with many bits: it spreads what differs over the bits that make a place.
_SPREAD: Final[i64] = 0x1E3779B97F4A7C15


@final
class Known:
    """A name, and the octets that it stands for: its length, and as they came."""

    def __init__(self, octets: bytes, name: RowName) -> None:
        self.octets = octets
        self.name = name


class MqttPacketParser(PacketParser):
    """The packets were checked when they came: PUBLISH, QoS 0, and with `described` one octet that
    says: no properties.
    """

    def __init__(self) -> None:
        nobody = Known(b"", RowName(b"", b""))
        self._known = [nobody] * int(_PLACES)
        #: Names that are too short to be compared eight octets at a time.
        self._short: dict[bytes, RowName] = {}

    def parse(self, packets: PublishRun, rows: StreamRows) -> None:
        octets = packets.packets
        size: i64 = len(octets)
        at: i64 = 0
        behind: i64 = 1 if packets.has_properties else 0
        while at < size:
            at += 1
            length: i64 = 0
            shift: i64 = 0
            octet: i64 = 128
            while octet >= 128:
                octet = octets[at]
                at += 1
                length |= (octet & 127) << shift
                shift += 7
            end: i64 = at + length
            mark: i64 = at + 2 + (i64(read_i16_be(octets, at)) & 0xFFFF)
            rows.add_plain(self._name(octets, at, mark), octets[mark + behind : end])
            at = end

    def _name(self, octets: bytes, start: i64, end: i64) -> RowName:
        """The name that stands there, behind its length.

        Hot path: nothing is made for one that is known.
        """
        size: i64 = end - start
        if size < 8:
            short = octets[start + 2 : end]
            return self._short.get(short) or self._short_name(short)
        if size > _LONGEST:
            return RowName(_EXCHANGE, octets[start + 2 : end].translate(SWAP_SEPARATORS))
        last: i64 = size - 8
        mixed: i64 = read_i64_le(octets, start + last) ^ size
        at: i64 = 0
        while at < last:
            mixed = (mixed ^ mixed >> 29) * _SPREAD ^ read_i64_le(octets, start + at)
            at += 8
        mixed *= _SPREAD
        place: i64 = mixed >> 40 & (_PLACES - 1)
        known = self._known[place]
        there = known.octets
        if len(there) == size and read_i64_le(there, last) == read_i64_le(octets, start + last):
            at = 0
            while at < last and read_i64_le(there, at) == read_i64_le(octets, start + at):
                at += 8
            if at >= last:
                return known.name
        name = RowName(_EXCHANGE, octets[start + 2 : end].translate(SWAP_SEPARATORS))
        self._known[place] = Known(octets[start:end], name)
        return name

    def _short_name(self, octets: bytes) -> RowName:
        if len(self._short) >= _PLACES:
            self._short.clear()
        name = self._short[octets] = RowName(_EXCHANGE, octets.translate(SWAP_SEPARATORS))
        return name

    def protocol(self, packets: PublishRun) -> bytes:
        return b"mqtt50" if packets.has_properties else b"mqtt311"
