"""PUBLISH to a client: acknowledgements in every order, messages resent after a reconnect, packet
identifiers, the in-flight window.
"""

from __future__ import annotations

import itertools

import pytest

from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.session_row import session_row
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    ACCEPTED,
    DUP,
    PINGREQ,
    PINGRESP,
    RESUMED,
    Client,
    Publication,
    connect,
    here,
    packets,
    puback,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    subscribe,
)


def with_window(receive_maximum: int) -> World:
    options = MqttOptions()
    options.receive_maximum = receive_maximum
    return World(mqtt=options)


def keeper(world: World, *filters: tuple[str, int], client_id: str = "k") -> Client:
    """Connect and return a client with a persistent session and these subscriptions."""
    client = Client(world, connect(client_id, clean=False))
    if filters:
        client.send(subscribe(1, *filters))
    return client


def publish(world: World, *bodies: bytes, qos: int = 1, topic: str = "a") -> None:
    """Publish messages to one topic by a client that connects before and disconnects afterwards."""
    writer = here(world, "writer")
    for at, body in enumerate(bodies):
        writer.send(mqtt_publish(topic, body, qos, at % 65_535 + 1 if qos else 0))
    writer.send(b"\xe0\x00")


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
def test_qos_1_may_be_acknowledged_in_any_order(order: list[int]) -> None:
    world = World()
    reader = keeper(world, ("a", 1))
    publish(world, b"1", b"2", b"3")
    reader.read()
    for left, packet_id in enumerate(order):
        assert world.inbox("k").unacked == 3 - left
        assert reader.send(puback(packet_id), puback(packet_id)) == b""
    assert world.inbox("k").unacked == 0
    reader.vanish()
    assert keeper(world).greeting == RESUMED


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
def test_qos_2_may_be_received_and_completed_in_any_order(order: list[int]) -> None:
    world = World()
    reader = keeper(world, ("a", 2))
    publish(world, b"1", b"2", b"3", qos=2)
    reader.read()
    for packet_id in order:
        assert reader.send(pubrec(packet_id)) == pubrel(packet_id)  # [MQTT-4.3.3-1], [MQTT-4.6.0-4]
    assert world.inbox("k").unacked == 3
    for packet_id in reversed(order):
        assert reader.send(pubcomp(packet_id)) == b""
    assert world.inbox("k").unacked == 0


def test_an_acknowledgement_out_of_order_does_not_make_a_busy_session_run_dry() -> None:
    world = with_window(2)
    reader, writer = keeper(world, ("a", 1)), here(world, "w")
    writer.send(mqtt_publish("a", b"x", 1, 1), mqtt_publish("a", b"x", 1, 1))
    assert reader.send(puback(2), puback(1))
    sent = 2
    while sent < 66_000:
        writer.connection.receive_data(mqtt_publish("a", b"x", 1, 1) * 1_000)
        writer.read()
        for number in range(sent + 1, sent + 1_001, 2):
            one, two = (number - 1) % 65_535 + 1, number % 65_535 + 1
            assert reader.read() == mqtt_publish("a", b"x", 1, one) + mqtt_publish(
                "a", b"x", 1, two
            )
            reader.connection.receive_data(puback(two) + puback(one))
        sent += 1_000
    reader.read()
    assert world.inbox("k").unacked == world.inbox("k").depth == 0


