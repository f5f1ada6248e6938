"""AMQP as the generator hears it: deliveries at a consumer, confirms at a publisher. Hot path.

    frame      type(1) channel(2) length(4) payload(length) 0xCE                               4.2.3
    deliver    class(2) method(2) consumer tag(1+n) delivery tag(8) redelivered(1) exchange(1+n) routing key(1+n)
    header     class(2) weight(2) body size(8) property flags(2) ...
    body       octets, in as many frames as it takes

A delivery is method, header, bodies: `_left` is -2 where a method may come, -1 where a header must,
else the octets that are missing.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be, write_i64_be
from mypy_extensions import i64

from trellis.bench.amqp import broker_closed
from trellis.bench.check import MARK, Checker, Receipts, Script
from trellis.bench.errors import BenchError, WrongAnswer
from trellis.bench.reader import BenchReader

_METHOD: Final[i64] = 1
_HEADER: Final[i64] = 2
_BODY: Final[i64] = 3
_HEARTBEAT: Final[i64] = 8
_DELIVER: Final[i64] = 60 << 16 | 60
_ACK: Final[i64] = 60 << 16 | 80
_NACK: Final[i64] = 60 << 16 | 120
#: No frame is larger; the brokers we know offer 131,072 at most.
_FRAME_MAX: Final[i64] = 1 << 24
_IDLE: Final[i64] = -2
_NAMED: Final[i64] = -1

#: basic.ack up to its delivery tag; behind that come `multiple` and the frame's end.
_ACK_HEAD: Final = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"


class BenchAmqpReader(BenchReader):
    """Cuts octets into frames; the two below know what may be in them."""

    def heard(self, data: bytes, now: i64) -> None:
        octets = self.rest + data if self.rest else data
        end: i64 = len(octets)
        at: i64 = 0
        while end - at >= 8:
            size = i64(read_i32_be(octets, at + 3))
            if size < 0 or size > _FRAME_MAX:
                raise BenchError(
                    f"{self.where}: the broker sent a frame that says it has {size & 0xFFFFFFFF} octets"
                )
            stop: i64 = at + 8 + size
            if stop > end:
                break
            if octets[stop - 1] != 0xCE:
                raise BenchError(f"{self.where}: the broker sent a frame without a frame end")
            self.frame(octets, octets[at], at + 7, stop - 1, now)
            at = stop
        self.rest = octets[at:]

    def frame(self, octets: bytes, kind: i64, at: i64, end: i64, now: i64) -> None:
        """A whole frame of this type, with its payload from `at` to `end`."""
        raise NotImplementedError

    def unexpected(self, octets: bytes, kind: i64, at: i64, end: i64) -> BenchError:
        """The error for a frame that may not come."""
        if kind == _METHOD:
            return broker_closed(self.where, octets[at:end])
        return BenchError(
            f"{self.where}: the broker sent a frame of type {kind}, which may not come here"
        )


class BenchAmqpConsumer(BenchAmqpReader):
    """Hears deliveries on channel 1. `names` are exchange and routing key, as short strings, by
    number modulo their count; every message is acknowledged if `acks`."""

    def __init__(self, checker: Checker, names: list[bytes], acks: bool) -> None:
        super().__init__(checker.where)
        self.checker = checker
        # An octet that says "not redelivered" stands before the names.
        self._names = [b"\0" + name for name in names]
        self._acks = acks
        self._tag: i64 = 0
        self._left: i64 = _IDLE
        self._named = b""
        self._publisher: i64 = 0
        self._number: i64 = 0
        self._steps: i64 = 0

    def frame(self, octets: bytes, kind: i64, at: i64, end: i64, now: i64) -> None:
        self._steps += 1
        if kind == _BODY and self._left > 0:
            self._heard_body(octets, at, end, now)
        elif kind == _HEADER and self._left == _NAMED and end - at >= 14:
            left: i64 = read_i64_be(octets, at + 4)
            if left != self.checker.script.size:
                raise WrongAnswer(
                    self.where,
                    f"size of the body of {self.checker.expects()}",
                    self.checker.script.size,
                    left,
                )
            self._left = left
        elif (
            kind == _METHOD
            and self._left == _IDLE
            and end - at >= 16
            and read_i32_be(octets, at) == _DELIVER
        ):
            self._heard_deliver(octets, at, end)
        elif kind != _HEARTBEAT:
            raise self.unexpected(octets, kind, at, end)

    def _heard_deliver(self, octets: bytes, at: i64, end: i64) -> None:
        length: i64 = octets[at + 4]
        place: i64 = at + 5 + length
        if place + 9 > end:
            raise BenchError(f"{self.where}: the broker sent a basic.deliver that is cut off")
        tag: i64 = read_i64_be(octets, place)
        self._tag += 1
        if tag != self._tag:
            raise WrongAnswer(self.where, "delivery tag", self._tag, tag)
        self._named = octets[place + 8 : end]
        self._left = _NAMED

    def _heard_body(self, octets: bytes, at: i64, end: i64, now: i64) -> None:
        checker = self.checker
        size: i64 = checker.script.size
        done: i64 = size - self._left
        self._left -= end - at
        if self._left < 0:
            raise WrongAnswer(
                self.where, f"octets of the body of {checker.expects()}", size, size - self._left
            )
        if done == 0:
            if end - at < MARK:
                raise BenchError(
                    f"{self.where}: the broker cut a body of {size} octets into frames of {end - at}"
                )
            self._publisher = i64(read_i32_be(octets, at))
            self._number = i64(read_i32_be(octets, at + 4))
            checker.check_filler(octets, at + MARK, end, 0)
        else:
            checker.check_filler(octets, at, end, done - MARK)
        if self._left > 0:
            return
        self._left = _IDLE
        checker.took(self._publisher, self._number, now)
        # `took` has bounded the number.
        wanted = self._names[self._number % len(self._names)]
        if self._named != wanted:
            raise WrongAnswer(
                self.where,
                f"redelivered, exchange and routing key of message {self._number} of publisher {self._publisher}",
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

    def open(self) -> str:
        return super().open() if self._left == _IDLE else f"the rest of {self.checker.expects()}"


class AmqpPublisher(BenchAmqpReader):
    """Hears confirms: the delivery tag is the message's number in all plus one."""

    def __init__(self, where: str, script: Script, index: i64) -> None:
        super().__init__(where)
        self._confirmed = Receipts(where, "confirm", script.published[index])

    def frame(self, octets: bytes, kind: i64, at: i64, end: i64, now: i64) -> None:
        if kind == _METHOD and end - at == 13 and read_i32_be(octets, at) == _ACK:
            message: i64 = read_i64_be(octets, at + 4) - 1
            if octets[at + 12] & 1:
                self._confirmed.settle_to(message)
            else:
                self._confirmed.settle(message)
        elif kind == _METHOD and end - at == 13 and read_i32_be(octets, at) == _NACK:
            raise WrongAnswer(
                self.where,
                f"confirm of message {read_i64_be(octets, at + 4) - 1}",
                "basic.ack",
                "basic.nack",
            )
        elif kind != _HEARTBEAT:
            raise self.unexpected(octets, kind, at, end)

    def count(self) -> i64:
        return self._confirmed.count

    def steps(self) -> i64:
        return self._confirmed.count
