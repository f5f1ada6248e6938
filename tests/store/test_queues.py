"""Tests of long durable queues, with a plain list as the model.

Messages are published, delivered, settled, requeued, purged, expired and dropped, in memory and on
disk. Each message must be in its place, and the store must keep exactly the needed messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pamqp.commands as spec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.agenda import Agenda
from broker.messages.memory import MESSAGE_SIZE
from broker.messages.message import PLAIN, Address, Message
from broker.messages.outlet import Outlet
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import Consumer, Delivery
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.paged_tail import CHUNK_MESSAGES, POSITION_SIZE
from broker.queues.queue import Queue
from broker.store.contract import FETCH_BYTES
from broker.store.entries import MessageStored
from broker.store.memory import MemoryStore
from tests.clients import World
from tests.store.homes import Home

NUMBER = 3


class Taker(Consumer):
    """A consumer that takes messages while it has credit."""

    def __init__(self, queue: Queue, model: Model) -> None:
        super().__init__(queue, Outlet(), 0, None)
        self.model = model

    def deliver(self, message: Message, sequence: int) -> None:
        self.redeliver(Delivery(message, self, sequence))

    def redeliver(self, delivery: Delivery) -> None:
        self.credit -= 1
        self.queue.unacked += 1
        self.model.delivered(delivery)


class Undertaker(DeadLetterHost):
    """Receives each message that the queue dead-letters, and notes the message in the model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def dead_letter(self, queue: LimitedQueue, message: Message, reason: str) -> None:
        self.model.buried.append((message.content, reason))
        queue.release(message)


class Model(RuleBasedStateMachine):
    """A queue, and a list with the messages that must be in it.

    `waiting` is the list, oldest message first: (serial number, content, expiry time or 0, True if
    the message is on disk).
    """

    arguments: ClassVar[dict[str, Any]] = {}

    @initialize(window=st.sampled_from([1, 3, 10]))
    def begin(self, window: int) -> None:
        self.agenda, self.store = Agenda(), MemoryStore()
        self.agenda.advance(1_000, 1_700_000_000.0)
        self.store.window = window
        self.queue: Queue = Queue("/", "q", self.agenda, self.store, True)
        terms = QueueArguments("q", "/", self.arguments)
        if not terms.needs_only_plain_queue:
            self.queue = LimitedQueue(
                "/", "q", self.agenda, self.store, True, terms, Undertaker(self)
            )
        self.queue.number = NUMBER
        self.taker = Taker(self.queue, self)
        self.waiting: list[tuple[int, bytes, int, bool]] = []
        self.held: list[tuple[tuple[int, bytes, int, bool], Delivery]] = []
        self.buried: list[tuple[bytes, str]] = []
        self.expected: list[tuple[bytes, str]] = []
        self.serial = 0

    # -- the model

    def drop(self, reason: str) -> None:
        dropped = self.waiting.pop(0)
        if "x-dead-letter-exchange" in self.arguments:
            self.expected.append((dropped[1], reason))

    def expire(self) -> None:
        while self.waiting and 0 < self.waiting[0][2] <= self.agenda.now:
            self.drop("expired")

    def shorten(self) -> bool:
        """Drop messages above the limit; return True if any were dropped."""
        before = len(self.waiting)
        while len(self.waiting) > self.arguments.get("x-max-length", 1 << 30):
            self.drop("maxlen")
        return len(self.waiting) < before

    def delivered(self, delivery: Delivery) -> None:
        # An expired message behind others waits until it is at the head.
        self.expire()
        entry = self.waiting.pop(0)
        assert (delivery.message.content, int(delivery.message.expires)) == (entry[1], entry[2])
        self.held.append((entry, delivery))

    # -- actions

    @rule(
        count=st.sampled_from([1, 2, 20, 300]),
        kept=st.booleans(),
        ttl=st.sampled_from([0, 0, 5, 50]),
    )
    def put(self, count: int, kept: bool, ttl: int) -> None:
        for _ in range(count):
            self.serial += 1
            message = Message(Address("", "q"), b"%d" % self.serial, PLAIN, 1 if kept else 0)
            message.expires = self.agenda.now + ttl if ttl else 0
            if kept:
                message.position = self.store.append(MessageStored("/", message, [NUMBER]), None)
            queued = self.arguments.get("x-message-ttl", 1 << 30)
            expires = min(int(message.expires) or 1 << 60, int(self.agenda.now) + queued)
            self.waiting.append(
                (self.serial, message.content, expires if expires < 1 << 29 else 0, kept)
            )
            before = len(self.held)
            self.queue.put(message)
            if len(self.held) == before and self.shorten() and self.arguments:
                self.expire()

    @rule(count=st.sampled_from([1, 3, 400]))
    def consume(self, count: int) -> None:
        """Start a consumer that takes up to `count` messages, and cancel it."""
        self.taker.credit = count
        self.queue.subscribe(self.taker)
        while not self.agenda.idle:
            self.agenda.turn()
        self.queue.unsubscribe(self.taker)
        if self.taker.credit > 0:
            self.expire()
            assert not self.waiting
        self.taker.credit = 0

    @rule()
    def take(self) -> None:
        delivery = self.queue.take(self.taker)
        if delivery is None:
            self.expire()
            assert not self.waiting
        else:
            self.queue.unacked += 1
            self.delivered(delivery)

    @rule(
        at=st.integers(0, 1_000),
        how=st.sampled_from(["settle", "requeue", "requeue", "reject", "all"]),
    )
    def answer(self, at: int, how: str) -> None:
        if how == "all":
            for entry, delivery in reversed(self.held):
                self.give_back(entry, delivery)
            self.held.clear()
        elif self.held:
            entry, delivery = self.held.pop(at % len(self.held))
            if how == "requeue":
                self.give_back(entry, delivery)
            elif how == "settle":
                self.queue.settle(delivery.message)
            else:
                if "x-dead-letter-exchange" in self.arguments:
                    self.expected.append((entry[1], "rejected"))
                self.queue.reject(delivery.message)

    def give_back(self, entry: tuple[int, bytes, int, bool], delivery: Delivery) -> None:
        self.waiting.append(entry)
        self.waiting.sort()
        self.queue.requeue(delivery)
        self.shorten()

    @rule(milliseconds=st.sampled_from([1, 10, 100]))
    def wait(self, milliseconds: int) -> None:
        self.agenda.advance(int(self.agenda.now) + milliseconds, self.agenda.wall)
        while not self.agenda.idle:
            self.agenda.turn()
        self.expire()

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.waiting)
        self.waiting.clear()

    @invariant()
    def memory(self) -> None:
        transient = sum(not kept for *_, kept in self.waiting) if hasattr(self, "queue") else 0
        if transient:
            assert self.queue.memory_bytes() >= transient * MESSAGE_SIZE
        elif hasattr(self, "queue") and self.queue.depth == 0:
            assert self.queue.memory_bytes() == 0

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "queue"):
            return
        while not self.agenda.idle:
            self.agenda.turn()
        queue = self.queue
        assert (queue.depth, queue.unacked) == (len(self.waiting), len(self.held))
        assert self.buried == self.expected
        live = {
            int(content)
            for _, content, _, kept in [*self.waiting, *(entry for entry, _ in self.held)]
            if kept
        }
        assert {int(kept.message.content) for kept in self.store.state.messages.values()} == live
        assert sum(queue.fates()) + queue.depth + queue.unacked == self.serial
        in_memory = queue.depth - queue.paged
        returned = len(queue._waiting.returned.in_order())
        assert in_memory <= max(int(self.store.window), 256) + returned, (
            "more messages are in memory than the window allows"
        )

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.consume(1 << 20)
            assert not self.waiting


