"""Sessions: state that outlives a connection, session present, take-over, expiry, the backlog."""

from __future__ import annotations

import itertools

import pamqp.commands as spec
import pytest

from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.deadlines import TASKS_PER_SLICE
from protocols.mqtt.session.session_row import session_row
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    ACCEPTED,
    DISCONNECT,
    DUP,
    PINGREQ,
    PINGRESP,
    RESUMED,
    Client,
    Will,
    connect,
    here,
    puback,
    publications,
    pubrec,
    subscribe,
    unsubscribe,
)


def expiring(seconds: int) -> World:
    options = MqttOptions()
    options.session_expiry_s = seconds
    return World(mqtt=options)


def publish(world: World, *bodies: bytes, qos: int = 1, topic: str = "a") -> None:
    writer = here(world, "writer")
    for packet_id, body in enumerate(bodies, start=1):
        writer.send(mqtt_publish(topic, body, qos, packet_id if qos else 0))
    writer.send(DISCONNECT)


@pytest.mark.parametrize("first", [None, True, False])
@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("parting", ["polite", "rude", "taken over"])
def test_session_present_is_set_if_a_session_existed_and_is_resumed(
    first: bool | None, second: bool, parting: str
) -> None:
    # [MQTT-3.2.2-1], [MQTT-3.2.2-2], [MQTT-3.2.2-3], [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.1.2-6]
    world = World()
    if first is not None:
        client = Client(world, connect("c", clean=first))
        assert client.greeting == ACCEPTED
        client.send(subscribe(1, ("a", 1)))
        if parting == "polite":
            client.send(DISCONNECT)
        elif parting == "rude":
            client.vanish()
    present = first is False and not second
    client = Client(world, connect("c", clean=second))
    assert client.greeting == (RESUMED if present else ACCEPTED)
    publish(world, b"x")
    assert client.read() == (mqtt_publish("a", b"x", 1, 1) if present else b"")


@pytest.mark.parametrize("steps", list(itertools.product([True, False], repeat=4)))
def test_a_chain_of_sessions(steps: tuple[bool, ...]) -> None:
    world = World()
    persistent = False
    for clean in steps:
        client = Client(world, connect("c", clean=clean))
        assert client.greeting == (RESUMED if persistent and not clean else ACCEPTED)
        persistent = not clean
        client.send(DISCONNECT)
        assert len(world.mqtt_front.sessions) == persistent
    assert len(world.vhost.subscribers) == len(world.vhost.inboxes) == persistent


def test_a_refused_connect_says_no_session_is_present() -> None:  # [MQTT-3.2.2-4]
    world = World()
    Client(world, connect("c", clean=False)).vanish()
    assert (
        Client(world, connect("c", clean=False, user="guest", password=b"wrong")).greeting
        == b"\x20\x02\x00\x04"
    )
    assert Client(world, connect("c", clean=False)).greeting == RESUMED


