"""Subscriptions at level 5: options, identifiers, reason codes."""

from __future__ import annotations

import itertools

import mqtt5
import pytest

from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import RETAIN, Client, connect
from tests.wire.mqtt5.client import Client5, publish, subscription
from tests.wire.mqtt5.test_connect import options


def test_every_filter_gets_its_reason_code_in_order() -> (
    None
):  # [MQTT-3.8.4-6], [MQTT-3.9.3-1], [MQTT-3.9.3-2]
    world = World(mqtt=options(max_levels=3, no_subscribe=["test/nosubscribe"]))
    client = Client5(world)
    assert client.subscribe(
        subscription("a", 0),
        subscription("a/b/c/d", 2),
        subscription("b", 1),
        subscription("test/nosubscribe", 0),
        subscription("$share/g/test/nosubscribe"),
        subscription("c/#", 2),
        subscription("a", 1),
    ) == [[0, 0x8F, 1, 0x80, 0x80, 2, 1]]
    [answer] = client.send(mqtt5.UnsubscribePacket(2, ["a", "nothing", "c/#", "a", "$share/g/a"]))
    assert [int(code) for code in answer.reason_codes] == [
        0,
        0x11,
        0,
        0x11,
        0x11,
    ]  # [MQTT-3.10.4-5], [MQTT-3.11.3-1], [MQTT-3.11.3-2]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_delivery_has_the_identifiers_of_all_matching_subscriptions(
    qos: int,
) -> None:  # [MQTT-3.3.4-3], [MQTT-3.3.4-4], [MQTT-3.3.4-5]
    world = World()
    reader, plain, writer = Client5(world, "r"), Client5(world, "p"), Client5(world, "w")
    reader.subscribe(subscription("a/b", qos), subscription("a/+", 0), identifier=268_435_455)
    reader.subscribe(subscription("a/#", qos), identifier=1)
    reader.subscribe(subscription("#", 0))
    plain.subscribe(subscription("#", qos))
    for topic, identifiers in (
        ("a/b", {1, 268_435_455}),
        ("a/c", {1, 268_435_455}),
        ("a", {1}),
        ("b", set()),
    ):
        writer.send(publish(topic, b"x", qos), mqtt5.PubRelPacket(1) if qos == 2 else b"")
        [got] = reader.publications()
        assert set(got.subscription_ids) == identifiers
        assert [one.subscription_ids for one in plain.publications()] == [[]]
    reader.subscribe(subscription("a/#", 0), identifier=7)
    reader.subscribe(subscription("a/+", 0))
    reader.send(mqtt5.UnsubscribePacket(1, ["a/b"]))
    writer.send(publish("a/b", b"x", qos), mqtt5.PubRelPacket(1) if qos == 2 else b"")
    assert [one.subscription_ids for one in reader.publications()] == [[7]]
    reader.send(mqtt5.UnsubscribePacket(1, ["a/#"]))
    writer.send(publish("a/b", b"x", qos), mqtt5.PubRelPacket(1) if qos == 2 else b"")
    assert [one.subscription_ids for one in reader.publications()] == [[]]


def test_a_persistent_session_keeps_its_subscription_identifiers() -> None:  # [MQTT-3.1.2-5]
    world = World()
    reader, writer = Client5(world, "r", session_expiry_interval=100), Client5(world, "w")
    reader.subscribe(subscription("a/+", 1), identifier=3)
    reader.vanish()
    writer.send(publish("a/b", b"x", 1))
    again = Client5(world, "r", clean=False, session_expiry_interval=100)
    assert [(one.payload, one.subscription_ids) for one in again.greeting[1:]] == [(b"x", [3])]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic_filter", ["a/b", "a/#", "+/b"])
def test_with_no_local_a_client_does_not_receive_its_own_messages(
    qos: int, topic_filter: str
) -> None:  # [MQTT-3.8.3-3]
    world = World()
    one, two, old = (
        Client5(world, "1"),
        Client5(world, "2", session_expiry_interval=100),
        Client(world, connect("3")),
    )
    one.subscribe(subscription(topic_filter, 2, no_local=True))
    two.subscribe(subscription(topic_filter, 2, no_local=True))
    for _ in range(2):
        [*answers] = one.send(publish("a/b", b"from one", qos))
        assert [type(answer) for answer in answers] == [
            [],
            [mqtt5.PubAckPacket],
            [mqtt5.PubRecPacket],
        ][qos]
        assert two.bodies() == [b"from one"]
        if qos == 2:
            one.send(mqtt5.PubRelPacket(1))
    old.send(mqtt_publish("a/b", b"from another", qos, 1))
    assert one.bodies() == two.bodies() == [b"from another"]
    one.send(publish("a/b", b"kept", 1, retain=True))
    assert two.bodies() == [b"kept"]
    assert [
        got.payload for got in one.subscribe(subscription(topic_filter, 0, no_local=True))[1:]
    ] == [b"kept"]  # No Local does not apply to retained messages.
    world.fates()