class Short(Model):
    arguments: ClassVar[dict[str, Any]] = {"x-max-length": 7, "x-dead-letter-exchange": "dlx"}


class Brief(Model):
    arguments: ClassVar[dict[str, Any]] = {"x-message-ttl": 20, "x-dead-letter-exchange": "dlx"}


class Long(Model):
    arguments: ClassVar[dict[str, Any]] = {"x-max-length": 500, "x-message-ttl": 60}


TestPlain = Model.TestCase
TestShort = Short.TestCase
TestBrief = Brief.TestCase
TestLong = Long.TestCase
for one in (TestPlain, TestShort, TestBrief, TestLong):
    one.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
del one  # pytest would collect `one` as a further test class.


def test_a_message_that_cannot_be_read_leaves_no_other_message_out() -> None:
    world = World()
    world.store.window = 2
    client = world.amqp()
    client.queue("q", durable=True)
    for number in range(6):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
    del world.store.state.messages[sorted(world.store.state.messages)[4]]
    for number in (0, 1, 2, 3, 5):
        assert client.bodies(client.send(spec.Basic.Get(queue="q"))) == [b"%d" % number]
    assert [
        int(delivery.sequence)
        for _, delivery in client.connection.channels.open[1].receiver.unacked.outstanding()
    ] == [1, 2, 3, 4, 6]
    assert world.queue("q")._waiting.next_sequence() == 7 and world.copies() == {"unreadable": 1}


@pytest.mark.parametrize("restored", [False, True])
def test_large_messages_of_a_long_queue_are_read_a_few_at_a_time(
    restored: bool, tmp_path: Path
) -> None:
    world = Home(tmp_path / "data")
    world.store.window = 1
    client = world.amqp()
    client.queue("q", durable=True)
    body = bytes(FETCH_BYTES // 2)
    for number in range(9):
        client.publish("", "q", b"%d" % number + body, delivery_mode=2)
    if restored:
        world.settle()
        world.crash()
        world = Home(tmp_path / "data")
        world.store.window = 1
        client = world.amqp()
    queue = world.queue("q")
    most = int(queue.memory_bytes()) if restored else 0
    for number in range(9):
        parts = client.bodies(client.send(spec.Basic.Get(queue="q", no_ack=True)))
        assert b"".join(parts) == b"%d" % number + body
        most = max(most, int(queue.memory_bytes()))
    # At most these messages are in memory: the first one, and two at a time that are read from the
    # store.
    assert most <= 2 * (len(body) + 1 + MESSAGE_SIZE) + 9 * CHUNK_MESSAGES * POSITION_SIZE
