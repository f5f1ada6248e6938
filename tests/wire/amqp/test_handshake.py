"""The handshake: protocol header, credentials, tuning, opening, and the replies to refused
clients.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from protocols.amqp.connection.handshake import GREETING, GREETING_8
from protocols.amqp.options import AmqpOptions
from tests.clients import World, marshal, unmarshal
from tests.wire.amqp.speech import Raw, frame, long, method, names, refusal, short

FAILURES = {"capabilities": {"authentication_failure_close": True}}
REFUSED = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism {}. For details see "
    "the broker logfile."
)


def amqplain(user: bytes, password: bytes) -> bytes:
    """Return the entries of an AMQPLAIN table, without their length."""
    return short("LOGIN") + b"S" + long(user) + short("PASSWORD") + b"S" + long(password)


def start_ok(mechanism: str, response: bytes, properties: bytes = b"") -> bytes:
    return method(0, 10, 11, long(properties) + short(mechanism) + long(response) + short("en_US"))


def tuned(world: World, frame_max: int = 0, channel_max: int = 0, heartbeat: int = 0) -> list[Any]:
    """Return the replies to a tune-ok and open."""
    raw = Raw(world)
    raw.say(GREETING + marshal(0, spec.Connection.StartOk(response="\0guest\0guest")))
    return raw.call(
        spec.Connection.TuneOk(channel_max, frame_max, heartbeat), spec.Connection.Open()
    )


# -- the protocol header


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"AMQP\x00\x00\x09\x00",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x01\x01\x00\x0a",
        b"AMQP\x03\x01\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"\x10\x0c\x00\x04MQTT\x04\x02",
        b"AMQP\x01\x01\x08\x01",
        b"amqp\x00\x00\x09\x01",
    ],
)
def test_a_foreign_header_is_answered_with_ours_and_a_close_wherever_it_is_cut(
    header: bytes,
) -> None:
    for cut in range(len(header)):
        raw = Raw(World())
        assert raw.say(header[:cut]) + raw.say(header[cut:]) == GREETING
        assert raw.connection.finished and raw.connection.reason == "protocol_error"


@pytest.mark.parametrize("greeting", [GREETING, GREETING_8])
def test_our_header_and_that_of_0_8_are_answered_with_start_wherever_they_are_cut(
    greeting: bytes,
) -> None:
    for cut in range(len(greeting)):
        raw = Raw(World())
        assert raw.say(greeting[:cut]) == b""
        assert names(unmarshal(raw.say(greeting[cut:]))) == ["Connection.Start"]


def test_start_names_version_mechanisms_locales_and_every_capability() -> None:
    options = AmqpOptions()
    options.version = "1.2.3"
    [start] = unmarshal(Raw(World(amqp=options)).say(GREETING))
    assert (start.version_major, start.version_minor, start.mechanisms, start.locales) == (
        0,
        9,
        "PLAIN AMQPLAIN",
        "en_US",
    )
    assert start.server_properties.pop("capabilities") == dict.fromkeys(
        (
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "consumer_priorities",
            "authentication_failure_close",
            "per_consumer_qos",
            "direct_reply_to",
        ),
        True,
    )
    assert sorted(start.server_properties) == [
        "cluster_name",
        "copyright",
        "information",
        "platform",
        "product",
        "version",
    ]
    assert (start.server_properties["product"], start.server_properties["version"]) == (
        "Trellis",
        "1.2.3",
    )


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
            f"COMMAND_INVALID - unknown authentication mechanism '{mechanism}'; known are PLAIN "
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
        answer.text.startswith(f"FRAME_ERROR - {mechanism} response is no"),
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


def test_a_verdict_may_come_later_and_what_came_meanwhile_is_heard_then() -> None:
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


def test_what_waits_for_a_verdict_is_bounded() -> None:
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


# -- tuning


@pytest.mark.parametrize("frame_max", [0, 4_096, 8_192, 131_071, 131_072])
@pytest.mark.parametrize("channel_max", [0, 1, 2_047])
@pytest.mark.parametrize("heartbeat", [0, 1, 60, 600, 65_535])
def test_lower_values_and_none_at_all_are_accepted(
    frame_max: int, channel_max: int, heartbeat: int
) -> None:
    assert names(tuned(World(), frame_max, channel_max, heartbeat)) == ["Connection.OpenOk"]


@pytest.mark.parametrize(
    ("frame_max", "channel_max", "text"),
    [
        (
            131_073,
            0,
            "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        (
            0xFFFF_FFFF,
            0,
            "negotiated frame_max = 4294967295 is higher than the maximum allowed value (131072)",
        ),
        (4_095, 0, "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
        (1, 0, "negotiated frame_max = 1 is lower than the minimum allowed value (4096)"),
        (0, 2_048, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
        (
            0,
            65_535,
            "negotiated channel_max = 65535 is higher than the maximum allowed value (2047)",
        ),
    ],
)
def test_values_out_of_range_are_refused_with_530(
    frame_max: int, channel_max: int, text: str
) -> None:
    assert refusal(tuned(World(), frame_max, channel_max)) == (
        "connection",
        530,
        f"NOT_ALLOWED - {text}",
        10,
        31,
    )


def test_what_we_offer_is_what_the_options_say() -> None:
    options = AmqpOptions()
    options.channel_max, options.frame_max, options.heartbeat = 7, 8_192, 11
    raw = Raw(World(amqp=options))
    [_, tune] = unmarshal(raw.say(GREETING + start_ok("PLAIN", b"\0guest\0guest")))
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (7, 8_192, 11)
    assert names(raw.call(spec.Connection.TuneOk(0, 0, 0), spec.Connection.Open())) == [
        "Connection.OpenOk"
    ]
    assert names(raw.call(spec.Channel.Open(), channel=7)) == ["Channel.OpenOk"]
    assert refusal(raw.call(spec.Channel.Open(), channel=8)).code == 530


def test_a_channel_above_the_negotiated_number_is_refused_with_530() -> None:
    raw = Raw(World())
    raw.say(GREETING + start_ok("PLAIN", b"\0guest\0guest"))
    raw.call(spec.Connection.TuneOk(3, 0, 0), spec.Connection.Open())
    assert names(raw.call(spec.Channel.Open(), channel=3)) == ["Channel.OpenOk"]
    assert refusal(raw.call(spec.Channel.Open(), channel=4)) == (
        "connection",
        530,
        "NOT_ALLOWED - number of channels opened (4) has reached the negotiated channel_max (3)",
        20,
        10,
    )


# -- opening


@pytest.mark.parametrize("vhost", ["nope", "", "//", "é"])
def test_a_missing_virtual_host_is_refused_with_530(vhost: str) -> None:
    raw = Raw(World())
    raw.say(
        GREETING
        + start_ok("PLAIN", b"\0guest\0guest")
        + marshal(0, spec.Connection.TuneOk(0, 0, 0))
    )
    assert refusal(raw.call(spec.Connection.Open(vhost))) == (
        "connection",
        530,
        f"NOT_ALLOWED - vhost {vhost} not found",
        10,
        40,
    )


def test_silence_during_the_handshake_ends_the_connection_after_ten_seconds() -> None:
    spoken = [
        GREETING,
        start_ok("PLAIN", b"\0guest\0guest"),
        marshal(0, spec.Connection.TuneOk(0, 0, 0)),
        b"",
    ]
    for said in range(len(spoken)):
        raw = Raw(World())
        for data in spoken[:said]:
            raw.say(data)
        assert raw.connection.deadline == raw.world.broker.agenda.now + 10_000
        raw.connection.advance(raw.connection.deadline)
        assert (
            raw.connection.finished
            and raw.connection.reason == "handshake_timeout"
            and raw.hear() == b""
        )
        assert raw.world.amqp_front.closed == {"handshake_timeout": 1}


def test_a_verdict_that_never_comes_ends_with_the_handshake() -> None:
    world = World()
    world.guests.hold = True
    raw = Raw(world)
    raw.say(GREETING + start_ok("PLAIN", b"\0guest\0guest"))
    raw.connection.advance(raw.connection.deadline)
    assert raw.connection.finished and raw.connection.reason == "handshake_timeout"
    world.guests.decide()
    assert raw.hear() == b""


def test_an_open_connection_without_heartbeats_has_no_deadline() -> None:
    assert World().amqp().connection.deadline == 0


# -- what comes at the wrong time

OPENING = [
    GREETING,
    start_ok("PLAIN", b"\0guest\0guest"),
    marshal(0, spec.Connection.TuneOk(0, 0, 0)),
    marshal(0, spec.Connection.Open()),
]
STATES = ["start", "tune", "open", "running"]


#: Methods that come too early or too late, the reply, and the states in which they may come.
EARLY = [
    (marshal(1, spec.Channel.Open()), 504, 20, 10, "running"),
    (marshal(1, spec.Queue.Declare(queue="q")), 504, 50, 10, ""),
    (marshal(0, spec.Channel.Open()), 504, 20, 10, ""),
    (marshal(0, spec.Queue.Declare(queue="q")), 504, 50, 10, ""),
    (marshal(0, spec.Connection.CloseOk()), 504, 10, 51, ""),
    (marshal(0, spec.Connection.StartOk()), 504, 10, 11, "start"),
    (marshal(0, spec.Connection.TuneOk(0, 0, 0)), 504, 10, 31, "tune"),
    (marshal(0, spec.Connection.Open()), 504, 10, 40, "open"),
    (marshal(0, spec.Connection.UpdateSecret("guest", "")), 504, 10, 70, "running"),
    (marshal(0, spec.Connection.Blocked()), 504, 10, 60, "running"),
    (marshal(0, spec.Connection.Start()), 504, 10, 10, ""),
    (marshal(1, spec.Connection.Open()), 504, 10, 40, ""),
    (marshal(1, spec.Connection.Close(200, "", 0, 0)), 504, 10, 50, ""),
    (marshal(1, spec.Connection.CloseOk()), 504, 10, 51, ""),
    (frame(2, 1, bytes(14)), 505, 0, 0, ""),
    (frame(3, 1, b"x"), 505, 0, 0, ""),
    (frame(2, 0, bytes(14)), 505, 0, 0, ""),
    (frame(8, 1, b""), 505, 0, 0, ""),
    (frame(7, 0, b""), 501, 0, 0, ""),
    (frame(200, 0, b""), 501, 0, 0, ""),
    (frame(1, 0, b""), 501, 0, 0, ""),
    (b"GET / HTTP/1.1\r\n\r\n" + bytes(100), 501, 0, 0, ""),
]


@pytest.mark.parametrize(
    ("state", "early", "code", "class_id", "method_id"),
    [(state, *case) for *case, right in EARLY for state in STATES if state != right],
)
def test_what_comes_in_the_wrong_state_is_refused_on_the_connection(
    state: str, early: bytes, code: int, class_id: int, method_id: int
) -> None:
    raw = Raw(World())
    raw.say(b"".join(OPENING[: STATES.index(state) + 1]))
    answer = refusal(unmarshal(raw.say(early)))
    assert (answer.scope, answer.code, answer.class_id, answer.method_id) == (
        "connection",
        code,
        class_id,
        method_id,
    )
    assert raw.connection.deadline == raw.world.broker.agenda.now + 5_000
    raw.say(marshal(0, spec.Connection.CloseOk()))
    if early.startswith(b"GET"):
        raw.connection.advance(raw.connection.deadline)
    assert raw.connection.finished and raw.connection.reason == "protocol_error"


@pytest.mark.parametrize("state", STATES)
def test_a_client_may_say_close_in_every_state(state: str) -> None:
    raw = Raw(World())
    raw.say(b"".join(OPENING[: STATES.index(state) + 1]))
    assert names(raw.call(spec.Connection.Close(200, "bye", 0, 0))) == ["Connection.CloseOk"]
    assert raw.connection.finished and raw.connection.reason == "client"
    assert raw.say(marshal(1, spec.Channel.Open())) == b""


@pytest.mark.parametrize("state", STATES)
def test_a_heartbeat_is_welcome_in_every_state(state: str) -> None:
    raw = Raw(World())
    raw.say(b"".join(OPENING[: STATES.index(state) + 1]))
    assert raw.say(frame(8, 0, b"")) == b"" and not raw.connection.finished


@pytest.mark.parametrize("state", ["greeting", *STATES])
def test_shutdown_closes_with_320_after_the_protocol_header(state: str) -> None:
    raw = Raw(World())
    raw.say(b"".join(OPENING[: ["greeting", *STATES].index(state)]))
    raw.connection.close("shutdown")
    heard = unmarshal(raw.hear())
    if state == "greeting":
        assert heard == [] and raw.connection.finished
    else:
        assert refusal(heard) == (
            "connection",
            320,
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
            0,
            0,
        )
        raw.connection.close("shutdown")
        assert raw.say(marshal(0, spec.Connection.CloseOk())) == b"" and raw.connection.finished
    assert raw.connection.reason == "shutdown"


def test_a_verdict_after_shutdown_admits_no_client() -> None:
    world = World()
    world.guests.hold = True
    raw = Raw(world)
    raw.say(b"".join(OPENING[:2]))
    raw.connection.close("shutdown")
    world.guests.decide()
    assert refusal(unmarshal(raw.hear())).code == 320
    assert not [context for context in world.vhost.contexts if context.users]


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


def test_what_comes_while_a_new_secret_is_looked_at_is_heard_after_it() -> None:
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


# -- heartbeats


def beating(seconds: int) -> Raw:
    raw = Raw(World())
    raw.say(b"".join(OPENING[:2]))
    assert names(raw.call(spec.Connection.TuneOk(0, 0, seconds), spec.Connection.Open())) == [
        "Connection.OpenOk"
    ]
    return raw


def test_we_beat_twice_an_interval() -> None:
    raw = beating(10)
    world, connection = raw.world, raw.connection
    for beat in range(1, 6):
        assert connection.deadline == 1_000 + beat * 5_000
        world.sleep(5_000)
        assert raw.say(frame(8, 0, b"")) == b""
        connection.advance(connection.deadline)
        assert raw.hear() == frame(8, 0, b"")


@pytest.mark.parametrize("life", [frame(8, 0, b""), marshal(1, spec.Channel.Open()), b"\x01"])
def test_any_bytes_are_a_sign_of_life_and_two_silent_intervals_are_the_end(life: bytes) -> None:
    raw = beating(10)
    for _ in range(4):
        raw.world.sleep(5_000)
        raw.connection.advance(raw.connection.deadline)
    raw.connection.receive_data(life)
    for _ in range(4):
        raw.world.sleep(5_000)
        raw.connection.advance(raw.connection.deadline)
        assert not raw.connection.finished
    raw.world.sleep(5_000)
    raw.connection.advance(raw.connection.deadline)
    assert raw.connection.finished and raw.connection.reason == "heartbeat_timeout"


def test_silence_is_not_held_against_a_client_that_we_do_not_hear() -> None:
    raw = beating(1)
    raw.world.slow_disk = True
    raw.call(spec.Channel.Open(), channel=1)
    assert (
        raw.call(spec.Queue.Declare(queue="q", durable=True), channel=1) == []
        and raw.connection.stalled
    )
    for _ in range(20):
        raw.world.sleep(500)
        raw.connection.advance(raw.connection.deadline)
    assert not raw.connection.finished
    raw.world.durable()
    assert names(unmarshal(raw.hear().replace(frame(8, 0, b""), b""))) == ["Queue.DeclareOk"]


def test_the_end_of_a_silent_client_gives_back_what_it_held() -> None:
    raw = beating(1)
    raw.call(
        spec.Channel.Open(),
        spec.Queue.Declare(queue="mine", exclusive=True),
        spec.Queue.Declare(queue="q"),
        channel=1,
    )
    other = raw.world.amqp()
    other.publish("", "q", b"x")
    raw.call(spec.Basic.Get(queue="q"), channel=1)
    for _ in range(5):
        raw.world.sleep(500)
        raw.connection.advance(raw.connection.deadline)
    assert raw.connection.finished and "mine" not in raw.world.vhost.queues
    assert (raw.world.queue("q").depth, raw.world.queue("q").unacked) == (1, 0)


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
