"""Tests of logins: authenticators that decide immediately or later, refusals, early input.

Some of the tests are about user names that begin with a virtual host.
"""

from __future__ import annotations

import pytest

from broker.access.identity import Identity, Verdict
from broker.vhost.vhost import VirtualHost
from protocols.login_input import LOGIN_INPUT_MAX
from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    ACCEPTED,
    PINGREQ,
    PINGRESP,
    RESUMED,
    Client,
    Will,
    connect,
    here,
    suback,
    subscribe,
)

BUSY = Verdict(None, "busy", busy=True)
UNKNOWN = Verdict(None, "no")


def undecided() -> World:
    """Return a broker in which each login waits until the test calls `decide`."""
    world = World()
    world.guests.hold = True
    return world


def decide(world: World, verdict: Verdict | None = None) -> None:
    """End all waiting logins with this verdict.

    If `verdict` is None, the credentials of each login decide.
    """
    held, world.guests.held = world.guests.held, []
    for answer, known in held:
        answer(verdict or known)


@pytest.mark.parametrize(
    ("user", "password", "code", "outcome"),
    [
        (None, None, 0, "accepted"),
        ("guest", b"guest", 0, "accepted"),
        ("guest", b"wrong", 4, "refused"),
        ("guest", b"", 4, "refused"),
        ("guest", None, 4, "refused"),
        ("absent", b"guest", 4, "refused"),
        ("guest", b"\xff\x00", 4, "refused"),
    ],
)
def test_names_and_passwords(
    user: str | None, password: bytes | None, code: int, outcome: str
) -> None:
    world = World()
    client = Client(world, connect(user=user, password=password))
    assert client.greeting == bytes([0x20, 2, 0, code])
    assert client.closed == ("login_refused" if code else "")
    assert world.mqtt_front.logins == {outcome: 1}


