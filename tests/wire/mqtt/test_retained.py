"""Retained messages: stored, replaced, removed, limited, and sent to new subscriptions."""

from __future__ import annotations

import gc
import time

import pytest

from broker.limits import BrokerLimits
from broker.vhost import retained
from broker.vhost.retained import MESSAGES_PER_SLICE, TOPICS_PER_SLICE
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.session import BACKLOGGED
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    PINGREQ,
    PINGRESP,
    RESUMED,
    RETAIN,
    Client,
    Publication,
    Will,
    connect,
    here,
    puback,
    publications,
    pubrec,
    suback,
    subscribe,
    unsubscribe,
)

MANY = 3 * MESSAGES_PER_SLICE + 7


def bounded(messages: int = 100_000, data: int = 1 << 28) -> World:
    limits = BrokerLimits()
    limits.retained, limits.retained_bytes = messages, data
    return World(limits)


def retain(world: World, topic: str, body: bytes, qos: int = 0) -> None:
    writer = here(world, "retainer")
    writer.send(mqtt_publish(topic, body, qos, 1 if qos else 0, RETAIN), b"\xe0\x00")


def retain_many(world: World, body: bytes = b"x", qos: int = 0) -> None:
    writer = here(world, "retainer")
    writer.send(
        *[mqtt_publish(f"t/{number}", body, qos, 1 if qos else 0, RETAIN) for number in range(MANY)]
    )
    # The first subscription with a wildcard makes the broker index the topics of retained messages.
    writer.send(subscribe(1, ("nothing/+", 0)), b"\xe0\x00")
    world.settle()
    assert len(world.vhost.retained) == MANY


def heard(world: World, *filters: str, qos: int = 0) -> dict[str, bytes]:
    """Return the retained messages that a new subscription receives."""
    late = here(world, "late")
    late.send(subscribe(1, *[(name, 0) for name in filters]), unsubscribe(2, *filters))
    data = here(world, "late").send(subscribe(1, *[(name, qos) for name in filters]))
    assert all(one.retain for one in publications(data))
    return {one.topic: one.body for one in publications(data)}


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_later_subscriber_gets_the_message_with_the_lower_qos_and_the_retain_flag(
    published: int, granted: int
) -> None:
    # [MQTT-3.3.1-5], [MQTT-3.3.1-6], [MQTT-3.3.1-8]
    world = World()
    retain(world, "a/b", b"kept", published)
    for number in (1, 2):
        client = here(world, f"late{number}")
        qos = min(published, granted)
        expected = mqtt_publish("a/b", b"kept", qos, 1 if qos else 0, RETAIN)
        assert client.send(subscribe(1, ("a/+", granted))) == suback(1, granted) + expected


def test_live_messages_have_no_retain_flag() -> None:  # [MQTT-3.3.1-9]
    world = World()
    clients = [here(world, f"{qos}") for qos in range(3)]
    for qos, client in enumerate(clients):
        client.send(subscribe(1, ("a", qos)))
    writer = here(world, "w")
    for published in range(3):
        writer.send(mqtt_publish("a", b"x", published, 1 if published else 0, RETAIN))
        for granted, client in enumerate(clients):
            [one] = publications(client.read())
            assert (one.retain, one.qos) == (False, min(published, granted))


def test_a_topic_keeps_its_last_retained_message_and_an_empty_one_removes_it() -> (
    None
):  # [MQTT-3.3.1-5], [MQTT-3.3.1-10], [MQTT-3.3.1-11]
    world = World()
    live = here(world, "live")
    live.send(subscribe(1, ("a", 0)))
    for qos, body in enumerate([b"1", b"2", b"3"]):
        retain(world, "a", body, qos)
        assert heard(world, "a") == {"a": body}
    retain(world, "a", b"", 1)
    assert heard(world, "#") == {}
    assert len(world.vhost.retained) == world.vhost.retained.size == 0
    retain(world, "a", b"", 2)
    retain(world, "a", b"4")
    assert heard(world, "#") == {"a": b"4"}
    assert [one.body for one in publications(live.read())] == [b"1", b"2", b"3", b"", b"", b"4"]


