"""Tests of unexpected exceptions in bulk work on messages, deliveries and subscriptions.

The broker does this work in many parts. If one part fails, the other parts must be done
nevertheless.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.agenda import TURN_SLICES
from broker.queues.queue import Queue
from broker.queues.slices import CONSUMERS_PER_SLICE, MESSAGES_PER_SLICE
from broker.routing.plan import Plan
from broker.routing.plan_index import PLANS_PER_SLICE, PlanRelease
from broker.store.contract import Ticket, Waiter
from broker.store.durable import DurableStore
from broker.store.durable_batch import DurableBatch
from broker.store.memory import MemoryStore
from broker.store.paged_messages import PART_BITS, PagedRelease
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel import settlement
from protocols.amqp.channel.exclusive_queues import CLEARED
from protocols.amqp.channel.receiver import ChannelReceiver
from protocols.amqp.connection.connection import AmqpConnection
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.shared import SharedMember
from protocols.mqtt.session.shared_deliveries import MEMBERSHIPS_PER_SLICE
from tests.clients import World, marshal, mqtt_publish, publication
from tests.core.failing import Failing, finish
from tests.core.test_session_steps import shared, topics
from tests.store.homes import Home
from tests.wire.amqp.bulk import fill
from tests.wire.mqtt.client import connect, puback, publications


def test_plans_behind_one_that_fails_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    many = 2 * PLANS_PER_SLICE + 10
    plans = [Plan([], number, False) for number in range(many)]
    for plan in plans:
        plan.numbers = [1]
    failing = Failing(monkeypatch, Plan, "release", 3, PLANS_PER_SLICE + 4)
    release = PlanRelease(world.broker.agenda, list(plans))
    assert finish(world, release.run) == failing.failures == 2
    assert sum(1 for plan in plans if plan.numbers) == 2


def test_paged_messages_are_freed_although_a_client_cannot_get_its_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Home(tmp_path / "data")
    world.store.window = 1
    client = world.amqp()
    client.queue("q", durable=True)
    many = 3 << int(PART_BITS)
    client.connection.receive_data(publication("", "q", b"x", delivery_mode=2) * many)
    batch = world.store.take()
    assert isinstance(batch, DurableBatch)
    waiter = Counter(True)
    batch.tickets.append(Ticket(waiter))
    batch.tickets[-1].outstanding = 1
    message = batch.paged.find(batch.last)
    assert message is not None and batch.paged.find(batch.last - many + 2) is not None
    batch.write()
    failing = Failing(monkeypatch, PagedRelease, "do_slice", 2)
    finish(world, lambda: world.store.written(batch))
    assert waiter.calls == failing.failures == 1
    assert isinstance(world.store, DurableStore) and world.store.unreleased_parts == 0


def test_messages_are_freed_as_fast_as_a_fast_publisher_sends_them(tmp_path: Path) -> None:
    """Check that the number of messages in memory stays bounded.

    After a batch is on the disk, the broker frees the messages of the batch, a limited number in
    each turn. Here each batch has more messages than one turn frees.
    """
    world = Home(tmp_path / "data")
    store = world.store
    assert isinstance(store, DurableStore)
    store.window = 1
    client = world.amqp()
    client.queue("q", durable=True)
    parts = int(TURN_SLICES) + 2
    chunk = publication("", "q", b"x", delivery_mode=2) * (parts << int(PART_BITS))
    for _ in range(5):
        client.connection.receive_data(chunk)
        while client.connection.behind:
            client.connection.resume()
        store.sync()
        assert parts - 1 <= store.unreleased_parts <= parts + 1
    world.settle(client.connection)
    assert store.unreleased_parts == 0


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 2}])
def test_a_purge_releases_the_messages_behind_one_that_fails(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True, **arguments)
    many = 2 * int(MESSAGES_PER_SLICE) + 10
    client.connection.receive_data(publication("", "q", b"x", delivery_mode=2) * many)
    world.settle(client.connection)
    assert len(world.store.state.messages) == many
    failing = Failing(monkeypatch, MemoryStore, "append_settled", 5, MESSAGES_PER_SLICE + 9)
    assert finish(world, world.queue("q").purge) == failing.failures == 2
    # The store holds only the messages whose release failed.
    assert len(world.store.state.messages) == 2


def test_a_purge_releases_the_messages_on_disk_behind_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.store.window = 1
    client = world.amqp()
    client.queue("q", durable=True)
    many = 2 * int(MESSAGES_PER_SLICE) + 10
    client.connection.receive_data(publication("", "q", b"x", delivery_mode=2) * many)
    world.settle(client.connection)
    failing = Failing(monkeypatch, MemoryStore, "append_settled", 5, MESSAGES_PER_SLICE + 9)
    assert finish(world, world.queue("q").purge) == failing.failures == 2
    assert failing.calls == many and len(world.store.state.messages) == 2


def test_the_consumers_behind_one_that_fails_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    many = 2 * CONSUMERS_PER_SLICE
    client.send(*[spec.Basic.Consume(queue="q", consumer_tag=f"c{at}") for at in range(many)])
    client.read_bytes()
    failing = Failing(monkeypatch, ChannelReceiver, "queue_deleted", 3, CONSUMERS_PER_SLICE + 7)
    queue = world.queue("q")
    assert finish(world, lambda: world.vhost.delete_queue(queue)) == failing.failures == 2
    cancelled = [one.consumer_tag for one in client.read() if isinstance(one, spec.Basic.Cancel)]
    assert len(cancelled) == many - 2 and len(set(cancelled)) == many - 2


def test_the_shared_subscriptions_behind_one_that_fails_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    many = 3 * MEMBERSHIPS_PER_SLICE
    client = shared(world, topics(many))
    client.on_closed()
    world.settle()
    failing = Failing(monkeypatch, SharedMember, "leave", 4, MEMBERSHIPS_PER_SLICE + 5)
    again = world.raw_mqtt()
    finish(world, lambda: again.receive_data(connect("c")))
    assert failing.failures == 2 and len(world.mqtt_front.sessions.groups) == 2


def test_the_shared_subscriptions_behind_one_that_fails_are_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    many = 3 * MEMBERSHIPS_PER_SLICE
    client = shared(world, topics(many))
    client.on_closed()
    world.settle()
    failing = Failing(monkeypatch, SharedMember, "attach", 4, MEMBERSHIPS_PER_SLICE + 5)
    again = world.raw_mqtt()
    finish(world, lambda: again.receive_data(connect("c", clean=False)))
    finish(world, world.store.sync)
    assert failing.failures == 2 and failing.calls == many


def test_a_pass_over_shared_subscriptions_follows_one_whose_last_subscription_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    many = 2 * MEMBERSHIPS_PER_SLICE
    client = shared(world, topics(many))
    client.on_closed()
    world.settle()
    failing = Failing(monkeypatch, SharedMember, "attach", many)
    again = world.raw_mqtt()
    again.receive_data(connect("c", clean=False))
    world.store.sync()
    session = world.mqtt_front.sessions.all()[0]
    assert 0 < failing.calls < many
    # The session resumes its deliveries while the first pass over its subscriptions is unfinished.
    session.resume_deliveries()
    finish(world)
    assert failing.failures == 1 and failing.calls == 2 * many


def test_shared_subscriptions_that_had_no_room_are_drained_behind_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = MqttOptions()
    options.receive_maximum = 1
    world = World(mqtt=options)
    many = 3
    client = shared(world, topics(many))
    writer = world.mqtt("w")
    for number in range(many):
        writer.send(mqtt_publish(f"f/{number}", b"%d" % number, qos=1, packet_id=1))
    world.settle(client)
    (first,) = publications(client.data_to_send())
    failing = Failing(monkeypatch, SharedMember, "schedule_drain", 1)
    finish(world, lambda: client.receive_data(puback(first.packet_id)))
    assert failing.failures == 1
    (second,) = publications(client.data_to_send())
    assert second.body != first.body


@pytest.mark.parametrize("kind", ["exclusive", "auto_delete"])
def test_the_queues_behind_one_that_fails_are_deleted_with_their_connection(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    client = world.amqp()
    many = 3 * CLEARED
    for number in range(many):
        declare = spec.Queue.Declare(queue=f"q{number}")
        setattr(declare, kind, True)
        client.send(declare)
        client.send(spec.Basic.Consume(queue=f"q{number}"))
    client.read_bytes()
    failing = Failing(monkeypatch, VirtualHost, "delete_queue", 2, CLEARED + 3)
    assert finish(world, client.connection.on_closed) == failing.failures == 2
    assert len(world.vhost.queues) == 2


@pytest.mark.parametrize("method", ["ack", "nack"])
@pytest.mark.parametrize("later", [False, True])
def test_the_deliveries_behind_one_that_fails_are_settled_and_the_client_goes_on(
    method: str, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.send(spec.Basic.Consume(queue="q", consumer_tag="c"))
    slice_ = int(settlement.SETTLED_PER_SLICE)
    many = 3 * slice_
    client.connection.receive_data(publication("", "q", b"x") * many)
    world.settle(client.connection)
    while len(client.bodies()) or world.queue("q").depth:
        world.settle(client.connection)
    client.send(spec.Basic.Cancel("c"))
    assert world.queue("q").unacked == many
    failing = Failing(monkeypatch, settlement, "carry_out", 3 + slice_ if later else 3)
    settling = (
        spec.Basic.Ack(0, True) if method == "ack" else spec.Basic.Nack(0, True, requeue=True)
    )
    after = spec.Queue.Declare(queue="q", passive=True)
    data = marshal(1, settling) + marshal(1, after)
    assert finish(world, lambda: client.connection.receive_data(data)) == failing.failures == 1
    assert not client.connection.stalled and not world.queue("q").held
    assert world.queue("q").unacked == 1
    assert world.queue("q").depth == (0 if method == "ack" else many - 1)
    if later:
        client.connection.resume()
        assert [one.name for one in client.read()] == ["Queue.DeclareOk"]
    # The delivery that failed is requeued with its channel.
    finish(world, client.connection.on_closed)
    assert world.queue("q").unacked == 0
    assert world.queue("q").depth == (1 if method == "ack" else many)


@pytest.mark.parametrize("method", ["ack", "nack"])
def test_the_deliveries_of_a_small_settlement_behind_one_that_fails_are_settled(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.send(spec.Basic.Consume(queue="q", consumer_tag="c"))
    many = 10
    client.connection.receive_data(publication("", "q", b"x", delivery_mode=2) * many)
    world.settle(client.connection)
    client.send(spec.Basic.Cancel("c"))
    assert world.queue("q").unacked == len(world.store.state.messages) == many
    failing = Failing(monkeypatch, MemoryStore, "append_settled", 3, 4)
    settling = (
        spec.Basic.Ack(0, True) if method == "ack" else spec.Basic.Nack(0, True, requeue=False)
    )
    data = marshal(1, settling)
    finish(world, lambda: client.connection.receive_data(data))
    assert failing.failures == 2 and failing.calls == many
    assert world.queue("q").unacked == world.queue("q").depth == 0
    # The store holds only the messages whose release failed.
    assert len(world.store.state.messages) == 2


class Counter(Waiter):
    """A Waiter (it is called when a ticket is settled) that counts its calls, and may fail."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.calls = 0

    def settled(self) -> None:
        self.calls += 1
        if self.fails:
            raise RuntimeError("the waiter fails")