@pytest.mark.parametrize(
    ("user", "verdict", "code", "outcome"),
    [
        ("guest", UNKNOWN, 4, "refused"),
        (None, UNKNOWN, 5, "refused"),
        ("guest", BUSY, 3, "busy"),
        (None, BUSY, 3, "busy"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_refusals_say_whether_to_try_again(
    user: str | None, verdict: Verdict, code: int, outcome: str, later: bool
) -> None:
    world = undecided()
    client = Client(
        world, connect(user=user, password=b"x" if user else None) + (b"" if later else PINGREQ)
    )
    assert client.greeting == b""
    if later:
        assert client.send(PINGREQ) == b""
    decide(world, verdict)
    assert client.connection.dirty
    assert client.read() == bytes([0x20, 2, 0, code])
    assert client.closed == "login_refused"
    assert world.mqtt_front.logins == {outcome: 1}
    assert len(world.mqtt_front.sessions) == 0


@pytest.mark.parametrize("cut", [0, 1, 2, 7, 30])
def test_input_that_comes_with_the_connect_waits_for_the_verdict(cut: int) -> None:
    world = undecided()
    rest = subscribe(7, ("a", 0)) + mqtt_publish("a", b"x") + PINGREQ
    client = Client(world, connect() + rest[:cut])
    assert client.send(rest[cut:]) == b""
    assert client.connection.stalled
    decide(world)
    assert not client.connection.stalled
    assert client.connection.behind
    assert client.read() == ACCEPTED + suback(7, 0) + mqtt_publish("a", b"x") + PINGRESP
    assert world.mqtt_front.closed == {}


@pytest.mark.parametrize("persistent", [False, True])
def test_verdict_then_disk_then_input(persistent: bool) -> None:
    world = undecided()
    world.slow_disk = True
    client = Client(world, connect(clean=not persistent) + PINGREQ)
    decide(world)
    if persistent:
        assert client.read() == b""
        assert client.send(PINGREQ) == b""
        world.durable()
        assert client.read() == ACCEPTED + PINGRESP * 2
    else:
        assert client.read() == ACCEPTED + PINGRESP
    assert client.send(PINGREQ) == PINGRESP


@pytest.mark.parametrize(
    "cuts", [[LOGIN_INPUT_MAX], [LOGIN_INPUT_MAX // 2, LOGIN_INPUT_MAX // 2], [100] * 655 + [36]]
)
def test_64_kib_may_wait_for_the_verdict_and_not_a_byte_more(cuts: list[int]) -> None:
    rest = PINGREQ * (LOGIN_INPUT_MAX // 2)
    for more in (b"", PINGREQ):
        world = undecided()
        first = connect(will=Will("w", b"x" * 30_000))
        client = Client(world, first[:20_000])
        client.send(first[20_000:])
        at = 0
        for cut in cuts:
            client.send(rest[at : at + cut])
            at += cut
        if not more:
            assert client.closed == ""
            decide(world)
            assert client.read() == ACCEPTED + PINGRESP * (LOGIN_INPUT_MAX // 2)
        else:
            assert client.send(more) == b""
            assert client.closed == "too_much_before_login"
            decide(world)
            assert client.read() == b""
    assert world.fates() == {}


def test_too_much_in_one_chunk_with_the_connect_is_too_much_as_well() -> None:
    world = undecided()
    client = Client(world, connect() + PINGREQ * (LOGIN_INPUT_MAX // 2 + 1))
    assert client.closed == "too_much_before_login"


def test_client_that_disconnects_before_the_verdict_leaves_nothing() -> None:
    world = undecided()
    client = Client(world, connect(clean=False, will=Will("w", b"x")))
    client.vanish()
    decide(world)
    assert client.read() == b""
    assert len(world.mqtt_front.sessions) == 0
    assert world.mqtt_front.closed == {"lost": 1}
    assert world.fates() == {}


def test_a_verdict_that_never_comes_ends_in_the_handshake_timeout() -> None:
    options = MqttOptions()
    options.handshake_ms = 1_000
    world = World(mqtt=options)
    world.guests.hold = True
    client = Client(world, connect())
    world.sleep(1_000)
    client.connection.advance(int(world.broker.agenda.now))
    assert client.closed == "handshake_timeout"
    decide(world)
    assert client.read() == b""


def test_two_undecided_clients_of_one_name_end_with_the_one_decided_last() -> None:
    world = undecided()
    one, two = Client(world, connect(clean=False)), Client(world, connect(clean=False))
    later = world.guests.held.pop()
    decide(world)
    assert one.read() == ACCEPTED
    world.guests.held.append(later)
    decide(world)
    assert two.read() == RESUMED
    assert (one.closed, two.closed) == ("taken_over", "")


def test_a_user_name_may_begin_with_a_virtual_host() -> None:
    world = World()
    dev = world.broker.vhosts["dev"] = VirtualHost(
        "dev", world.broker.agenda, world.store, world.broker.limits
    )
    world.guests.identities["odd:name"] = Identity("odd:name")
    readers = [
        Client(world, connect(client_id, user=user, password=b"guest"))
        for client_id, user in (
            ("r", "guest"),
            ("r", "dev:guest"),
            ("r", "/:guest"),
            ("odd", "odd:name"),
        )
    ]
    assert [reader.greeting for reader in readers] == [ACCEPTED] * 4
    assert [reader.closed for reader in readers] == ["taken_over", "", "", ""]
    for reader in (readers[1], readers[3]):
        reader.send(subscribe(1, ("a", 1)))
    writer = Client(world, connect("w", user="dev:guest", password=b"guest"))
    writer.send(mqtt_publish("a", b"dev", flags=1))
    assert (readers[1].read(), readers[3].read()) == (mqtt_publish("a", b"dev"), b"")
    assert (len(dev.retained), len(world.vhost.retained)) == (1, 0)
    assert world.mqtt_front.sessions.find(dev, "r") is not world.mqtt_front.sessions.find(
        world.vhost, "r"
    )


def test_an_unknown_virtual_host_is_part_of_an_unknown_user_name() -> None:
    client = Client(World(), connect(user="nowhere:guest", password=b"guest"))
    assert client.greeting == b"\x20\x02\x00\x04"


def test_connections_are_described_for_operators() -> None:
    world = World()
    client = Client(world, connect("c", user="guest", password=b"guest", keep_alive=9))
    row = client.connection.describe()
    assert (row["user"], row["client"], row["keep_alive"], row["protocol"], row["state"]) == (
        "guest",
        "c",
        9,
        "mqtt311",
        "open",
    )
    here(world, "c")
    assert client.connection.describe()["state"] == "closing"
