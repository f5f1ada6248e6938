"""SUBSCRIBE and UNSUBSCRIBE: codes for each filter, replaced subscriptions, and matched topics."""

from __future__ import annotations

import pytest

from broker.access.identity import Identity
from protocols.mqtt.connection.subscribing import FILTERS_PER_SLICE, LEVELS
from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import (
    PINGREQ,
    PINGRESP,
    RETAIN,
    Client,
    binary,
    connect,
    here,
    publications,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)


class Choosy(Identity):
    """An identity that may read and write topics under `mine` only."""

    def may_publish(self, topic: bytes) -> bool:
        return topic.split(b"/")[0] == b"mine"

    def may_subscribe(self, topic_filter: str) -> bool:
        return topic_filter.split("/")[0] == "mine"


@pytest.mark.parametrize("packet_id", [1, 255, 256, 32_768, 65_535])
def test_suback_and_unsuback_carry_the_packet_identifier(
    packet_id: int,
) -> None:  # [MQTT-3.8.4-2], [MQTT-3.10.4-4]
    client = here(World())
    assert client.send(subscribe(packet_id, ("a", 1))) == suback(packet_id, 1)
    assert client.send(unsubscribe(packet_id, "a")) == unsuback(packet_id)


def test_every_filter_gets_its_code_in_order() -> None:  # [MQTT-3.8.4-5], [MQTT-3.9.3-1]
    options = MqttOptions()
    options.max_levels = 3
    world = World(mqtt=options)
    client = here(world)
    wanted = [
        ("a", 0),
        ("a/b/c/d", 2),
        ("b", 1),
        ("$share/group/a/b/c/d", 1),
        ("c/#", 2),
        ("a/b/c", 0),
        ("/" * 3, 0),
        ("d/+/+/#", 1),
    ]
    assert client.send(subscribe(9, *wanted)) == suback(9, 0, 0x80, 1, 0x80, 2, 0, 0x80, 0x80)
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    assert sorted(session.subscriptions) == ["a", "a/b/c", "b", "c/#"]
    assert client.send(unsubscribe(10, *[name for name, _ in wanted])) == unsuback(10)
    assert not session.subscriptions


@pytest.mark.parametrize("clean", [True, False])
def test_a_thousand_filters_in_one_packet(clean: bool) -> None:  # [MQTT-3.8.4-4], [MQTT-3.10.4-6]
    world = World()
    client, writer = here(world, clean=clean), here(world, "w")
    names = [f"t/{number}" for number in range(1_000)]
    assert client.send(subscribe(1, *[(name, at % 3) for at, name in enumerate(names)])) == suback(
        1, *[at % 3 for at in range(1_000)]
    )
    writer.send(mqtt_publish("t/7", b"x"), mqtt_publish("t/999", b"y"))
    assert client.read() == mqtt_publish("t/7", b"x") + mqtt_publish("t/999", b"y")
    assert client.send(unsubscribe(2, *names[:999])) == unsuback(2)
    writer.send(mqtt_publish("t/7", b"x"), mqtt_publish("t/999", b"y"))
    assert client.read() == mqtt_publish("t/999", b"y")


@pytest.mark.parametrize("clean", [True, False])
def test_thousands_of_filters_take_many_turns_and_others_are_served_meanwhile(clean: bool) -> None:
    world = World()
    client, writer = here(world, clean=clean), here(world, "w")
    names = [f"t/{number}" for number in range(3 * FILTERS_PER_SLICE + 7)]
    kept = mqtt_publish("t/0", b"kept", flags=RETAIN)
    writer.send(kept)
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    for data, answer, counts in (
        (
            subscribe(1, *[(name, 0) for name in names]),
            suback(1, *[0] * len(names)) + kept,
            [FILTERS_PER_SLICE, 2 * FILTERS_PER_SLICE, 3 * FILTERS_PER_SLICE],
        ),
        (
            unsubscribe(2, *names),
            unsuback(2),
            [2 * FILTERS_PER_SLICE + 7, FILTERS_PER_SLICE + 7, 7],
        ),
    ):
        world.slow_disk = True
        client.connection.receive_data(data + PINGREQ)
        for count in counts:
            assert len(session.subscriptions) == count
            assert client.connection.stalled
            assert writer.send(PINGREQ) == PINGRESP
        assert client.connection.stalled != clean
        world.slow_disk = False
        assert client.read() == answer + PINGRESP
    assert not session.subscriptions
    assert len(list(world.vhost.exchange("amq.topic"))) == 0