def test_subscriptions_and_qos_of_a_persistent_session_stay() -> None:
    world = World()
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", 0), ("b", 1), ("c/#", 2), ("d", 1)), unsubscribe(2, "d"))
    client.send(DISCONNECT)
    publish(world, b"missed", qos=2, topic="a")
    for topic in ("b", "c/d", "d"):
        publish(world, topic.encode(), qos=2, topic=topic)
    client = Client(world, connect("c", clean=False))
    assert client.greeting == RESUMED + mqtt_publish("b", b"b", 1, 1) + mqtt_publish(
        "c/d", b"c/d", 2, 2
    )
    publish(world, b"live", qos=2, topic="a")
    assert client.read() == mqtt_publish("a", b"live")
    assert world.copies() == {"offline": 1, "auto_acknowledged": 1}


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_qos_0_publications_do_not_wait_for_a_disconnected_session(granted: int) -> None:
    world = World()
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", granted)))
    client.vanish()
    writer = here(world, "w")
    writer.send(
        mqtt_publish("a", b"run"), mqtt_publish("a", b"run"), mqtt_publish("a", b"careful", flags=1)
    )
    client = Client(world, connect("c", clean=False))
    assert client.greeting == RESUMED
    assert world.copies() == {"offline": 3}
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    assert session_row(session)["missed"] == 3


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("new", [True, False])
def test_a_second_connection_of_a_client_ends_the_first(
    old: bool, new: bool
) -> None:  # [MQTT-3.1.4-2]
    world = World()
    first = Client(world, connect("c", clean=old))
    first.send(subscribe(1, ("a", 1)))
    publish(world, b"1")
    first.read()
    second = Client(world, connect("c", clean=new))
    assert first.closed == "taken_over"
    assert first.connection.dirty
    resumed = not old and not new
    assert second.greeting == (
        RESUMED + mqtt_publish("a", b"1", 1, 1, DUP) if resumed else ACCEPTED
    )
    assert first.send(puback(1), mqtt_publish("b", b"x", 1, 1), PINGREQ) == b""
    first.vanish()
    publish(world, b"2")
    assert second.read() == (mqtt_publish("a", b"2", 1, 2) if resumed else b"")
    assert second.send(PINGREQ) == PINGRESP
    assert world.mqtt_front.closed["taken_over"] == 1
    assert len(world.mqtt_front.sessions) == 1


def test_a_take_over_while_the_first_still_waits_for_the_disk() -> None:
    world = World()
    world.slow_disk = True
    first = Client(world, connect("c", clean=False))
    assert first.greeting == b""
    second = Client(world, connect("c", clean=False))
    # The CONNACK must wait: a crash now would remove the session that the CONNACK confirms.
    assert second.greeting == b""
    world.durable()
    assert (first.read(), first.closed) == (b"", "taken_over")
    assert second.read() == RESUMED
    third = Client(world, connect("c", clean=True))
    assert third.greeting == b""
    world.durable()
    assert third.read() == ACCEPTED


def test_takeover_affects_only_the_same_client_identifier() -> None:
    world = World()
    one, two = here(world, "one"), here(world, "One")
    here(world, "one")
    assert (one.closed, two.closed) == ("taken_over", "")


def test_a_session_ends_when_its_client_stays_away() -> None:
    world = expiring(100)
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", 1)))
    world.sleep(1_000_000)
    assert client.send(PINGREQ) == PINGRESP
    client.vanish()
    publish(world, b"x")
    world.sleep(99_999)
    assert len(world.mqtt_front.sessions) == 1
    client = Client(world, connect("c", clean=False))
    assert client.greeting == RESUMED + mqtt_publish("a", b"x", 1, 1)
    world.sleep(1_000_000)
    client.vanish()
    world.sleep(99_999)
    assert len(world.mqtt_front.sessions) == 1
    world.sleep(1)
    assert (len(world.mqtt_front.sessions), world.mqtt_front.sessions.expired) == (0, 1)
    assert not world.vhost.inboxes
    assert not world.store.state.definitions
    assert not world.store.state.messages
    assert Client(world, connect("c", clean=False)).greeting == ACCEPTED
    assert world.copies() == {"purged": 1}


def test_each_session_has_its_own_time() -> None:
    world = expiring(100)
    for number in range(10):
        Client(world, connect(f"c{number}", clean=False)).vanish()
        world.sleep(1_000)
    Client(world, connect("c0", clean=False)).vanish()
    here(world, "c1")
    left = [{f"c{number}" for number in [0, *range(2, 10)]}]
    for number in range(2, 10):
        left.append(left[-1] - {f"c{number}"})
    world.sleep(89_999 + 2_000)
    for names in left:
        persistent = {
            session.name for session in world.mqtt_front.sessions.all() if session.persistent
        }
        assert persistent == names
        world.sleep(1_000)
    world.sleep(2_000)
    assert {session.name for session in world.mqtt_front.sessions.all()} == {"c1"}


