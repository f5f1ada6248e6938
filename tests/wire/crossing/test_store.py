"""Tests of the interface between broker and store.

Replies wait until their records are durable, in order. The state in the store equals the state of
the broker's objects.
"""

from __future__ import annotations

from collections import defaultdict

import pamqp.commands as spec
import pytest

from broker.messages.message import Message
from broker.queues.consumer import Delivery, MessageSource
from broker.queues.private import GroupInbox
from broker.queues.queue import Queue
from broker.routing.exchanges.base import Exchange
from broker.routing.subscriber import Subscriber
from broker.vhost.vhost import VirtualHost
from protocols.amqp.connection.connection import AmqpConnection
from tests.clients import World, marshal, mqtt_publish
from tests.wire.crossing.traffic import Traffic
from tests.wire.mqtt.client import (
    ACCEPTED,
    DUP,
    PINGREQ,
    PINGRESP,
    RESUMED,
    RETAIN,
    Client,
    Will,
    connect,
    here,
    puback,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)


def slow(world: World) -> World:
    """Let data become durable only when the test calls `world.durable()`; return the world."""
    world.slow_disk = True
    return world


def waits(client: Client, data: bytes, answer: bytes) -> None:
    """Send data and a PINGREQ; check that `answer` and PINGRESP wait until the data is durable."""
    assert client.send(data, PINGREQ) == b""
    assert client.connection.stalled
    assert client.read() == b""
    client.world.durable()
    assert not client.connection.stalled
    assert client.read() == answer + PINGRESP


# -- replies that wait for the store


def test_connack_waits_when_a_persistent_session_begins_or_ends() -> None:
    world = slow(World())
    first = Client(world, connect("c", clean=False) + PINGREQ)
    assert first.greeting == b""
    world.durable()
    assert first.read() == ACCEPTED + PINGRESP
    assert Client(world, connect("c", clean=False)).greeting == RESUMED
    ending = Client(world, connect("c") + PINGREQ)
    assert ending.greeting == b""
    world.durable()
    assert ending.read() == ACCEPTED + PINGRESP
    assert Client(world, connect("c")).greeting == ACCEPTED
    assert Client(world, connect("")).greeting == ACCEPTED


def test_suback_and_unsuback_of_a_persistent_session_wait() -> None:
    world = World()
    client = Client(world, connect("c", clean=False))
    slow(world)
    waits(client, subscribe(1, ("a", 1), ("b", 0)), suback(1, 1, 0))
    waits(client, subscribe(2, ("a", 2)), suback(2, 2))
    # A SUBSCRIBE that changes no subscription is answered without a wait for the store.
    assert client.send(subscribe(3, ("a", 2), ("b", 0)), PINGREQ) == suback(3, 2, 0) + PINGRESP
    waits(client, unsubscribe(4, "a", "b"), unsuback(4))
    assert client.send(unsubscribe(5, "a", "b"), PINGREQ) == unsuback(5) + PINGRESP
    waits(client, subscribe(6, ("$share/g/a", 1)), suback(6, 1))
    waits(client, unsubscribe(7, "$share/g/a"), unsuback(7))
    assert world.store.state.definitions.keys() == {("/", "session", "c")}


def test_a_clean_session_waits_for_nothing() -> None:
    world = slow(World())
    client = Client(
        world,
        connect("c")
        + subscribe(1, ("a", 2))
        + mqtt_publish("a", b"x", 1, 1)
        + unsubscribe(2, "a")
        + PINGREQ,
    )
    assert (
        client.greeting
        == ACCEPTED
        + suback(1, 2)
        + mqtt_publish("a", b"x", 1, 1)
        + puback(1)
        + unsuback(2)
        + PINGRESP
    )
    assert world.store.position == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("flags", [0, RETAIN, DUP])
@pytest.mark.parametrize("keeper", ["session", "queue", "retained", "all", "none"])
def test_puback_and_pubrec_wait_until_the_message_is_durable(
    qos: int, flags: int, keeper: str
) -> None:
    world = World()
    if keeper in ("session", "all"):
        Client(world, connect("k", clean=False)).send(subscribe(1, ("a", 2)))
    if keeper in ("queue", "all"):
        world.amqp().queue("q", "amq.topic", "a", durable=True)
    if keeper in ("retained", "all"):
        flags |= RETAIN
    writer = here(slow(world), "w")
    answer = puback(7) if qos == 1 else pubrec(7)
    waiting = keeper != "none" or flags & RETAIN
    assert writer.send(mqtt_publish("a", b"x", qos, 7, flags), PINGREQ) == (
        PINGRESP if waiting else answer + PINGRESP
    )
    world.durable()
    assert writer.read() == (answer if waiting else b"")
    assert len(world.store.state.messages) == (keeper in ("session", "queue", "all"))
    assert len(world.store.state.retained) == (flags & RETAIN)


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_qos_0_keeps_nothing(granted: int) -> None:
    world = World()
    Client(world, connect("k", clean=False)).send(subscribe(1, ("a", granted)))
    world.amqp().queue("q", "amq.topic", "a", durable=True)
    position = world.store.position
    here(world, "w").send(mqtt_publish("a", b"x"), mqtt_publish("a", b"x"))
    assert world.store.position == position


