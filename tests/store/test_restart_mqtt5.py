"""MQTT 5 after a crash: properties, options, expiry, shared subscriptions, QoS 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mqtt5
import pytest

from protocols.mqtt.options import MqttOptions
from tests.store.homes import Home
from tests.wire.mqtt.client import Client, connect, unsuback, unsubscribe
from tests.wire.mqtt5.client import Client5, publish, subscription

LASTS: dict[str, Any] = {"session_expiry_interval": 1_000}
PROPERTIES: dict[str, Any] = {
    "content_type": "text",
    "response_topic": "answers",
    "correlation_data": b"\xff",
    "payload_format_indicator": 1,
    "user_properties": [("a", "1"), ("a", "2")],
}


def again(world: Home, now: int = 1_000, wall: float = 1_700_000_000.0) -> Home:
    """Kill the broker, and start it again with these readings of its two clocks."""
    world.crash()
    back = Home(world.directory, now=now, wall=wall)
    assert back.complaints == []
    assert back.report.refused == []
    return back


def test_messages_that_wait_keep_their_properties(tmp_path: Path) -> None:
    world = Home(tmp_path)
    reader, writer = Client5(world, "r", **LASTS), Client5(world, "w")
    reader.subscribe(subscription("a/#", 2, as_published=True), identifier=5)
    reader.vanish()
    writer.send(
        publish("a/b", b"1", 1, 1, **PROPERTIES),
        publish("a/b", b"2", 2, 2, retain=True, message_expiry_interval=100, **PROPERTIES),
    )
    world = again(world, wall=1_700_000_040.0)
    got = Client5(world, "r", clean=False, **LASTS).greeting[1:]
    assert [(one.payload, int(one.qos), one.retain, one.subscription_ids) for one in got] == [
        (b"1", 1, False, [5]),
        (b"2", 2, True, [5]),
    ]
    for one in got:
        assert {name: getattr(one, name) for name in PROPERTIES} == PROPERTIES
    assert got[1].message_expiry_interval == 60
    [_, kept] = Client5(world, "late").subscribe(subscription("#", 1))
    assert (kept.payload, kept.content_type, kept.message_expiry_interval) == (b"2", "text", 60)
    world.sleep(100_000)
    assert len(world.vhost.retained) == 0
    world.crash()


@pytest.mark.parametrize(
    ("expiry", "away", "present"),
    [(100, 99, True), (100, 101, False), (0xFFFFFFFF, 1_000_000, True)],
)
def test_sessions_end_when_their_clients_said(
    tmp_path: Path, expiry: int, away: int, present: bool
) -> None:
    world = Home(tmp_path)
    Client5(world, "c", session_expiry_interval=expiry).vanish()
    world.turn()
    world = again(world, now=1_000, wall=1_700_000_000.0 + away)
    world.sleep(1)
    assert Client5(world, "c", clean=False).connack.session_present is present
    world.crash()


def test_options_of_subscriptions_hold_after_a_restart(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = Client5(world, "c", **LASTS)
    client.subscribe(
        subscription("quiet", 1, no_local=True), subscription("kept", 1, as_published=True)
    )
    client.subscribe(subscription("kept", 1, as_published=True), identifier=9)
    world = again(world)
    client = Client5(world, "c", clean=False, **LASTS)
    [answer] = client.send(publish("quiet", b"x", 1))
    assert int(answer.reason_code) == 0x10
    got = client.send(publish("kept", b"x", 1, 2, retain=True))
    [heard] = [one for one in got if isinstance(one, mqtt5.PublishPacket)]
    assert (heard.retain, heard.subscription_ids) == (True, [9])
    [answer] = client.send(mqtt5.UnsubscribePacket(3, ["quiet", "kept", "other"]))
    assert [int(code) for code in answer.reason_codes] == [0, 0, 0x11]
    world.crash()


def test_a_qos_2_publication_is_taken_once_across_a_restart(tmp_path: Path) -> None:
    world = Home(tmp_path)
    reader = Client5(world, "r", **LASTS)
    reader.subscribe(subscription("a", 2))
    writer = Client5(world, "w", **LASTS)
    assert [
        int(one.reason_code) for one in writer.send(publish("a", b"x", 2, 7, content_type="t"))
    ] == [0]
    world = again(world)
    writer = Client5(world, "w", clean=False, **LASTS)
    assert [
        int(one.reason_code)
        for one in writer.send(publish("a", b"x", 2, 7, duplicate=True, content_type="t"))
    ] == [0]
    assert [int(one.reason_code) for one in writer.send(mqtt5.PubRelPacket(7))] == [0]
    reader = Client5(world, "r", clean=False, **LASTS)
    assert [(one.payload, one.content_type) for one in reader.greeting[1:]] == [(b"x", "t")]
    world.crash()


def test_a_packet_identifier_that_a_client_may_hold_is_not_used_again(tmp_path: Path) -> None:
    """A client holds the packet identifier of a QoS 2 message until it gets the PUBREL.

    Here the broker crashes and loses the PUBREC, and then the message expires: the client never
    gets a PUBREL. If the broker used this identifier again, the client would drop the new message
    as a duplicate.
    """
    world = Home(tmp_path)
    reader, writer = Client5(world, "r", **LASTS), Client5(world, "w", **LASTS)
    reader.subscribe(subscription("a", 2))
    writer.send(publish("a", b"x", 2, 7, message_expiry_interval=10))
    [first] = reader.read()
    for wall in (1_700_000_020.0, 1_700_000_030.0):
        world = again(world, wall=wall)
        reader = Client5(world, "r", clean=False, **LASTS)
        assert reader.greeting[1:] == []
        world.turn()
    assert world.copies() == {}, "the message expired before the restart"
    Client5(world, "w", clean=False, **LASTS).send(publish("a", b"y", 2, 8))
    [second] = reader.read()
    assert (second.payload, second.duplicate) == (b"y", False)
    assert second.packet_id != first.packet_id
    world.crash()


def test_the_identifier_of_an_expired_message_is_not_used_again_beside_an_older_message(
    tmp_path: Path,
) -> None:
    """Check that the packet identifier of an expired QoS 2 message is not used again after a crash.

    The client may still hold the identifier. The inbox keeps an older message, which is sent again.
    """
    world = Home(tmp_path)
    reader, writer = Client5(world, "r", **LASTS), Client5(world, "w")
    reader.subscribe(subscription("a", 2))
    writer.send(publish("a", b"old", 2, 1), publish("a", b"x", 2, 2, message_expiry_interval=10))
    old, expired = reader.read()
    for wall in (1_700_000_020.0, 1_700_000_030.0):
        world = again(world, wall=wall)
        reader = Client5(world, "r", clean=False, **LASTS)
        [resent] = reader.greeting[1:]
        assert (resent.payload, resent.packet_id) == (b"old", old.packet_id)
        world.turn()
    Client5(world, "w").send(publish("a", b"y", 2, 3))
    [new] = reader.read()
    assert (new.payload, new.duplicate) == (b"y", False)
    assert new.packet_id not in (old.packet_id, expired.packet_id)
    assert isinstance(reader.send(mqtt5.PubRecPacket(new.packet_id))[0], mqtt5.PubRelPacket)
    world.crash()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_group_has_its_members_and_messages_again(tmp_path: Path, qos: int) -> None:
    world = Home(tmp_path)
    names = ("1", "2")
    for name in names:
        Client5(world, name, **LASTS).subscribe(
            subscription("$share/g/a/#", 2), identifier=int(name)
        )
    for name in names:
        Client5(world, name, clean=False, **LASTS).vanish()
    writer = Client5(world, "w")
    for number in range(6):
        writer.send(publish("a/b", b"%d" % number, qos, number + 1, content_type="t"))
    world = again(world)
    assert len(world.mqtt_front.sessions.groups) == 1
    heard: dict[str, list[Any]] = {}
    one = Client5(world, "1", clean=False, receive_max=2, **LASTS)
    two = Client5(world, "2", clean=False, **LASTS)
    heard["1"], heard["2"] = one.greeting[1:] + one.read(), two.greeting[1:] + two.read()
    assert sorted(got.payload for some in heard.values() for got in some) == [
        b"%d" % number for number in range(6)
    ]
    assert len(heard["1"]) == 2
    for name, some in heard.items():
        assert {(got.content_type, *got.subscription_ids) for got in some} == {("t", int(name))}
    # A subscriber keeps its QoS 2 messages after another crash; QoS 1 messages may go to any
    # subscriber.
    world = again(world)
    first = Client5(world, "1", clean=False, **LASTS).greeting[1:]
    if qos == 2:
        assert [(got.payload, got.packet_id) for got in first] == [
            (got.payload, got.packet_id) for got in heard["1"]
        ]
    else:
        assert len(first) == 6
    world.crash()


def test_a_group_without_members_does_not_come_back(tmp_path: Path) -> None:
    world = Home(tmp_path)
    Client5(world, "1", session_expiry_interval=10).subscribe(subscription("$share/g/a", 1))
    world.turn()
    world = again(world, now=1_000, wall=1_700_000_100.0)
    world.sleep(20_000)
    assert len(world.mqtt_front.sessions) == len(world.mqtt_front.sessions.groups) == 0
    world = again(world)
    assert not world.vhost.inboxes
    world.crash()


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_that_has_left_a_group_does_not_come_back_to_it(
    tmp_path: Path, version: int
) -> None:
    """After a crash, a session gets nothing from a shared subscription that it has left before.

    [MQTT-3.10.4-2] forbids new messages after the UNSUBACK.
    """
    world = Home(tmp_path)
    stays, leaves = Client5(world, "stays", **LASTS), Client5(world, "leaves", **LASTS)
    stays.subscribe(subscription("$share/g/a", 1))
    leaves.subscribe(subscription("$share/g/a", 1), subscription("$share/h/a", 1))
    if version == 5:
        leaves.send(mqtt5.UnsubscribePacket(2, ["$share/g/a", "$share/none/a", "$share/h/a"]))
    else:
        leaves.vanish()
        old = Client(world, connect("leaves", clean=False))
        assert old.send(unsubscribe(2, "$share/g/a", "$share/h/a")) == unsuback(2)
    world = again(world)
    assert len(world.mqtt_front.sessions.groups) == 1
    stays = Client5(world, "stays", clean=False, **LASTS)
    leaves = Client5(world, "leaves", clean=False, **LASTS)
    Client5(world, "w").send(*[publish("a", b"%d" % number, 1, number + 1) for number in range(4)])
    assert stays.bodies() == [b"0", b"1", b"2", b"3"]
    assert leaves.bodies() == []
    world.crash()


def test_a_message_in_flight_of_a_group_that_has_ended_survives_a_crash(tmp_path: Path) -> None:
    """A message of a shared subscription is sent again after UNSUBSCRIBE and a crash.

    The client has not acknowledged the message.
    [MQTT-3.10.4-3] says that the broker completes the deliveries that it has begun.
    """
    world = Home(tmp_path)
    member, writer = Client5(world, "m", **LASTS), Client5(world, "w")
    member.subscribe(subscription("$share/g/a", 1), subscription("b", 2))
    writer.send(publish("a", b"shared", 1, 1), publish("b", b"own", 2, 2))
    sent = {one.payload: one.packet_id for one in member.publications()}
    member.send(mqtt5.UnsubscribePacket(2, ["$share/g/a"]))
    world = again(world)
    resent = Client5(world, "m", clean=False, **LASTS)
    got = {one.payload: one.packet_id for one in resent.greeting[1:]}
    assert got.keys() == {b"shared", b"own"}
    # A client with QoS 2 drops another message with the same identifier [MQTT-4.3.3-10].
    assert got[b"own"] == sent[b"own"]
    resent.send(mqtt5.PubAckPacket(got[b"shared"]))
    world = again(world)
    resent = Client5(world, "m", clean=False, **LASTS)
    assert [one.payload for one in resent.greeting[1:]] == [b"own"]
    assert not world.mqtt_front.sessions.groups
    world.crash()


def test_the_end_of_a_group_does_not_renumber_waiting_messages(tmp_path: Path) -> None:
    """A QoS 2 message in flight keeps its packet identifier if a shared subscription has ended.

    The broker crashes meanwhile, and the next message must get another identifier. A client with
    QoS 2 drops another message with the same identifier [MQTT-4.3.3-10].
    """
    options = MqttOptions()
    options.receive_maximum = 1
    world = Home(tmp_path, mqtt=options)
    member = Client5(world, "m", **LASTS)
    member.subscribe(subscription("$share/g/a", 1), subscription("b", 2))
    Client5(world, "w0").send(publish("a", b"shared", 1, 1))
    Client5(world, "w1").send(publish("b", b"one", 2, 1))
    Client5(world, "w2").send(publish("b", b"two", 2, 1))
    [given] = member.publications()
    assert given.payload == b"shared"
    member.send(mqtt5.UnsubscribePacket(2, ["$share/g/a"]))
    [sent] = member.send(mqtt5.PubAckPacket(given.packet_id))
    assert sent.payload == b"one"
    world = again(world)
    resent = Client5(world, "m", clean=False, **LASTS)
    got = [(one.payload, one.packet_id) for one in [*resent.greeting[1:], *resent.publications()]]
    assert [body for body, _ in got] == [b"one", b"two"]
    assert got[0][1] == sent.packet_id != got[1][1]
    world.crash()


def settled(client: Client5) -> list[bytes]:
    """Acknowledge all messages that the client gets; return their bodies."""
    bodies, packets = [], [*client.greeting[1:], *client.read()]
    del client.greeting[1:]
    while packets:
        one = packets.pop(0)
        if isinstance(one, mqtt5.PublishPacket):
            assert one.packet_id is not None
            bodies.append(one.payload)
            answer = mqtt5.PubAckPacket if int(one.qos) == 1 else mqtt5.PubRecPacket
            packets += client.send(answer(one.packet_id))
        else:
            assert isinstance(one, mqtt5.PubRelPacket)
            packets += client.send(mqtt5.PubCompPacket(one.packet_id))
    return bodies


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("receive_maximum", [1, 10])
def test_a_group_that_becomes_durable_releases_no_messages_of_other_sessions(
    tmp_path: Path, shared: int, receive_maximum: int
) -> None:
    """Let a group become durable while its messages wait or are in flight, then settle them.

    The store keeps these messages for another session only, so the group settles none of them
    there, and the other session gets them after a crash. The group's new message survives the
    crash, too.
    """
    options = MqttOptions()
    options.receive_maximum = receive_maximum
    world = Home(tmp_path, mqtt=options)
    keeper = Client5(world, "keeper", **LASTS)
    keeper.subscribe(subscription("a", 1))
    keeper.vanish()
    first = Client5(world, "first")
    first.subscribe(subscription("$share/g/a", shared))
    for number in range(3):
        Client5(world, f"w{number}").send(publish("a", b"%d" % number, 1, 1))
    lasting = Client5(world, "lasting", **LASTS)
    lasting.greeting += lasting.subscribe(subscription("$share/g/a", shared))[1:]
    bodies: list[bytes] = []
    while fresh := settled(first) + settled(lasting):
        bodies += fresh
    assert sorted(bodies) == [b"0", b"1", b"2"]
    first.vanish()
    lasting.vanish()
    Client5(world, "w").send(publish("a", b"new", 1, 1))
    assert [line for line in world.records() if " settled " in line] == []
    world = again(world)
    kept = Client5(world, "keeper", clean=False, **LASTS)
    assert settled(kept) == [b"0", b"1", b"2", b"new"]
    late = Client5(world, "lasting", clean=False, **LASTS)
    assert settled(late) == [b"new"]
    world.crash()


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("group_first", [False, True])
def test_packet_identifiers_are_equal_after_a_crash_beside_a_shared_subscription(
    tmp_path: Path, group_first: bool, shared: int
) -> None:
    """Check that messages sent again after a crash have the same packet identifiers as before.

    The session gets each message twice, as a member of the group and by its own subscription. A
    client with QoS 2 drops another message with the same identifier [MQTT-4.3.3-10].
    """
    world = Home(tmp_path)
    reader, writer = Client5(world, "r", **LASTS), Client5(world, "w")
    own, group = subscription("a/#", 2), subscription("$share/g/a/#", shared)
    for one in [group, own] if group_first else [own, group]:
        reader.subscribe(one)
    for number in range(3):
        writer.send(publish("a/b", b"%d" % number, 2, number + 1))
    sent = [(one.packet_id, one.payload) for one in reader.publications() if int(one.qos) == 2]
    assert sorted(payload for _, payload in sent) == sorted([b"0", b"1", b"2"] * shared)
    world = again(world)
    resent = Client5(world, "r", clean=False, **LASTS).greeting[1:]
    assert [
        (one.packet_id, one.payload) for one in resent if int(one.qos) == 2 and one.duplicate
    ] == sent
    world.crash()
