"""PUBLISH from a client: replies to QoS 0, 1 and 2, duplicates, and the order of replies."""

from __future__ import annotations

import pytest

from broker.access.identity import Identity
from broker.limits import BrokerLimits
from protocols.mqtt.connection.refused_publications import TOPICS_MAX, WINDOW_MS
from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import (
    ACCEPTED,
    DUP,
    PINGREQ,
    PINGRESP,
    RETAIN,
    Client,
    Publication,
    connect,
    here,
    puback,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    suback,
    subscribe,
)


def watched(world: World, qos: int = 0) -> Client:
    watcher = here(world, "watcher")
    watcher.send(subscribe(1, ("#", qos)))
    return watcher


@pytest.mark.parametrize("packet_id", [1, 2, 255, 256, 32_767, 32_768, 65_534, 65_535])
def test_a_reply_has_the_packet_identifier_of_its_publish(packet_id: int) -> None:  # [MQTT-2.3.1-6]
    world = World()
    watcher, writer = watched(world), here(world, "w")
    assert writer.send(mqtt_publish("a", b"1", 1, packet_id)) == puback(packet_id)
    assert writer.send(mqtt_publish("a", b"2", 2, packet_id)) == pubrec(packet_id)
    assert writer.send(pubrel(packet_id)) == pubcomp(packet_id)
    assert watcher.read() == mqtt_publish("a", b"1") + mqtt_publish("a", b"2")
    assert world.fates() == {"routed": 2}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("flags", [0, DUP, RETAIN, DUP | RETAIN])
def test_packet_identifier_0_is_refused(qos: int, flags: int) -> None:  # [MQTT-2.3.1-1]
    world = World()
    watcher, writer = watched(world), here(world, "w")
    assert writer.send(mqtt_publish("a", b"x", qos, 0, flags)) == b""
    assert writer.closed == "protocol_error"
    assert watcher.read() == b""
    assert len(world.vhost.retained) == 0
    assert world.fates() == {}


def test_a_qos_1_duplicate_is_delivered_again() -> None:  # [MQTT-4.3.2-2]
    world = World()
    watcher, writer = watched(world), here(world, "w")
    assert (
        writer.send(mqtt_publish("a", b"x", 1, 7), mqtt_publish("a", b"x", 1, 7, DUP))
        == puback(7) * 2
    )
    assert watcher.read() == mqtt_publish("a", b"x") * 2


def test_the_dup_flag_is_not_passed_on() -> None:  # [MQTT-3.3.1-3]
    world = World()
    zero, one, two, writer = watched(world), here(world, "1"), here(world, "2"), here(world, "w")
    one.send(subscribe(1, ("a", 1)))
    two.send(subscribe(1, ("a", 2)))
    writer.send(mqtt_publish("a", b"x", 1, 7, DUP), mqtt_publish("a", b"y", 2, 8, DUP))
    assert zero.read() == mqtt_publish("a", b"x") + mqtt_publish("a", b"y")
    assert one.read() == mqtt_publish("a", b"x", 1, 1) + mqtt_publish("a", b"y", 1, 2)
    assert two.read() == mqtt_publish("a", b"x", 1, 1) + mqtt_publish("a", b"y", 2, 2)


@pytest.mark.parametrize("flags", [0, DUP])
def test_a_qos_2_publication_arrives_once_until_it_is_released(
    flags: int,
) -> None:  # [MQTT-4.3.3-2]
    world = World()
    watcher, writer = watched(world), here(world, "w")
    assert writer.send(mqtt_publish("a", b"1", 2, 7)) == pubrec(7)
    for _ in range(3):
        assert writer.send(mqtt_publish("a", b"1", 2, 7, flags)) == pubrec(7)
    assert writer.send(mqtt_publish("a", b"other", 2, 8)) == pubrec(8)
    assert writer.send(pubrel(7), pubrel(7)) == pubcomp(7) * 2
    assert writer.send(mqtt_publish("a", b"2", 2, 7, flags)) == pubrec(7)
    assert [one.body for one in publications(watcher.read())] == [b"1", b"other", b"2"]
    assert world.fates() == {"routed": 3}