def test_unacknowledged_message_keeps_its_packet_identifier_to_itself() -> (
    None
):  # [MQTT-2.3.1-2], [MQTT-2.3.1-3]
    world = with_window(1_024)
    reader, writer = keeper(world, ("a", 1)), here(world, "w")
    publish(world, b"first")
    assert publications(reader.read()) == [Publication("a", b"first", 1, 1)]
    seen = 1
    writer.connection.receive_data(mqtt_publish("a", b"x", 1, 1) * 70_000)
    while True:
        data = writer.read() and reader.all()
        if not data:
            break
        ids = [one.packet_id for one in publications(data)]
        assert 1 not in ids
        assert len(ids) == len(set(ids))
        seen += len(ids)
        reader.connection.receive_data(b"".join(puback(packet_id) for packet_id in ids))
        writer.connection.receive_data(PINGREQ)
    assert 60_000 < seen <= 65_535
    reader.vanish()
    reader = keeper(world)
    assert reader.greeting == RESUMED + mqtt_publish("a", b"first", 1, 1, DUP)
    reader.connection.receive_data(puback(1))
    while data := reader.all():
        ids = [one.packet_id for one in publications(data)]
        seen += len(ids)
        reader.connection.receive_data(b"".join(puback(packet_id) for packet_id in ids))
    assert seen == 70_001
    assert world.inbox("k").depth == world.inbox("k").unacked == 0