def test_clients_get_their_replies_although_the_reply_of_another_client_fails() -> None:
    world = World()
    waiters = [Counter(number == 1) for number in range(4)]
    client = world.amqp()
    for waiter in waiters:
        client.connection.receive_data(marshal(1, spec.Queue.Declare(queue="q", durable=True)))
        world.store.wait_for_next_batch(Ticket(waiter))
    with pytest.raises(RuntimeError):
        world.store.sync()
    assert [waiter.calls for waiter in waiters] == [1, 1, 1, 1]


def test_a_stall_that_ends_after_an_exception_lets_the_input_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    Failing(monkeypatch, AmqpConnection, "consume", 1)
    with pytest.raises(RuntimeError):
        client.connection.receive_data(marshal(1, spec.Queue.Declare(queue="q")))
    client.connection.stall()
    client.connection.receive_data(marshal(1, spec.Queue.Declare(queue="r")))
    client.connection.resume_input()
    assert client.connection.behind
    client.connection.resume()
    world.settle(client.connection)
    assert list(world.vhost.queues) == ["r"]


def test_failure_at_an_expired_message_does_not_keep_later_ones_from_expiring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    many = 2 * int(MESSAGES_PER_SLICE)
    fill(client, "q", many, expiration="10")
    assert world.queue("q").depth == many
    failing = Failing(monkeypatch, Queue, "drop_head", 2)
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + 50, agenda.wall + 0.05)
    assert finish(world) == failing.failures == 1
    assert world.queue("q").depth == 0
