"""MQTT readers of the load generator: PUBLISH at a subscriber, acknowledgements at a publisher.

Hot path. The layout of packets (MQTT 3.1.1, sections 3.3 to 3.7):

    packet    type and flags(1) remaining length(1-4) ...
    PUBLISH   topic length(2) topic [packet identifier(2)] body
    others    packet identifier(2)

The bytes sent to a QoS 0 subscriber of one publisher are known in advance, so they are compared
chunk by chunk (0.01 us per message). After a difference, and for all other subscribers and the
publishers, packets are read one by one.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, write_i16_be
from mypy_extensions import i16, i64, u8

from trellis.bench.check import HEADER_SIZE, Checker, Receipts, TrafficPlan
from trellis.bench.errors import BenchError, WrongAnswer
from trellis.bench.reader import BenchReader

_PUBACK: Final[i64] = 0x40
_PUBREC: Final[i64] = 0x50
_PUBREL: Final[i64] = 0x62
_PUBCOMP: Final[i64] = 0x70


def packet_end(data: bytes, at: i64, where: str) -> i64:
    """Return the end of the packet that begins at `at`; 0 if its remaining length is incomplete.

    Raises BenchError if the remaining length has more than four bytes.
    """
    end: i64 = len(data)
    place: i64 = at + 1
    length: i64 = 0
    shift: i64 = 0
    while place < end:
        byte: i64 = data[place]
        length |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return place + length
        shift += 7
        if shift > 21:
            raise BenchError(f"{where}: the broker sent a remaining length of more than four bytes")
    return 0


class MqttSubscriber(BenchReader):
    """Reads the messages of one subscriber, all published with QoS `qos`, and acknowledges them.

    `topics` holds each topic after its length in two bytes. Message n has the topic at index n
    modulo `len(topics)`.

    A publisher sends the same sequence of packets, a lap, again and again. A lap has `lap` bytes,
    and each of its packets `packet` bytes. If the bytes are known in advance, `stream` has one lap
    and the first CHUNK bytes of the next lap. If they are not known, `stream` is empty.
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
        self._bytes: i64 = 0
        self.released: i64 = 0

    def receive(self, data: bytes, now: i64) -> None:
        if self._stream:
            if self._stream.startswith(data, self._at):
                self._count_stream(len(data), now)
                return
            # The bytes differ. This packet and all later ones are read one by one.
            data = self._stream[self._at - self._at % self._packet : self._at] + data
            self._stream = b""
        data = self.rest + data if self.rest else data
        end: i64 = len(data)
        at: i64 = 0
        while end - at >= 2:
            # The second byte alone is the remaining length of packets below 130 bytes.
            length: i64 = data[at + 1]
            stop: i64 = at + 2 + length
            if length >= 128:
                stop = packet_end(data, at, self.where)
                if stop == 0:
                    break
            if stop > end:
                break
            first: i64 = data[at]
            if first == self._first:
                self._read_publish(data, at, stop, now)
            else:
                self._read_other(data, first, at, stop)
            at = stop
        self.rest = data[at:]

    def _count_stream(self, size: i64, now: i64) -> None:
        self._bytes += size
        self._at += size
        if self._at >= self._lap:
            self._at -= self._lap
        count: i64 = self._bytes // self._packet - self.checker.received
        if count > 0:
            self.checker.accept_next(count, now)

    def _read_publish(self, data: bytes, at: i64, stop: i64, now: i64) -> None:
        checker = self.checker
        name: i64 = at + 2
        while data[name - 1] >= 128:
            name += 1
        if stop - name < 2:
            raise BenchError(f"{self.where}: the broker sent a PUBLISH without a topic")
        high: i64 = data[name]
        low: i64 = data[name + 1]
        behind: i64 = name + 2 + (high << 8 | low)
        start: i64 = behind + 2 if self._qos > 0 else behind
        if stop - start < HEADER_SIZE:
            raise WrongAnswer(
                self.where,
                "the size of a body is wrong",
                f"{checker.script.size} bytes",
                f"{stop - start} bytes",
            )
        publisher = i64(read_i32_be(data, start))
        number = i64(read_i32_be(data, start + 4))
        checker.check_body(data, start, stop)
        checker.accept(publisher, number, now)
        topics = self._topics
        # `accept` has checked the bounds of the number.
        wanted = topics[number % len(topics)]
        if data[name:behind] != wanted:
            raise WrongAnswer(
                self.where,
                f"the topic of message {number} of publisher {publisher} is wrong",
                wanted[2:],
                data[name + 2 : behind],
            )
        if self._qos > 0:
            self._answer(_PUBACK if self._qos == 1 else _PUBREC, data, behind)

    def _answer(self, first: i64, data: bytes, at: i64) -> None:
        """Send an acknowledgement of type `first` for the packet identifier at `data[at]`."""
        out = self.out
        out.append(u8(first))
        out.append(2)
        out.append(data[at])
        out.append(data[at + 1])

    def _read_other(self, data: bytes, first: i64, at: i64, stop: i64) -> None:
        if first == _PUBREL and self._qos == 2 and stop - at == 4:
            self.released += 1
            if self.released > self.checker.received:
                raise WrongAnswer(
                    self.where,
                    "there are more PUBRELs than messages",
                    f"no more than {self.checker.received} PUBRELs",
                    self.released,
                )
            self._answer(_PUBCOMP, data, at + 2)
        elif first >> 4 == 3:
            raise WrongAnswer(
                self.where,
                f"QoS, DUP or RETAIN is wrong in the PUBLISH of {self.checker.expected()}",
                f"{self._first:#04x}",
                f"{first:#04x}",
            )
        else:
            raise BenchError(
                f"{self.where}: the broker sent an unexpected packet of type {first >> 4}"
            )

    def count(self) -> i64:
        return self.checker.received

    def steps(self) -> i64:
        return self.checker.received + self.released

    def pending(self) -> str:
        if self._qos == 2 and self.released < self.checker.received:
            return f"{self.checker.received - self.released} PUBRELs"
        if self._stream and self._at % self._packet:
            return f"the rest of {self._at % self._packet} bytes"
        return super().pending()