@pytest.mark.parametrize(("levels", "some"), [(100, LEVELS // 100), (LEVELS, 1), (LEVELS + 1, 1)])
def test_the_more_levels_filters_have_the_fewer_are_looked_at_in_a_turn(
    levels: int, some: int
) -> None:
    options = MqttOptions()
    options.max_levels = 2 * LEVELS
    world = World(mqtt=options)
    client, other = here(world, clean=False), here(world, "w")
    names = [f"{number}" + "/a" * (levels - 1) for number in range(2 * some + 1)]
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    world.slow_disk = True
    client.connection.receive_data(subscribe(1, *[(name, 0) for name in names]))
    assert len(session.subscriptions) == some
    assert other.send(PINGREQ) == PINGRESP
    assert len(session.subscriptions) == 2 * some
    world.slow_disk = False
    assert client.read() == suback(1, *[0] * len(names))
    assert len(session.subscriptions) == len(names)


def test_a_client_that_leaves_ends_the_slices_of_its_subscribe() -> None:
    world = World()
    client = here(world, clean=False)
    client.connection.receive_data(
        subscribe(1, *[(f"t/{number}", 0) for number in range(2 * FILTERS_PER_SLICE)])
    )
    client.connection.on_closed()
    world.settle()
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    assert len(session.subscriptions) == FILTERS_PER_SLICE
    here(world)
    assert len(list(world.vhost.exchange("amq.topic"))) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x01",
        b"\x00",
        b"\x00\x00" + text("a") + b"\x00",
        b"\x00\x01" + text("a"),
        b"\x00\x01" + text("a") + b"\x03",
        b"\x00\x01" + text("a") + b"\x04",
        b"\x00\x01" + text("a") + b"\x80",
        b"\x00\x01" + text("") + b"\x00",
        b"\x00\x01" + text("a") + b"\x00\x00",
        b"\x00\x01" + text("a") + b"\x00" + text("b"),
        b"\x00\x01" + text("a\0") + b"\x00",
        b"\x00\x01" + binary(b"\xff") + b"\x00",
        b"\x00\x01" + binary(b"\xed\xa0\x80") + b"\x00",
        b"\x00\x01\x00\x09abc",
        b"\x00\x01" + text("ok") + b"\x01" + text("#/a") + b"\x01",
    ],
)
def test_a_malformed_subscribe_closes_the_connection_and_subscribes_to_nothing(body: bytes) -> None:
    # [MQTT-3.8.3-1], [MQTT-3.8.3-3], [MQTT-3-8.3-4], [MQTT-2.3.1-1], [MQTT-4.7.3-1], [MQTT-4.7.3-2]
    world = World()
    client = Client(world, connect("c", clean=False))
    assert client.send(packet(0x82, body)) == b""
    assert client.closed == "protocol_error"
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    assert not session.subscriptions


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x01",
        b"\x00",
        b"\x00\x00" + text("a"),
        b"\x00\x02" + text("a") + text(""),
        b"\x00\x02" + text("a") + b"\x00",
        b"\x00\x02" + text("a") + text("a\0"),
        b"\x00\x02" + text("a") + binary(b"\xff"),
        b"\x00\x02" + text("a") + b"\x00\x09abc",
        b"\x00\x02" + text("a") + text("a+"),
    ],
)
def test_a_malformed_unsubscribe_closes_the_connection_and_ends_no_subscription(
    body: bytes,
) -> None:
    # [MQTT-3.10.3-1], [MQTT-3.10.3-2], [MQTT-2.3.1-1]
    world = World()
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", 1)))
    assert client.send(packet(0xA2, body)) == b""
    assert client.closed == "protocol_error"
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    assert list(session.subscriptions) == ["a"]