def test_a_retained_qos_2_duplicate_is_not_retained_again() -> None:
    world = World()
    writer = here(world, "w")
    writer.send(
        mqtt_publish("a", b"1", 2, 7, RETAIN),
        mqtt_publish("a", b"2", 1, 8, RETAIN),
        mqtt_publish("a", b"1", 2, 7, RETAIN | DUP),
    )
    assert here(world, "late").send(subscribe(1, ("a", 0))) == suback(1, 0) + mqtt_publish(
        "a", b"2", flags=RETAIN
    )


def test_pubrel_of_an_unknown_message_is_completed() -> None:  # [MQTT-4.3.3-2]
    world = World()
    writer = here(world, "w")
    assert writer.send(pubrel(99)) == pubcomp(99)


def test_qos_2_duplicates_are_known_after_a_reconnect_and_forgotten_with_the_session() -> None:
    world = World()
    watcher = watched(world)
    writer = Client(world, connect("w", clean=False))
    assert writer.send(mqtt_publish("a", b"1", 2, 7)) == pubrec(7)
    writer.vanish()
    writer = Client(world, connect("w", clean=False))
    assert writer.send(mqtt_publish("a", b"1", 2, 7, DUP)) == pubrec(7)
    writer.vanish()
    writer = Client(world, connect("w", clean=False))
    assert writer.send(pubrel(7)) == pubcomp(7)
    assert watcher.read() == mqtt_publish("a", b"1")
    assert writer.send(mqtt_publish("a", b"2", 2, 7)) == pubrec(7)
    writer.vanish()
    writer = Client(world, connect("w"))
    assert writer.send(mqtt_publish("a", b"2", 2, 7, DUP)) == pubrec(7)
    assert watcher.read() == mqtt_publish("a", b"2") * 2


def test_packet_identifiers_of_both_directions_are_independent() -> None:
    world = World()
    client = here(world, "c")
    client.send(subscribe(1, ("a", 2)))
    assert client.send(mqtt_publish("a", b"1", 2, 1)) == mqtt_publish("a", b"1", 2, 1) + pubrec(1)
    assert client.send(pubrec(1)) == pubrel(1)
    assert client.send(pubrel(1)) == pubcomp(1)
    assert client.send(pubcomp(1)) == b""
    assert world.inbox("c").unacked == 0
    assert client.send(pubrel(1)) == pubcomp(1)


@pytest.mark.parametrize("qos", [1, 2])
def test_answers_come_in_the_order_of_the_publications(
    qos: int,
) -> None:  # [MQTT-4.6.0-2], [MQTT-4.6.0-3]
    world = World()
    keeper, writer = Client(world, connect("k", clean=False)), here(world, "w")
    keeper.send(subscribe(1, ("kept", 2)))
    keeper.vanish()
    world.slow_disk = True
    answer = puback if qos == 1 else pubrec
    publishing = [
        mqtt_publish("kept", b"", qos, 1),
        mqtt_publish("light", b"", qos, 2),
        mqtt_publish("kept", b"", qos, 3, RETAIN),
        mqtt_publish("light", b"x", qos, 4, RETAIN),
        mqtt_publish("light", b"", qos, 5),
    ]
    assert writer.send(*publishing) == b""
    world.durable()
    assert writer.read() == b"".join(answer(number) for number in range(1, 6))
    assert writer.send(mqtt_publish("light", b"", qos, 6)) == answer(6)


def test_completions_wait_for_answers_that_wait_for_the_disk() -> None:  # [MQTT-4.6.0-3]
    world = World()
    keeper, writer = Client(world, connect("k", clean=False)), here(world, "w")
    keeper.send(subscribe(1, ("kept", 2)))
    world.slow_disk = True
    assert (
        writer.send(
            mqtt_publish("kept", b"", 2, 1), pubrel(1), mqtt_publish("kept", b"", 1, 2), PINGREQ
        )
        == PINGRESP
    )
    world.durable()
    assert writer.read() == pubrec(1) + pubcomp(1) + puback(2)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_duplicate_over_a_new_connection_waits_for_the_same_disk(qos: int) -> None:
    world = World()
    keeper, writer = (
        Client(world, connect("k", clean=False)),
        Client(world, connect("w", clean=False)),
    )
    keeper.send(subscribe(1, ("kept", 2)))
    world.slow_disk = True
    answer = puback if qos == 1 else pubrec
    assert writer.send(mqtt_publish("kept", b"x", qos, 5)) == b""
    writer.vanish()
    writer = Client(world, connect("w", clean=False))
    assert writer.greeting == b"\x20\x02\x01\x00"
    assert writer.send(mqtt_publish("kept", b"x", qos, 5, DUP)) == b""
    world.durable()
    assert writer.read() == answer(5)
    assert writer.send(mqtt_publish("kept", b"x", qos, 5, DUP)) == (b"" if qos == 1 else answer(5))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("flags", [0, RETAIN])
