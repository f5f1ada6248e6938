"""Compares a queue that has any arguments with a small model.

The test compares the waiting messages, their order, and the time and reason of each removal.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.clients import World
from tests.wire.amqp.speech import deliveries, names, properties

Q, B = spec.Queue, spec.Basic
NUMBERS = st.none() | st.integers(0, 4)


class Copy:
    """A message in the model; its number gives its place in the order of the queue."""

    def __init__(self, number: int, priority: int, size: int, expires: int | None) -> None:
        self.number, self.priority, self.size, self.expires = number, priority, size, expires
        self.returned = 0


class Limits(RuleBasedStateMachine):
    @initialize(
        priorities=st.none() | st.integers(1, 3),
        length=NUMBERS,
        max_bytes=st.none() | st.integers(0, 12),
        ttl=st.none() | st.integers(0, 30),
        limit=st.none() | st.integers(0, 2),
        reject=st.booleans(),
    )
    def start(
        self,
        priorities: int | None,
        length: int | None,
        max_bytes: int | None,
        ttl: int | None,
        limit: int | None,
        reject: bool,
    ) -> None:
        given = {
            "x-max-priority": priorities,
            "x-max-length": length,
            "x-max-length-bytes": max_bytes,
            "x-message-ttl": ttl,
            "x-delivery-limit": limit,
            "x-overflow": "reject-publish" if reject else None,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead_letters",
        }
        self.world = World()
        self.client = self.world.amqp()
        self.client.queue("dead_letters")
        self.client.send(spec.Confirm.Select())
        self.client.send(
            Q.Declare(
                queue="q",
                arguments={name: value for name, value in given.items() if value is not None},
            )
        )
        self.priorities, self.length, self.max_bytes, self.ttl, self.limit, self.reject = (
            priorities,
            length,
            max_bytes,
            ttl,
            limit,
            reject,
        )
        self.waiting: list[Copy] = []
        self.held: dict[int, Copy] = {}
        self.buried: list[tuple[int, str]] = []
        self.published = self.tag = self.now = 0

    # -- the model

    def rank(self) -> None:
        self.waiting.sort(key=lambda copy: (-min(copy.priority, self.priorities or 0), copy.number))

    def dead_letter(self, copy: Copy, reason: str) -> None:
        self.buried.append((copy.number, reason))

    def expire(self) -> None:
        while (
            self.waiting
            and self.waiting[0].expires is not None
            and self.waiting[0].expires <= self.now
        ):
            self.dead_letter(self.waiting.pop(0), "expired")

    def full(self, more: Copy | None = None) -> bool:
        copies = [*self.waiting, more] if more is not None else self.waiting
        return (
            self.length is not None
            and len(copies) > self.length
            or self.max_bytes is not None
            and sum(copy.size for copy in copies) > self.max_bytes
        )

    def trim(self) -> None:
        while self.waiting and self.full():
            self.dead_letter(self.waiting.pop(0), "maxlen")

    # -- rules

    @rule(
        priority=st.integers(0, 4),
        size=st.integers(0, 6),
        expiration=st.none() | st.integers(0, 30),
    )
    def publish(self, priority: int, size: int, expiration: int | None) -> None:
        self.published += 1
        times = [time for time in (self.ttl, expiration) if time is not None]
        copy = Copy(self.published, priority, size, self.now + min(times) if times else None)
        given: Any = {} if expiration is None else {"expiration": str(expiration)}
        answer = names(
            self.client.publish(
                "", "q", b"x" * size, priority=priority, message_id=str(copy.number), **given
            )
        )
        if self.reject and self.full(copy):
            assert answer == ["Basic.Nack"]
            return
        assert answer == ["Basic.Ack"]
        self.waiting.append(copy)
        self.rank()
        if not self.reject:
            self.trim()
        self.expire()

    @rule()
    def get(self) -> None:
        self.expire()
        frames = self.client.send(B.Get(queue="q"))
        if not self.waiting:
            assert names(frames) == ["Basic.GetEmpty"]
            return
        copy = self.waiting.pop(0)
        self.tag += 1
        self.held[self.tag] = copy
        [one] = deliveries(frames)
        received = properties(frames)
        assert (received.message_id, one.number, one.redelivered) == (
            str(copy.number),
            self.tag,
            copy.returned > 0,
        )
        expected = (
            {"x-delivery-count": copy.returned}
            if self.limit is not None and copy.returned
            else None
        )
        assert received.headers == expected
        self.expire()

    @rule(which=st.integers(0, 9), how=st.sampled_from(["ack", "reject", "requeue", "requeue"]))
    def settle(self, which: int, how: str) -> None:
        if not self.held:
            return
        tag = sorted(self.held)[which % len(self.held)]
        copy = self.held.pop(tag)
        self.client.send(B.Ack(tag) if how == "ack" else B.Nack(tag, requeue=how == "requeue"))
        if how == "reject":
            self.dead_letter(copy, "rejected")
        elif how == "requeue" and self.limit is not None and copy.returned >= self.limit:
            self.dead_letter(copy, "delivery_limit")
        elif how == "requeue":
            copy.returned += 1
            self.waiting.append(copy)
            self.rank()
            if not self.reject:
                self.trim()

    @rule(milliseconds=st.integers(1, 20))
    def sleep(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.world.sleep(milliseconds)
        self.expire()

    @rule()
    def purge(self) -> None:
        self.world.sleep(0)
        self.expire()
        assert self.client.send(Q.Purge(queue="q"))[0].message_count == len(self.waiting)
        self.waiting.clear()

    # -- invariants

    @invariant()
    def the_queue_holds_what_the_model_says_and_the_dead_letter_queue_the_rest(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.sleep(0)
        self.world.settle()
        self.expire()
        queue: Any = self.world.queue("q")
        assert (queue.depth, queue.unacked) == (len(self.waiting), len(self.held))
        if self.max_bytes is not None:
            assert queue.waiting_bytes == sum(copy.size for copy in self.waiting)
        while (frames := self.client.send(B.Get(queue="dead_letters", no_ack=True)))[
            0
        ].name == "Basic.GetOk":
            self.tag += 1
            letter = properties(frames)
            entry = (int(letter.message_id), letter.headers["x-death"][0]["reason"])
            assert entry in self.buried
            self.buried.remove(entry)
        assert not self.buried
        self.world.fates()


Limits.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLimits = Limits.TestCase