def test_a_message_without_retain_changes_no_retained_message() -> None:  # [MQTT-3.3.1-12]
    world = World()
    retain(world, "a", b"kept")
    here(world, "w").send(
        mqtt_publish("a", b"live"), mqtt_publish("a", b""), mqtt_publish("b", b"live", 1, 1)
    )
    assert heard(world, "#") == {"a": b"kept"}


@pytest.mark.parametrize(
    ("topic_filter", "topics"),
    [
        ("#", ["a", "a/b", "a/b/c", "/", "b.c"]),
        ("+", ["a", "b.c"]),
        ("a/#", ["a", "a/b", "a/b/c"]),
        ("+/+", ["a/b", "/"]),
        ("a/+/c", ["a/b/c"]),
        ("$x/#", ["$x", "$x/y"]),
        ("$x", ["$x"]),
        ("/#", ["/"]),
        ("+/b/#", ["a/b", "a/b/c"]),
        ("nothing/#", []),
        ("b.c", ["b.c"]),
        ("b/c", []),
    ],
)
def test_every_kind_of_filter_finds_retained_messages(
    topic_filter: str, topics: list[str]
) -> None:  # [MQTT-4.7.2-1]
    world = World()
    for topic in ("a", "a/b", "a/b/c", "/", "b.c", "$x", "$x/y"):
        retain(world, topic, topic.encode())
    assert heard(world, topic_filter) == {topic: topic.encode() for topic in topics}


def test_several_filters_each_send_their_matching_messages() -> None:  # [MQTT-3.8.4-4]
    world = World()
    retain(world, "a", b"x", 1)
    data = here(world, "late").send(subscribe(1, ("a", 0), ("#", 1), ("nothing", 0)))
    assert data == suback(1, 0, 1, 0) + mqtt_publish("a", b"x", flags=RETAIN) + mqtt_publish(
        "a", b"x", 1, 1, RETAIN
    )


def test_retained_messages_are_not_sent_for_refused_filters() -> None:
    options = MqttOptions()
    options.no_subscribe = ["a"]
    world = World(mqtt=options)
    retain(world, "a", b"x")
    assert here(world, "late").send(subscribe(1, ("a", 0), ("$share/g/a", 0))) == suback(
        1, 0x80, 0x80
    )


def test_publishers_and_their_sessions_may_go() -> None:  # [MQTT-3.1.2.7]
    world = World()
    Client(world, connect("w", will=Will("gone", b"1", 1, True))).vanish()
    here(world, "w").send(mqtt_publish("a", b"2", flags=RETAIN), b"\xe0\x00")
    assert heard(world, "#") == {"gone": b"1", "a": b"2"}


def test_the_retain_flag_survives_a_reconnect() -> None:
    world = World()
    retain(world, "a", b"x", 2)
    keeper = Client(world, connect("k", clean=False))
    keeper.send(subscribe(1, ("a", 2)))
    keeper.vanish()
    assert Client(world, connect("k", clean=False)).greeting == RESUMED + mqtt_publish(
        "a", b"x", 2, 1, RETAIN | 8
    )


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_message_above_the_limit_is_published_but_not_kept(qos: int) -> None:
    world = bounded(messages=2)
    live = here(world, "live")
    live.send(subscribe(1, ("#", 0)))
    for topic in ("a", "b", "c"):
        retain(world, topic, b"1", qos)
    assert len(publications(live.read())) == 3
    assert heard(world, "#") == {"a": b"1", "b": b"1"}
    retain(world, "a", b"2", qos)
    retain(world, "b", b"")
    retain(world, "c", b"3", qos)
    assert heard(world, "#") == {"a": b"2", "c": b"3"}
    assert world.vhost.retained.refused == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_that_does_not_fit_removes_its_predecessor(
    qos: int,
) -> None:  # [MQTT-3.3.1-7]
    world = bounded(data=100)
    retain(world, "a", b"x" * 50, qos)
    retain(world, "b", b"x" * 40, qos)
    assert world.vhost.retained.size == 92
    retain(world, "b", b"x" * 60, qos)
    assert heard(world, "#") == {"a": b"x" * 50}
    retain(world, "b", b"x" * 48, qos)
    assert heard(world, "#") == {"a": b"x" * 50, "b": b"x" * 48}
    retain(world, "c", b"", qos)
    assert (world.vhost.retained.size, world.vhost.retained.refused) == (100, 1)
    assert sorted(key for _, key in world.store.state.retained) == ["a", "b"]