def test_second_subscription_without_no_local_gets_own_messages() -> None:
    world = World()
    one = Client5(world)
    one.subscribe(subscription("a/#", 1, no_local=True), subscription("a/+", 0))
    assert [type(got) for got in one.send(publish("a/b", b"x", 1))] == [
        mqtt5.PublishPacket,
        mqtt5.PubAckPacket,
    ]
    one.subscribe(subscription("a/+", 0, no_local=True))
    [answer] = one.send(publish("a/b", b"x", 1))
    assert int(answer.reason_code) == 0x10
    one.subscribe(subscription("a/+", 0, no_local=False))
    assert len(one.send(publish("a/b", b"x", 0))) == 1


def test_will_is_local_to_its_session() -> None:
    world = World()
    first = Client5(world, will=mqtt5.Will("gone", payload=b"x"), session_expiry_interval=100)
    first.subscribe(subscription("gone", 1, no_local=True))
    again = Client5(world, clean=False, session_expiry_interval=100)
    assert again.bodies() == []
    assert world.fates() == {"unroutable": 1}


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(("qos", "granted"), [(0, 0), (1, 1), (2, 2), (2, 1), (1, 0)])
@pytest.mark.parametrize("old", [False, True])
def test_retain_as_published(
    as_published: bool, retain: bool, qos: int, granted: int, old: bool
) -> None:
    # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
    world = World()
    reader = Client5(world, "r", session_expiry_interval=100)
    reader.subscribe(subscription("a/+", granted, as_published=as_published))
    if old:
        Client(world, connect("w")).send(mqtt_publish("a/b", b"x", qos, 1, RETAIN if retain else 0))
    else:
        Client5(world, "w").send(publish("a/b", b"x", qos, retain=retain))
    assert [(one.retain, one.qos) for one in reader.publications()] == [
        (retain and as_published, min(qos, granted))
    ]
    late = Client5(world, "late")
    _, *kept = late.subscribe(subscription("a/+", granted, as_published=as_published))
    assert [one.retain for one in kept] == [True] * retain  # [MQTT-3.3.1-8]


@pytest.mark.parametrize("handling", [0, 1, 2])
@pytest.mark.parametrize("known", [False, True])
def test_retain_handling(
    handling: int, known: bool
) -> None:  # [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]
    world = World()
    Client5(world, "w").send(publish("a", b"x", retain=True))
    reader = Client5(world, "r")
    if known:
        reader.subscribe(subscription("a", 0, handling=2))
    _, *kept = reader.subscribe(subscription("a", 0, handling=handling))
    assert [one.payload for one in kept] == (
        [b"x"] if handling == 0 or handling == 1 and not known else []
    )


def test_a_retained_message_has_the_identifier_of_the_subscription_that_asked() -> None:
    world = World()
    Client5(world, "w").send(publish("a/b", b"x", 1, retain=True))
    for qos in range(3):
        reader = Client5(world, f"r{qos}")
        assert [
            one.subscription_ids
            for one in reader.subscribe(subscription("a/+", qos), identifier=1)[1:]
        ] == [[1]]
        assert [
            one.subscription_ids
            for one in reader.subscribe(subscription("a/#", qos), identifier=2)[1:]
        ] == [[2]]
        assert [one.subscription_ids for one in reader.subscribe(subscription("#", qos))[1:]] == [
            []
        ]


def test_options_change_when_a_subscription_is_replaced() -> None:  # [MQTT-3.8.4-3], [MQTT-3.8.4-4]
    world = World()
    reader, writer = Client5(world, "r", session_expiry_interval=100), Client5(world, "w")
    choices = list(itertools.product([0, 1], [False, True], [None, 5]))
    for first, second in itertools.permutations(choices, 2):
        for qos, as_published, identifier in (first, second):
            reader.subscribe(
                subscription("a", qos, as_published=as_published, handling=2), identifier=identifier
            )
        writer.send(publish("a", b"x", 1, retain=True))
        [got] = reader.publications()
        assert (got.qos, got.retain, got.subscription_ids) == (
            second[0],
            second[1],
            [second[2]] if second[2] else [],
        )
        if int(got.qos):
            reader.send(mqtt5.PubAckPacket(got.packet_id))
    session = world.mqtt_front.sessions.find(world.vhost, "r")
    assert session is not None
    assert len(session.subscriptions) == 1
    kinds = [kind for _, kind, _ in world.store.state.definitions]
    assert sorted(kinds) == ["session", "subscription"]


def test_thousands_of_filters_with_identifiers() -> None:
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w")
    for number in range(2_000):
        reader.subscribe(subscription(f"a/{number}", 0), identifier=number + 1)
    writer.send(publish("a/1999", b"x"))
    assert [one.subscription_ids for one in reader.publications()] == [[2_000]]


def test_more_topics_than_are_remembered_with_their_identifiers() -> None:
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w")
    reader.subscribe(subscription("a/#", 0), identifier=9)
    for number in range(2_500):
        writer.send(publish(f"a/{number}", b"x"))
    writer.send(publish("a/0", b"x"))
    assert {tuple(one.subscription_ids) for one in reader.publications()} == {(9,)}