def test_a_subscription_with_qos_0_keeps_nothing() -> None:
    world = World()
    Client(world, connect("k", clean=False)).send(subscribe(1, ("a", 0)))
    writer = here(slow(world), "w")
    assert writer.send(mqtt_publish("a", b"x", 2, 1)) == pubrec(1)
    assert not world.store.state.messages


def test_batches_settle_in_their_order_and_answers_with_them() -> None:
    world = World()
    Client(world, connect("k", clean=False)).send(subscribe(1, ("a", 2)))
    one, two = here(slow(world), "1"), here(world, "2")
    one.send(mqtt_publish("a", b"", 1, 1))
    two.send(mqtt_publish("a", b"", 2, 2))
    batch = world.store.take()
    one.send(mqtt_publish("a", b"", 1, 3), mqtt_publish("unread", b"", 1, 4))
    two.send(mqtt_publish("unread", b"", 1, 5), mqtt_publish("a", b"", 2, 6))
    batch.write()
    world.store.written(batch)
    assert (one.read(), two.read()) == (puback(1), pubrec(2) + puback(5))
    world.durable()
    assert (one.read(), two.read()) == (puback(3) + puback(4), pubrec(6))


def test_client_that_disconnects_before_a_write_is_durable_gets_no_answer() -> None:
    world = World()
    Client(world, connect("k", clean=False)).send(subscribe(1, ("a", 2)))
    slow(world)
    leaving = [
        here(world, "p"),
        Client(world, connect("q", clean=False)),
        Client(world, connect("k", clean=False)),
    ]
    leaving[0].send(mqtt_publish("a", b"x", 1, 1))
    leaving[2].send(unsubscribe(2, "a"))
    for client in leaving:
        client.vanish()
    world.durable()
    assert [client.connection.data_to_send() for client in leaving[:2]] == [b"", b""]
    assert Client(world, connect("q", clean=False)).greeting == RESUMED


def test_a_disconnect_behind_a_subscribe_is_heard_after_the_disk_and_discards_the_will() -> None:
    world = World()
    watcher = here(world, "watcher")
    watcher.send(subscribe(1, ("gone", 0)))
    client = Client(world, connect("c", clean=False, will=Will("gone", b"x")))
    slow(world)
    assert client.send(subscribe(1, ("a", 1)), b"\xe0\x00") == b""
    assert client.closed == ""
    world.durable()
    assert client.read() == suback(1, 1)
    assert client.closed == "client"
    assert watcher.read() == b""


def test_other_clients_are_served_while_one_waits() -> None:
    world = World()
    client, reader, writer = (
        Client(world, connect("c", clean=False)),
        here(world, "r"),
        here(world, "w"),
    )
    reader.send(subscribe(1, ("a", 1)))
    slow(world)
    client.send(subscribe(1, ("a", 1)))
    assert writer.send(mqtt_publish("a", b"x")) == b""
    assert reader.read() == mqtt_publish("a", b"x")
    # Messages of the new subscription may come before its SUBACK (section 3.8.4), which waits.
    assert client.send(PINGREQ) == mqtt_publish("a", b"x")


# -- the content of the durable state


def outstanding(world: World) -> list[Delivery]:
    """Return the unacknowledged deliveries of clients of both protocols."""
    deliveries = [
        delivery
        for session in world.mqtt_front.sessions.all()
        for _, delivery in session.in_flight.outstanding()
    ]
    for connection in world.amqp_front.connections:
        assert isinstance(connection, AmqpConnection)
        for channel in connection.channels.open.values():
            deliveries += [delivery for _, delivery in channel.receiver.unacked.outstanding()]
    return deliveries


def is_recorded(queue: MessageSource, message: Message) -> bool:
    """True if the store must have the message for the queue that holds it."""
    after = queue.recorded_after if isinstance(queue, GroupInbox) else 0
    return queue.durable and message.position > after