@pytest.mark.parametrize("qos", [0, 1])
def test_thousands_come_in_slices_while_others_are_served(qos: int) -> None:
    world = World()
    retain_many(world, qos=qos)
    late, other = here(world, "late"), here(world, "other")
    late.connection.receive_data(subscribe(1, ("#", qos)))
    some = publications(late.connection.data_to_send())
    got: list[Publication] = []
    turns = 0
    while some:
        assert len(some) <= MESSAGES_PER_SLICE
        got += some
        late.connection.receive_data(b"".join(puback(one.packet_id) for one in some if qos))
        assert other.connection.data_to_send() == PINGRESP * (turns > 0)
        other.connection.receive_data(PINGREQ)
        world.broker.agenda.turn()
        some = publications(late.connection.data_to_send())
        turns += 1
    assert turns == 4
    assert {one.qos for one in got} == {qos}
    assert sorted(int(one.topic[2:]) for one in got) == list(range(MANY))
    assert all(one.retain for one in got)


@pytest.mark.parametrize("topic_filter", ["#", "t/+", "t/+/#", "+/+/nothing", "t/nothing/#"])
def test_topics_are_indexed_and_looked_through_in_slices_too(topic_filter: str) -> None:
    world = World()
    writer, late = here(world, "w"), here(world, "late")
    many = 4 * TOPICS_PER_SLICE
    for at in range(0, many, 500):
        writer.send(
            *[mqtt_publish(f"t/{number}/x", b"old", flags=RETAIN) for number in range(at, at + 500)]
        )
    late.connection.receive_data(subscribe(1, (topic_filter, 0), ("t/7/x", 0)))
    some = publications(late.connection.data_to_send())
    assert [one.topic for one in some] == ["t/7/x"]  # A filter without wildcards needs no index.
    writer.connection.receive_data(
        mqtt_publish("t/7/x", b"", flags=RETAIN)
        + mqtt_publish("t/8/x", b"new", flags=RETAIN)
        + mqtt_publish("u/1/x", b"new", flags=RETAIN)
    )
    live = publications(late.connection.data_to_send())
    got: list[Publication] = []
    turns = 0
    while not world.broker.agenda.idle:
        world.broker.agenda.turn()
        some = publications(late.connection.data_to_send())
        assert len(some) <= MESSAGES_PER_SLICE
        got += some
        turns += 1
    wanted = (
        {f"t/{number}/x" for number in range(many)} - {"t/7/x", "t/8/x"}
        if topic_filter in ("#", "t/+/#")
        else set()
    )
    assert {one.topic for one in got} == wanted
    assert len(got) == len(wanted)
    assert [one.body for one in live if one.topic == "t/8/x"] == [b"new"] * bool(wanted)
    assert turns >= many // TOPICS_PER_SLICE + (
        len(wanted) // MESSAGES_PER_SLICE if wanted else topic_filter == "+/+/nothing"
    )


@pytest.mark.long
@pytest.mark.skipif(not retained.__file__.endswith(".so"), reason="too slow uncompiled")
@pytest.mark.parametrize("topic_filter", ["#", "homeassistant/+/+/+/config", "+/+/+/+/nothing"])
@pytest.mark.parametrize("qos", [0, 1])
def test_no_turn_takes_more_than_5_ms_with_100000_of_them(topic_filter: str, qos: int) -> None:
    world = World()
    writer, late, other = here(world, "w"), here(world, "late"), here(world, "other")
    for at in range(0, 100_000, 500):
        topics = [
            f"homeassistant/sensor/{number % 100}/{number}/config" for number in range(at, at + 500)
        ]
        writer.send(*[mqtt_publish(topic, bytes(100), 1, 1, RETAIN) for topic in topics])
    got, slowest = 0, 0.0
    gc.collect()
    gc.disable()  # The broker collects garbage when it is idle.
    data = subscribe(1, (topic_filter, qos))
    while data or not world.broker.agenda.idle:
        began = time.thread_time()
        late.connection.receive_data(data)
        other.connection.receive_data(PINGREQ)
        world.broker.agenda.turn()
        world.durable()
        slowest = max(slowest, time.thread_time() - began)
        assert other.connection.data_to_send() == PINGRESP
        some = publications(late.connection.data_to_send())
        got += len(some)
        data = b"".join(puback(one.packet_id) for one in some if qos)
    gc.enable()
    assert got == (0 if "nothing" in topic_filter else 100_000)
    assert slowest < 0.005


