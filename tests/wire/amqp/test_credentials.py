"""Credentials of AMQP clients: at the login, and a new secret of an open connection."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from protocols.amqp.connection.handshake import GREETING
from tests.clients import World, marshal, unmarshal
from tests.wire.amqp.logins import start_ok
from tests.wire.amqp.speech import Raw, long, method, names, refusal, short

REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism {}. For details see "
    "the broker logfile."
)


def amqplain(user: bytes, password: bytes) -> bytes:
    """Return the entries of an AMQPLAIN table, without their length."""
    return short("LOGIN") + b"S" + long(user) + short("PASSWORD") + b"S" + long(password)


# -- credentials


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0guest"),
        ("PLAIN", b"another\0guest\0guest"),
        ("AMQPLAIN", amqplain(b"guest", b"guest")),
        ("AMQPLAIN", amqplain(b"guest", b"guest") + short("MORE") + b"t\x01"),
    ],
)
def test_good_credentials_are_answered_with_tune(mechanism: str, response: bytes) -> None:
    raw = Raw(World())
    raw.say(GREETING)
    [tune] = unmarshal(raw.say(start_ok(mechanism, response)))
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0wrong"),
        ("PLAIN", b"\0unknown\0guest"),
        ("PLAIN", b"\0guest\0"),
        ("PLAIN", b"\0\xff\xfe\0guest"),
        ("PLAIN", b"\0guest\0\xff\xfe"),
        ("PLAIN", b"\0guest\0guest\0"),
        ("AMQPLAIN", amqplain(b"guest", b"wrong")),
        ("AMQPLAIN", amqplain(b"guest", b"\xff\xfe")),
        ("AMQPLAIN", amqplain(b"\xff", b"guest")),
    ],
)
def test_bad_credentials_are_refused_with_403_where_the_client_knows_the_words(
    mechanism: str, response: bytes
) -> None:
    raw = Raw(World())
    raw.say(GREETING)
    properties = (
        short("capabilities") + b"F" + long(short("authentication_failure_close") + b"t\x01")
    )
    answer = refusal(unmarshal(raw.say(start_ok(mechanism, response, properties))))
    assert answer == ("connection", 403, REFUSED.format(mechanism), 10, 11)
    assert raw.say(marshal(0, spec.Connection.CloseOk())) == b""
    assert raw.connection.finished and raw.connection.reason == "login_refused"
    assert raw.world.amqp_front.logins == {"refused": 1}


@pytest.mark.parametrize("failures", [True, False])
def test_a_refused_client_that_hangs_up_at_once_counts_as_refused(failures: bool) -> None:
    client = World().amqp(user="unknown", authentication_failure_close=failures)
    client.connection.on_closed()
    assert client.world.amqp_front.closed == {"login_refused": 1}


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"capabilities": {}},
        {"capabilities": {"authentication_failure_close": False}},
        {"capabilities": "all of them"},
        {"capabilities": {"authentication_failure_close": 1}},
    ],
)
def test_a_client_that_cannot_read_a_refusal_is_disconnected_after_three_seconds(
    properties: Any,
) -> None:
    raw = Raw(World())
    raw.say(GREETING)
    assert raw.call(spec.Connection.StartOk(properties, response="\0guest\0wrong")) == []
    assert (
        not raw.connection.finished
        and raw.connection.deadline == raw.world.broker.agenda.now + 3_000
    )
    assert (
        raw.say(
            marshal(0, spec.Connection.TuneOk())
            + marshal(0, spec.Connection.Open())
            + marshal(1, spec.Channel.Open())
        )
        == b""
    )
    raw.connection.advance(raw.connection.deadline)
    assert (
        raw.connection.finished and raw.connection.reason == "login_refused" and raw.hear() == b""
    )


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "CRAM-MD5", "ANONYMOUS", "plain", "", "é"])
def test_an_unknown_mechanism_is_refused_with_503(mechanism: str) -> None:
    raw = Raw(World())
    raw.say(GREETING)
    answer = refusal(unmarshal(raw.say(start_ok(mechanism, b""))))
    assert answer == (
        "connection",
        503,
        (
            f"COMMAND_INVALID - unknown authentication mechanism '{mechanism}'; use one of PLAIN "
            "AMQPLAIN"
        ),
        10,
        11,
    )


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"guest"),
        ("PLAIN", b"guest\0guest"),
        ("AMQPLAIN", b""),
        ("AMQPLAIN", short("LOGIN") + b"S" + long(b"guest")),
        ("AMQPLAIN", b"\xff"),
        ("AMQPLAIN", amqplain(b"guest", b"guest")[:-1]),
        ("AMQPLAIN", b"F" * 100),
    ],
)
def test_a_response_that_cannot_be_read_is_refused_with_501(
    mechanism: str, response: bytes
) -> None:
    raw = Raw(World())
    raw.say(GREETING)
    answer = refusal(unmarshal(raw.say(start_ok(mechanism, response))))
    assert (
        answer.code,
        answer.text.startswith(f"FRAME_ERROR - {mechanism} response must be"),
        answer.class_id,
    ) == (501, True, 10)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("PLAIN", b"\0guest\0\xff\0\xfe"), ("AMQPLAIN", amqplain(b"guest", b"\xff\0\xfe"))],
)
def test_a_password_may_be_any_bytes(mechanism: str, response: bytes) -> None:
    world = World()
    given = []
    inner = world.guests.authenticate

    def remember(credentials: Any, answer: Any) -> None:
        given.append((credentials.user, credentials.password))
        inner(credentials, answer)

    world.guests.authenticate = remember  # type: ignore[method-assign]
    raw = Raw(world)
    raw.say(GREETING + start_ok(mechanism, response))
    assert given == [("guest", b"\xff\0\xfe")]


def test_input_before_a_late_verdict_is_handled_after_it() -> None:
    world = World()
    world.guests.hold = True
    raw = Raw(world)
    data = (
        GREETING
        + start_ok("PLAIN", b"\0guest\0guest")
        + marshal(0, spec.Connection.TuneOk(0, 0, 0))
        + marshal(0, spec.Connection.Open())
        + marshal(1, spec.Channel.Open())
    )
    assert names(unmarshal(raw.say(data))) == ["Connection.Start"] and raw.connection.stalled
    world.guests.decide()
    assert names(unmarshal(raw.hear())) == [
        "Connection.Tune",
        "Connection.OpenOk",
        "Channel.OpenOk",
    ]


def test_input_that_waits_for_a_verdict_is_bounded() -> None:
    world = World()
    world.guests.hold = True
    raw = Raw(world)
    raw.say(GREETING + start_ok("PLAIN", b"\0guest\0guest"))
    for _ in range(70):
        raw.say(bytes(1_000))
    assert raw.connection.finished and raw.connection.reason == "too_much_before_login"
    world.guests.decide()
    assert raw.hear() == b""


def test_many_small_chunks_before_the_verdict_are_not_too_much() -> None:
    world = World()
    world.guests.hold = True
    raw = Raw(world)
    data = GREETING + start_ok(
        "PLAIN", b"\0guest\0guest", short("long") + b"S" + long(bytes(40_000))
    )
    for at in range(0, len(data), 9_000):
        raw.say(data[at : at + 9_000])
    raw.say(bytes(40_000))
    assert raw.connection.stalled and not raw.connection.finished


def test_a_verdict_after_the_client_is_gone_changes_nothing() -> None:
    world = World()
    world.guests.hold = True
    raw = Raw(world)
    raw.say(GREETING + start_ok("PLAIN", b"\0guest\0guest"))
    raw.connection.on_closed()
    world.guests.decide()
    assert (
        raw.hear() == b""
        and not world.amqp_front.connections
        and not [context for context in world.vhost.contexts if context.users]
    )


# -- the secret


def token_world() -> World:
    """Return a broker whose user guest logs in with a token that expires."""
    world = World()
    world.guests.identities["guest"].expires = 2_000_000_000.0
    return world


@pytest.mark.parametrize("secret", [b"guest", b"another", b"", b"\xff"])
def test_the_secret_of_a_user_with_a_password_is_not_looked_at(secret: bytes) -> None:
    world = World()
    client = world.amqp()
    world.guests.hold = True
    client.connection.receive_data(method(0, 10, 70, long(secret) + short("because")))
    assert names(client.read()) == ["Connection.UpdateSecretOk"]
    assert world.guests.held == []
    assert names(client.send(spec.Queue.Declare(queue="q"))) == ["Queue.DeclareOk"]


def test_a_client_may_renew_its_token() -> None:
    client = token_world().amqp()
    assert names(client.send(spec.Connection.UpdateSecret("guest", "expires"), channel=0)) == [
        "Connection.UpdateSecretOk"
    ]


def test_a_bad_new_secret_ends_the_connection_with_530() -> None:
    client = token_world().amqp()
    client.connection.receive_data(method(0, 10, 70, long(b"\xff") + short("because")))
    assert refusal(client.read()) == (
        "connection",
        530,
        "NOT_ALLOWED - New secret was refused by one of the backends",
        10,
        70,
    )


def test_a_close_that_was_kept_while_a_new_secret_is_looked_at_is_answered_at_shutdown() -> None:
    world = token_world()
    client = world.amqp()
    world.guests.hold = True
    client.send(
        spec.Connection.UpdateSecret("guest", ""), spec.Connection.Close(200, "", 0, 0), channel=0
    )
    client.connection.close("shutdown")
    assert (
        names(client.read()) == ["Connection.Close", "Connection.CloseOk"]
        and client.connection.finished
    )


def test_input_during_the_check_of_a_new_secret_is_handled_afterwards() -> None:
    world = token_world()
    client = world.amqp()
    world.guests.hold = True
    assert client.send(spec.Connection.UpdateSecret("guest", ""), channel=0) == []
    assert client.send(spec.Queue.Declare(queue="q")) == []
    world.guests.decide()
    assert names(client.read()) == ["Connection.UpdateSecretOk", "Queue.DeclareOk"]


@pytest.mark.parametrize("secret", ["guest", "wrong"])
def test_a_verdict_on_a_new_secret_after_shutdown_is_not_told(secret: str) -> None:
    world = token_world()
    client = world.amqp()
    world.guests.hold = True
    client.send(spec.Connection.UpdateSecret(secret, ""), channel=0)
    client.connection.close("shutdown")
    assert refusal(client.read()).code == 320
    world.guests.decide()
    assert client.read() == []


def test_identities_may_share_a_gate_and_leave_it_alone() -> None:
    world = World()
    world.guests.identities["other"] = Identity("other")
    clients = [world.amqp(), world.amqp(), world.amqp(user="other")]
    assert sorted(
        context.users for context in world.vhost.contexts if context.front == "amqp091"
    ) == [1, 2]
    for client in clients:
        client.send(spec.Connection.Close(200, "", 0, 0), channel=0)
    assert sum(context.users for context in world.vhost.contexts) == 0
