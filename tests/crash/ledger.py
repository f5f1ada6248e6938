"""The ledger of the publishers: which messages were sent, confirmed and received; and checks.

    numbers of a publisher    0 1 2 3 4 5 6 | 7 8 9 10 11 | ...      `|` is a kill of the broker

A life of the broker is the time from a start to the next kill. The last messages of a life may be
unconfirmed. The log keeps the messages in the order in which they were sent. So if some unconfirmed
messages of a life survive, they must be the first unconfirmed ones of this life.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

#: Sizes of bodies: most are small, some fill segments.
SIZES: Final = (24, 60, 60, 60, 200, 1_000)


def body_of(name: str, number: int, size: int) -> bytes:
    """Return a body that names its publisher and number, and that no other message has."""
    head = b"%s:%d:%d:" % (name.encode(), number, size)
    return (head * (size // len(head) + 1))[: max(size, len(head))]


def read_body(body: bytes) -> tuple[str, int]:
    """Return (publisher, number) of a body.

    Raises AssertionError or ValueError for a body that `body_of` has not made.
    """
    name, number, size, *_ = body.split(b":", 3)
    assert body == body_of(name.decode(), int(number), int(size)), (
        f"no publisher sent {body[:100]!r}"
    )
    return name.decode(), int(number)


class Feed:
    """The messages of one publisher, and the queues to which each of them goes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[tuple[str, ...]] = []
        self.confirmed: set[int] = set()
        #: Number of a message -> how often the message was sent again.
        self.again: dict[int, int] = {}
        #: For each start of the broker: the number of the first message published after it.
        self.starts: list[int] = []

    def begin(self) -> None:
        self.starts.append(len(self.queues))

    def next(self, size: int, *queues: str) -> bytes:
        """Return the body of the next message, which goes to `queues`."""
        self.queues.append(queues)
        return body_of(self.name, len(self.queues) - 1, size)

    def spans(self) -> list[tuple[int, int]]:
        """Return (first, last + 1) of the message numbers published in each life of the broker."""
        ends = [*self.starts[1:], len(self.queues)]
        return list(zip(self.starts, ends, strict=True))

    def meant_for(self, queue: str, start: int, end: int) -> list[int]:
        return [number for number in range(start, end) if queue in self.queues[number]]

    # -- verdicts

    def judge_kept(self, numbers_of: dict[str, list[int]]) -> None:
        """Check queues without consumers. `numbers_of` has the message numbers in each queue.

        Each confirmed message must be in each of its queues once, in order. In each life of the
        broker (from a start to the next kill), the last messages may be missing: if a message is
        missing in one queue, it and all later messages of the life must be missing in all queues.
        """
        for queue, numbers in numbers_of.items():
            assert numbers == sorted(set(numbers)), f"{self.name} in {queue}: {disorder(numbers)}"
        for start, end in self.spans():
            came = [
                number
                for numbers in numbers_of.values()
                for number in numbers
                if start <= number < end
            ]
            cut = (
                max(
                    [*came, *(number for number in self.confirmed if start <= number < end)],
                    default=start - 1,
                )
                + 1
            )
            for queue, numbers in numbers_of.items():
                there = [number for number in numbers if start <= number < end]
                wanted = self.meant_for(queue, start, cut)
                assert there == wanted, (
                    f"{self.name} in {queue}: of {start} to {end}, confirmed to "
                    f"{max(self.confirmed, default=-1)}, "
                    f"lacks {sorted(set(wanted) - set(there))[:20]}, "
                    f"has {sorted(set(there) - set(wanted))[:20]} too much"
                )

    def judge_seen(self, queue: str, seen: list[int], once: bool) -> None:
        """Check the messages that a reader got from a queue, over all starts of the broker.

        The reader must have got every confirmed message, exactly once if `once` is True, and no
        message that was never sent.
        """
        firsts = list(dict.fromkeys(seen))
        lacking = [
            number
            for number in self.confirmed
            if queue in self.queues[number] and number not in set(firsts)
        ]
        assert not lacking, f"{self.name} in {queue}: {lacking[:20]} were confirmed and never came"
        strange = [
            number
            for number in firsts
            if number >= len(self.queues) or queue not in self.queues[number]
        ]
        assert not strange, f"{self.name} in {queue}: {strange[:20]} do not belong there"
        assert firsts == sorted(firsts), f"{self.name} in {queue}: {disorder(firsts)}"
        if once:
            assert len(firsts) == len(seen), f"{self.name} in {queue}: {disorder(seen)}"

    def judge_at_least_once(self, queue: str, numbers: list[int]) -> None:
        """Check a queue without consumers, whose publisher sends unconfirmed messages again.

        Each confirmed message must be in the queue, and no message more often than it was sent.
        """
        self.judge_seen(queue, numbers, False)
        for number in set(numbers):
            most = 1 + self.again.get(number, 0)
            assert numbers.count(number) <= most, (
                f"{self.name} in {queue}: {number} came {numbers.count(number)} times, not {most}"
            )

    def judge_everything(self, queue: str, numbers: list[int]) -> None:
        """Check that the queue has each message of the publisher once, in order."""
        everything = range(len(self.queues))
        assert numbers == list(everything), (
            f"{self.name} in {queue}: of {len(everything)}, lacks "
            f"{sorted(set(everything) - set(numbers))[:20]}; {disorder(numbers)}"
        )


def disorder(numbers: list[int]) -> str:
    """Return a text about the first number that is not above its predecessor, or "in order"."""
    for at, (one, other) in enumerate(pairwise(numbers)):
        if other <= one:
            return f"{other} comes behind {one} (... {numbers[max(at - 5, 0) : at + 6]} ...)"
    return "in order"


def by_feed(bodies: list[bytes]) -> dict[str, list[int]]:
    """Return publisher name -> numbers of its messages, in the order of `bodies`."""
    numbers_of: dict[str, list[int]] = {}
    for body in bodies:
        name, number = read_body(body)
        numbers_of.setdefault(name, []).append(number)
    return numbers_of