def test_changes_between_two_slices_are_delivered_as_they_happen() -> None:
    world = World()
    retain_many(world, b"old")
    late, writer = here(world, "late"), here(world, "w")
    late.connection.receive_data(subscribe(1, ("t/#", 0)))
    first = [one for one in publications(late.connection.data_to_send()) if one.retain]
    seen = {one.topic for one in first}
    waiting = [f"t/{number}" for number in range(MANY) if f"t/{number}" not in seen]
    replaced, removed = waiting[:200], waiting[200:400]
    delivered = sorted(seen)[:10]
    writer.connection.receive_data(
        b"".join(mqtt_publish(topic, b"new", flags=RETAIN) for topic in replaced + delivered)
        + b"".join(mqtt_publish(topic, b"", flags=RETAIN) for topic in removed)
        + mqtt_publish("t/fresh", b"new", flags=RETAIN)
    )
    rest = publications(late.all())
    assert [one.topic for one in rest if not one.retain] == [
        *replaced,
        *delivered,
        *removed,
        "t/fresh",
    ]
    again = [one for one in rest if one.retain]
    assert sorted(one.topic for one in again) == sorted(waiting[400:])
    assert {one.body for one in first + again} == {b"old"}


def test_a_client_that_unsubscribes_or_leaves_between_two_slices_gets_no_more() -> None:
    world = World()
    retain_many(world)
    late = here(world, "late")
    late.connection.receive_data(subscribe(1, ("#", 0)) + unsubscribe(2, "#"))
    assert len(publications(late.all())) == MESSAGES_PER_SLICE
    late.connection.receive_data(subscribe(1, ("#", 0)))
    late.connection.receive_data(b"\xe0\x00")
    assert len(publications(late.all())) == MESSAGES_PER_SLICE
    world.settle()
    assert world.copies() == {"auto_acknowledged": 2 * MESSAGES_PER_SLICE}
    assert world.fates() == {"unroutable": MANY}


def test_a_client_that_subscribes_again_between_two_slices_gets_all_messages_again() -> None:
    world = World()
    retain_many(world)
    late = here(world, "late")
    late.connection.receive_data(subscribe(1, ("#", 0)) + subscribe(2, ("#", 0)))
    assert len(publications(late.all())) == MESSAGES_PER_SLICE + MANY


@pytest.mark.parametrize("qos", [0, 1])
def test_a_reader_that_cannot_follow_is_waited_for(qos: int) -> None:
    """A client that reads slowly gets all retained messages, even with QoS 0.

    The broker would drop other QoS 0 messages for such a client.
    """
    options = MqttOptions()
    options.receive_maximum = 65_535
    world = World(mqtt=options)
    retain_many(world, bytes(100), qos)
    late = here(world, "late")
    late.connection.pause_writing()
    assert publications(late.send(subscribe(1, ("#", qos)))) == []
    for _ in range(5):
        assert late.read() == b""
    late.connection.resume_writing()
    some = publications(late.read())
    assert 0 < len(some) < MANY
    late.connection.pause_writing()
    world.settle()
    late.connection.resume_writing()
    assert len(some + publications(late.all())) == MANY
    assert "dropped" not in world.copies()


