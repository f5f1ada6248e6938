"""Wills of persistent sessions, and other pending messages, when the broker stops or is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mqtt5
import pytest

from broker.access.identity import Identity
from tests.clients import World, connect_packet
from tests.store.homes import Home
from tests.wire.mqtt.client import Client
from tests.wire.mqtt5.client import Client5, publish, subscription

WILL: dict[str, Any] = {
    "payload": b"gone",
    "qos": mqtt5.QoS.AT_LEAST_ONCE,
    "retain": True,
    "content_type": "text",
    "user_properties": [("a", "1")],
    "message_expiry_interval": 50,
}


def mortal(world: Home, delay: int, expiry: int = 1_000, **options: Any) -> Client5:
    return Client5(
        world,
        "mortal",
        session_expiry_interval=expiry,
        will=mqtt5.Will("will", will_delay_interval=delay, **WILL),
        **options,
    )


def again(world: Home, after: float, clean: bool = False) -> Home:
    """Kill the broker, or stop it if `clean`, and start it again `after` seconds later."""
    if clean:
        for connection in list(world.mqtt_front.connections):
            connection.close("shutdown")
            connection.on_closed()
    world.settle() if clean else world.turn()
    wall = world.broker.agenda.wall
    world.crash()
    back = Home(world.directory, wall=wall + after)
    assert (back.complaints, back.report.refused) == ([], [])
    return back


def published_will(world: Home) -> list[bytes]:
    """Return [body] of the retained message that the will leaves, or [] if it is not published."""
    world.turn()
    held = world.vhost.retained.get("will")
    return [] if held is None else [held.body]


@pytest.mark.parametrize("delay", [0, 100])
def test_the_will_of_a_client_that_was_here_is_published_after_a_crash_when_its_delay_is_over(
    tmp_path: Path, delay: int
) -> None:
    """If the broker crashes, it publishes the will of a connected client after the restart.

    [MQTT-3.1.2-8] requires this, because the crash closes the connection. The will is published
    once, when its delay is over.
    """
    world = Home(tmp_path)
    reader = Client5(world, "reader", session_expiry_interval=10_000)
    reader.subscribe(subscription("will", 1))
    mortal(world, delay)
    world = again(world, 3_600)
    if delay:
        world.sleep(delay * 1_000 - 1)
        assert published_will(world) == []
    world.sleep(1)
    assert published_will(world) == [b"gone"]
    [got] = Client5(world, "reader", clean=False, session_expiry_interval=10_000).greeting[1:]
    assert (
        got.payload,
        got.content_type,
        got.user_properties,
        int(got.qos),
        got.message_expiry_interval,
    ) == (b"gone", "text", [("a", "1")], 1, 50)
    world = again(world, 1)
    world.sleep(delay * 1_000)
    Client5(world, "reader", clean=False, session_expiry_interval=10_000)
    assert world.fates() == {}  # One check of the state after the start is enough.
    world.crash()


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("after", "left"), [(10, 60), (30, 40), (500, 0)])
def test_a_delay_that_had_begun_goes_on(tmp_path: Path, clean: bool, after: int, left: int) -> None:
    world = Home(tmp_path)
    mortal(world, 100).vanish()
    world.sleep(30_000)
    assert published_will(world) == []
    world = again(world, after, clean)
    if left:
        world.sleep(left * 1_000 - 1)
        assert published_will(world) == []
    world.sleep(1)
    assert published_will(world) == [b"gone"]
    world.crash()


@pytest.mark.parametrize("here", [False, True])
def test_the_end_of_the_session_ends_the_delay(tmp_path: Path, here: bool) -> None:
    world = Home(tmp_path)
    client = mortal(world, 100, expiry=50)
    if not here:
        client.vanish()
    world = again(world, 20)
    world.sleep(30_000 - 1 if not here else 50_000 - 1)
    assert published_will(world) == []
    world.sleep(1)
    assert published_will(world) == [b"gone"]
    assert world.mqtt_front.sessions.find(world.vhost, "mortal") is None
    world.crash()


@pytest.mark.parametrize("clean", [False, True])
def test_client_that_reconnects_in_time_cancels_its_will(tmp_path: Path, clean: bool) -> None:
    world = Home(tmp_path)
    mortal(world, 100)
    world = again(world, 1, clean)
    client = Client5(world, "mortal", clean=False, session_expiry_interval=1_000)
    assert client.connack.session_present is True
    for _ in range(2):
        world.sleep(200_000)
        assert published_will(world) == []
        world = again(world, 1)
    world.crash()


@pytest.mark.parametrize("delay", [0, 100])
@pytest.mark.parametrize("how", ["disconnect", "anew", "published"])
def test_a_will_that_is_over_does_not_come_back(tmp_path: Path, how: str, delay: int) -> None:
    world = Home(tmp_path)
    client = mortal(world, delay)
    if how == "disconnect":
        client.send(mqtt5.DisconnectPacket())
    elif how == "anew":
        client.send(mqtt5.DisconnectPacket())
        Client5(world, "mortal", clean=False, session_expiry_interval=1_000)
    else:
        client.vanish()
        world.sleep(delay * 1_000)
        assert published_will(world) == [b"gone"]
        Client5(world, "w").send(publish("will", b"", 1, retain=True))
    for _ in range(2):
        world = again(world, 1)
        world.sleep(200_000)
        assert published_will(world) == []
    world.crash()


@pytest.mark.parametrize(("delay", "there"), [(0, False), (100, True)])
def test_a_clean_stop_publishes_none_at_once_but_one_with_a_delay_waits_on(
    tmp_path: Path, delay: int, there: bool
) -> None:
    world = again(_with(tmp_path, delay), 1, clean=True)
    assert published_will(world) == []
    world.sleep(200_000)
    assert published_will(world) == [b"gone"] * there
    world.crash()


def _with(directory: Path, delay: int) -> Home:
    world = Home(directory)
    mortal(world, delay)
    return world


def test_a_clean_stop_publishes_the_will_of_a_session_that_does_not_persist(tmp_path: Path) -> None:
    world = Home(tmp_path)
    mortal(world, 0, expiry=0)
    world = again(world, 1, clean=True)
    assert published_will(world) == [b"gone"]
    world.crash()


def test_a_will_of_3_1_1_too(tmp_path: Path) -> None:
    world = Home(tmp_path)
    Client(world, connect_packet("old", clean=False, will=("will", b"gone"), will_flags=0x20))
    world = again(world, 1)
    assert published_will(world) == []
    world.sleep(1)
    assert published_will(world) == [b"gone"]
    world.crash()


@pytest.mark.parametrize("topic", ["$SYS/x", "$share/g/a"])
def test_a_will_that_may_not_be_published_is_not_kept(tmp_path: Path, topic: str) -> None:
    world = Home(tmp_path)
    Client5(world, "mortal", session_expiry_interval=1_000, will=mqtt5.Will(topic, **WILL))
    world = again(world, 1)
    world.sleep(1_000)
    assert world.fates() == {}
    world.crash()


def test_a_will_of_the_last_one_of_its_name_is_published() -> None:
    """Check that a user's publish context exists until the last will of the user is published.

    Here the user had only one client, the one with the will.
    """
    world = World()
    world.guests.identities["lonely"] = Identity("lonely")
    Client5(
        world,
        "mortal",
        session_expiry_interval=1_000,
        username="lonely",
        password=b"guest",
        will=mqtt5.Will("will", will_delay_interval=10, **WILL),
    ).vanish()
    world.sleep(10_000)
    world.turn()
    assert world.vhost.retained.get("will") is not None
    assert world.vhost.contexts.connections.of_user("lonely") == 0


def test_a_session_that_watched_sys_goes_on_watching(tmp_path: Path) -> None:
    world = Home(tmp_path)
    reader = Client5(world, "reader", session_expiry_interval=1_000)
    reader.subscribe(subscription("$SYS/broker/uptime", 0))
    world = again(world, 1)
    reader = Client5(world, "reader", clean=False, session_expiry_interval=1_000)
    assert reader.connack.session_present is True
    world.sleep(10_000)
    world.turn()
    assert [one.topic for one in reader.publications()] == ["$SYS/broker/uptime"]
    world.crash()


@pytest.mark.parametrize("delay", [0, 100])
@pytest.mark.parametrize("rights", ["some", "none", "deleted"])
def test_the_will_has_the_permissions_of_its_user_when_it_is_published(
    tmp_path: Path, rights: str, delay: int
) -> None:
    """A will after a restart is published only if its user may publish it at that time.

    The user may have lost a permission since the will was deposited.
    """
    world = Home(tmp_path)
    world.guests.identities["u"] = Identity("u")
    mortal(world, delay, username="u", password=b"guest")
    world.turn()
    wall = world.broker.agenda.wall
    world.crash()
    back = Home(tmp_path, wall=wall + 1)
    if rights != "deleted":
        back.guests.identities["u"] = Identity("u", write=".*" if rights == "some" else "^$")
    back.sleep(delay * 1_000 + 1)
    assert published_will(back) == [b"gone"] * (rights == "some")
    back.review()
    back.crash()


def test_wills_after_a_restart_do_not_wait_for_the_review_of_other_sessions(tmp_path: Path) -> None:
    """Check that a will does not wait until the permissions of all sessions are checked again.

    After a restart, the permissions of many sessions are checked again in slices, over several
    turns. A will whose delay is over must be checked first. Here this will is denied while other
    sessions still wait for their check.
    """
    world = Home(tmp_path)
    world.guests.identities["u"] = Identity("u")
    mortal(world, 0, username="u", password=b"guest")
    for number in range(1_200):
        world.mqtt(f"c{number}", clean=False)
    world.turn()
    world.crash()
    back = Home(tmp_path)
    back.guests.identities["u"] = Identity("u", write="^$")
    back.mqtt_front.reauthorize()
    back.sleep(1)
    assert published_will(back) == []
    assert back.fates() == {"denied": 1}
    back.crash()