class MqttPublisher(BenchReader):
    """Reads PUBACK, or PUBREC and PUBCOMP, for one publisher.

    The packet identifier of the message with number n is n + 1.
    """

    def __init__(self, where: str, script: TrafficPlan, index: i64, qos: i64) -> None:
        super().__init__(where)
        self._ring = script.ring
        self._qos = qos
        published = script.published[index]
        self._recorded = Receipts(where, "PUBREC", published)
        self._done = Receipts(where, "PUBACK" if qos == 1 else "PUBCOMP", published)

    def receive(self, data: bytes, now: i64) -> None:
        data = self.rest + data if self.rest else data
        end: i64 = len(data)
        at: i64 = 0
        while end - at >= 4:
            first: i64 = data[at]
            length: i64 = data[at + 1]
            if length != 2 or self._qos == 0:
                break
            high: i64 = data[at + 2]
            low: i64 = data[at + 3]
            number: i64 = (high << 8 | low) - 1
            if number < 0 or number >= self._ring:
                raise WrongAnswer(
                    self.where,
                    "the packet identifier of an acknowledgement is wrong",
                    f"a number from 1 to {self._ring}",
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
                        self.where, f"the answer to message {message} is wrong", "PUBREC", "PUBCOMP"
                    )
                self._done.settle(message)
            else:
                break
            at += 4
        self.rest = data[at:]
        left: i64 = end - at
        if left >= 4 or left > 0 and self._qos == 0:
            raise BenchError(
                f"{self.where}: the broker sent {data[at : at + 4].hex(' ')}, "
                f"which is no acknowledgement of QoS {self._qos}"
            )

    def _message(self, receipts: Receipts, number: i64) -> i64:
        """Return the index of the unacknowledged message whose body has this number."""
        return receipts.first + (number - receipts.first) % self._ring

    def _release(self, packet_id: i64) -> None:
        self.out.append(u8(_PUBREL))
        self.out.append(2)
        write_i16_be(self.out, i16(packet_id - 65_536 if packet_id > 32_767 else packet_id))

    def count(self) -> i64:
        return self._done.count

    def steps(self) -> i64:
        return self._recorded.count + self._done.count