def test_subscribing_again_and_again_without_reading_costs_no_more_than_once() -> None:
    world = World()
    retain_many(world)
    late = here(world, "late")
    late.connection.pause_writing()
    for _ in range(20):
        late.send(subscribe(1, ("#", 0)), subscribe(2, ("t/+", 0)))
    late.connection.resume_writing()
    assert len(publications(late.all())) == 2 * MANY
    late.connection.pause_writing()
    late.send(subscribe(1, ("#", 0)), unsubscribe(2, "#"), subscribe(3, ("#", 1)))
    late.connection.resume_writing()
    assert len(publications(late.all())) == MANY


def test_the_output_of_one_turn_is_bounded() -> None:
    world = World()
    retain_many(world, bytes(10_000))
    late = here(world, "late")
    late.connection.receive_data(subscribe(1, ("t/#", 0), ("t/+", 0), ("#", 0)))
    chunk = late.connection.data_to_send()
    got = len(publications(chunk)) if chunk else 0
    while not world.broker.agenda.idle:
        assert len(chunk) < 300_000
        world.turn()
        chunk = late.connection.data_to_send()
        got += len(publications(chunk))
    assert got == 3 * MANY


def test_retained_messages_wait_outside_a_full_inbox_and_displace_no_message() -> None:
    options = MqttOptions()
    options.receive_maximum = 10
    options.session_backlog = BACKLOGGED + 10
    world = World(mqtt=options)
    retain_many(world, qos=1)
    writer = here(world, "w")
    late = here(world, "late")
    late.connection.receive_data(subscribe(1, ("t/#", 1)))
    got: list[Publication] = []
    writer.send(mqtt_publish("t/live", b"live", 1, 1))
    while some := publications(late.read()):
        got += some
        late.connection.receive_data(b"".join(puback(one.packet_id) for one in some))
    assert len(got) == MANY + 1
    assert sum(one.body == b"live" for one in got) == 1
    assert "over_limit" not in world.copies()


@pytest.mark.parametrize("slow", [False, True])
def test_a_session_left_behind_gets_the_rest_when_it_is_back(slow: bool) -> None:
    options = MqttOptions()
    options.receive_maximum = 10
    world = World(mqtt=options)
    retain_many(world, qos=1)
    late = Client(world, connect("late", clean=False))
    if slow:
        late.connection.pause_writing()
    late.send(subscribe(1, ("t/#", 1)))
    late.vanish()
    world.settle()
    assert world.inbox("late").depth + world.inbox("late").unacked == MANY
    late = Client(world, connect("late", clean=False))
    got = publications(late.greeting)
    topics = {one.topic for one in got}
    while got:
        late.connection.receive_data(b"".join(puback(one.packet_id) for one in got))
        got = publications(late.read())
        topics |= {one.topic for one in got}
    assert len(topics) == MANY


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_come_after_a_late_suback(qos: int) -> None:
    world = World()
    retain(world, "a", b"x", qos)
    late = Client(world, connect("late", clean=False))
    kept = [mqtt_publish("a", b"x", qos, number if qos else 0, RETAIN) for number in (1, 2, 3)]
    assert late.send(subscribe(1, ("a", 1))) == suback(1, 1) + kept[0]
    world.slow_disk = True
    assert late.send(subscribe(2, ("a", 2)), PINGREQ) == b""
    assert late.read() == b""
    world.durable()
    assert late.read() == suback(2, 2) + kept[1] + PINGRESP
    world.durable()
    assert late.send(subscribe(3, ("a", 2)), PINGREQ) == suback(3, 2) + kept[2] + PINGRESP


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_answers_to_retained_publications_wait_for_the_disk(qos: int) -> None:
    world = World()
    writer = here(world, "w")
    world.slow_disk = True
    answer = {0: b"", 1: puback(9), 2: pubrec(9)}[qos]
    for body in (b"x", b"y", b""):
        assert writer.send(mqtt_publish("a", body, qos, 9 if qos else 0, RETAIN)) == b""
        assert writer.send(PINGREQ) == PINGRESP
        world.durable()
        assert writer.read() == answer
        writer.send(b"\x62\x02\x00\x09")
    # The topic has no retained message any more, so nothing becomes durable and the reply is
    # immediate.
    assert writer.send(mqtt_publish("a", b"", qos, 9 if qos else 0, RETAIN)) == answer