def kept(world: World, vhost: VirtualHost) -> dict[int, list[int]]:
    """Return the positions of the messages that must be in the store, by queue number.

    These are the waiting and the unacknowledged messages of durable queues. They include the
    unacknowledged messages of deleted queues, which stay until their consumers settle them. The
    messages that a group held before it became durable are not in the store.
    """
    queues: list[Queue] = [*vhost.queues.values(), *vhost.inboxes.values()]
    positions: dict[int, list[int]] = defaultdict(list)
    hands = outstanding(world)
    for queue in queues:
        waiting = queue._waiting.memory.items()
        returned = [one.message for one in queue._waiting.returned.in_order()]
        held = [delivery.message for delivery in hands if delivery.consumer.queue is queue]
        assert len(waiting) + len(returned) == queue.depth
        assert len(held) == queue.unacked
        for message in waiting + returned + held:
            if is_recorded(queue, message):
                positions[int(queue.number)].append(int(message.position))
    for delivery in hands:
        source = delivery.consumer.queue
        if source.dead and is_recorded(source, delivery.message):
            positions[int(source.number)].append(int(delivery.message.position))
    return {number: sorted(some) for number, some in positions.items()}


def bindings(vhost: VirtualHost) -> dict[str, tuple[int, str]]:
    """Return (QoS, name of the grammar) of each durable binding, by its identity in the store."""
    durable = {}
    for exchange in vhost.exchanges.values():
        for binding in exchange:
            target = binding.destination
            if isinstance(target, Exchange):
                lasting = target.options.durable
            else:
                assert isinstance(target, (Queue, Subscriber))
                lasting = (target if isinstance(target, Queue) else target.inbox).durable
            if lasting and exchange.options.durable:
                durable[f"{exchange.number}:{target.number}:{binding.identity}"] = (
                    int(binding.qos),
                    binding.grammar.name,
                )
    return durable


def check(world: World) -> None:
    """Check that a broker started from the durable state has the same objects as `world`."""
    state, vhost = world.store.state, world.vhost
    stored: dict[int, list[int]] = defaultdict(list)
    for position, live in state.messages.items():
        for number in live.queues:
            stored[number].append(int(position))
    assert {number: sorted(some) for number, some in stored.items()} == kept(world, vhost)
    assert len(state.retained) == len(vhost.retained)
    for (_, key), message in state.retained.items():
        held = vhost.retained.get(key)
        assert held is not None
        assert (held.body, held.qos, held.encoding, held.address.topic, held.expires) == (
            message.body,
            message.qos,
            message.encoding,
            message.address.topic,
            message.expires,
        )
    kinds: dict[str, set[str]] = defaultdict(set)
    for _, kind, name in state.definitions:
        kinds[kind].add(name)
    assert kinds["queue"] == {queue.name for queue in vhost.queues.values() if queue.durable}
    groups = {
        group.name
        for group in vhost.subscribers
        if group.name.startswith("$share/") and group.inbox.durable
    }
    assert (
        kinds["session"]
        == {session.name for session in world.mqtt_front.sessions.all() if session.persistent}
        | groups
    )
    declared = {
        name: exchange for name, exchange in vhost.exchanges.items() if name[:4] not in ("", "amq.")
    }
    assert kinds["exchange"] == {
        name for name, exchange in declared.items() if exchange.options.durable
    }
    assert kinds["binding"] | kinds["subscription"] == bindings(vhost).keys()
    for name, (qos, grammar) in bindings(vhost).items():
        definition = state.definitions[
            "/", "binding" if name in kinds["binding"] else "subscription", name
        ]
        assert (definition["assurance"], definition["grammar"]) == (qos, grammar)


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_state_equals_the_objects_after_random_traffic(first: int) -> None:
    for seed in range(first, first + 20):
        traffic = Traffic(seed)
        for _ in range(5):
            traffic.run(25)
            traffic.settle()
            check(traffic.world)


def test_the_state_follows_a_message_through_everything_that_may_happen_to_it() -> None:
    world = World()
    reader = Client(world, connect("k", clean=False))
    reader.send(subscribe(1, ("a", 2)))
    amqp = world.amqp()
    amqp.queue("q", "amq.topic", "a", durable=True)
    amqp.queue("transient", "amq.topic", "a")
    writer = here(world, "w")
    check(world)
    for number, step in enumerate(
        [
            lambda: writer.send(mqtt_publish("a", b"1", 2, 1, RETAIN)),
            lambda: writer.send(
                mqtt_publish("a", b"1", 2, 1, DUP), pubrel(1), mqtt_publish("a", b"2", 1, 2)
            ),
            lambda: reader.send(pubrec(1)),
            reader.vanish,
            lambda: Client(world, connect("k", clean=False)),
            lambda: amqp.send(spec.Basic.Consume(queue="q", consumer_tag="t")),
            lambda: amqp.send(spec.Basic.Ack(1)),
            lambda: amqp.send(spec.Basic.Nack(2, requeue=True)),
            amqp.connection.on_closed,
        ]
    ):
        step()
        world.settle()
        check(world)
        assert len(world.store.state.messages) == (1 if number == 0 else 2), number
    reader = Client(world, connect("k", clean=False))
    assert [one.body for one in publications(reader.greeting)] == [b"2"]
    reader.send(pubcomp(1), puback(2))
    check(world)
    assert [list(live.queues) for live in world.store.state.messages.values()] == [
        [world.queue("q").number]
    ]
    amqp = world.amqp()
    amqp.send(spec.Queue.Delete(queue="q"))
    world.settle()
    check(world)
    Client(world, connect("k"))
    check(world)
    assert not world.store.state.messages
    assert not world.store.state.definitions
    assert len(world.store.state.retained) == 1


