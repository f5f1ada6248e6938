"""Keep-alive: one and a half intervals without input end a connection [MQTT-3.1.2-24]. The tests
set the broker's clock."""

from __future__ import annotations

import pytest

from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import PINGREQ, PINGRESP, Client, Will, connect, here, pubrel, subscribe


def tick(client: Client) -> None:
    """Do what the server does when a connection's deadline has passed: call `advance`."""
    now = int(client.world.broker.agenda.now)
    if 0 < client.connection.deadline <= now and not client.connection.finished:
        client.connection.advance(now)
        client.world.turn()


@pytest.mark.parametrize("keep_alive", [1, 2, 60, 65_535])
def test_silence_of_one_and_a_half_intervals_ends_the_connection(keep_alive: int) -> None:
    world = World()
    client = Client(world, connect(keep_alive=keep_alive))
    limit = keep_alive * 1500
    assert client.connection.deadline == world.broker.agenda.now + limit
    world.sleep(limit - 1)
    tick(client)
    assert client.closed == ""
    world.sleep(1)
    tick(client)
    assert client.closed == "keep_alive_timeout"
    assert client.connection.dirty


def test_keep_alive_0_is_for_ever() -> None:
    world = World()
    client = Client(world, connect(keep_alive=0))
    assert client.connection.deadline == 0
    world.sleep(10**10)
    assert client.send(PINGREQ) == PINGRESP


@pytest.mark.parametrize(
    "data",
    [
        PINGREQ,
        mqtt_publish("a", b"x"),
        mqtt_publish("a", b"x", 1, 1),
        subscribe(1, ("a", 0)),
        pubrel(9),
        b"\x40\x02\x00\x09",
        b"\x30",
    ],
)
def test_every_byte_counts_as_a_sign_of_life(data: bytes) -> None:
    world = World()
    client = Client(world, connect(keep_alive=10))
    world.sleep(14_000)
    client.send(data)
    world.sleep(14_000)
    tick(client)
    assert client.closed == ""
    assert client.connection.deadline == world.broker.agenda.now + 1_000
    world.sleep(1_000)
    tick(client)
    assert client.closed == "keep_alive_timeout"


def test_output_to_a_client_does_not_extend_its_keep_alive() -> None:
    world = World()
    client, writer = Client(world, connect(keep_alive=10)), here(world, "w")
    client.send(subscribe(1, ("a", 0)))
    world.sleep(14_000)
    writer.send(mqtt_publish("a", b"x"))
    assert client.read() == mqtt_publish("a", b"x")
    world.sleep(1_000)
    tick(client)
    assert client.closed == "keep_alive_timeout"


def test_the_will_is_published_and_the_session_stays() -> None:
    world = World()
    watcher = here(world, "watcher")
    watcher.send(subscribe(1, ("gone", 0)))
    client = Client(world, connect(clean=False, keep_alive=1, will=Will("gone", b"x")))
    world.sleep(1_500)
    tick(client)
    assert client.closed == "keep_alive_timeout"
    assert watcher.read() == mqtt_publish("gone", b"x")
    assert world.mqtt_front.sessions.find(world.vhost, "c") is not None


def test_a_client_to_which_we_do_not_listen_is_not_silent() -> None:
    world = World()
    client = Client(world, connect(clean=False, keep_alive=1))
    world.slow_disk = True
    client.send(subscribe(1, ("a", 1)))
    world.sleep(5_000)
    tick(client)
    assert client.closed == ""
    world.durable()
    client.send(PINGREQ)
    world.sleep(1_499)
    tick(client)
    assert client.closed == ""
    world.sleep(1)
    tick(client)
    assert client.closed == "keep_alive_timeout"