@pytest.mark.parametrize(
    "topic_filter",
    [
        "a#",
        "#a",
        "a/#/b",
        "#/",
        "##",
        "a/b#",
        "a+",
        "+a",
        "a/+b",
        "a/b+/c",
        "++",
        "+#",
        "#+",
        "a/#+",
    ],
)
@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_wildcards_stand_alone_and_a_hash_last(
    topic_filter: str, first: int
) -> None:  # [MQTT-4.7.1-2], [MQTT-4.7.1-3]
    client = here(World())
    client.send(
        packet(first, b"\x00\x01" + text(topic_filter) + (b"\x00" if first == 0x82 else b""))
    )
    assert client.closed == "protocol_error"


@pytest.mark.parametrize("flags", [0, 1, 3, 4, 8, 15])
@pytest.mark.parametrize("kind", [0x80, 0xA0])
def test_the_flags_of_subscribe_and_unsubscribe_must_be_2(
    flags: int, kind: int
) -> None:  # [MQTT-3.8.1-1], [MQTT-3.10.1-1]
    client = here(World())
    client.send(packet(kind | flags, b"\x00\x01" + text("a") + (b"\x00" if kind == 0x80 else b"")))
    assert client.closed == "protocol_error"


def test_unsubscribe_of_an_unknown_filter_is_answered() -> None:  # [MQTT-3.10.4-5]
    client = here(World())
    client.send(subscribe(1, ("a/+", 0)))
    assert client.send(unsubscribe(3, "a/b", "nothing", "a/#")) == unsuback(3)
    assert client.send(unsubscribe(4, "a/+", "a/+")) == unsuback(4)


def test_filters_are_compared_character_by_character() -> None:  # [MQTT-3.10.4-1]
    world = World()
    client, writer = here(world), here(world, "w")
    client.send(subscribe(1, ("a/+", 0)), unsubscribe(2, "a/#", "a/b", "A/+", "a/+/"))
    writer.send(mqtt_publish("a/b", b"x"))
    assert client.read() == mqtt_publish("a/b", b"x")
    client.send(unsubscribe(3, "a/+"))
    writer.send(mqtt_publish("a/b", b"x"))
    assert client.read() == b""


def test_a_second_subscription_replaces_the_first_and_sends_retained_messages_again() -> (
    None
):  # [MQTT-3.8.4-3]
    world = World()
    client, writer = here(world), here(world, "w")
    writer.send(mqtt_publish("a/b", b"kept", 2, 1, RETAIN))
    assert client.send(subscribe(1, ("a/+", 0))) == suback(1, 0) + mqtt_publish(
        "a/b", b"kept", flags=RETAIN
    )
    assert client.send(subscribe(2, ("a/+", 2))) == suback(2, 2) + mqtt_publish(
        "a/b", b"kept", 2, 1, RETAIN
    )
    assert client.send(subscribe(3, ("a/+", 1))) == suback(3, 1) + mqtt_publish(
        "a/b", b"kept", 1, 2, RETAIN
    )
    writer.send(mqtt_publish("a/b", b"live", 2, 2))
    assert client.read() == mqtt_publish("a/b", b"live", 1, 3)
    client.send(unsubscribe(4, "a/+"))
    writer.send(mqtt_publish("a/b", b"live", 2, 3))
    assert client.read() == b""
    assert len(list(world.vhost.exchange("amq.topic"))) == 0


def test_one_filter_twice_in_one_packet_is_one_subscription() -> None:  # [MQTT-3.8.4-4]
    world = World()
    client, writer = here(world), here(world, "w")
    assert client.send(subscribe(1, ("a", 2), ("a", 0))) == suback(1, 2, 0)
    writer.send(mqtt_publish("a", b"x", 2, 1))
    assert client.read() == mqtt_publish("a", b"x")


