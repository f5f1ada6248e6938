"""MQTT as the generator hears it: PUBLISH packets at a subscriber, acknowledgements at a publisher.
Hot path.

    packet    type and flags(1) remaining length(1-4) ...
    PUBLISH   topic length(2) topic [packet identifier(2)] body          3.3
    others    packet identifier(2)                                       3.4 to 3.7

What a QoS 0 subscriber of one publisher must be sent is known to the octet, so that it is compared
by the chunk (0.01 us a message); the first difference is looked at packet by packet, and so is
everything else.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, write_i16_be
from mypy_extensions import i16, i64, u8

from trellis.bench.check import MARK, Checker, Receipts, Script
from trellis.bench.errors import BenchError, WrongAnswer
from trellis.bench.reader import BenchReader

_PUBACK: Final[i64] = 0x40
_PUBREC: Final[i64] = 0x50
_PUBREL: Final[i64] = 0x62
_PUBCOMP: Final[i64] = 0x70


def packet_end(octets: bytes, at: i64, where: str) -> i64:
    """Where the packet that begins here ends; 0 when that cannot be told yet. Raises BenchError."""
    end: i64 = len(octets)
    place: i64 = at + 1
    length: i64 = 0
    shift: i64 = 0
    while place < end:
        octet: i64 = octets[place]
        length |= (octet & 127) << shift
        place += 1
        if octet < 128:
            return place + length
        shift += 7
        if shift > 21:
            raise BenchError(
                f"{where}: the broker sent a remaining length of more than four octets"
            )
    return 0


class MqttSubscriber(BenchReader):
    """Hears messages with this QoS. `topics` are length and name of those that are published, by
    number modulo their count; `stream` is one lap of the packets that must come plus a CHUNK of the
    next, where that is known (else empty).
    """

    def __init__(
        self, checker: Checker, topics: list[bytes], qos: i64, stream: bytes, lap: i64, packet: i64
    ) -> None:
        super().__init__(checker.where)
        self.checker = checker
        self._topics = topics
        self._qos = qos
        self._first: i64 = 0x30 | qos << 1
        self._stream = stream
        self._lap = lap
        self._packet = packet
        self._at: i64 = 0
        self._octets: i64 = 0
        self.released: i64 = 0

    def heard(self, data: bytes, now: i64) -> None:
        if self._stream:
            if self._stream.startswith(data, self._at):
                self._heard_stream(len(data), now)
                return
            # Not what was expected. From here on packet by packet, beginning with the one that has
            # begun.
            data = self._stream[self._at - self._at % self._packet : self._at] + data
            self._stream = b""
        octets = self.rest + data if self.rest else data
        end: i64 = len(octets)
        at: i64 = 0
        while end - at >= 2:
            # A packet of less than 130 octets, which most are, is told by its second octet.
            length: i64 = octets[at + 1]
            stop: i64 = at + 2 + length
            if length >= 128:
                stop = packet_end(octets, at, self.where)
                if stop == 0:
                    break
            if stop > end:
                break
            first: i64 = octets[at]
            if first == self._first:
                self._heard_publish(octets, at, stop, now)
            else:
                self._heard_other(octets, first, at, stop)
            at = stop
        self.rest = octets[at:]

    def _heard_stream(self, size: i64, now: i64) -> None:
        self._octets += size
        self._at += size
        if self._at >= self._lap:
            self._at -= self._lap
        count: i64 = self._octets // self._packet - self.checker.received
        if count > 0:
            self.checker.took_run(count, now)

    def _heard_publish(self, octets: bytes, at: i64, stop: i64, now: i64) -> None:
        checker = self.checker
        name: i64 = at + 2
        while octets[name - 1] >= 128:
            name += 1
        if stop - name < 2:
            raise BenchError(f"{self.where}: the broker sent a PUBLISH without a topic")
        high: i64 = octets[name]
        low: i64 = octets[name + 1]
        behind: i64 = name + 2 + (high << 8 | low)
        start: i64 = behind + 2 if self._qos > 0 else behind
        if stop - start < MARK:
            raise WrongAnswer(self.where, "size of a body", checker.script.size, stop - start)
        publisher = i64(read_i32_be(octets, start))
        number = i64(read_i32_be(octets, start + 4))
        checker.check_body(octets, start, stop)
        checker.took(publisher, number, now)
        topics = self._topics
        # `took` has bounded the number.
        wanted = topics[number % len(topics)]
        if octets[name:behind] != wanted:
            raise WrongAnswer(
                self.where,
                f"topic of message {number} of publisher {publisher}",
                wanted[2:],
                octets[name + 2 : behind],
            )
        if self._qos > 0:
            self._answer(_PUBACK if self._qos == 1 else _PUBREC, octets, behind)

    def _answer(self, first: i64, octets: bytes, at: i64) -> None:
        """The packet identifier that stands here goes back with another type in front."""
        out = self.out
        out.append(u8(first))
        out.append(2)
        out.append(octets[at])
        out.append(octets[at + 1])

    def _heard_other(self, octets: bytes, first: i64, at: i64, stop: i64) -> None:
        if first == _PUBREL and self._qos == 2 and stop - at == 4:
            self.released += 1
            if self.released > self.checker.received:
                raise WrongAnswer(
                    self.where, "PUBRELs", f"no more than {self.checker.received}", self.released
                )
            self._answer(_PUBCOMP, octets, at + 2)
        elif first >> 4 == 3:
            raise WrongAnswer(
                self.where,
                f"first octet of the PUBLISH of {self.checker.expects()} (QoS, duplicate, retain)",
                f"{self._first:#04x}",
                f"{first:#04x}",
            )
        else:
            raise BenchError(
                f"{self.where}: the broker sent a packet of type {first >> 4}, which nobody waits for"
            )

    def count(self) -> i64:
        return self.checker.received

    def steps(self) -> i64:
        return self.checker.received + self.released

    def open(self) -> str:
        if self._qos == 2 and self.released < self.checker.received:
            return f"{self.checker.received - self.released} PUBRELs"
        if self._stream and self._at % self._packet:
            return f"the rest of {self._at % self._packet} octets"
        return super().open()


class MqttPublisher(BenchReader):
    """Hears PUBACK, or PUBREC and PUBCOMP, for messages whose packet identifier is their number
    plus one.
    """

    def __init__(self, where: str, script: Script, index: i64, qos: i64) -> None:
        super().__init__(where)
        self._ring = script.ring
        self._qos = qos
        published = script.published[index]
        self._recorded = Receipts(where, "PUBREC", published)
        self._done = Receipts(where, "PUBACK" if qos == 1 else "PUBCOMP", published)

    def heard(self, data: bytes, now: i64) -> None:
        octets = self.rest + data if self.rest else data
        end: i64 = len(octets)
        at: i64 = 0
        while end - at >= 4:
            first: i64 = octets[at]
            length: i64 = octets[at + 1]
            if length != 2 or self._qos == 0:
                break
            high: i64 = octets[at + 2]
            low: i64 = octets[at + 3]
            number: i64 = (high << 8 | low) - 1
            if number < 0 or number >= self._ring:
                raise WrongAnswer(
                    self.where,
                    "packet identifier of an acknowledgement",
                    f"1 to {self._ring}",
                    number + 1,
                )
            if first == _PUBACK and self._qos == 1:
                self._done.settle(self._message(self._done, number))
            elif first == _PUBREC and self._qos == 2:
                self._recorded.settle(self._message(self._recorded, number))
                self._release(number + 1)
            elif first == _PUBCOMP and self._qos == 2:
                message = self._message(self._done, number)
                if not self._recorded.has(message):
                    raise WrongAnswer(
                        self.where, f"answer to message {message}", "PUBREC", "PUBCOMP"
                    )
                self._done.settle(message)
            else:
                break
            at += 4
        self.rest = octets[at:]
        left: i64 = end - at
        if left >= 4 or left > 0 and self._qos == 0:
            raise BenchError(
                f"{self.where}: the broker sent {octets[at : at + 4].hex(' ')}, which is no acknowledgement of QoS {self._qos}"
            )

    def _message(self, receipts: Receipts, number: i64) -> i64:
        """The message with this number that is under way."""
        return receipts.first + (number - receipts.first) % self._ring

    def _release(self, packet_id: i64) -> None:
        self.out.append(u8(_PUBREL))
        self.out.append(2)
        write_i16_be(self.out, i16(packet_id - 65_536 if packet_id > 32_767 else packet_id))

    def count(self) -> i64:
        return self._done.count

    def steps(self) -> i64:
        return self._recorded.count + self._done.count