def test_a_publication_without_permission_is_acknowledged_dropped_and_counted(
    qos: int, flags: int
) -> None:  # [MQTT-3.3.5-2]
    world = World()
    world.guests.identities["reader"] = Identity("reader", write="other")
    watcher = watched(world)
    writer = Client(world, connect("w", user="reader", password=b"guest"))
    answers = {0: b"", 1: puback(5), 2: pubrec(5)}
    for _ in range(2):
        assert writer.send(mqtt_publish("a", b"x", qos, 5 if qos else 0, flags)) == answers[qos]
    assert writer.send(PINGREQ) == PINGRESP
    assert watcher.read() == b""
    assert len(world.vhost.retained) == 0
    assert world.fates() == {"denied": 1 if qos == 2 else 2}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "size", [0, 1, 126, 127, 128, 16_383, 16_384, 16_385, 70_000, 2_097_151, 2_097_152]
)
def test_bodies_of_every_size_arrive_whole(qos: int, size: int) -> None:
    world = World()
    reader, writer = here(world, "r"), here(world, "w")
    reader.send(subscribe(1, ("a", qos)))
    body = bytes(number % 251 for number in range(size))
    writer.send(mqtt_publish("a", body, qos, 9 if qos else 0))
    assert reader.all() == mqtt_publish("a", body, qos, 1 if qos else 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_packet_above_the_limit_ends_the_connection_and_is_counted(qos: int) -> None:
    options = MqttOptions()
    options.max_packet = 1_000
    world = World(mqtt=options)
    watcher, writer = watched(world), here(world, "w")
    fits = mqtt_publish("a", b"x" * (997 - (2 if qos else 0)), qos, 1)
    assert len(fits) == 1_003
    writer.send(fits)
    assert len(watcher.read()) > 990
    longer = mqtt_publish("a", b"x" * (998 - (2 if qos else 0)), qos, 2)
    writer.send(longer[:3])
    assert writer.closed == "too_large"
    assert world.fates() == {"routed": 1, "too_large": 1}


def test_a_packet_that_is_no_publication_is_too_large_as_well() -> None:
    options = MqttOptions()
    options.max_packet = 1_000
    world = World(mqtt=options)
    client = here(world, "c")
    client.send(packet(0x82, b"\x00\x01" + text("a" * 1_000) + b"\x00"))
    assert client.closed == "too_large"
    assert world.fates() == {}


def test_messages_before_a_malformed_packet_are_published() -> None:
    world = World()
    watcher, writer = watched(world), here(world, "w")
    writer.send(
        mqtt_publish("a", b"1"), mqtt_publish("a", b"2"), b"\xf0\x00", mqtt_publish("a", b"3")
    )
    assert writer.closed == "protocol_error"
    assert watcher.read() == mqtt_publish("a", b"1") + mqtt_publish("a", b"2")
    assert world.fates() == {"routed": 2}


def test_packets_after_the_end_are_ignored() -> None:
    world = World()
    watcher, writer = watched(world), here(world, "w")
    writer.send(b"\xe0\x00", mqtt_publish("a", b"1"))
    writer.send(mqtt_publish("a", b"2"))
    assert writer.closed == "client"
    assert watcher.read() == b""


def test_a_publisher_hears_its_own_publications() -> None:
    world = World()
    client = here(world, "c")
    client.send(subscribe(1, ("a", 1)))
    data = client.send(mqtt_publish("a", b"x", 1, 5))
    assert data == mqtt_publish("a", b"x", 1, 1) + puback(5)
    assert publications(data) == [Publication("a", b"x", 1, 1)]


def test_the_budget_of_one_call_ends_and_the_rest_comes_next_turn() -> None:
    world = World(BrokerLimits())
    watcher, writer = here(world, "watcher"), here(world, "w")
    watcher.send(subscribe(1, ("#", 0)))
    one = mqtt_publish("a", b"x")
    writer.connection.receive_data(one * 30_000)
    assert writer.connection.behind
    first = watcher.connection.data_to_send()
    assert one in first
    assert len(first) < len(one) * 30_000
    writer.connection.receive_data(PINGREQ)
    assert watcher.connection.data_to_send() == b""
    assert writer.read() == PINGRESP
    assert len(first + watcher.read()) == len(one) * 30_000


def test_qos_2_publications_to_many_sessions_count_with_their_cost() -> None:
    world = World()
    for number in range(100):
        here(world, f"r{number}").send(subscribe(1, ("a", 0)))
    writer = here(world, "w")
    writer.connection.receive_data(
        b"".join(mqtt_publish("a", b"x", 2, 1 + number) for number in range(300))
    )
    assert writer.connection.behind
    assert writer.read() == b"".join(pubrec(1 + number) for number in range(300))


def test_a_connack_is_the_first_packet_of_a_connection() -> None:  # [MQTT-3.2.0-1]
    world = World()
    keeper, writer = Client(world, connect("k", clean=False)), here(world, "w")
    keeper.send(subscribe(1, ("a", 1)))
    writer.send(mqtt_publish("a", b"1", 1, 1))
    keeper.vanish()
    writer.send(mqtt_publish("a", b"2", 1, 2))
    world.slow_disk = True
    assert Client(world, connect("k", clean=False)).greeting[:4] == b"\x20\x02\x01\x00"
    assert Client(world, connect("k", clean=True)).greeting == b""
    world.durable()
    world.slow_disk = False
    assert Client(world, connect("k", clean=True)).greeting == ACCEPTED


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_topic_with_too_many_levels_is_logged_once_and_counted(qos: int) -> None:
    options = MqttOptions()
    options.max_levels = 3
    world = World(mqtt=options)
    logged: list[tuple[str, dict[str, object]]] = []
    world.mqtt_front.log = lambda event, fields: logged.append((event, fields))
    client = here(world, "c")
    client.send(mqtt_publish("a/b/c", b"x", qos, 1))
    assert logged == [] and world.mqtt_front.topics.too_deep == 0
    client.send(mqtt_publish("a/b/c/d", b"x", qos, 2))
    assert not client.closed
    for number in (3, 4):
        client.send(mqtt_publish("a/b/c/e", b"x", qos, number))
    assert world.mqtt_front.topics.too_deep == 2
    event, fields = logged[0]
    assert (event, fields["client_id"], fields["topic"]) == ("topic_refused", "c", "a/b/c/d")
    assert "mqtt.max_levels = 3" in str(fields["note"])
    assert [fields["topic"] for _, fields in logged] == ["a/b/c/d", "a/b/c/e"]
    assert world.fates()["denied"] == 3


def test_refused_publications_are_logged_for_each_topic_up_to_a_bound_and_then_counted() -> None:
    world = World()
    logged: list[tuple[str, dict[str, object]]] = []
    world.mqtt_front.log = lambda event, fields: logged.append((event, fields))
    world.broker.users.define("ann", "", [])
    world.broker.users.set_permission("/", "ann", "", ".*", ".*")
    world.broker.users.set_rules("/", "ann", ["allow publish mine/#"])
    world.guests.identities["guest"] = world.broker.users.by_name["ann"]
    client, other = here(world, "c"), here(world, "d")

    def publish(topic: str) -> None:
        client.send(mqtt_publish(topic, b"x", 1, 1))

    for number in range(TOPICS_MAX + 3):
        for topic in ("mine/a", f"others/{number}", f"others/{number}"):
            publish(topic)
    assert [event for event, _ in logged] == ["publication_refused"] * TOPICS_MAX
    topics = [(fields["client_id"], fields["topic"]) for _, fields in logged]
    assert topics == [("c", f"others/{number}") for number in range(TOPICS_MAX)]
    logged.clear()
    world.sleep(WINDOW_MS)
    publish("others/0")
    (event, fields) = logged.pop()
    assert (event, fields["client_id"]) == ("publications_left_out", "c")
    # Each logged topic once more, the others twice, and this publication.
    assert fields["count"] == TOPICS_MAX + 2 * 3 + 1 and not logged
    publish("others/0")
    assert not logged
    client.vanish()
    (event, fields) = logged.pop()
    assert (event, fields["count"]) == ("publications_left_out", 1) and not logged
    # Without a refusal, the end of a connection has no line.
    other.vanish()
    assert not logged and not world.mqtt_front._refused_publications
