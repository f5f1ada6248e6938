"""Tests that one turn has few steps, even if MQTT sessions with much state end or return.

A step is one call of a function of the broker or of a protocol.
"""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from broker.agenda import Agenda
from protocols.connection import Connection
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.deadlines import TASKS_PER_SLICE, Deadlines
from protocols.mqtt.session.shared import LEFT_MAX
from protocols.mqtt.session.shared_deliveries import MEMBERSHIPS_PER_SLICE
from tests.clients import World, mqtt_publish, packet, text
from tests.core.test_deadlines import Note
from tests.core.test_turn_steps import steps, turns
from tests.wire.mqtt.client import connect, puback, publications

#: The steps that one shared subscription may take in a slice.
STEPS_EACH = 60


def shared(world: World, names: list[str], client_id: str = "c") -> Connection:
    """Return a connected client with shared subscriptions of QoS 1 to these topics."""
    client = world.raw_mqtt()
    client.receive_data(connect(client_id, clean=False))
    world.answer(client)
    body = b"".join(text(f"$share/g/{name}") + b"\1" for name in names)
    client.receive_data(packet(0x82, b"\0\7" + body))
    world.settle(client)
    client.data_to_send()
    return client


def topics(count: int) -> list[str]:
    return [f"f/{number}" for number in range(count)]


def returned(world: World, client_id: str = "c") -> tuple[Connection, list[int]]:
    """Connect a client again; return its connection, and the number of steps of each turn."""
    client = world.raw_mqtt()
    client.receive_data(connect(client_id, clean=False))
    counts = [steps(world.store.sync)]
    return client, counts + turns(world)


def test_very_many_shared_subscriptions_are_attached_and_detached_in_slices() -> None:
    world = World()
    many = 20 * MEMBERSHIPS_PER_SLICE
    client = shared(world, topics(many))
    counts = [steps(client.on_closed), *turns(world)]
    assert len(counts) >= 20 and max(counts) < STEPS_EACH * MEMBERSHIPS_PER_SLICE
    writer = world.mqtt("w")
    # The returned session has its last subscription too: the session gets the message from before
    # its return, and the message from after it.
    last = f"f/{many - 1}"
    writer.send(mqtt_publish(last, b"before", qos=1, packet_id=1))
    client, counts = returned(world)
    assert len(counts) >= 20 and max(counts) < STEPS_EACH * MEMBERSHIPS_PER_SLICE
    writer.send(mqtt_publish(last, b"after", qos=1, packet_id=2))
    world.settle(client)
    assert [one.body for one in publications(client.data_to_send())] == [b"before", b"after"]


def test_very_many_shared_subscriptions_without_room_are_drained_in_slices() -> None:
    options = MqttOptions()
    options.receive_maximum = room = 10
    world = World(mqtt=options)
    many = 20 * MEMBERSHIPS_PER_SLICE
    client = shared(world, topics(many))
    writer = world.mqtt("w")
    for number in range(many):
        writer.send(mqtt_publish(f"f/{number}", b"%d" % number, qos=1, packet_id=1))
    world.settle(client)
    bodies: list[int] = []
    largest = 0  # The steps of the largest turn, and of the largest acknowledgement.
    ack = 0
    while len(bodies) < many:
        some = publications(client.data_to_send())
        assert 0 < len(some) <= room
        bodies += [int(one.body) for one in some]
        for one in some:
            # Each acknowledgement makes room for one message of one of very many subscriptions.
            data = puback(one.packet_id)
            ack = max(ack, steps(lambda data=data: client.receive_data(data)))  # type: ignore[misc]
        largest = max([largest, *turns(world)])
    assert sorted(bodies) == list(range(many))
    assert ack < 5 * MEMBERSHIPS_PER_SLICE
    # A turn may drain the subscriptions that several acknowledgements and one slice have woken.
    assert largest < 4 * STEPS_EACH * MEMBERSHIPS_PER_SLICE