def test_packet_identifiers_wrap_around_and_none_is_used_twice_in_flight() -> (
    None
):  # [MQTT-2.3.1-4]
    world = with_window(65_535)
    reader, writer = keeper(world, ("a", 1)), here(world, "w")
    in_flight: set[int] = set()
    seen = 0
    writer.connection.receive_data(mqtt_publish("a", b"x", 1, 1) * 66_000)
    while world.inbox("k").depth or writer.connection.behind:
        writer.read()
        for one in publications(reader.read()):
            assert one.packet_id not in in_flight
            assert 1 <= one.packet_id <= 65_535
            in_flight.add(one.packet_id)
            seen += 1
        acknowledged = sorted(in_flight)[len(in_flight) // 3 :]
        reader.connection.receive_data(
            b"".join(puback(packet_id) for packet_id in acknowledged[:15_000])
        )
        in_flight -= set(acknowledged[:15_000])
    seen += len(publications(reader.all()))
    assert seen == 66_000


def test_a_puback_with_the_identifier_0_acknowledges_no_message() -> None:  # [MQTT-2.3.1-1]
    world = with_window(65_535)
    reader, writer = keeper(world, ("a", 1)), here(world, "w")
    writer.connection.receive_data(mqtt_publish("a", b"x", 1, 1) * 65_535)
    received = 0
    while received < 65_535:
        writer.read()
        given = publications(reader.read())
        received += len(given)
    assert given[-1].packet_id == 65_535  # 0 stands for the same place in the window.
    reader.send(puback(0))
    assert reader.connection.finished
    assert world.inbox("k").unacked == 65_535


@pytest.mark.parametrize("receive_maximum", [1, 2, 10])
@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_than_the_window_is_in_flight(receive_maximum: int, qos: int) -> None:
    world = with_window(receive_maximum)
    reader = keeper(world, ("a", qos))
    bodies = [b"%d" % number for number in range(25)]
    publish(world, *bodies, qos=qos)
    got: list[bytes] = []
    while len(got) < 25:
        some = publications(reader.read())
        assert len(some) == min(receive_maximum, 25 - len(got))
        assert reader.send(PINGREQ) == PINGRESP
        got += [one.body for one in some]
        for one in some:
            if qos == 2:
                assert reader.send(pubrec(one.packet_id)) == pubrel(one.packet_id)
        reader.connection.receive_data(
            b"".join((puback if qos == 1 else pubcomp)(one.packet_id) for one in some)
        )
    assert got == bodies
    assert reader.read() == b""
    assert world.inbox("k").unacked == 0


def test_the_window_holds_across_a_reconnect() -> None:
    world = with_window(2)
    reader = keeper(world, ("a", 1))
    publish(world, b"1", b"2", b"3", b"4")
    assert len(publications(reader.read())) == 2
    reader.vanish()
    reader = keeper(world)
    assert [one.body for one in publications(reader.greeting)] == [b"1", b"2"]
    assert reader.send(puback(2)) == mqtt_publish("a", b"3", 1, 3)
    reader.vanish()
    reader = keeper(world)
    assert publications(reader.greeting) == [
        Publication("a", b"1", 1, 1, dup=True),
        Publication("a", b"3", 1, 3, dup=True),
    ]
    assert reader.send(puback(3), puback(1)) == mqtt_publish("a", b"4", 1, 4)


def test_messages_in_flight_are_resent_in_order_before_the_others() -> (
    None
):  # [MQTT-4.4.0-1], [MQTT-4.6.0-1]
    world = World()
    reader, writer = keeper(world, ("a", 2)), here(world, "w")
    for number, qos in enumerate([1, 2, 2, 1, 2, 2], start=1):
        writer.send(mqtt_publish("a", b"%d" % number, qos, number))
    reader.read()
    reader.send(pubrec(3), pubrec(5), puback(1), pubrec(6), pubcomp(6))
    reader.vanish()
    writer.send(mqtt_publish("a", b"7", 1, 7))
    writer.send(mqtt_publish("a", b"not kept"))
    reader = keeper(world)
    assert packets(reader.greeting) == [
        RESUMED,
        mqtt_publish("a", b"2", 2, 2, DUP),
        pubrel(3),
        mqtt_publish("a", b"4", 1, 4, DUP),
        pubrel(5),
        mqtt_publish("a", b"7", 1, 7),
    ]
    assert reader.send(pubcomp(3), pubcomp(5), puback(4), puback(7), pubrec(2)) == pubrel(2)
    reader.send(pubcomp(2))
    assert world.inbox("k").unacked == 0
    assert world.copies()["acknowledged"] == 7


def test_message_that_is_resent_twice_is_equal_both_times() -> None:
    world = World()
    reader = keeper(world, ("a", 2))
    publish(world, b"1", b"2", qos=2)
    reader.read()
    reader.send(pubrec(1))
    expected = pubrel(1) + mqtt_publish("a", b"2", 2, 2, DUP)
    for _ in range(3):
        reader.vanish()
        reader = keeper(world)
        assert reader.greeting == RESUMED + expected
    assert world.mqtt_front.tally.redelivered == 3


@pytest.mark.parametrize(
    ("answers", "rest"),
    [
        ([puback(1)], True),
        ([pubcomp(1)], True),
        ([pubcomp(1), pubrec(1)], True),
        ([pubrec(1), puback(1)], True),
        ([pubrec(1), pubrec(1)], True),
        ([pubrec(2), pubcomp(2)], True),
        ([pubrec(1), pubcomp(1)], False),
        ([pubrec(1), pubcomp(1), pubcomp(1), puback(1)], False),
    ],
)
def test_a_qos_2_publication_is_settled_by_pubrec_and_then_pubcomp_only(
    answers: list[bytes], rest: bool
) -> None:
    world = World()
    reader = keeper(world, ("a", 2))
    publish(world, b"x", qos=2)
    reader.read()
    reader.send(*answers)
    assert reader.closed == ""
    assert world.inbox("k").unacked == (1 if rest else 0)


@pytest.mark.parametrize("answer", [pubrec(1), pubcomp(1), pubrec(1) + pubcomp(1), puback(2)])
def test_a_qos_1_publication_is_settled_by_its_puback_only(answer: bytes) -> None:
    world = World()
    reader = keeper(world, ("a", 1))
    publish(world, b"x")
    reader.read()
    assert reader.send(answer) == b""
    assert (reader.closed, world.inbox("k").unacked) == ("", 1)
    reader.send(puback(1))
    assert world.inbox("k").unacked == 0


def test_a_pubrec_of_an_unknown_message_is_answered() -> None:  # [MQTT-4.3.3-1]
    world = World()
    assert keeper(world).send(pubrec(9), pubcomp(9)) == pubrel(9)


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70])
def test_packet_identifier_0_is_no_answer_to_anything(first: int) -> None:
    client = here(World())
    assert client.send(bytes([first, 2, 0, 0])) == b""
    assert client.closed == "protocol_error"


