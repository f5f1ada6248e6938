"""CONNECT and CONNACK of MQTT 5: requested and granted properties, session expiry, wills."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest

from broker.access.identity import Identity
from broker.limits import BrokerLimits
from protocols.mqtt.options import MqttOptions
from tests.clients import World, connect_packet, mqtt_publish, packet, text
from tests.wire.mqtt.client import ACCEPTED, Client, subscribe
from tests.wire.mqtt5.client import Client5, disconnect_of, publish, raw_connect, subscription


def options(**changes: Any) -> MqttOptions:
    settings = MqttOptions()
    for name, value in changes.items():
        setattr(settings, name, value)
    return settings


def test_connack_announces_the_limits_of_the_broker() -> None:  # [MQTT-3.2.2-1], [MQTT-3.1.4-5]
    client = Client5(World())
    connack = client.connack
    assert (int(connack.reason_code), connack.session_present) == (0, False)
    assert (connack.receive_max, connack.topic_alias_max, connack.max_packet_size) == (
        1_024,
        16,
        16 << 20,
    )
    assert (
        connack.session_expiry_interval,
        connack.assigned_client_id,
        connack.server_keep_alive,
        connack.response_info,
    ) == (None, None, None, None)


def test_a_client_without_an_identifier_is_given_one() -> (
    None
):  # [MQTT-3.1.3-6], [MQTT-3.1.3-7], [MQTT-3.2.2-16]
    world = World()
    one, two = Client5(world, ""), Client5(world, "", clean=False)
    names = {one.connack.assigned_client_id, two.connack.assigned_client_id}
    assert names == {session.name for session in world.mqtt_front.sessions.all()}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("keep_alive", "granted"), [(0, 60), (10, None), (60, None), (61, 60), (65_535, 60)]
)
def test_the_keep_alive_has_a_cap_which_the_connack_announces(
    keep_alive: int, granted: int | None
) -> None:
    # [MQTT-3.1.2-21], [MQTT-3.2.2-21], [MQTT-3.2.2-22]
    world = World(mqtt=options(keep_alive_max=60))
    client = Client5(world, keep_alive=keep_alive)
    assert client.connack.server_keep_alive == granted
    world.sleep((granted or keep_alive) * 1_500 - 1)
    client.connection.advance(int(world.broker.agenda.now))
    assert client.closed == ""
    world.sleep(1)
    client.connection.advance(int(world.broker.agenda.now))
    assert [int(one.reason_code) for one in client.read()] == [0x8D]  # [MQTT-3.1.2-22]
    assert client.closed == "keep_alive_timeout"


@pytest.mark.parametrize(
    ("expiry", "granted"), [(0, None), (99, None), (100, None), (101, 100), (0xFFFFFFFF, 100)]
)
def test_the_session_expiry_has_a_cap_which_the_connack_announces(
    expiry: int, granted: int | None
) -> None:  # [MQTT-4.1.0-2]
    world = World(mqtt=options(session_expiry_s=100))
    client = Client5(world, session_expiry_interval=expiry)
    assert client.connack.session_expiry_interval == granted
    client.vanish()
    kept = expiry if granted is None else granted
    if kept:
        world.sleep(kept * 1_000 - 1)
        assert len(world.mqtt_front.sessions) == 1
    world.sleep(1)
    assert len(world.mqtt_front.sessions) == 0


@pytest.mark.parametrize("asks", [True, False])
def test_response_information_is_sent_on_request(asks: bool) -> None:  # [MQTT-3.1.2-28]
    client = Client5(World(), request_response_info=asks)
    assert client.connack.response_info == ("responses/c" if asks else None)


@pytest.mark.parametrize(
    ("user", "password", "code"),
    [
        ("guest", b"guest", 0),
        ("guest", b"no", 0x86),
        ("absent", b"guest", 0x86),
        (None, b"no", 0x87),
        (None, None, 0),
    ],
)
def test_user_name_and_password_are_checked(
    user: str | None, password: bytes | None, code: int
) -> None:
    # [MQTT-3.1.4-2]
    world = World()
    if user is None and password is not None:
        # Without the user guest, a password alone identifies no user.
        del world.guests.identities["guest"]
    client = Client5(world, username=user, password=password)
    assert int(client.connack.reason_code) == code
    assert client.closed == ("login_refused" if code else "")


def test_too_many_sessions() -> None:
    world = World(mqtt=options(sessions=1))
    Client5(world, "a")
    assert int(Client5(world, "b").connack.reason_code) == 0x97


def test_a_client_identifier_that_looks_like_a_shared_subscription_is_refused() -> (
    None
):  # [MQTT-3.1.3-8]
    assert int(Client5(World(), "$share/g/a").connack.reason_code) == 0x85


@pytest.mark.parametrize(("level", "answer"), [(6, 0x84), (7, 0x84), (127, 0x84)])
def test_a_later_version_is_refused_with_its_reason_code(
    level: int, answer: int
) -> None:  # [MQTT-3.1.2-2]
    data = bytearray(raw_connect())
    data[8] = level
    client = Client5(World(), data=bytes(data))
    assert (int(client.connack.reason_code), client.closed) == (answer, "unacceptable_version")


#: Invalid properties of a CONNECT -> the reason code.
WRONG = {
    b"\x21\x00\x00": 0x82,
    b"\x27\x00\x00\x00\x00": 0x82,
    b"\x17\x02": 0x82,
    b"\x19\x02": 0x82,
    b"\x16\x00\x01x": 0x82,
    b"\x11\x00\x00\x00\x01" * 2: 0x82,
    b"\x21\x00\x01" * 2: 0x82,
    b"\x22\x00\x01" * 2: 0x82,
    b"\x27\x00\x00\x00\x01" * 2: 0x82,
    b"\x17\x01" * 2: 0x82,
    b"\x19\x01" * 2: 0x82,
    b"\x15\x00\x01x" * 2: 0x82,
    b"\x15\x00\x01x" + b"\x16\x00\x01x" * 2: 0x82,
    b"\x01\x01": 0x82,
    b"\x02\x00\x00\x00\x01": 0x82,
    b"\x12\x00\x01x": 0x82,
    b"\x18\x00\x00\x00\x01": 0x82,
    b"\x23\x00\x01": 0x82,
    b"\x1f\x00\x01x": 0x82,
    b"\x0b\x01": 0x82,
    b"\x00": 0x81,
    b"\x7f\x00": 0x81,
    b"\x2b\x00": 0x81,
    b"\x11\x00\x00\x00": 0x81,
    b"\x21": 0x81,
    b"\x26\x00\x01a": 0x81,
    b"\x26\x00\x01a\x00\x01\xff": 0x81,
    b"\x26\x00\x01a\x00\x01\x00": 0x81,
}


@pytest.mark.parametrize("properties", WRONG)
def test_wrong_properties_of_a_connect_are_answered_with_their_reason(properties: bytes) -> None:
    # [MQTT-3.1.2-23..29], [MQTT-2.2.2-1], [MQTT-1.5.7-1], [MQTT-3.1.4-1], section 2.2.2.2
    world = World()
    client = Client5(world, data=raw_connect(properties=properties))
    assert (int(client.connack.reason_code), client.closed) == (WRONG[properties], "protocol_error")
    assert len(world.mqtt_front.sessions) == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw_connect(flags=3), 0x81),
        (raw_connect(flags=0x1E), 0x81),
        (raw_connect(flags=0x0A), 0x81),
        (raw_connect(flags=0x22), 0x81),
        (raw_connect(payload=b"x"), 0x81),
        (raw_connect(flags=0x82), 0x81),
        (raw_connect(flags=0x42), 0x81),
        (raw_connect(flags=6), 0x81),
        (raw_connect(flags=6, payload=b"\x00"), 0x81),
        (raw_connect(flags=6, payload=b"\x00" + text("a")), 0x81),
        (raw_connect(flags=6, payload=b"\x00\x00\x01\xff\x00\x00"), 0x81),
        (raw_connect(flags=0x82, payload=b"\x00\x01\xff"), 0x81),
        (raw_connect(client_id="\0"), 0x81),
        (packet(0x10, text("MQTT") + b"\x05\x02\x00\x3c\x00\x00\x01\xff"), 0x81),
        (packet(0x10, text("MQTT") + b"\x05\x02\x00\x3c\x00"), 0x81),
        (raw_connect(flags=6, payload=b"\x00" + text("a/+") + b"\x00\x00"), 0x90),
        (raw_connect(flags=6, payload=b"\x05\x18\x00\x00\x00\x01" + text("")), 0x90),
        (raw_connect(flags=6, payload=b"\x05\x11\x00\x00\x00\x01" + text("a") + b"\x00\x00"), 0x82),
        (
            raw_connect(
                flags=6, payload=b"\x0a" + b"\x18\x00\x00\x00\x01" * 2 + text("a") + b"\x00\x00"
            ),
            0x82,
        ),
    ],
)
def test_malformed_connects_are_answered_with_their_reason(data: bytes, code: int) -> None:
    # [MQTT-3.1.2-3], [MQTT-3.1.2-9], [MQTT-3.1.2-11..13], [MQTT-3.1.2-16..19], [MQTT-3.1.3-3],
    # [MQTT-3.1.3-4], [MQTT-3.1.3-11], [MQTT-3.1.3-12], [MQTT-3.1.4-1], [MQTT-3.2.2-7],
    # [MQTT-4.13.2-1]
    client = Client5(World(), data=data)
    assert (int(client.connack.reason_code), client.closed) == (code, "protocol_error")


def test_a_second_connect_is_a_protocol_error() -> None:  # [MQTT-3.1.0-2], [MQTT-3.2.0-2]
    assert disconnect_of(Client5(World()), raw_connect()) == (0x82, "protocol_error")


def test_a_newer_connection_takes_the_session_over_and_the_older_one_is_told() -> (
    None
):  # [MQTT-3.1.4-3]
    world = World()
    old = Client5(world, session_expiry_interval=100)
    old.subscribe(subscription("a"))
    new = Client5(world, clean=False, session_expiry_interval=100)
    assert new.connack.session_present is True
    assert [int(one.reason_code) for one in old.read()] == [0x8E]
    assert old.closed == "taken_over"
    Client5(world, "w").send(publish("a", b"x"))
    assert new.bodies() == [b"x"]


@pytest.mark.parametrize("first_expiry", [0, 100])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("expiry", [0, 100])
@pytest.mark.parametrize("rude", [False, True])
def test_session_present_is_right_in_every_combination(
    first_expiry: int, clean: bool, expiry: int, rude: bool
) -> None:
    # [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.1.2-6], [MQTT-3.2.2-2], [MQTT-3.2.2-3],
    # [MQTT-3.1.2-23], [MQTT-3.1.3-2], [MQTT-3.1.4-4]
    world = World()
    first = Client5(world, clean=False, session_expiry_interval=first_expiry)
    assert first.connack.session_present is False
    first.subscribe(subscription("a"))
    first.vanish() if rude else first.send(mqtt5.DisconnectPacket())
    second = Client5(world, clean=clean, session_expiry_interval=expiry)
    present = bool(first_expiry and not clean)
    assert second.connack.session_present is present
    Client5(world, "w").send(publish("a", b"x"))
    assert second.bodies() == ([b"x"] if present else [])
    second.send(mqtt5.DisconnectPacket())
    assert len(world.mqtt_front.sessions) == 1 + bool(expiry)  # one more: the writer's session


def test_a_session_may_pass_from_one_version_to_the_other_and_back() -> None:
    world = World()
    Client5(world, session_expiry_interval=100).subscribe(subscription("a", 1))
    writer = Client5(world, "w")
    old = Client(world, connect_packet("c", clean=False))
    assert old.greeting == b"\x20\x02\x01\x00"
    writer.send(publish("a", b"1"), publish("a", b"2", 1, content_type="text"))
    assert old.read() == mqtt_publish("a", b"1") + mqtt_publish("a", b"2", 1, 1)
    old.vanish()
    again = Client5(world, clean=False, session_expiry_interval=100)
    assert [(one.payload, one.duplicate, one.content_type) for one in again.greeting[1:]] == [
        (b"2", True, "text")
    ]
    writer.send(publish("a", b"3"))
    assert again.bodies() == [b"3"]


@pytest.mark.parametrize("how", ["0x00", "0x04", "0x80", "gone"])
def test_the_will_is_published_at_every_end_except_a_normal_disconnect(how: str) -> None:
    # [MQTT-3.1.2-7], [MQTT-3.1.2-8], [MQTT-3.1.2-10], [MQTT-3.14.4-3]
    world = World()
    watcher = Client5(world, "watcher")
    watcher.subscribe(subscription("gone"))
    mortal = Client5(
        world,
        will=mqtt5.Will(
            "gone",
            payload=b"x",
            qos=mqtt5.QoS.AT_LEAST_ONCE,
            content_type="text",
            user_properties=[("a", "1"), ("a", "2")],
            message_expiry_interval=50,
        ),
    )
    if how == "gone":
        mortal.vanish()
    else:
        mortal.send(b"\xe0\x02" + bytes([int(how, 16), 0]))
    assert [
        (one.payload, one.content_type, one.user_properties, one.message_expiry_interval)
        for one in watcher.publications()
    ] == ([] if how == "0x00" else [(b"x", "text", [("a", "1"), ("a", "2")], 50)])
    assert mortal.closed == {"0x80": "client_error", "gone": "lost"}.get(how, "client")


@pytest.mark.parametrize(
    ("delay", "expiry", "after"),
    [(0, 100, 0), (10, 100, 10), (10, 5, 5), (10, 0, 0), (100, 100, 100)],
)
def test_the_will_waits_for_its_delay_or_the_end_of_the_session(
    delay: int, expiry: int, after: int
) -> None:  # [MQTT-3.1.2-8]
    world = World()
    watcher = Client5(world, "watcher")
    watcher.subscribe(subscription("gone"))
    Client5(
        world,
        session_expiry_interval=expiry,
        will=mqtt5.Will("gone", payload=b"x", will_delay_interval=delay),
    ).vanish()
    if after:
        world.sleep(after * 1_000 - 1)
        assert watcher.bodies() == []
        world.sleep(1)
        world.turn()
    assert watcher.bodies() == [b"x"]
    world.sleep(1_000_000)
    assert watcher.bodies() == []
    assert world.fates() == {"routed": 1}


@pytest.mark.parametrize("clean", [False, True])
def test_a_client_that_reconnects_in_time_cancels_its_will_if_the_session_continues(
    clean: bool,
) -> None:  # [MQTT-3.1.3-9]
    world = World()
    watcher = Client5(world, "watcher")
    watcher.subscribe(subscription("gone"))
    Client5(
        world,
        session_expiry_interval=100,
        will=mqtt5.Will("gone", payload=b"x", will_delay_interval=10),
    ).vanish()
    world.sleep(5_000)
    Client5(world, clean=clean, session_expiry_interval=100)
    assert watcher.bodies() == ([b"x"] if clean else [])
    # The expiry of the old session is not pending any more.
    assert len(world.mqtt_front.sessions.deadlines) == 0
    world.sleep(100_000)
    assert watcher.bodies() == []


LIMITS = ("user_connections", "vhost_connections")


def limited(limit: str) -> World:
    """Return a broker on which one connection is permitted by this limit."""
    limits = BrokerLimits()
    setattr(limits, limit, 1)
    return World(limits)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_will_that_waits_for_its_delay_does_not_count_as_a_connection(limit: str) -> None:
    world = limited(limit)
    login: dict[str, Any] = {"session_expiry_interval": 100, "username": "guest"}
    login["password"] = b"guest"
    will = mqtt5.Will("gone", payload=b"x", will_delay_interval=10)
    Client5(world, will=will, **login).vanish()
    client = Client5(world, clean=False, **login)
    assert (int(client.connack.reason_code), client.connack.session_present) == (0, True)
    assert int(Client5(world, "other", **login).connack.reason_code) == 0x97
    world.sleep(100_000)
    assert world.fates() == {}
    client.vanish()
    assert world.vhost.contexts.connections.of_user("guest") == 0
    assert world.vhost.contexts.connections.total == 0


@pytest.mark.parametrize("limit", LIMITS)
def test_a_client_at_the_limit_of_connections_may_take_its_session_over(limit: str) -> None:
    world = limited(limit)
    login: dict[str, Any] = {"session_expiry_interval": 100, "username": "guest"}
    login["password"] = b"guest"
    former = Client5(world, **login)
    client = Client5(world, clean=False, **login)
    assert (int(client.connack.reason_code), client.connack.session_present) == (0, True)
    assert former.closed == "taken_over"
    assert int(Client5(world, "other", **login).connack.reason_code) == 0x97
    assert world.vhost.contexts.connections.total == 1


def test_a_take_over_from_another_user_does_not_exceed_the_users_limit() -> None:
    world = limited("user_connections")
    world.guests.identities["a"], world.guests.identities["b"] = Identity("a"), Identity("b")
    of_a = Client5(world, username="a", password=b"guest")
    Client5(world, "other", username="b", password=b"guest")
    assert world.mqtt_front.sessions.find(world.vhost, "c") is not None
    world.guests.reserved_for = lambda vhost, client_id: ["b"]  # type: ignore[method-assign]
    second = Client5(world, username="b", password=b"guest")
    assert int(second.connack.reason_code) == 0x97
    assert of_a.closed == ""


@pytest.mark.parametrize(
    ("at_connect", "at_disconnect", "kept"),
    [(100, 10, 10), (10, 100, 100), (100, 0, 0), (10, None, 10), (0, 0, 0)],
)
def test_the_session_expiry_may_change_at_the_end(
    at_connect: int, at_disconnect: int | None, kept: int
) -> None:
    world = World()
    client = Client5(world, session_expiry_interval=at_connect)
    client.send(mqtt5.DisconnectPacket(session_expiry_interval=at_disconnect))
    if kept:
        world.sleep(kept * 1_000 - 1)
        assert len(world.mqtt_front.sessions) == 1
        world.sleep(1)
    assert len(world.mqtt_front.sessions) == 0


def test_a_session_that_ends_with_its_connection_cannot_be_kept_at_the_end() -> (
    None
):  # [MQTT-3.14.2-2]
    assert disconnect_of(
        Client5(World()), mqtt5.DisconnectPacket(session_expiry_interval=1).write()
    ) == (0x82, "protocol_error")


def test_the_broker_says_that_it_shuts_down() -> None:
    client = Client5(World())
    client.connection.close("shutdown")
    assert [int(one.reason_code) for one in client.read()] == [0x8B]
    assert client.closed == "shutdown"


def test_packets_before_the_connect_are_not_answered() -> None:  # [MQTT-3.1.0-1]
    for data in (b"\xf0\x00", b"\xe0\x00", publish("a"), packet(0x20, b"\x00\x00\x00")):
        client = Client5(World(), data=data)
        assert (client.greeting, client.closed) == ([], "protocol_error")


def test_versions_hear_each_other() -> None:
    world = World()
    old, new = Client(world, connect_packet("old")), Client5(world, "new")
    assert old.greeting == ACCEPTED
    old.send(subscribe(1, ("#", 2)))
    new.subscribe(subscription("#"))
    old.send(mqtt_publish("a", b"1"), mqtt_publish("b", b"2", 1, 1))
    assert [(one.topic, one.payload) for one in new.read()] == [("a", b"1"), ("b", b"2")]
    old.read()
    new.send(publish("c", b"3"), publish("d", b"4", content_type="text"), publish("e", b"5", 1))
    assert old.read() == mqtt_publish("c", b"3") + mqtt_publish("d", b"4") + mqtt_publish(
        "e", b"5", 1, 2
    )


@pytest.mark.parametrize("room", [1, 0, -1, -15])
def test_a_connack_that_is_too_large_for_the_client_is_not_sent(room: int) -> None:
    """[MQTT-3.1.2-24]: a CONNACK above the client's Maximum Packet Size is not sent.

    The broker closes the connection instead, and keeps no session and no will of the client.
    """
    world = World()
    size = len(Client5(world, "first").connack.write()) + room
    client = Client5(
        world,
        "c",
        max_packet_size=size,
        session_expiry_interval=100,
        will=mqtt5.Will("w", payload=b"x"),
    )
    fits = room >= 0
    assert len(client.greeting) == fits and client.connection.finished != fits
    assert (world.mqtt_front.sessions.find(world.vhost, "c") is not None) == fits
    if not fits:
        assert client.connection.reason == "too_large"
        assert Client5(world, "c").connack.reason_code == 0


def test_a_refusal_that_is_too_large_for_the_client_is_not_sent() -> None:
    world = World()
    for size in (4, 5):
        client = Client5(world, "$share/c", max_packet_size=size)
        assert len(client.greeting) == (size == 5) and client.connection.finished
