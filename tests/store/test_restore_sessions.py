"""A broker that starts again has the MQTT sessions, with their subscriptions and expiry."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from protocols.mqtt.session.session_row import session_row
from tests.clients import World, mqtt_publish
from tests.store.homes import Home, bindings, options
from tests.wire.mqtt.client import (
    ACCEPTED,
    DISCONNECT,
    RESUMED,
    Client,
    connect,
    publications,
    suback,
    subscribe,
    unsubscribe,
)


def test_session_is_restored_with_its_subscriptions_and_gets_its_messages(
    tmp_path: Path,
) -> None:
    world = Home(tmp_path)
    client = Client(world, connect("c", clean=False))
    client.send(
        subscribe(1, ("a", 0), ("b", 1), ("c/#", 2), ("d", 1)),
        unsubscribe(2, "d"),
        subscribe(3, ("b", 2)),
    )
    Client(world, connect("fleeting")).send(subscribe(1, ("a", 1)))
    world.crash()
    world = Home(tmp_path)
    assert [session.name for session in world.mqtt_front.sessions.all()] == ["c"]
    assert len(world.vhost.subscribers) == len(world.vhost.inboxes) == 1
    assert not session_row(world.mqtt_front.sessions.all()[0])["connected"]
    writer = Client(world, connect("w"))
    for serial, topic in enumerate(["a", "b", "c/x", "d"], start=1):
        writer.send(mqtt_publish(topic, topic.encode(), 2, serial))
    client = Client(world, connect("c", clean=False))
    # The packet identifiers of an inbox that was empty at the crash do not begin at 1 again.
    first = publications(client.greeting)[0].packet_id
    assert first > 1
    assert client.greeting == RESUMED + mqtt_publish("b", b"b", 2, first) + mqtt_publish(
        "c/x", b"c/x", 2, first + 1
    )
    writer.send(mqtt_publish("a", b"live"))
    assert client.read() == mqtt_publish("a", b"live")
    assert client.send(unsubscribe(4, "b"), subscribe(5, ("a", 1)))[-5:] == suback(5, 1)
    assert {row[4]: row[5] for row in bindings(world)} == {"a": 1, "c/#": 2}
    assert Client(world, connect("c")).greeting == ACCEPTED
    world.settle()
    world.crash()
    world = Home(tmp_path)
    assert world.report.restored == {"vhost": 1}
    world.crash()


def left(directory: Path, seconds: int = 100) -> None:
    """Make a crashed data directory with a session whose client disconnected 10 s before.

    The session expires `seconds` after the disconnect.
    """
    world = Home(directory, mqtt=options(seconds))
    Client(world, connect("c", clean=False)).send(DISCONNECT)
    world.sleep(10_000)
    world.crash()


def alive(world: World) -> list[str]:
    return sorted(session.name for session in world.mqtt_front.sessions.all())


@pytest.mark.parametrize(
    ("down", "expected"),
    [(0, 90_000), (50, 40_000), (89, 1_000), (90, 0), (5_000, 0), (-9, 99_000), (-500, 100_000)],
)
@pytest.mark.parametrize("now", [1, 90_000, 10_000_000])
def test_time_away_goes_on_while_the_broker_is_down(
    tmp_path: Path, down: int, expected: int, now: int
) -> None:
    """The time that a session is without a client includes the time that the broker is down.

    The broker measures this time by the wall clock. If that clock was set back, the session does
    not age.
    """
    left(tmp_path)
    world = Home(tmp_path, mqtt=options(100), now=now, wall=1_700_000_010.0 + down)
    if expected:
        assert world.broker.agenda.deadline == now + expected
        world.sleep(expected - 1)
        assert alive(world) == ["c"]
    world.sleep(1)
    assert alive(world) == []
    assert world.mqtt_front.sessions.expired == 1
    world.crash()
    world = Home(tmp_path)
    assert world.report.restored == {"vhost": 1}
    world.crash()


def test_a_lower_limit_of_the_session_expiry_applies_to_restored_sessions(tmp_path: Path) -> None:
    left(tmp_path, 1_000)  # The client has been away for 10 s.
    world = Home(tmp_path, mqtt=options(100), wall=1_700_000_010.0)
    world.sleep(89_999)
    assert alive(world) == ["c"]
    world.sleep(1)
    assert alive(world) == []
    world.crash()


def test_a_session_in_use_at_a_crash_is_away_from_the_first_start_on(tmp_path: Path) -> None:
    world = Home(tmp_path, mqtt=options(100))
    Client(world, connect("c", clean=False)).send(DISCONNECT)
    world.sleep(99_000)
    Client(world, connect("c", clean=False))
    world.sleep(1_000_000)
    world.crash()
    wall = 1_700_002_000.0
    for start in range(3):  # The client does not reconnect, and the broker crashes again.
        world = Home(tmp_path, mqtt=options(100), wall=wall + 30 * start)
        world.turn()
        assert alive(world) == ["c"]
        world.crash()
    world = Home(tmp_path, mqtt=options(100), wall=wall + 99)
    world.sleep(999)
    assert alive(world) == ["c"]
    world.sleep(1)
    assert alive(world) == []
    world.crash()


def test_each_restored_session_has_its_own_time(tmp_path: Path) -> None:
    world, chance, order = Home(tmp_path, mqtt=options(100)), random.Random(3), list(range(20))
    clients = {number: Client(world, connect(f"c{number}", clean=False)) for number in order}
    chance.shuffle(order)
    for number in order:
        clients[number].send(DISCONNECT)
        world.sleep(1_000)
    world.crash()
    world = Home(tmp_path, mqtt=options(100), wall=1_700_000_030.0)
    world.sleep(69_500)
    for gone in range(21):
        assert alive(world) == sorted(f"c{number}" for number in order[gone:])
        world.sleep(1_000)
    world.crash()
