"""Wills: published when a connection ends, unless the client sent DISCONNECT [MQTT-3.1.2-8]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.access.identity import Identity
from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    ACCEPTED,
    DISCONNECT,
    RETAIN,
    Client,
    Will,
    connect,
    here,
    publications,
    suback,
    subscribe,
)

WILL = Will("gone", b"farewell", 1)


def watched(world: World) -> Client:
    watcher = here(world, "watcher")
    watcher.send(subscribe(1, ("#", 2)))
    return watcher


def _lose(client: Client) -> None:
    client.vanish()


def _fall_silent(client: Client) -> None:
    client.world.sleep(90_000)
    client.connection.advance(int(client.world.broker.agenda.now))


def _send_garbage(client: Client) -> None:
    client.send(b"\xf0\x00")


def _connect_twice(client: Client) -> None:
    client.send(connect("c"))


def _send_too_much(client: Client) -> None:
    client.send(b"\x30\xff\xff\xff\x7f")


def _disconnect_badly(client: Client) -> None:
    client.send(b"\xe0\x01\x00")


def _disconnect_with_flags(client: Client) -> None:
    client.send(b"\xe1\x00")


def _be_taken_over(client: Client) -> None:
    Client(client.world, connect("c", clean=False))


def _be_taken_over_by_a_clean_session(client: Client) -> None:
    Client(client.world, connect("c"))


ENDS: list[tuple[Callable[[Client], None], str]] = [
    (_lose, "lost"),
    (_fall_silent, "keep_alive_timeout"),
    (_send_garbage, "protocol_error"),
    (_connect_twice, "protocol_error"),
    (_send_too_much, "too_large"),
    (_disconnect_badly, "protocol_error"),
    (_disconnect_with_flags, "protocol_error"),
    (_be_taken_over, "taken_over"),
    (_be_taken_over_by_a_clean_session, "taken_over"),
]


@pytest.mark.parametrize(("end", "reason"), ENDS)
@pytest.mark.parametrize("clean", [True, False])
def test_a_will_is_published_once_on_every_kind_of_end(
    end: Callable[[Client], None], reason: str, clean: bool
) -> None:
    world = World()
    watcher = watched(world)
    client = Client(world, connect("c", clean=clean, will=WILL))
    end(client)
    assert client.closed == reason
    assert watcher.read() == mqtt_publish("gone", b"farewell", 1, 1)
    client.vanish()
    assert watcher.read() == b""


@pytest.mark.parametrize("clean", [True, False])
def test_disconnect_discards_the_will(clean: bool) -> None:  # [MQTT-3.1.2-10], [MQTT-3.14.4-3]
    world = World()
    watcher = watched(world)
    client = Client(world, connect("c", clean=clean, will=WILL))
    client.send(DISCONNECT)
    assert client.closed == "client"  # [MQTT-3.14.4-2]
    client.vanish()
    Client(world, connect("c", clean=clean)).vanish()
    assert watcher.read() == b""
    assert world.fates() == {}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_published_with_its_qos_and_retain_flag(qos: int, retain: bool) -> None:
    # [MQTT-3.1.2-16], [MQTT-3.1.2-17]
    world = World()
    watcher = watched(world)
    Client(world, connect("c", will=Will("gone", b"x", qos, retain))).vanish()
    assert watcher.read() == mqtt_publish("gone", b"x", qos, 1 if qos else 0)
    kept = mqtt_publish("gone", b"x", qos, 1 if qos else 0, RETAIN) if retain else b""
    assert here(world, "late").send(subscribe(1, ("gone", 2))) == suback(1, 2) + kept
    assert world.fates() == {"routed": 1}


def test_an_empty_retained_will_clears_the_topic() -> None:
    world = World()
    here(world, "w").send(mqtt_publish("gone", b"x", flags=RETAIN))
    Client(world, connect("c", will=Will("gone", b"", 0, True))).vanish()
    assert len(world.vhost.retained) == 0


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"x" * 60_000])
def test_any_bytes_are_a_will_message(body: bytes) -> None:
    world = World()
    watcher = watched(world)
    Client(world, connect("c", will=Will("gone", body))).vanish()
    assert watcher.read() == mqtt_publish("gone", body)


def test_every_connection_has_a_will_of_its_own() -> None:
    world = World()
    watcher = watched(world)
    Client(world, connect("c", clean=False, will=Will("gone", b"1"))).vanish()
    Client(world, connect("c", clean=False)).vanish()
    Client(world, connect("c", clean=False, will=Will("gone", b"2"))).vanish()
    assert [one.body for one in publications(watcher.read())] == [b"1", b"2"]


def test_the_clients_own_persistent_session_gets_the_will_too() -> None:
    world = World()
    client = Client(world, connect("c", clean=False, will=WILL))
    client.send(subscribe(1, ("gone", 1)))
    client.vanish()
    assert Client(world, connect("c", clean=False)).greeting == b"\x20\x02\x01\x00" + mqtt_publish(
        "gone", b"farewell", 1, 1
    )


def test_a_refused_client_publishes_no_will() -> None:
    world = World()
    watcher = watched(world)
    for first in (
        connect("c", user="guest", password=b"wrong", will=WILL),
        connect("", clean=False, will=WILL),
        connect("c", level=5, will=WILL),
    ):
        Client(world, first).vanish()
    assert watcher.read() == b""


def test_a_will_without_write_permission_is_counted_as_denied() -> None:
    world = World()
    world.guests.identities["reader"] = Identity("reader", write="")
    watcher = watched(world)
    client = Client(
        world, connect("c", user="reader", password=b"guest", will=Will("gone", b"x", 1, True))
    )
    assert client.greeting == ACCEPTED
    client.vanish()
    assert watcher.read() == b""
    assert len(world.vhost.retained) == 0
    assert world.fates() == {"denied": 1}


@pytest.mark.parametrize(
    "topic", ["$SYS/broker/uptime", "$share/group/a", "$SYS", "a" + "/a" * 200]
)
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_under_a_reserved_or_too_deep_topic_is_dropped_like_a_publication(
    topic: str, retain: bool
) -> None:
    world = World()
    amqp = world.amqp()
    amqp.queue("q", "amq.topic", "#")
    watcher = watched(world)
    watcher.send(subscribe(2, ("$SYS/#", 0)))
    client = Client(world, connect("c", will=Will(topic, b"x", 1, retain)))
    assert client.greeting == ACCEPTED
    client.vanish()
    assert watcher.read() == b""
    assert world.queue("q").depth == 0
    assert len(world.vhost.retained) == 0
    assert world.fates() == {"denied": 1}


def test_clean_stop_publishes_only_the_wills_of_sessions_that_end() -> None:
    world = World()
    watcher = watched(world)
    goes = Client(world, connect("1", will=Will("gone", b"goes")))
    stays = Client(world, connect("2", clean=False, will=Will("gone", b"no")))
    for client in (goes, stays):
        client.connection.close("shutdown")
        assert client.closed == "shutdown"
    assert watcher.read() == mqtt_publish("gone", b"goes")


def test_hundreds_of_clients_that_vanish_at_once_leave_hundreds_of_wills() -> None:
    world = World()
    watcher = watched(world)
    clients = [
        Client(world, connect(f"c{number}", will=Will(f"gone/{number}", b"x")))
        for number in range(1_200)
    ]
    for client in clients:
        client.connection.on_closed()
    world.settle()
    assert len(publications(watcher.all())) == 1_200
    assert world.fates() == {"routed": 1_200}


def test_a_will_reaches_queues_of_the_other_protocol() -> None:
    world = World()
    amqp = world.amqp()
    amqp.queue("q", "amq.topic", "gone.#")
    Client(world, connect("c", will=Will("gone/c", b"x", 2))).vanish()
    assert world.queue("q").depth == 1


def test_expired_sessions_leave_no_second_will() -> None:
    options = MqttOptions()
    options.session_expiry_s = 10
    world = World(mqtt=options)
    watcher = watched(world)
    Client(world, connect("c", clean=False, will=WILL)).vanish()
    assert len(publications(watcher.read())) == 1
    world.sleep(10_000)
    assert watcher.read() == b""
