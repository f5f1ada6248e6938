"""QoS 2 and the disk: the broker sends a reply only when the change that it confirms is durable.

This holds for published and for delivered messages. So a crash at any point loses no message and
doubles none.
"""

from __future__ import annotations

import pytest

from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    DUP,
    RESUMED,
    RETAIN,
    Client,
    connect,
    here,
    puback,
    pubcomp,
    pubrec,
    pubrel,
    suback,
    subscribe,
)


def keeping(world: World, qos: int = 2) -> Client:
    """Return a client with a persistent session that has subscribed to all topics."""
    client = Client(world, connect("keeper", clean=False))
    client.send(subscribe(1, ("#", qos)))
    return client


def test_pubrec_waits_for_the_identifier_also_without_a_queue_for_the_message() -> None:
    world = World()
    writer = Client(world, connect("w", clean=False))
    world.slow_disk = True
    assert writer.send(mqtt_publish("a", b"x", 2, 7)) == b""
    world.durable()
    assert writer.read() == pubrec(7)


def test_pubcomp_waits_until_the_identifier_is_released() -> None:
    world = World()
    writer = Client(world, connect("w", clean=False))
    writer.send(mqtt_publish("a", b"x", 2, 7))
    assert list(world.store.state.held_packet_ids.values()) == [{7}]
    world.slow_disk = True
    assert writer.send(pubrel(7)) == b""
    world.durable()
    assert writer.read() == pubcomp(7)
    assert world.store.state.held_packet_ids == {}


def test_a_pubrel_of_something_unknown_is_completed_at_once() -> None:
    world = World()
    writer = Client(world, connect("w", clean=False))
    world.slow_disk = True
    assert writer.send(pubrel(7)) == pubcomp(7)


def test_qos_2_message_leaves_when_it_is_durable_and_later_messages_wait() -> None:
    world = World()
    keeper, writer = keeping(world), here(world, "w")
    world.slow_disk = True
    writer.send(mqtt_publish("a", b"1", 1, 1))
    # A message of QoS 1 is delivered before it is durable.
    assert keeper.read() == mqtt_publish("a", b"1", 1, 1)
    writer.send(
        mqtt_publish("a", b"2", 2, 2), mqtt_publish("a", b"3", 1, 3), mqtt_publish("a", b"4", 2, 4)
    )
    assert keeper.read() == b""
    world.durable()
    assert keeper.read() == mqtt_publish("a", b"2", 2, 2) + mqtt_publish(
        "a", b"3", 1, 3
    ) + mqtt_publish("a", b"4", 2, 4)
    assert writer.read() == puback(1) + pubrec(2) + puback(3) + pubrec(4)


def test_a_client_that_leaves_before_its_message_is_durable_gets_it_after_it_is() -> None:
    world = World()
    keeper, writer = keeping(world), here(world, "w")
    world.slow_disk = True
    writer.send(mqtt_publish("a", b"1", 2, 1), mqtt_publish("a", b"2", 2, 2))
    keeper.vanish()
    keeper = Client(world, connect("keeper", clean=False))
    assert keeper.greeting == RESUMED and keeper.read() == b""
    world.durable()
    assert keeper.read() == mqtt_publish("a", b"1", 2, 1, DUP) + mqtt_publish("a", b"2", 2, 2)


def test_pubrel_waits_for_the_receipt() -> None:
    world = World()
    keeper, writer = keeping(world), here(world, "w")
    writer.send(mqtt_publish("a", b"1", 2, 1))
    assert keeper.read() == mqtt_publish("a", b"1", 2, 1)
    world.slow_disk = True
    assert keeper.send(pubrec(1)) == b"" and len(world.store.state.pubrec_received) == 1
    # The keeper sends the PUBREC again. The broker answers both when the first one is durable.
    assert keeper.send(pubrec(1)) == b""
    world.durable()
    assert keeper.read() == pubrel(1) * 2
    assert keeper.send(pubcomp(1)) == b"" and world.inbox("keeper").unacked == 0
    assert len(world.store.state.pubrec_received) == 0 and len(world.store.state.messages) == 0


def test_a_receipt_that_is_not_durable_is_not_answered_over_a_new_connection_either() -> None:
    world = World()
    keeper, writer = keeping(world), here(world, "w")
    writer.send(mqtt_publish("a", b"1", 2, 1))
    keeper.read()
    world.slow_disk = True
    keeper.send(pubrec(1))
    keeper.vanish()
    keeper = Client(world, connect("keeper", clean=False))
    # The session has not changed, so its CONNACK waits for no record.
    assert keeper.greeting == RESUMED
    assert keeper.read() == b""
    world.durable()
    assert keeper.read() == pubrel(1)
    assert keeper.send(pubcomp(1)) == b"" and world.inbox("keeper").unacked == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_for_a_session_that_persists_is_kept_like_another(qos: int) -> None:
    world = World()
    here(world, "w").send(mqtt_publish("a", b"r", qos, 1, RETAIN))
    keeper = Client(world, connect("keeper", clean=False))
    assert keeper.send(subscribe(1, ("#", qos))) == suback(1, qos) + mqtt_publish(
        "a", b"r", qos, 1, RETAIN
    )
    assert [live.queues for live in world.store.state.messages.values()] == [
        [world.inbox("keeper").number]
    ]
    keeper.vanish()
    keeper = Client(world, connect("keeper", clean=False))
    assert keeper.greeting == RESUMED + mqtt_publish("a", b"r", qos, 1, RETAIN | DUP)


def test_packet_identifiers_follow_from_the_place_in_the_inbox() -> None:
    world = World()
    keeper, writer = keeping(world, 1), here(world, "w")
    keeper.vanish()
    for number in range(1, 6):
        writer.send(mqtt_publish("a", b"%d" % number, 1, number))
    keeper = Client(world, connect("keeper", clean=False))
    assert keeper.greeting == RESUMED + b"".join(
        mqtt_publish("a", b"%d" % number, 1, number) for number in range(1, 6)
    )
    keeper.send(*(puback(number) for number in range(1, 6)))
    writer.send(mqtt_publish("a", b"6", 1, 6))
    assert keeper.read() == mqtt_publish("a", b"6", 1, 6)