def test_sessions_that_end_together_end_in_slices() -> None:
    world = expiring(100)
    for number in range(TASKS_PER_SLICE + 50):
        Client(world, connect(f"c{number}", clean=False)).connection.on_closed()
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + 100_000, agenda.wall + 100)
    agenda.turn()
    assert len(world.mqtt_front.sessions) == 50
    assert 0 < agenda.deadline <= agenda.now
    agenda.advance(int(agenda.now), agenda.wall)
    agenda.turn()
    assert len(world.mqtt_front.sessions) == 0
    assert agenda.deadline == 0


def test_expiry_0_ends_a_session_with_its_connection() -> None:
    world = expiring(0)
    Client(world, connect("c", clean=False)).vanish()
    world.sleep(0)
    assert Client(world, connect("c", clean=False)).greeting == ACCEPTED


def test_many_comings_and_goings_leave_one_timer() -> None:
    world = expiring(100)
    for _ in range(50):
        Client(world, connect("c", clean=False)).vanish()
        Client(world, connect("c", clean=True)).vanish()
        Client(world, connect("d", clean=False)).vanish()
        world.sleep(10)
    world.sleep(100_000)
    assert world.broker.agenda.deadline == 0
    assert world.mqtt_front.sessions.expired == 1


@pytest.mark.parametrize("away", [True, False])
def test_a_full_inbox_drops_its_oldest_and_counts_them(away: bool) -> None:
    options = MqttOptions()
    options.session_backlog = 5
    options.receive_maximum = 2
    world = World(mqtt=options)
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", 1)))
    if away:
        client.vanish()
    else:
        client.connection.pause_writing()
    publish(world, *[b"%d" % number for number in range(12)])
    assert world.inbox("c").depth == 5
    if away:
        client = Client(world, connect("c", clean=False))
        data = client.greeting
    else:
        client.connection.resume_writing()
        data = client.read()
    got = publications(data)
    while some := publications(client.send(puback(got[-2].packet_id), puback(got[-1].packet_id))):
        got += some
    assert [one.body for one in got] == [b"7", b"8", b"9", b"10", b"11"]
    assert world.copies() == {"over_limit": 7, "acknowledged": 5}
    assert not world.store.state.messages


def test_messages_in_flight_do_not_count_as_waiting_and_are_not_dropped() -> None:
    options = MqttOptions()
    options.session_backlog = 1
    options.receive_maximum = 2
    world = World(mqtt=options)
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", 2)))
    publish(world, b"1", b"2", b"3", b"4", qos=2)
    assert [one.body for one in publications(client.read())] == [b"1", b"2"]
    client.send(pubrec(1))
    client.vanish()
    publish(world, b"5", qos=2)
    client = Client(world, connect("c", clean=False))
    assert client.greeting == RESUMED + b"\x62\x02\x00\x01" + mqtt_publish("a", b"2", 2, 2, DUP)
    assert client.send(b"\x70\x02\x00\x01") == mqtt_publish("a", b"5", 2, 5)
    assert world.copies() == {"over_limit": 2, "acknowledged": 1}


@pytest.mark.parametrize("clean", [True, False])
def test_a_session_that_is_not_stored_gets_its_inbox_with_its_first_subscription(
    clean: bool,
) -> None:
    world = World()
    client = Client(world, connect("c", clean=clean))
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    assert session_row(session)["inbox"] == ("" if clean else "mqtt-subscription-cqos1")
    assert len(world.vhost.inboxes) == (0 if clean else 1)
    assert client.send(mqtt_publish("a", b"x", 2, 1)) == b"\x50\x02\x00\x01"
    assert client.send(subscribe(1, ("a", 1), ("b", 2))) == b"\x90\x04\x00\x01\x01\x02"
    assert session_row(session)["inbox"] == "mqtt-subscription-cqos1"
    assert list(world.vhost.inboxes) == ["mqtt-subscription-cqos1"]
    publish(world, b"1")
    publish(world, b"2", qos=2)
    assert client.read() == mqtt_publish("a", b"1", 1, 1) + mqtt_publish("a", b"2", 1, 2)
    assert client.send(puback(1)) == client.send(puback(2)) == b""
    # A client that has unsubscribed keeps its inbox for the messages in flight.
    publish(world, b"3")
    assert client.read() == mqtt_publish("a", b"3", 1, 3)
    client.send(unsubscribe(2, "a", "b"))
    assert world.inbox("c").unacked == 1
    client.send(puback(3))
    assert world.inbox("c").unacked == 0
    assert client.send(subscribe(3, ("a", 1))) == b"\x90\x03\x00\x03\x01"
    publish(world, b"4")
    assert client.read() == mqtt_publish("a", b"4", 1, 4)
    client.vanish()
    assert len(world.vhost.inboxes) == (0 if clean else 1)


