"""Tests of long priority queues and many delayed messages.

Only the first messages (the window) are in memory; the others are on the disk.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pamqp.commands as spec
import pytest

from broker.messages.memory import MESSAGE_SIZE
from broker.queues.delay import DelayQueue
from broker.queues.heap import HeapQueue
from broker.queues.paged_heap import ENTRY_SIZE
from broker.queues.upkeep import TAIL_RETRY_MS
from broker.store.disk import OutOfDescriptors
from tests.clients import Amqp, publication
from tests.store.homes import Home

B, Q, X = spec.Basic, spec.Queue, spec.Exchange
DELAY_SEEDS: list[Any] = [
    *range(2),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40)),
]
#: Seeds of random histories; most of them run with the slow tests.
SEEDS: list[Any] = [
    *range(1),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 30)),
]
#: A window so large that no queue of a test is paged.
ENDLESS = 1 << 40
#: Arguments of the queues, some with priorities.
KINDS: list[dict[str, Any]] = [
    {},
    {"x_max_length": 25},
    {"x_max_length": 12, "x_overflow": "reject-publish"},
    {"x_max_length_bytes": 300},
    {"x_message_ttl": 300},
    {"x_queue_type": "quorum", "x_delivery_limit": 2},
    {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead", "x_message_ttl": 200},
]


def heap_of(home: Home) -> HeapQueue:
    queue = home.queue("q")
    assert isinstance(queue, HeapQueue)
    return queue


def withdrawn(home: Home, queue: DelayQueue, sequence: int) -> bool:
    """Withdraw a delayed message; return True if the queue had the message."""
    answers: list[bool] = []
    queue.withdraw(sequence, answers.append)
    home.settle()
    [answer] = answers
    return answer


def set_window(home: Home, window: int) -> None:
    home.store.window = window


class Life:
    """A client of a priority queue that sends random requests."""

    def __init__(self, directory: Path, seed: int, window: int, arguments: dict[str, Any]) -> None:
        self.random, self.window = Random(seed), window
        self.directory = directory
        self.home = Home(directory)
        set_window(self.home, window)
        self.client = self.home.amqp()
        self.client.queue("dead", durable=True)
        self.client.queue("q", durable=True, x_max_priority=4, **arguments)
        self.client.send(spec.Confirm.Select())
        self.held: list[int] = []
        self.tag = self.number = 0
        self.story: list[Any] = []

    def tell(self, frames: list[Any]) -> None:
        for frame in frames:
            self.story.append((frame.name, getattr(frame, "value", None)))
            if isinstance(frame, (B.GetOk, B.Deliver)):
                self.tag += 1
                self.held.append(self.tag)
                self.story.append((frame.redelivered, frame.delivery_tag))

    def step(self) -> None:
        random, client = self.random, self.client
        choice = random.random()
        if choice < 0.4:
            for _ in range(random.choice((1, 5, 15))):
                self.number += 1
                persistent = random.choice((1, 2, 2, 2))
                expiration: dict[str, Any] = random.choice(({}, {}, {"expiration": "150"}))
                self.tell(
                    client.publish(
                        "",
                        "q",
                        b"%d" % self.number * random.choice((1, 5)),
                        delivery_mode=persistent,
                        priority=random.randrange(6),
                        **expiration,
                    )
                )
        elif choice < 0.65:
            self.tell(client.send(B.Get(queue="q")))
        elif choice < 0.85 and self.held:
            tag = self.held.pop(random.randrange(len(self.held)))
            settle = random.choice(
                (B.Ack(tag), B.Nack(tag, requeue=True), B.Reject(tag, requeue=False))
            )
            self.tell(client.send(settle))
        elif choice < 0.9:
            self.home.sleep(random.choice((10, 100, 400)))
            self.tell(client.read())
        elif choice < 0.92:
            self.tell(client.send(Q.Purge(queue="q")))
        elif choice < 0.95:
            self.tell(client.send(B.Qos(prefetch_count=3), B.Consume(queue="q", consumer_tag="t")))
            self.tell(client.send(B.Cancel("t")))
        elif choice < 0.97:
            self.restart()
        queue = heap_of(self.home)
        self.story.append((int(queue.depth), int(queue.unacked), queue.fates()))

    def restart(self) -> None:
        # A clean stop marks exactly the delivered messages, whatever the window is.
        now, wall = int(self.home.broker.agenda.now), self.home.broker.agenda.wall
        self.client.connection.on_closed()
        self.home.settle()
        self.home.broker.write_deliveries()
        self.home.durable()
        self.home.opened.store.close()
        self.home = Home(self.directory, now=now, wall=wall)
        set_window(self.home, self.window)
        self.client = self.home.amqp()
        self.client.send(spec.Confirm.Select())
        self.held, self.tag = [], 0


@pytest.mark.parametrize("arguments", KINDS, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_paging_changes_nothing_that_a_client_sees(
    tmp_path: Path, arguments: dict[str, Any], seed: int
) -> None:
    paged = Life(tmp_path / "paged", seed, Random(seed).choice((1, 2, 5)), arguments)
    whole = Life(tmp_path / "whole", seed, ENDLESS, arguments)
    for step in range(120):
        paged.step()
        whole.step()
        assert paged.story == whole.story, step
        paged.story.clear()
        whole.story.clear()
    paged.home.crash()
    whole.home.crash()


def fill(client: Amqp, count: int, **properties: Any) -> None:
    for first in range(0, count, 100):
        client.connection.receive_data(
            b"".join(
                publication(
                    "",
                    "q",
                    b"%06d" % number + bytes(1_000),
                    delivery_mode=2,
                    priority=number % 3,
                    **properties,
                )
                for number in range(first, first + 100)
            )
        )
        client.read()


def test_the_memory_of_a_long_priority_queue_is_bounded(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    set_window(home, 500)
    client = home.amqp()
    client.queue("q", durable=True, x_max_priority=2)
    fill(client, 6_000)
    queue = heap_of(home)
    assert (int(queue.depth), len(queue._heap)) == (6_000, 500)
    bound = 500 * (1_100 + int(MESSAGE_SIZE)) + 5_500 * int(ENTRY_SIZE)
    assert int(queue.memory_bytes()) < bound
    bodies = client.bodies(client.send(B.Consume(queue="q", no_ack=True)))
    while queue.depth:
        assert len(queue._heap) <= 1_000
        home.turn()
        bodies += client.bodies(client.read())
    got = [int(body[:6]) for body in bodies]
    assert got == [n for rank in (2, 1, 0) for n in range(6_000) if n % 3 == rank]
    assert int(queue.memory_bytes()) == 0
    home.crash()


def test_ranks_that_fall_with_each_message_do_not_fill_the_memory(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    set_window(home, 20)
    client = home.amqp()
    delays = delaying(home, client)
    for number in range(100):
        delay(client, b"%d" % number, 10_000 - number)
    assert len(delays._heap) <= 2 * 20 + 256
    home.sleep(10_000)
    home.settle()
    assert drained(client) == [b"%d" % number for number in reversed(range(100))]
    home.crash()


def delaying(home: Home, client: Amqp) -> DelayQueue:
    client.send(
        X.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "fanout"},
        )
    )
    client.queue("out", "later", "", durable=True)
    return home.vhost.delays["later"]


def delay(client: Amqp, body: bytes, milliseconds: int, **properties: Any) -> None:
    client.publish(
        "later", "k", body, headers={"x-delay": milliseconds}, delivery_mode=2, **properties
    )


def drained(client: Amqp) -> list[bytes]:
    bodies: list[bytes] = []
    while fetched := client.bodies(client.send(B.Get(queue="out", no_ack=True))):
        bodies += fetched
    return bodies


@pytest.mark.parametrize("seed", DELAY_SEEDS)
def test_paging_changes_no_delayed_message(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    homes = [Home(tmp_path / "paged"), Home(tmp_path / "whole")]
    windows = [random.choice((1, 3, 8)), ENDLESS]
    clients, queues = [], []
    for home, window in zip(homes, windows, strict=True):
        set_window(home, window)
        clients.append(home.amqp())
        queues.append(delaying(home, clients[-1]))
    for step in range(100):
        choice = random.random()
        if choice < 0.6:
            due = random.randrange(1, 500)
            for client in clients:
                delay(client, b"%d" % step, due)
        elif choice < 0.8:
            pause = random.choice((10, 100))
            for home in homes:
                home.sleep(pause)
            assert drained(clients[0]) == drained(clients[1])
        elif choice < 0.9:
            listed = [
                [(int(one.sequence), one.message.body, int(one.message.expires)) for one in waiting]
                for waiting in (queue.waiting() for queue in queues)
            ]
            assert listed[0] == listed[1]
            if listed[0]:
                sequence = random.choice(listed[0])[0]
                for existed in (True, False):
                    answers = [
                        withdrawn(home, queue, sequence)
                        for home, queue in zip(homes, queues, strict=True)
                    ]
                    assert answers == [existed, existed]
        elif choice > 0.95:
            for at, home in enumerate(homes):
                now, wall = int(home.broker.agenda.now), home.broker.agenda.wall
                home.crash()
                homes[at] = home = Home(home.directory, now=now, wall=wall)
                set_window(home, windows[at])
                clients[at] = home.amqp()
                queues[at] = home.vhost.delays["later"]
    assert int(queues[0].depth) == int(queues[1].depth)
    for home in homes:
        home.sleep(10_000)
    assert drained(clients[0]) == drained(clients[1])
    for home in homes:
        home.fates()
        home.crash()


def test_without_descriptors_messages_wait_and_none_is_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "d")
    set_window(home, 2)
    client = home.amqp()
    client.queue("q", durable=True, x_max_priority=2)
    for number in range(10):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
    store = home.opened.store
    fetch = store.fetch

    def refused(*_: Any) -> Any:
        raise OutOfDescriptors("no file descriptor is left")

    monkeypatch.setattr(store, "fetch", refused)
    taken = [client.bodies(client.send(B.Get(queue="q", no_ack=True))) for _ in range(4)]
    assert taken == [[b"0"], [b"1"], [], []]
    # A message in memory of the same priority waits behind the messages on disk, and one of a
    # higher priority is delivered before them.
    client.publish("", "q", b"transient")
    client.publish("", "q", b"first", priority=2)
    assert client.bodies(client.send(B.Get(queue="q", no_ack=True))) == [b"first"]
    assert client.bodies(client.send(B.Get(queue="q", no_ack=True))) == []
    client.send(B.Consume(queue="q", no_ack=True))
    monkeypatch.setattr(store, "fetch", fetch)
    home.sleep(int(TAIL_RETRY_MS))
    home.turn()
    assert client.bodies(client.read()) == [b"%d" % number for number in range(2, 10)] + [
        b"transient"
    ]
    home.fates()
    home.crash()