def test_overlapping_filters_deliver_once_with_the_highest_qos() -> None:  # [MQTT-3.3.5-1]
    world = World()
    client, writer = here(world), here(world, "w")
    client.send(subscribe(1, ("a/b", 0), ("a/#", 1), ("+/b", 2), ("#", 0)))
    writer.send(
        mqtt_publish("a/b", b"x", 2, 1),
        mqtt_publish("a/c", b"y", 2, 2),
        mqtt_publish("c", b"z", 2, 3),
    )
    assert client.read() == mqtt_publish("a/b", b"x", 2, 1) + mqtt_publish(
        "a/c", b"y", 1, 2
    ) + mqtt_publish("c", b"z")
    client.send(unsubscribe(2, "+/b"))
    writer.send(
        mqtt_publish("a/b", b"x", 2, 1, 8),
        packet(0x62, b"\x00\x01"),
        mqtt_publish("a/b", b"x", 2, 1),
    )
    assert client.read() == mqtt_publish("a/b", b"x", 1, 3)


def test_a_subscription_without_read_permission_is_refused() -> None:  # [MQTT-3.8.4-5]
    world = World()
    world.guests.identities["blind"] = Identity("blind", read="")
    client, writer = Client(world, connect("b", user="blind", password=b"guest")), here(world, "w")
    writer.send(mqtt_publish("a", b"kept", flags=RETAIN))
    assert client.send(subscribe(1, ("a", 0), ("#", 1))) == suback(1, 0x80, 0x80)
    writer.send(mqtt_publish("a", b"x"))
    assert client.send(PINGREQ) == PINGRESP


def test_topic_rules_refuse_filter_by_filter_and_publication_by_publication() -> None:
    world = World()
    world.guests.identities["choosy"] = Choosy("choosy")
    client = Client(world, connect("c", user="choosy", password=b"guest"))
    assert client.send(subscribe(1, ("mine/#", 1), ("theirs", 1), ("#", 0), ("mine", 0))) == suback(
        1, 1, 0x80, 0x80, 0
    )
    data = client.send(
        mqtt_publish("mine/a", b"1"), mqtt_publish("theirs", b"2"), mqtt_publish("mine", b"3", 1, 1)
    )
    assert [one.body for one in publications(data)] == [b"1", b"3"]
    assert world.fates() == {"routed": 2, "denied": 1}