@pytest.mark.parametrize("seed", range(6))
def test_shared_subscriptions_lose_nothing_while_clients_come_and_go_between_slices(
    seed: int,
) -> None:
    random = Random(seed)
    world = World()
    many = 5 * MEMBERSHIPS_PER_SLICE
    names = topics(many)
    clients: dict[str, Connection] = {name: shared(world, names, name) for name in ("a", "b")}
    writer = world.mqtt("w")
    sent = 0
    seen: set[bytes] = set()

    def read(name: str) -> None:
        for one in publications(clients[name].data_to_send()):
            if one.qos:
                seen.add(one.body)
                clients[name].receive_data(puback(one.packet_id))

    def publish(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += 1
            topic = random.choice(names)
            writer.connection.receive_data(mqtt_publish(topic, b"%d" % sent, qos=1, packet_id=sent))

    for _ in range(150):
        publish(random.randrange(4))
        name = random.choice("ab")
        action = random.randrange(8)
        if action == 0:
            clients[name].on_closed()
            clients[name] = world.raw_mqtt()
            clients[name].receive_data(connect(name, clean=False))
            world.durable()
        elif action == 1:
            topic = random.choice(names)
            clients[name].receive_data(packet(0xA2, b"\0\1" + text(f"$share/g/{topic}")))
            clients[name].receive_data(packet(0x82, b"\0\2" + text(f"$share/g/{topic}") + b"\1"))
        elif action < 5:
            read(name)
        for _ in range(random.randrange(3)):
            world.broker.agenda.turn()
            world.durable()
        writer.connection.data_to_send()
    for _ in range(50):
        world.settle(*clients.values())
        for name in clients:
            read(name)
    groups = world.mqtt_front.sessions.groups
    waiting = [group.inbox.depth for group in groups._groups.values()]
    assert len(groups) == many and not any(waiting)
    assert seen == {b"%d" % number for number in range(1, sent + 1)}
    world.copies()


@pytest.mark.parametrize(("count", "each"), [(5 * int(TASKS_PER_SLICE), 1), (100, 100)])
def test_sessions_that_expire_at_one_moment_end_in_slices(count: int, each: int) -> None:
    world = World()
    for number in range(count):
        client = world.raw_mqtt()
        client.receive_data(
            packet(
                0x10, text("MQTT") + b"\5\2\0\x3c\5\x11" + bytes([0, 0, 0, 9]) + text(str(number))
            )
        )
        world.answer(client)
        names = "".join(f"{number}/{at} " for at in range(each)).split()
        body = b"".join(text(name) + b"\1" for name in names)
        client.receive_data(packet(0x82, b"\0\7\0" + body))
        world.settle(client)
        client.on_closed()
        world.settle()
    sessions = world.mqtt_front.sessions
    assert len(sessions) == len(sessions.deadlines) == count
    agenda = world.broker.agenda
    counts: list[int] = []
    left = [len(sessions)]
    while len(sessions) or not agenda.idle:
        agenda.advance(int(agenda.now) + (9_000 if len(counts) == 0 else 1), agenda.wall)
        counts.append(steps(agenda.turn))
        left.append(len(sessions))
        assert len(counts) < 1_000
    # The first turn removes exactly the first slice of sessions.
    assert count - left[1] == (
        int(TASKS_PER_SLICE) if each == 1 else -(-int(TASKS_PER_SLICE) // (1 + each // 5))
    )
    assert len(counts) >= 5 and max(counts) < sum(counts) / 4
    assert sessions.expired == count and not world.vhost.exchanges["amq.topic"].bindings


def test_the_cancellation_of_very_many_deadlines_takes_few_steps_each() -> None:
    agenda = Agenda()
    deadlines = Deadlines(agenda)
    ran: list[int] = []
    many = 3_000
    alarms = [deadlines.at(1 + number * 7_919 % many, Note(number, ran)) for number in range(many)]
    random = Random(1)
    random.shuffle(alarms)
    counts = [steps(partial(deadlines.cancel, alarm)) for alarm in alarms[1:]]
    assert max(counts) < 4 * many.bit_length() and len(deadlines) == 1
    agenda.advance(many + 1, 0.0)
    agenda.turn()
    assert len(ran) == 1 and not len(deadlines)


def test_messages_in_flight_to_very_many_sessions_that_leave_a_group_move_in_several_turns() -> (
    None
):
    options = MqttOptions()
    options.receive_maximum = room = 256
    world = World(mqtt=options)
    many = 8 * LEFT_MAX // room
    clients = [shared(world, ["f"], f"c{number}") for number in range(many)]
    writer = world.mqtt("w")
    for number in range(many * room):
        writer.send(mqtt_publish("f", b"%d" % number, qos=1, packet_id=1))
    world.settle(*clients)
    given = [publications(client.data_to_send()) for client in clients]
    assert [len(each) for each in given] == [room] * many
    leave = packet(0xA2, b"\0\2" + text("$share/g/f"))
    counts = []
    for client in clients:
        counts += [steps(partial(client.receive_data, leave)), *turns(world)]
    assert max(counts) < 30 * (LEFT_MAX + room)
    # No message is lost: each session gets its messages again.
    for number, client in enumerate(clients):
        client.on_closed()
        again, _ = returned(world, f"c{number}")
        world.settle(again)
        resent = publications(again.data_to_send())
        assert {one.body for one in resent} == {one.body for one in given[number]}
        assert all(one.dup for one in resent)
        for one in resent:
            again.receive_data(puback(one.packet_id))
        world.settle(again)
    world.copies()


def test_an_unsubscribe_from_very_many_groups_is_carried_out_in_slices() -> None:
    world = World()
    many = 600
    client = shared(world, topics(many))
    writer = world.mqtt("w")
    for name in topics(many):
        writer.send(mqtt_publish(name, b"x", qos=1, packet_id=1))
    world.settle(client)
    assert len(publications(client.data_to_send())) == many
    names = b"".join(text(f"$share/g/{name}") for name in topics(many))
    counts = [steps(lambda: client.receive_data(packet(0xA2, b"\0\2" + names))), *turns(world)]
    assert len(counts) > many // 60 and max(counts) < 20_000
    world.settle(client)
    assert len(world.mqtt_front.sessions.groups) == 0