def test_queued_publications_of_any_qos_come_in_order() -> None:  # [MQTT-4.6.0-5]
    world = World()
    reader = keeper(world, ("a", 2))
    reader.vanish()
    writer = here(world, "w")
    for number in range(20):
        writer.send(mqtt_publish("a", b"%d" % number, 1 + number % 2, number + 1))
    assert [int(one.body) for one in publications(keeper(world).greeting)] == list(range(20))


@pytest.mark.parametrize(
    ("published", "granted", "expected"),
    [
        (published, granted, min(published, granted))
        for published in range(3)
        for granted in range(3)
    ],
)
def test_a_delivery_has_the_lower_qos_of_publication_and_subscription(
    published: int, granted: int, expected: int
) -> None:  # [MQTT-3.8.4-6]
    world = World()
    reader = keeper(world, ("a", granted))
    publish(world, b"x", qos=published)
    assert reader.read() == mqtt_publish("a", b"x", expected, 1 if expected else 0)


def test_publication_goes_to_many_sessions_with_the_qos_of_each() -> None:
    world = World()
    readers = {
        (clean, qos): Client(world, connect(f"{clean}{qos}", clean=clean))
        for clean in (True, False)
        for qos in range(3)
    }
    for (_, qos), reader in readers.items():
        reader.send(subscribe(1, ("a/#", qos), ("+", min(qos + 1, 2))))
    publish(world, b"x", qos=2, topic="a/b")
    for (_, qos), reader in readers.items():
        assert reader.read() == mqtt_publish("a/b", b"x", qos, 1 if qos else 0)
    publish(world, b"y", qos=2)
    for (_, qos), reader in readers.items():
        # Both subscriptions match, so the message has the higher QoS of the two.
        assert reader.read() == mqtt_publish("a", b"y", min(qos + 1, 2), 1 if qos == 0 else 2)
    assert world.fates() == {"routed": 2}


def test_slow_reader_keeps_acknowledged_messages_and_loses_qos_0() -> None:
    world = World()
    reader = keeper(world, ("a", 1))
    reader.connection.pause_writing()
    writer = here(world, "w")
    for number in range(3):
        writer.send(
            mqtt_publish("a", b"0"),
            mqtt_publish("a", b"%d" % number, 1, 1),
            mqtt_publish("a", b"0", flags=1),
        )
    assert reader.read() == b""
    reader.connection.resume_writing()
    assert [one.body for one in publications(reader.read())] == [b"0", b"1", b"2"]
    writer.send(mqtt_publish("a", b"again"))
    assert reader.read() == mqtt_publish("a", b"again")
    assert world.copies() == {"dropped": 6, "auto_acknowledged": 1}
    session = world.mqtt_front.sessions.find(world.vhost, "k")
    assert session is not None
    assert session_row(session)["dropped"] == 6


def test_a_slow_reader_holds_no_other_client_up() -> None:
    world = World()
    slow, quick, writer = keeper(world, ("a", 1)), here(world, "q"), here(world, "w")
    quick.send(subscribe(1, ("a", 1)))
    slow.connection.pause_writing()
    assert writer.send(mqtt_publish("a", b"x", 1, 1)) == puback(1)
    assert quick.read() == mqtt_publish("a", b"x", 1, 1)


def test_a_long_backlog_leaves_in_slices_and_complete() -> None:
    world = with_window(65_535)
    reader = keeper(world, ("a", 1))
    reader.vanish()
    writer = here(world, "w")
    body = bytes(1_000)
    for _ in range(4):
        writer.send(*[mqtt_publish("a", body, 1, 1)] * 250)
    reader = keeper(world)
    first = len(publications(reader.greeting))
    assert 200 < first < 300
    assert first + len(publications(reader.all())) == 1_000


