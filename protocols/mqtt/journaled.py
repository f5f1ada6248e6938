"""Runs of packets in a stream: they were captured as they came, and are taken apart in the writer's thread."""

from __future__ import annotations

from librt.strings import read_i16_be
from mypy_extensions import i64

from broker.message import SWAP
from broker.stream.rows import Opener, Packets, Plain


class PacketOpener(Opener):
    """The packets were checked when they came: PUBLISH, QoS 0, and with `described` one octet that says: no properties."""

    def open(self, packets: Packets, rows: Plain) -> None:
        octets = packets.octets
        size: i64 = len(octets)
        at: i64 = 0
        behind: i64 = 1 if packets.described else 0
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
            rows.plain(octets[at + 2:mark], octets[mark + behind:end])
            at = end

    def key(self, name: bytes) -> bytes:
        return name.translate(SWAP)

    def protocol(self, packets: Packets) -> bytes:
        return b"mqtt50" if packets.described else b"mqtt311"
