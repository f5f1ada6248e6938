"""AMQP readers of the load generator: deliveries at a consumer, confirms at a publisher.

Hot path. The layout of frames (AMQP 0-9-1, section 4.2.3):

    frame      type(1) channel(2) length(4) payload(length) 0xCE
    deliver    class(2) method(2) consumer tag(1+n) delivery tag(8) redelivered(1)
               exchange(1+n) routing key(1+n)
    header     class(2) weight(2) body size(8) property flags(2) ...
    body       bytes of the body, in one or more frames

A delivery is a method frame, a header frame and body frames. `_left` is -2 before the method frame,
-1 before the header frame, and then the number of bytes of the body that have not arrived yet.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be, write_i64_be
from mypy_extensions import i64

from trellis.bench.amqp import broker_closed
from trellis.bench.check import HEADER_SIZE, Checker, Receipts, TrafficPlan
from trellis.bench.errors import BenchError, WrongAnswer
from trellis.bench.reader import BenchReader

_METHOD: Final[i64] = 1
_HEADER: Final[i64] = 2
_BODY: Final[i64] = 3
_HEARTBEAT: Final[i64] = 8
_DELIVER: Final[i64] = 60 << 16 | 60
_ACK: Final[i64] = 60 << 16 | 80
_NACK: Final[i64] = 60 << 16 | 120
#: Largest frame accepted, in bytes; known brokers offer at most 131,072.
_FRAME_MAX: Final[i64] = 1 << 24
_IDLE: Final[i64] = -2
_NAMED: Final[i64] = -1

#: basic.ack up to its delivery tag; `multiple` and the frame end follow.
_ACK_HEAD: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"


class BenchAmqpReader(BenchReader):
    """Base class of AMQP readers: splits received data into frames and passes each to `frame`."""

    def receive(self, data: bytes, now: i64) -> None:
        data = self.rest + data if self.rest else data
        end: i64 = len(data)
        at: i64 = 0
        while end - at >= 8:
            size = i64(read_i32_be(data, at + 3))
            if size < 0 or size > _FRAME_MAX:
                raise BenchError(
                    f"{self.where}: the broker sent a frame of {size & 0xFFFFFFFF} bytes; "
                    f"the limit is {_FRAME_MAX} bytes"
                )
            stop: i64 = at + 8 + size
            if stop > end:
                break
            if data[stop - 1] != 0xCE:
                raise BenchError(f"{self.where}: the broker sent a frame without a frame end")
            self.frame(data, data[at], at + 7, stop - 1, now)
            at = stop
        self.rest = data[at:]

    def frame(self, data: bytes, kind: i64, at: i64, end: i64, now: i64) -> None:
        """Read a frame of type `kind`, received at `now` in ns; its payload is `data[at:end]`."""
        raise NotImplementedError

    def unexpected(self, data: bytes, kind: i64, at: i64, end: i64) -> BenchError:
        """Return the error for a frame that the broker must not send at this point."""
        if kind == _METHOD:
            return broker_closed(self.where, data[at:end])
        return BenchError(f"{self.where}: the broker sent an unexpected frame of type {kind}")


class BenchAmqpConsumer(BenchAmqpReader):
    """Reads the deliveries of one consumer on channel 1, and acknowledges them if `acks` is True.

    `names` has the exchanges and routing keys of the messages: each entry is one exchange and one
    routing key, as short strings. Message n has the entry at index n modulo `len(names)`.
    """

    def __init__(self, checker: Checker, names: list[bytes], acks: bool) -> None:
        super().__init__(checker.where)
        self.checker = checker
        # In a delivery, a zero byte (not redelivered) stands before the names.
        self._names = [b"\0" + name for name in names]
        self._acks = acks
        self._tag: i64 = 0
        self._left: i64 = _IDLE
        self._named = b""
        self._publisher: i64 = 0
        self._number: i64 = 0
        self._steps: i64 = 0

    def frame(self, data: bytes, kind: i64, at: i64, end: i64, now: i64) -> None:
        self._steps += 1
        if kind == _BODY and self._left > 0:
            self._read_body(data, at, end, now)
        elif kind == _HEADER and self._left == _NAMED and end - at >= 14:
            left: i64 = read_i64_be(data, at + 4)
            if left != self.checker.script.size:
                raise WrongAnswer(
                    self.where,
                    f"the size of the body of {self.checker.expected()} is wrong",
                    f"{self.checker.script.size} bytes",
                    f"{left} bytes",
                )
            self._left = left
        elif (
            kind == _METHOD
            and self._left == _IDLE
            and end - at >= 16
            and read_i32_be(data, at) == _DELIVER
        ):
            self._read_deliver(data, at, end)
        elif kind != _HEARTBEAT:
            raise self.unexpected(data, kind, at, end)

    def _read_deliver(self, data: bytes, at: i64, end: i64) -> None:
        length: i64 = data[at + 4]
        place: i64 = at + 5 + length
        if place + 9 > end:
            raise BenchError(f"{self.where}: the broker sent a basic.deliver that is cut off")
        tag: i64 = read_i64_be(data, place)
        self._tag += 1
        if tag != self._tag:
            raise WrongAnswer(self.where, "the delivery tag is wrong", self._tag, tag)
        self._named = data[place + 8 : end]
        self._left = _NAMED

    def _read_body(self, data: bytes, at: i64, end: i64, now: i64) -> None:
        checker = self.checker
        size: i64 = checker.script.size
        done: i64 = size - self._left
        self._left -= end - at
        if self._left < 0:
            raise WrongAnswer(
                self.where,
                f"the body of {checker.expected()} has too many bytes",
                size,
                size - self._left,
            )
        if done == 0:
            if end - at < HEADER_SIZE:
                raise BenchError(
                    f"{self.where}: the first frame of a body has {end - at} bytes, but must have "
                    f"at least {HEADER_SIZE} bytes"
                )
            self._publisher = i64(read_i32_be(data, at))
            self._number = i64(read_i32_be(data, at + 4))
            checker.check_filler(data, at + HEADER_SIZE, end, 0)
        else:
            checker.check_filler(data, at, end, done - HEADER_SIZE)
        if self._left > 0:
            return
        self._left = _IDLE
        checker.accept(self._publisher, self._number, now)
        # `accept` has checked the bounds of the number.
        wanted = self._names[self._number % len(self._names)]
        if self._named != wanted:
            raise WrongAnswer(
                self.where,
                f"message {self._number} of publisher {self._publisher} has a wrong redelivered "
                "flag, exchange or routing key",
                wanted,
                self._named,
            )
        if self._acks:
            self.out.write(_ACK_HEAD)
            write_i64_be(self.out, self._tag)
            self.out.append(0)
            self.out.append(0xCE)

    def count(self) -> i64:
        return self.checker.received

    def steps(self) -> i64:
        return self._steps

    def pending(self) -> str:
        return (
            super().pending() if self._left == _IDLE else f"the rest of {self.checker.expected()}"
        )


class AmqpPublisher(BenchAmqpReader):
    """Reads the confirms of one publisher. The delivery tag of message n (from 0) is n + 1."""

    def __init__(self, where: str, script: TrafficPlan, index: i64) -> None:
        super().__init__(where)
        self._confirmed = Receipts(where, "confirm", script.published[index])

    def frame(self, data: bytes, kind: i64, at: i64, end: i64, now: i64) -> None:
        if kind == _METHOD and end - at == 13 and read_i32_be(data, at) == _ACK:
            message: i64 = read_i64_be(data, at + 4) - 1
            if data[at + 12] & 1:
                self._confirmed.settle_to(message)
            else:
                self._confirmed.settle(message)
        elif kind == _METHOD and end - at == 13 and read_i32_be(data, at) == _NACK:
            raise WrongAnswer(
                self.where,
                f"the broker refused message {read_i64_be(data, at + 4) - 1}",
                "basic.ack",
                "basic.nack",
            )
        elif kind != _HEARTBEAT:
            raise self.unexpected(data, kind, at, end)

    def count(self) -> i64:
        return self._confirmed.count

    def steps(self) -> i64:
        return self._confirmed.count