def test_a_session_without_an_inbox_is_closed_and_taken_over() -> None:
    world = World()
    for number in range(3):
        client = Client(world, connect("c", clean=number != 2))
        assert client.greeting == ACCEPTED
    assert world.mqtt_front.closed == {"taken_over": 2}
    assert list(world.vhost.inboxes) == ["mqtt-subscription-cqos1"]
    client.send(DISCONNECT)
    other = Client(world, connect("d"))
    other.vanish()
    assert (len(world.vhost.subscribers), len(world.vhost.inboxes)) == (1, 1)
    assert world.copies() == {}


def test_an_inbox_is_no_queue_for_the_other_protocol() -> None:
    world = World()
    Client(world, connect("c", clean=False))
    name = "mqtt-subscription-cqos1"
    for method in (
        spec.Queue.Declare(queue=name),
        spec.Queue.Declare(queue=name, passive=True),
        spec.Queue.Delete(queue=name),
        spec.Queue.Purge(queue=name),
        spec.Queue.Bind(queue=name, exchange="amq.topic", routing_key="#"),
        spec.Basic.Consume(queue=name),
        spec.Basic.Get(queue=name),
    ):
        [close] = world.amqp().send(method)
        assert (close.name, close.reply_code) == ("Channel.Close", 405), method
    world.amqp().publish("", name, b"x")
    assert world.fates() == {"unroutable": 1}


def test_sessions_are_described_for_operators() -> None:
    world = World()
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", 1), ("b", 0)))
    publish(world, b"x")
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None
    assert session_row(session) == {
        "client_id": "c",
        "vhost": "/",
        "connected": True,
        "persistent": True,
        "subscriptions": 2,
        "inbox": "mqtt-subscription-cqos1",
        "queued": 0,
        "in_flight": 1,
        "dropped": 0,
        "missed": 0,
    }
    client.vanish()
    assert session_row(session)["connected"] is False


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_publication_is_sent_before_the_connack(qos: int) -> None:  # [MQTT-3.2.0-1]
    world = World()
    writer = here(world, "w")
    client = Client(world, connect("c", clean=False))
    client.send(subscribe(1, ("a", qos)))
    writer.send(mqtt_publish("a", b"in flight", qos, 1))
    assert publications(client.read())
    client.vanish()
    writer.send(mqtt_publish("a", b"queued", qos, 2))
    world.slow_disk = True
    # The CONNACK waits until the will is durable.
    client = Client(world, connect("c", clean=False, will=Will("gone", b"")))
    writer.send(mqtt_publish("a", b"new", qos, 3))
    assert client.greeting + client.read() == b""
    world.slow_disk = False
    heard = client.all()
    assert heard[:4] == RESUMED
    # Messages of QoS 0 wait for the CONNACK, but not for a client that is away.
    expected = [b"in flight", b"queued", b"new"] if qos else [b"new"]
    assert [one.body for one in publications(heard[4:])] == expected


def test_a_client_that_waits_for_its_connack_is_taken_over() -> None:  # [MQTT-3.1.4-3]
    world = World()
    world.slow_disk = True
    first = Client(world, connect("c", clean=False))
    second = Client(world, connect("c", clean=False))
    world.slow_disk = False
    assert (first.all(), first.closed) == (b"", "taken_over")
    assert (second.all(), second.closed) == (RESUMED, "")