@pytest.mark.parametrize(
    ("topic_filter", "topics", "others"),
    [
        ("#", ["a", "a/b", "/", "/a", "a/", "a.b", "*", " "], ["$a", "$a/b", "$"]),
        ("+", ["a", "a.b", "*", " "], ["a/b", "/", "/a", "$a", "$"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c", "a//"], ["b", "ab", "/a", "A/b"]),
        ("/#", ["/", "/a", "//"], ["a", "a/b"]),
        ("+/#", ["a", "a/b", "/", "/a"], ["$a", "$a/b"]),
        ("a/+", ["a/b", "a/", "a/*", "a/.", "a/$x"], ["a", "a/b/c", "b/a"]),
        ("+/+", ["a/b", "/", "/a", "a/", "a/$x"], ["a", "a/b/c", "$x/a", "//"]),
        ("/+", ["/a", "/"], ["a", "/a/b"]),
        ("+/", ["a/", "/"], ["a", "a/b"]),
        ("+//+", ["a//b", "//"], ["a/b", "a/x/b"]),
        ("a/+/b", ["a/x/b", "a//b"], ["a/b", "a/x/y/b"]),
        ("a/+/#", ["a/", "a/b", "a/b/c"], ["a", "b/c"]),
        ("*", ["*"], ["a", "**", "a/b"]),
        ("a/*", ["a/*"], ["a/b", "a/"]),
        ("*/#", ["*", "*/a"], ["a", "a/b"]),
        ("a.b", ["a.b"], ["a/b", "a", "a.b.c"]),
        ("a.b/+", ["a.b/c", "a.b/c.d"], ["a/b/c", "a.b"]),
        ("a/b", ["a/b"], ["a.b", "A/b", "a/b/"]),
        ("$x/#", ["$x", "$x/a", "$x/"], ["x/a", "$xy/a"]),
        ("$x/+", ["$x/a", "$x/"], ["$x", "$y/a"]),
        ("$", ["$"], ["$x"]),
        ("ä/€", ["ä/€"], ["a/€"]),
        (" ", [" "], ["  "]),
        ("\ufeffa", ["\ufeffa"], ["a"]),
    ],
)
def test_which_topics_a_filter_matches(
    topic_filter: str, topics: list[str], others: list[str]
) -> None:
    # [MQTT-4.7.1-1], [MQTT-4.7.2-1], [MQTT-4.7.3-4]
    world = World()
    writer = here(world, "w")
    live = here(world, "live")
    live.send(subscribe(1, (topic_filter, 0)))
    for topic in topics + others:
        writer.send(mqtt_publish(topic, topic.encode(), flags=RETAIN))
    assert [one.topic for one in publications(live.read())] == topics
    late = publications(here(world, "late").send(subscribe(1, (topic_filter, 0))))
    assert sorted(one.topic for one in late) == sorted(topics)


@pytest.mark.parametrize("characters", [65_535, 65_534, 200, 513])
def test_topics_and_filters_of_every_length(characters: int) -> None:  # [MQTT-4.7.3-3]
    world = World()
    client, writer = here(world), here(world, "w")
    topic = "t" * characters
    assert client.send(subscribe(1, (topic, 1))) == suback(1, 1)
    for _ in range(2):
        writer.send(mqtt_publish(topic, b"x"), mqtt_publish(topic, b"y", 1, 1))
    assert [one.body for one in publications(client.read())] == [b"x", b"y"] * 2
    writer.send(mqtt_publish(topic, b"kept", flags=RETAIN))
    client.read()
    assert client.send(subscribe(2, (topic, 0))) == suback(2, 0) + mqtt_publish(
        topic, b"kept", flags=RETAIN
    )
    assert client.send(unsubscribe(3, topic)) == unsuback(3)
    assert world.fates() == {"routed": 5}


@pytest.mark.parametrize("levels", [199, 200, 201, 65_535])
def test_200_levels_are_served(levels: int) -> None:
    world = World()
    client, writer = here(world), here(world, "w")
    served = levels <= 200
    topic = "/" * (levels - 1) + ("x" if levels < 65_535 else "")
    assert client.send(subscribe(1, (topic, 0), ("#", 0))) == suback(1, 0 if served else 0x80, 0)
    assert writer.send(mqtt_publish(topic, b"x", 1, 1, RETAIN)) == b"\x40\x02\x00\x01"
    assert client.read() == (mqtt_publish(topic, b"x") if served else b"")
    assert len(world.vhost.retained) == served
    assert world.fates() == ({"routed": 1} if served else {"denied": 1})


@pytest.mark.parametrize(
    "topic", ["$SYS", "$SYS/broker/uptime", "$SYS/", "$share", "$share/group/a"]
)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("flags", [0, RETAIN])
def test_publications_to_the_brokers_own_trees_are_acknowledged_and_dropped(
    topic: str, qos: int, flags: int
) -> None:
    options = MqttOptions()
    options.sys_interval_s = 0
    world = World(mqtt=options)
    client, writer = here(world), here(world, "w")
    assert client.send(subscribe(1, ("$SYS/#", 0), ("#", 0), ("$SYS", 0), ("$share", 0))) == suback(
        1, 0, 0, 0, 0
    )
    answers = {0: b"", 1: b"\x40\x02\x00\x05", 2: b"\x50\x02\x00\x05"}
    assert writer.send(mqtt_publish(topic, b"x", qos, 5 if qos else 0, flags)) == answers[qos]
    assert client.read() == b""
    assert here(world, "late").send(subscribe(1, ("$SYS/#", 0), (topic, 0))) == suback(1, 0, 0)
    assert world.fates() == {"denied": 1}


@pytest.mark.parametrize(
    "topic", ["$", "$x", "$sys/a", "$SYSTEM/a", "$shared", "$SYS.a", "a/$SYS", "/$share"]
)
def test_other_dollar_topics_are_ordinary(topic: str) -> None:  # [MQTT-4.7.2-1]
    world = World()
    client, writer = here(world), here(world, "w")
    client.send(subscribe(1, (topic, 0), ("+/#", 1)))
    writer.send(mqtt_publish(topic, b"x", 1, 1))
    assert client.read() == (
        mqtt_publish(topic, b"x") if topic.startswith("$") else mqtt_publish(topic, b"x", 1, 1)
    )