# -- requests that repeat a change of another client


@pytest.mark.parametrize(
    "method",
    [
        spec.Queue.Declare(queue="q", durable=True),
        spec.Queue.Declare(queue="q", passive=True),
        spec.Exchange.Declare(exchange="x", exchange_type="fanout", durable=True),
        spec.Exchange.Declare(exchange="x", passive=True),
        spec.Queue.Bind(queue="q", exchange="x"),
    ],
)
def test_declaration_of_an_existing_object_waits_until_it_is_durable(method: object) -> None:
    world = World()
    first, second = world.amqp(), world.amqp()
    slow(world)
    for one in (
        spec.Queue.Declare(queue="q", durable=True),
        spec.Exchange.Declare(exchange="x", exchange_type="fanout", durable=True),
        spec.Queue.Bind(queue="q", exchange="x"),
    ):
        first.connection.receive_data(marshal(1, one))
        if type(one) is type(method):
            break
        world.durable()
        first.read()
    assert second.send(method) == []
    world.durable()
    assert len(second.read()) == 1
    assert len(second.send(method)) == 1


@pytest.mark.parametrize(
    "method",
    [
        spec.Queue.Delete(queue="q"),
        spec.Exchange.Delete(exchange="x"),
        spec.Queue.Unbind(queue="q", exchange="x"),
    ],
)
def test_deletion_of_a_deleted_object_waits_until_that_is_durable(method: object) -> None:
    world = World()
    first, second = world.amqp(), world.amqp()
    first.send(spec.Exchange.Declare(exchange="x", exchange_type="fanout", durable=True))
    first.queue("q", "x", durable=True)
    slow(world)
    assert first.send(method) == second.send(method) == []
    world.durable()
    assert len(first.read()) == len(second.read()) == 1
    assert len(second.send(method)) == 1


def test_a_pubrel_that_comes_again_waits_for_the_first() -> None:
    world = World()
    client = Client(world, connect("c", clean=False))
    client.send(mqtt_publish("a", b"x", 2, 1))
    slow(world)
    assert client.send(pubrel(1)) == b""
    client.vanish()
    again = Client(world, connect("c", clean=False) + pubrel(1))
    # Without this wait, a broker that crashes would still hold the packet identifier, and drop the
    # next message with it.
    assert again.greeting == RESUMED
    world.durable()
    assert again.read() == pubcomp(1)
    assert again.send(pubrel(1)) == pubcomp(1)


def test_removal_of_a_removed_retained_message_waits_until_that_is_durable() -> None:
    world = World()
    one, two = here(world, "1"), here(world, "2")
    one.send(mqtt_publish("a", b"x", 1, 1, RETAIN))
    slow(world)
    assert (
        one.send(mqtt_publish("a", b"", 1, 1, RETAIN))
        == two.send(mqtt_publish("a", b"", 1, 1, RETAIN))
        == b""
    )
    world.durable()
    assert one.read() == two.read() == puback(1)


def test_acknowledgement_while_a_message_is_held_back_lets_no_other_message_pass() -> None:
    world = World()
    reader, writer = Client(world, connect("r", clean=False)), here(world, "w")
    reader.send(subscribe(1, ("a", 2)))
    writer.send(mqtt_publish("a", b"1", 1, 1))
    assert reader.read() == mqtt_publish("a", b"1", 1, 1)
    slow(world)
    writer.send(mqtt_publish("a", b"2", 2, 2))
    assert reader.send(puback(1)) == b""
    writer.send(mqtt_publish("a", b"3", 2, 3), mqtt_publish("a", b"4", 1, 4))
    assert reader.read() == b""
    world.durable()
    data = reader.read()
    while not world.broker.agenda.idle:
        data += reader.read()
    assert [one.body for one in publications(data)] == [b"2", b"3", b"4"]
