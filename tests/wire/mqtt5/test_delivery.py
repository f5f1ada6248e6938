"""Subscriptions and deliveries at level 5, from the first SUBSCRIBE to the last acknowledgement."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest

from tests.clients import World
from tests.wire.mqtt5.client import Client5, publish, subscription

KEPT: dict[str, Any] = {"session_expiry_interval": 1_000}


@pytest.mark.parametrize("packet_id", [1, 300, 65_535])
def test_suback_and_unsuback_come_with_the_identifier_of_their_packet(packet_id: int) -> None:
    # [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-7], [MQTT-3.10.4-4]
    client = Client5(World())
    assert client.subscribe(subscription("a", 1), subscription("b", 2), packet_id=packet_id) == [
        [1, 2]
    ]
    for _ in range(2):
        [answer] = client.send(mqtt5.UnsubscribePacket(packet_id, ["a"]))
        assert (type(answer), answer.packet_id) == (mqtt5.UnsubAckPacket, packet_id)


def test_a_packet_with_many_filters_has_the_effect_of_many_packets_and_one_reply() -> (
    None
):  # [MQTT-3.8.4-5], [MQTT-3.10.4-6]
    world = World()
    client, writer = Client5(world), Client5(world, "w")
    assert client.subscribe(
        *[subscription(f"a/{number}", number % 3) for number in range(100)]
    ) == [[number % 3 for number in range(100)]]
    writer.send(*[publish(f"a/{number}", b"", 0) for number in range(100)])
    assert len(client.publications()) == 100
    [answer] = client.send(
        mqtt5.UnsubscribePacket(2, [f"a/{number}" for number in range(0, 100, 2)])
    )
    assert len(answer.reason_codes) == 50
    writer.send(*[publish(f"a/{number}", b"", 0) for number in range(100)])
    assert [one.topic for one in client.publications()] == [
        f"a/{number}" for number in range(1, 100, 2)
    ]


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_delivery_has_the_lower_qos_of_publication_and_subscription(
    granted: int, published: int
) -> None:  # [MQTT-3.8.4-8]
    world = World()
    client = Client5(world)
    client.subscribe(subscription("a", granted))
    Client5(world, "w").send(publish("a", b"x", published))
    assert [int(one.qos) for one in client.publications()] == [min(granted, published)]


@pytest.mark.parametrize("others", [(0, 1), (1, 2), (2, 0), (0, 0), (2, 2)])
def test_overlapping_subscriptions_deliver_with_the_highest_qos(
    others: tuple[int, int],
) -> None:  # [MQTT-3.3.4-2]
    world = World()
    client = Client5(world)
    client.subscribe(subscription("a/#", others[0]), subscription("a/+", others[1]))
    Client5(world, "w").send(publish("a/b", b"x", 2))
    assert [int(one.qos) for one in client.publications()] == [max(others)]


def test_filters_are_compared_character_by_character() -> None:  # [MQTT-3.10.4-1], [MQTT-4.7.3-4]
    world = World()
    client, writer = Client5(world), Client5(world, "w")
    filters = [
        "a/+",
        "a/b",
        "A/b",
        "a/b/",
        "/a/b",
        "a//b",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
        "e\N{COMBINING ACUTE ACCENT}",
        " a",
        "\ufeffa",
    ]
    client.subscribe(*[subscription(name, 0) for name in filters])
    [answer] = client.send(mqtt5.UnsubscribePacket(1, ["a/#", "A/B", "a/b//", "a", "a/c"]))
    assert [int(code) for code in answer.reason_codes] == [0x11] * 5
    for name in filters[1:]:
        writer.send(publish(name))
        assert [one.topic for one in client.publications()] == [name]
        [answer] = client.send(mqtt5.UnsubscribePacket(1, [name]))
        assert [int(code) for code in answer.reason_codes] == [0]
        writer.send(publish(name))
        # The subscription to a/+ matches a/b too.
        assert [one.topic for one in client.publications()] == ([name] if name == "a/b" else [])


@pytest.mark.parametrize("qos", [1, 2])
def test_after_unsubscribing_begun_deliveries_are_finished_and_no_new_ones_come(
    qos: int,
) -> None:  # [MQTT-3.10.4-2], [MQTT-3.10.4-3]
    world = World()
    client, writer = Client5(world, **KEPT), Client5(world, "w")
    client.subscribe(subscription("a", qos))
    writer.send(publish("a", b"begun", qos))
    [begun] = client.publications()
    client.send(mqtt5.UnsubscribePacket(9, ["a"]))
    writer.send(publish("a", b"too late", qos, 2))
    assert client.publications() == []
    client.vanish()
    client = Client5(world, clean=False, **KEPT)
    assert [(one.payload, one.duplicate) for one in client.greeting[1:]] == [(b"begun", True)]
    if qos == 2:
        [pubrel] = client.send(mqtt5.PubRecPacket(begun.packet_id))
        assert (type(pubrel), pubrel.packet_id) == (mqtt5.PubRelPacket, begun.packet_id)
        client.send(mqtt5.PubCompPacket(begun.packet_id))
    else:
        client.send(mqtt5.PubAckPacket(begun.packet_id))
    client.vanish()
    assert len(Client5(world, clean=False, **KEPT).greeting) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_new_deliveries_have_identifiers_that_are_not_in_use_and_no_dup_flag(qos: int) -> None:
    # [MQTT-4.3.1-1], [MQTT-4.3.2-1], [MQTT-4.3.2-2], [MQTT-4.3.3-1], [MQTT-4.3.3-2], [MQTT-2.2.1-4]
    world = World()
    client, writer = Client5(world), Client5(world, "w")
    client.subscribe(subscription("a", qos))
    writer.send(*[publish("a", b"", 2, number) for number in range(1, 101)])
    heard = client.publications()
    assert {(int(one.qos), one.duplicate) for one in heard} == {(qos, False)}
    assert len({one.packet_id for one in heard}) == (100 if qos else 1)
    assert (heard[0].packet_id is None) == (qos == 0)


def test_a_qos_1_delivery_stays_until_its_puback_and_a_second_one_is_ignored() -> (
    None
):  # [MQTT-4.3.2-3], [MQTT-4.4.0-1]
    world = World()
    client = Client5(world, **KEPT)
    client.subscribe(subscription("a"))
    Client5(world, "w").send(*[publish("a", b"%d" % number, 1, number) for number in (1, 2)])
    heard = client.publications()
    for left in (2, 1, 0):
        client.vanish()
        client = Client5(world, clean=False, **KEPT)
        assert [(one.packet_id, one.payload, one.duplicate) for one in client.greeting[1:]] == [
            (one.packet_id, one.payload, True) for one in heard[:left]
        ]
        last = heard[max(left - 1, 0)].packet_id
        assert client.send(mqtt5.PubAckPacket(last), mqtt5.PubAckPacket(last)) == []


def test_qos_1_publication_after_its_puback_is_new_even_with_the_dup_flag() -> (
    None
):  # [MQTT-4.3.2-5]
    world = World()
    client, writer = Client5(world), Client5(world, "w")
    client.subscribe(subscription("a"))
    writer.send(
        publish("a", b"1", 1, 5), publish("a", b"2", 1, 5, duplicate=True), publish("a", b"3", 1, 5)
    )
    assert client.bodies() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("present", [False, True])
def test_a_published_message_belongs_to_the_session_of_every_subscriber(
    present: bool,
) -> None:  # [MQTT-4.5.0-1], [MQTT-3.3.2-3]
    world = World()
    clients = {
        name: Client5(world, name, **KEPT)
        for name in ("a/b", "a/+", "#", "a/#", "+/b", "b/#", "a/b/c", "$SYS/#")
    }
    for name, client in clients.items():
        client.subscribe(subscription(name))
        if not present:
            client.vanish()
    Client5(world, "w").send(publish("a/b", b"x", 1))
    heard = {
        name: client.publications() if present else Client5(world, name, clean=False).greeting[1:]
        for name, client in clients.items()
    }
    assert {name for name, ones in heard.items() if any(one.topic == "a/b" for one in ones)} == {
        "a/b",
        "a/+",
        "#",
        "a/#",
        "+/b",
    }


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_subscriber_gets_a_topic_in_the_order_of_publication(
    qos: int,
) -> None:  # [MQTT-4.6.0-5], [MQTT-4.6.0-6]
    world = World()
    readers = [Client5(world, f"r{number}") for number in range(3)]
    for reader, topic_filter in zip(readers, ("a", "#", "+"), strict=True):
        reader.subscribe(subscription(topic_filter, qos))
    writer = Client5(world, "w")
    for number in range(60):
        writer.send(
            publish("a", b"%d" % number, qos, number % 3 + 1),
            mqtt5.PubRelPacket(number % 3 + 1) if qos == 2 else b"",
        )
    for reader in readers:
        assert reader.bodies() == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("length", [1, 65_535])
def test_topics_of_every_length(length: int) -> None:  # [MQTT-4.7.3-1], [MQTT-4.7.3-3]
    world = World()
    client = Client5(world)
    client.subscribe(subscription("x" * length, 0), subscription("#", 0))
    Client5(world, "w").send(publish("x" * length, b"x"))
    assert [len(one.topic) for one in client.publications()] == [length]
