"""Is what a subscriber received what was published: all of it, once, in order, unchanged?

A message's body begins with its publisher and its number, four octets each; the rest, the filler,
is the same in all:

    body    publisher(4)  number(4)  filler ...

Numbers go round: 0 .. ring - 1, 0 .. A publisher has at most `ring` messages under way, so that
where each message goes to one checker the next number is known and compared: whatever else comes is
lost, repeated, out of order or changed. Consumers that compete for a queue share a `Pile`, which
knows how often each number has come. Compiled: Hot path, 15 ns a message.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from trellis.bench.errors import WrongAnswer
from trellis.bench.latency import Histogram

#: Octets of publisher and number: no body is smaller.
MARK: Final = 8
#: From this many octets on, comparing in place is cheaper than comparing a copy.
_LARGE: Final[i64] = 2_048


def filler(size: int) -> bytes:
    """What follows the mark in a body of `size` octets: of a period that no power of two shares, so
    that shifts show.
    """
    pattern = bytes(range(33, 126))
    return (pattern * (size // len(pattern) + 1))[: size - MARK]


def body(publisher: int, number: int, rest: bytes) -> bytes:
    return publisher.to_bytes(4, "big") + number.to_bytes(4, "big") + rest


class PublishedMessages:
    """How many messages one publisher has begun to send; `times` has for each number when it left,
    where that is asked for.
    """

    def __init__(self, ring: i64, timed: bool) -> None:
        self.count: i64 = 0
        self.times = [0] * int(ring) if timed else []

    def send(self, count: i64, at: i64) -> None:
        """The next `count` messages leave at this time, in ns."""
        if self.times:
            ring: i64 = len(self.times)
            end: i64 = self.count + count
            while self.count < end:
                self.times[self.count % ring] = int(at)
                self.count += 1
        else:
            self.count += count


class Script:
    """What is published in a run, and how long it took to arrive if `timed`."""

    def __init__(self, publishers: i64, ring: i64, size: i64, timed: bool) -> None:
        self.ring = ring
        self.size = size
        self.filler = filler(int(size))
        self.timed = timed
        self.published = [PublishedMessages(ring, timed) for _ in range(int(publishers))]
        self.latency = Histogram()


class Order:
    """Where one subscriber is with one publisher: how far in all, and the number that comes next."""

    def __init__(self, published: PublishedMessages, first: i64) -> None:
        self.published = published
        self.upto: i64 = first
        self.next: i64 = first


class Checker:
    """Checks what one subscriber receives; `where` names it in errors."""

    def __init__(self, where: str, script: Script) -> None:
        self.where = where
        self.script = script
        self.received: i64 = 0

    def took(self, publisher: i64, number: i64, now: i64) -> None:
        """A message has come whole, at this time in ns. Raises WrongAnswer."""
        raise NotImplementedError

    def took_run(self, count: i64, now: i64) -> None:
        """So many more messages of the only publisher have come, octet for octet.

        Raises WrongAnswer.
        """
        raise NotImplementedError

    def expects(self) -> str:
        """What comes next."""
        raise NotImplementedError

    def check_body(self, octets: bytes, at: i64, end: i64) -> None:
        """A whole body: its size and its filler. Raises WrongAnswer."""
        if end - at != self.script.size:
            raise WrongAnswer(self.where, "size of a body", self.script.size, end - at)
        self.check_filler(octets, at + MARK, end, 0)

    def check_filler(self, octets: bytes, at: i64, end: i64, offset: i64) -> None:
        """A part of the filler, from this offset on. Raises WrongAnswer."""
        wanted = self.script.filler
        size: i64 = end - at
        if size != len(wanted):
            wanted = wanted[offset : offset + size]
        same: bool
        if size < _LARGE:
            same = octets[at:end] == wanted
        else:
            same = size == len(wanted) and octets.startswith(wanted, at)
        if not same:
            self._differs(octets[at:end], wanted, offset)

    def _differs(self, got: bytes, wanted: bytes, offset: i64) -> None:
        for place, octet in enumerate(wanted):
            if place >= len(got) or got[place] != octet:
                seen = f"{got[place]:#04x}" if place < len(got) else "nothing"
                raise WrongAnswer(
                    self.where,
                    f"octet {place + offset + MARK} of the body of {self.expects()}",
                    f"{octet:#04x}",
                    seen,
                )
        raise WrongAnswer(
            self.where,
            f"body of {self.expects()}",
            f"{len(wanted) + offset} octets after the mark",
            "more",
        )


class Ordered(Checker):
    """Receives every `step`-th message of each publisher, from the one with the number `first` on,
    in order.
    """

    def __init__(self, where: str, script: Script, first: i64 = 0, step: i64 = 1) -> None:
        super().__init__(where, script)
        self._step = step
        self._ring = script.ring
        self._orders = [Order(published, first) for published in script.published]

    def took(self, publisher: i64, number: i64, now: i64) -> None:
        if publisher < 0 or publisher >= len(self._orders):
            raise WrongAnswer(
                self.where, "publisher in a body", f"one of {len(self._orders)}", publisher
            )
        order = self._orders[publisher]
        if number != order.next:
            raise self._wrong(publisher, number)
        if order.upto >= order.published.count:
            raise WrongAnswer(
                self.where,
                f"messages of publisher {publisher}",
                f"no more than {order.published.count}",
                "another",
            )
        order.upto += self._step
        order.next += self._step
        if order.next >= self._ring:
            order.next -= self._ring
        self.received += 1
        if self.script.timed:
            self.script.latency.add(now - order.published.times[number])

    def took_run(self, count: i64, now: i64) -> None:
        order = self._orders[0]
        if self.script.timed:
            left: i64 = count
            while left > 0:
                self.took(0, order.next, now)
                left -= 1
            return
        order.upto += count * self._step
        order.next = order.upto % self._ring
        self.received += count
        if order.upto - self._step >= order.published.count:
            raise WrongAnswer(
                self.where,
                "messages of publisher 0",
                f"no more than {order.published.count}",
                "another",
            )

    def expects(self) -> str:
        if len(self._orders) > 1:
            return f"one of {len(self._orders)} publishers"
        return f"message {self._orders[0].upto} of publisher 0"

    def _wrong(self, publisher: i64, number: i64) -> WrongAnswer:
        order = self._orders[publisher]
        ahead: i64 = (number - order.next) % self._ring
        got: i64 = order.upto + ahead
        if number < 0 or number >= self._ring:
            return WrongAnswer(
                self.where,
                f"number in a body of publisher {publisher}",
                f"number {order.next}",
                number,
            )
        what = "a message was lost or overtaken"
        if got >= order.published.count:
            what = "a message came again or late"
            got -= self._ring
        return WrongAnswer(
            self.where, what, f"message {order.upto} of publisher {publisher}", f"message {got}"
        )


class Pile:
    """What the consumers of one queue have received together: for every publisher how often each
    number has come.
    """

    def __init__(self, script: Script) -> None:
        self.laps = [[0] * int(script.ring) for _ in script.published]


class Competing(Checker):
    """Receives some messages of a queue, in order; the others that share the pile receive the rest,
    each once.
    """

    def __init__(self, where: str, script: Script, pile: Pile) -> None:
        super().__init__(where, script)
        self._pile = pile
        self._last = [-1] * len(script.published)

    def took(self, publisher: i64, number: i64, now: i64) -> None:
        script = self.script
        if publisher < 0 or publisher >= len(script.published):
            raise WrongAnswer(
                self.where, "publisher in a body", f"one of {len(script.published)}", publisher
            )
        if number < 0 or number >= script.ring:
            raise WrongAnswer(
                self.where,
                f"number in a body of publisher {publisher}",
                f"less than {script.ring}",
                number,
            )
        laps = self._pile.laps[publisher]
        published = script.published[publisher]
        message: i64 = laps[number] * script.ring + number
        if message >= published.count:
            raise WrongAnswer(
                self.where,
                "a message came again",
                f"a message of publisher {publisher} that had not come",
                f"message {message - script.ring}",
            )
        last: i64 = self._last[publisher]
        if message < last:
            raise WrongAnswer(
                self.where,
                "a message was overtaken",
                f"one after message {last} of publisher {publisher}",
                f"message {message}",
            )
        laps[number] += 1
        self._last[publisher] = int(message)
        self.received += 1
        if script.timed:
            script.latency.add(now - published.times[number])

    def expects(self) -> str:
        return "a queue that others share"


class Receipts:
    """Which of a publisher's messages the broker has acknowledged, by number in all; `kind` is what
    it calls that.
    """

    def __init__(self, where: str, kind: str, published: PublishedMessages) -> None:
        self.where = where
        self.kind = kind
        #: All below have one, and so have some above.
        self.first: i64 = 0
        self._early: set[int] = set()
        self._published = published

    @property
    def count(self) -> i64:
        return self.first + len(self._early)

    def has(self, message: i64) -> bool:
        return message < self.first or int(message) in self._early

    def settle(self, message: i64) -> None:
        """One receipt. Raises WrongAnswer."""
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
        """A receipt for this message and all before it. Raises WrongAnswer."""
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
            "of a message that has one"
            if message < self._published.count
            else "of a message that was not sent"
        )
        return WrongAnswer(
            self.where,
            f"{self.kind} {what}",
            f"one of {self.first} to {self._published.count - 1}",
            message,
        )
