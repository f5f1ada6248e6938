"""The handshake: protocol header, tuning, opening, and methods at the wrong time."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from protocols.amqp.connection.handshake import GREETING, GREETINGS
from protocols.amqp.options import AmqpOptions
from tests.clients import World, marshal, unmarshal
from tests.wire.amqp.logins import OPENING, start_ok
from tests.wire.amqp.speech import Raw, frame, names, refusal


def tuned(world: World, frame_max: int = 0, channel_max: int = 0, heartbeat: int = 0) -> list[Any]:
    """Log in with these values of connection.tune-ok; return the replies to tune-ok and open."""
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


@pytest.mark.parametrize("greeting", GREETINGS)
def test_our_header_and_those_of_0_8_and_0_9_are_answered_with_start_wherever_they_are_cut(
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
        "trellis_version",
        "version",
    ]
    assert (start.server_properties["product"], start.server_properties["version"]) == (
        "RabbitMQ",
        "3.13.0",
    )
    assert start.server_properties["trellis_version"] == "1.2.3"


def test_another_product_is_sent_with_the_version_of_the_broker() -> None:
    options = AmqpOptions("1.2.3")
    options.product = "Trellis"
    [start] = unmarshal(Raw(World(amqp=options)).say(GREETING))
    sent = start.server_properties
    assert (sent["product"], sent["version"]) == ("Trellis", "1.2.3")


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


def test_offered_limits_are_those_of_the_options() -> None:
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
        "NOT_ALLOWED - channel number 4 is above the negotiated channel_max (3)",
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
    for steps in range(len(spoken)):
        raw = Raw(World())
        for data in spoken[:steps]:
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


# -- methods at the wrong time


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
def test_method_in_the_wrong_state_closes_the_connection(
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
