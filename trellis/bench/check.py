"""Checks that a subscriber receives every published message, once, in order and unchanged.

The body of a message begins with the publisher's number and the message's number, four bytes each.
The remaining bytes, the filler, are the same in all messages:

    body    publisher(4)  number(4)  filler ...

Message n of a publisher has the number n modulo `ring`. A publisher has at most `ring` messages in
flight, so a checker knows the next number. Any other number shows that a message was lost,
repeated, reordered or changed. Consumers that compete for one queue share a `CompetingCounts`,
which counts how often each number was received. Compiled. Hot path: 15 ns per message.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from trellis.bench.errors import WrongAnswer
from trellis.bench.latency import Histogram

#: Size in bytes of the publisher's number and the message's number together: the smallest body
#: possible.
HEADER_SIZE: Final = 8
#: Size in bytes from which comparing in place is cheaper than copying and comparing.
_LARGE: Final[i64] = 2_048


def filler(size: int) -> bytes:
    """Return the filler of a body of `size` bytes.

    The filler repeats every 93 bytes. So a block that is misplaced by a power of two, the usual
    size of a buffer, differs from the expected bytes.
    """
    pattern = bytes(range(33, 126))
    return (pattern * (size // len(pattern) + 1))[: size - HEADER_SIZE]


def body(publisher: int, number: int, rest: bytes) -> bytes:
    """Return the body of a message: both numbers, then the filler `rest`."""
    return publisher.to_bytes(4, "big") + number.to_bytes(4, "big") + rest


class PublishedMessages:
    """The messages that one publisher has begun to send: their count, and their send times.

    `times[n]` is the time in ns at which the last message with number n was sent. `times` is empty
    unless latencies are measured (`timed`).
    """

    def __init__(self, ring: i64, timed: bool) -> None:
        self.count: i64 = 0
        self.times = [0] * int(ring) if timed else []

    def send(self, count: i64, at: i64) -> None:
        """Count `count` more messages as sent at the time `at`, in ns."""
        if self.times:
            ring: i64 = len(self.times)
            end: i64 = self.count + count
            while self.count < end:
                self.times[self.count % ring] = int(at)
                self.count += 1
        else:
            self.count += count


class TrafficPlan:
    """The messages of all publishers of a run, and a histogram of the latencies if `timed`."""

    def __init__(self, publishers: i64, ring: i64, size: i64, timed: bool) -> None:
        self.ring = ring
        self.size = size
        self.filler = filler(int(size))
        self.timed = timed
        self.published = [PublishedMessages(ring, timed) for _ in range(int(publishers))]
        self.latency = Histogram()


class PublisherPosition:
    """The next message that one subscriber expects from one publisher.

    `message` counts the publisher's messages from 0 without end. `next` is the number in the
    message's body: `message` modulo `ring`.
    """

    def __init__(self, published: PublishedMessages, first: i64) -> None:
        self.published = published
        self.message: i64 = first
        self.next: i64 = first


class Checker:
    """Base class of the checkers of one subscriber's messages.

    `where` is the subscriber's name in errors.
    """

    def __init__(self, where: str, script: TrafficPlan) -> None:
        self.where = where
        self.script = script
        self.received: i64 = 0

    def accept(self, publisher: i64, number: i64, now: i64) -> None:
        """Check that an arrived message is expected at this point. Raises WrongAnswer.

        `publisher` and `number` are the numbers in the message's body; `now` is the time of the
        message's arrival in ns.
        """
        raise NotImplementedError

    def accept_next(self, count: i64, now: i64) -> None:
        """Count the next `count` messages of the only publisher as received at `now`, in ns.

        The caller has compared their bytes. Raises WrongAnswer if the publisher has sent fewer.
        """
        raise NotImplementedError

    def expected(self) -> str:
        """Return a phrase for errors that names the next message, such as "message 7 of publisher
        0".

        If the next message is not known, the phrase names its source, such as "a shared queue".
        """
        raise NotImplementedError

    def check_body(self, data: bytes, at: i64, end: i64) -> None:
        """Check the size and filler of the body `data[at:end]`. Raises WrongAnswer."""
        if end - at != self.script.size:
            raise WrongAnswer(
                self.where,
                "the size of a body is wrong",
                f"{self.script.size} bytes",
                f"{end - at} bytes",
            )
        self.check_filler(data, at + HEADER_SIZE, end, 0)

    def check_filler(self, data: bytes, at: i64, end: i64, offset: i64) -> None:
        """Check that `data[at:end]` equals the filler from its byte `offset` on.

        Raises WrongAnswer.
        """
        wanted = self.script.filler
        size: i64 = end - at
        if size != len(wanted):
            wanted = wanted[offset : offset + size]
        same: bool
        if size < _LARGE:
            same = data[at:end] == wanted
        else:
            same = size == len(wanted) and data.startswith(wanted, at)
        if not same:
            self._mismatch(data[at:end], wanted, offset)

    def _mismatch(self, got: bytes, wanted: bytes, offset: i64) -> None:
        for place, byte in enumerate(wanted):
            if place >= len(got) or got[place] != byte:
                seen = f"{got[place]:#04x}" if place < len(got) else "nothing"
                number = place + offset + HEADER_SIZE
                raise WrongAnswer(
                    self.where,
                    f"byte {number} of the body of {self.expected()} is wrong",
                    f"{byte:#04x}",
                    seen,
                )
        raise WrongAnswer(
            self.where,
            f"the body of {self.expected()} is too long",
            f"{len(wanted) + offset} bytes after the two numbers",
            "more",
        )


class Ordered(Checker):
    """A checker that expects messages `first`, `first + step`, ... of each publisher, in order."""

    def __init__(self, where: str, script: TrafficPlan, first: i64 = 0, step: i64 = 1) -> None:
        super().__init__(where, script)
        self._step = step
        self._ring = script.ring
        self._orders = [PublisherPosition(published, first) for published in script.published]

    def accept(self, publisher: i64, number: i64, now: i64) -> None:
        if publisher < 0 or publisher >= len(self._orders):
            raise WrongAnswer(
                self.where,
                "a body has an invalid publisher number",
                f"a number below {len(self._orders)}",
                publisher,
            )
        order = self._orders[publisher]
        if number != order.next:
            raise self._wrong(publisher, number)
        if order.message >= order.published.count:
            raise WrongAnswer(
                self.where,
                f"more messages came from publisher {publisher} than it has sent",
                f"no more than {order.published.count}",
                "another",
            )
        order.message += self._step
        order.next += self._step
        if order.next >= self._ring:
            order.next -= self._ring
        self.received += 1
        if self.script.timed:
            self.script.latency.add(now - order.published.times[number])

    def accept_next(self, count: i64, now: i64) -> None:
        order = self._orders[0]
        if self.script.timed:
            left: i64 = count
            while left > 0:
                self.accept(0, order.next, now)
                left -= 1
            return
        order.message += count * self._step
        order.next = order.message % self._ring
        self.received += count
        if order.message - self._step >= order.published.count:
            raise WrongAnswer(
                self.where,
                "more messages came from publisher 0 than it has sent",
                f"no more than {order.published.count}",
                "another",
            )

    def expected(self) -> str:
        if len(self._orders) > 1:
            return f"one of {len(self._orders)} publishers"
        return f"message {self._orders[0].message} of publisher 0"

    def _wrong(self, publisher: i64, number: i64) -> WrongAnswer:
        order = self._orders[publisher]
        ahead: i64 = (number - order.next) % self._ring
        got: i64 = order.message + ahead
        if number < 0 or number >= self._ring:
            return WrongAnswer(
                self.where,
                f"a body of publisher {publisher} has an invalid message number",
                f"number {order.next}",
                number,
            )
        what = "a message was lost or overtaken"
        if got >= order.published.count:
            what = "a message came again or late"
            got -= self._ring
        return WrongAnswer(
            self.where, what, f"message {order.message} of publisher {publisher}", f"message {got}"
        )


class CompetingCounts:
    """Counts of received messages, shared by all consumers of one queue.

    `laps[publisher][number]` is the count of received messages of this publisher with this number
    in their body. A number occurs again after `ring` messages.
    """

    def __init__(self, script: TrafficPlan) -> None:
        self.laps = [[0] * int(script.ring) for _ in script.published]


class Competing(Checker):
    """A checker for one of several consumers of a queue.

    Expects messages that no consumer of the queue has received yet, in the order of publication.
    All consumers of the queue share `counts`, so that a message received twice is detected.
    """

    def __init__(self, where: str, script: TrafficPlan, counts: CompetingCounts) -> None:
        super().__init__(where, script)
        self._counts = counts
        self._last = [-1] * len(script.published)

    def accept(self, publisher: i64, number: i64, now: i64) -> None:
        script = self.script
        if publisher < 0 or publisher >= len(script.published):
            raise WrongAnswer(
                self.where,
                "a body has an invalid publisher number",
                f"a number below {len(script.published)}",
                publisher,
            )
        if number < 0 or number >= script.ring:
            raise WrongAnswer(
                self.where,
                f"a body of publisher {publisher} has an invalid message number",
                f"a number below {script.ring}",
                number,
            )
        laps = self._counts.laps[publisher]
        published = script.published[publisher]
        message: i64 = laps[number] * script.ring + number
        if message >= published.count:
            raise WrongAnswer(
                self.where,
                f"a message of publisher {publisher} came twice to the consumers of the queue",
                f"a new message of publisher {publisher}",
                f"message {message - script.ring}",
            )
        last: i64 = self._last[publisher]
        if message < last:
            raise WrongAnswer(
                self.where,
                "the order of messages is wrong",
                f"a message after message {last} of publisher {publisher}",
                f"message {message}",
            )
        laps[number] += 1
        self._last[publisher] = int(message)
        self.received += 1
        if script.timed:
            script.latency.add(now - published.times[number])

    def expected(self) -> str:
        return "a shared queue"


class Receipts:
    """The acknowledgements that one publisher has received.

    `kind` is the name of the acknowledgement, such as PUBACK.
    """

    def __init__(self, where: str, kind: str, published: PublishedMessages) -> None:
        self.where = where
        self.kind = kind
        #: The first message without an acknowledgement. Later messages may already have one.
        self.first: i64 = 0
        self._early: set[int] = set()
        self._published = published

    @property
    def count(self) -> i64:
        """Number of acknowledged messages."""
        return self.first + len(self._early)

    def has(self, message: i64) -> bool:
        """True if a message is acknowledged."""
        return message < self.first or int(message) in self._early

    def settle(self, message: i64) -> None:
        """Record the acknowledgement of a message.

        Raises WrongAnswer if the message is already acknowledged or was not sent.
        """
        if message >= self._published.count or message < self.first:
            raise self._wrong(message)
        if message != self.first:
            if int(message) in self._early:
                raise self._wrong(message)
            self._early.add(int(message))
            return
        self.first += 1
        if self._early:
            self._advance()

    def settle_to(self, message: i64) -> None:
        """Record the acknowledgement of a message and of all messages before it.

        Raises WrongAnswer if the message is already acknowledged or was not sent.
        """
        if message >= self._published.count or message < self.first:
            raise self._wrong(message)
        self.first = message + 1
        if self._early:
            self._early = {early for early in self._early if early > message}
            self._advance()

    def _advance(self) -> None:
        while int(self.first) in self._early:
            self._early.discard(int(self.first))
            self.first += 1

    def _wrong(self, message: i64) -> WrongAnswer:
        what = (
            "came for a message that is already acknowledged"
            if message < self._published.count
            else "came for a message that was not sent"
        )
        return WrongAnswer(
            self.where,
            f"{self.kind} {what}",
            f"one of {self.first} to {self._published.count - 1}",
            message,
        )