def test_much_in_flight_is_resent_in_slices_and_in_order() -> None:
    world = World()
    reader, writer = keeper(world, ("a", 2)), here(world, "w")
    body = bytes(1_000)
    for number in range(1, 1_001):
        writer.connection.receive_data(
            mqtt_publish("a", b"%d:" % number + body, 1 + number % 2, number)
        )
    assert len(publications(reader.all())) == 1_000
    reader.send(*[pubrec(number) for number in range(1, 1_001, 10)])
    reader.vanish()
    writer.send(mqtt_publish("a", b"new", 1, 1_001))
    reader = keeper(world)
    first = len(publications(reader.greeting))
    assert 200 < first < 400
    reader.connection.receive_data(puback(998) + pubcomp(1) + pubrec(999) + puback(2))
    got = publications(reader.greeting)
    while data := reader.read():
        assert len(data) < 400_000
        got += publications(data)
    numbers = [int(one.body.partition(b":")[0]) for one in got if one.dup]
    assert numbers == [
        number for number in range(1, 1_001) if number % 10 != 1 and number not in (998, 999)
    ]
    assert [(one.body, one.packet_id) for one in got if not one.dup] == [(b"new", 1_001)]
    assert got[-1].body == b"new"


def test_resending_waits_for_a_slow_reader_and_restarts_for_the_next_connection() -> None:
    world = World()
    reader, writer = keeper(world, ("a", 1)), here(world, "w")
    for _ in range(1_000):
        writer.connection.receive_data(mqtt_publish("a", bytes(1_000), 1, 1))
    reader.all()
    for _ in range(2):
        reader.vanish()
        reader = keeper(world)
        some = len(publications(reader.greeting))
        reader.connection.pause_writing()
        some += len(publications(reader.all()))
        assert some < 600
        assert reader.send(PINGREQ) == PINGRESP
    reader.connection.resume_writing()
    rest = publications(reader.all())
    assert len(rest) == 1_000 - some
    assert all(one.dup for one in rest)
    assert [one.packet_id for one in rest] == list(range(some + 1, 1_001))
    writer.send(mqtt_publish("a", b"x", 1, 1))
    reader.send(*[puback(number) for number in range(1, 1_001)])
    assert reader.send(puback(1_001)) == b""
    assert world.inbox("k").unacked == 0


def test_subscribers_with_a_clean_session_leave_nothing_behind() -> None:
    world = World()
    reader = here(world, "r")
    reader.send(subscribe(1, ("a", 2)))
    publish(world, b"1", b"2", qos=2)
    reader.read()
    reader.send(pubrec(1))
    reader.vanish()
    publish(world, b"3")
    assert Client(world, connect("r", clean=False)).greeting == ACCEPTED
    assert world.copies() == {"purged": 2}
    assert world.fates() == {"routed": 2, "unroutable": 1}


def test_no_message_overtakes_a_qos_2_publication_that_waits_for_the_disk() -> (
    None
):  # [MQTT-4.6.0-6]
    world = World()
    reader = keeper(world, ("#", 2))
    publish(world, b"1", b"2")
    assert [one.body for one in publications(reader.read())] == [b"1", b"2"]
    world.slow_disk = True
    publish(world, b"3", qos=2)
    publish(world, b"4")
    publish(world, b"5", qos=2)
    # The acknowledgements leave room in the in-flight window, but message 3 waits for the disk, and
    # messages behind it must keep their order.
    assert reader.send(puback(1), puback(2)) == b""
    world.durable()
    assert [(one.body, one.packet_id, one.dup) for one in publications(reader.read())] == [
        (b"3", 3, False),
        (b"4", 4, False),
        (b"5", 5, False),
    ]
    assert [(int(world.inbox("k").depth), int(world.inbox("k").unacked))] == [(0, 3)]


def test_a_publication_that_waits_for_the_disk_takes_no_more_room_than_others() -> None:
    world = with_window(2)
    reader = keeper(world, ("#", 2))
    publish(world, b"1")
    reader.read()
    world.slow_disk = True
    publish(world, b"2", b"3", b"4", b"5", qos=2)
    reader.send(puback(1))
    world.durable()
    world.slow_disk = False
    assert [one.body for one in publications(reader.read())] == [b"2", b"3"]
    assert [one.body for one in publications(reader.send(pubrec(2), pubcomp(2)))] == [b"4"]
