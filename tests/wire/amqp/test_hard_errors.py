"""Hard errors: code and text, the end of the connection, and the input ignored while it closes.

There is one table of errors. A row has the bytes that cause the error, and the reply.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import World, marshal, publication
from tests.wire.amqp.provoked import Q, prepared
from tests.wire.amqp.speech import (
    METHOD,
    body,
    content,
    frame,
    header,
    long,
    method,
    names,
    publish,
    refusal,
    short,
)

NO_RECOVER = "NOT_IMPLEMENTED - basic.recover with requeue=false is not supported"
#: Errors that close the connection. Channel 2 is open, 3 is not.
HARD: list[tuple[Any, int, str, int, int]] = [
    # 501 FRAME_ERROR
    (
        method(2, 50, 10, b"\0\0" + short("q")),
        501,
        "FRAME_ERROR - Queue.Declare is cut off before passive",
        50,
        10,
    ),
    (
        method(2, 50, 10, b"\0\0\xffq"),
        501,
        "FRAME_ERROR - queue of Queue.Declare: a short string is cut off",
        50,
        10,
    ),
    (
        method(2, 50, 10, b"\0"),
        501,
        "FRAME_ERROR - ticket of Queue.Declare: the number is cut off",
        50,
        10,
    ),
    (
        method(2, 50, 10, b"\0\0" + short("q") + b"\0"),
        501,
        "FRAME_ERROR - arguments of Queue.Declare: a table or array is cut off",
        50,
        10,
    ),
    (
        method(2, 50, 10, b"\0\0" + short("q") + b"\0" + long(b"\xff")),
        501,
        "FRAME_ERROR - arguments of Queue.Declare: a short string is cut off",
        50,
        10,
    ),
    (
        method(2, 50, 10, b"\0\0" + short("q") + b"\0" + long(short("a"))),
        501,
        "FRAME_ERROR - arguments of Queue.Declare: an entry of a table has no value",
        50,
        10,
    ),
    (
        method(2, 50, 10, b"\0\0" + short("q") + b"\0" + long(short("a") + b"?")),
        501,
        "FRAME_ERROR - arguments of Queue.Declare: unknown type b'?' in a table",
        50,
        10,
    ),
    (
        method(2, 50, 10, b"\0\0" + short("q") + b"\0" + long(short("a") + b"S\xff\xff\xff\xff")),
        501,
        "FRAME_ERROR - arguments of Queue.Declare: a value in a table or array is cut off",
        50,
        10,
    ),
    (
        method(2, 60, 80, b"\0"),
        501,
        "FRAME_ERROR - delivery_tag of Basic.Ack: the number is cut off",
        60,
        80,
    ),
    (
        method(2, 60, 40, b"\0\0\0\0"),
        501,
        "FRAME_ERROR - Basic.Publish is cut off before mandatory",
        60,
        40,
    ),
    (
        method(2, 60, 40, b"\0\0\x09x\0\0\0\0\0") + content(b"", channel=2),
        501,
        "FRAME_ERROR - exchange or routing key of Basic.Publish is cut off",
        60,
        40,
    ),
    (
        method(2, 60, 40, b"\0\0\0\xff\0\0\0\0\0") + content(b"x", channel=2),
        501,
        "FRAME_ERROR - exchange or routing key of Basic.Publish is cut off",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + frame(2, 2, bytes(13)),
        501,
        "FRAME_ERROR - content header is cut off",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + header(-1 & 0xFFFF_FFFF_FFFF_FFFF, channel=2),
        501,
        "FRAME_ERROR - content header has a negative body size",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + header(3, channel=2) + body(b"four", 2),
        501,
        "FRAME_ERROR - body is longer than its content header declares",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + header(3, channel=2) + body(b"ab", 2) + body(b"cd", 2),
        501,
        "FRAME_ERROR - body is longer than its content header declares",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + content(b"x", b"\x01\x00", 2),
        501,
        "FRAME_ERROR - a property is longer than its frame",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + content(b"x", b"\x01\x00\x0510", 2),
        501,
        "FRAME_ERROR - a property is longer than its frame",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + content(b"x", b"\x80\x10" + short("text") + b"\xff", 2),
        501,
        "FRAME_ERROR - a property is longer than its frame",
        60,
        40,
    ),
    (frame(4, 2, b"x"), 501, "FRAME_ERROR - unknown frame type 4", 0, 0),
    (frame(0, 2, b"x"), 501, "FRAME_ERROR - unknown frame type 0", 0, 0),
    (frame(255, 2, b"x"), 501, "FRAME_ERROR - unknown frame type 255", 0, 0),
    # 502 SYNTAX_ERROR
    (
        method(2, 50, 10, b"\0\0" + short(b"\xff") + b"\0" + long(b"")),
        502,
        "SYNTAX_ERROR - queue of Queue.Declare is not UTF-8",
        50,
        10,
    ),
    (
        method(2, 60, 20, b"\0\0" + short("q") + short(b"\xff") + b"\0" + long(b"")),
        502,
        "SYNTAX_ERROR - consumer_tag of Basic.Consume is not UTF-8",
        60,
        20,
    ),
    (
        publish(b"\xff", "q", channel=2) + content(b"x", channel=2),
        502,
        "SYNTAX_ERROR - exchange of Basic.Publish is not UTF-8",
        60,
        40,
    ),
    # 503 COMMAND_INVALID
    (
        marshal(2, spec.Exchange.Declare(exchange="e", exchange_type="x-federation-upstream")),
        503,
        "COMMAND_INVALID - unknown exchange type 'x-federation-upstream'",
        40,
        10,
    ),
    (
        marshal(2, spec.Basic.Deliver("t", 1, False, "", "")),
        503,
        "COMMAND_INVALID - unimplemented method Basic.Deliver",
        60,
        60,
    ),
    (
        marshal(2, Q.DeclareOk("q", 0, 0)),
        503,
        "COMMAND_INVALID - unimplemented method Queue.DeclareOk",
        50,
        11,
    ),
    (method(2, 99, 98, b"\xff"), 503, "COMMAND_INVALID - unknown method 99.98", 99, 98),
    (method(2, 0xFFFF, 0xFFFF), 503, "COMMAND_INVALID - unknown method 65535.65535", 65535, 65535),
    (frame(METHOD, 2, b"\0\x3c"), 501, "FRAME_ERROR - method frame is cut off", 0, 0),
    # 504 CHANNEL_ERROR
    (marshal(2, spec.Channel.Open()), 504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10),
    (marshal(3, Q.Declare(queue="q")), 504, "CHANNEL_ERROR - expected 'channel.open'", 50, 10),
    (
        marshal(3, spec.Channel.Close(0, "", 0, 0)),
        504,
        "CHANNEL_ERROR - expected 'channel.open'",
        20,
        40,
    ),
    (marshal(3, spec.Channel.CloseOk()), 504, "CHANNEL_ERROR - expected 'channel.open'", 20, 41),
    (publication("", "q", b"x", 3), 504, "CHANNEL_ERROR - expected 'channel.open'", 60, 40),
    (method(3, 60, 80, bytes(9)), 504, "CHANNEL_ERROR - expected 'channel.open'", 60, 80),
    # 505 UNEXPECTED_FRAME
    (frame(8, 2, b""), 505, "UNEXPECTED_FRAME - a heartbeat must use channel 0, not 2", 0, 0),
    (
        body(b"x", 2),
        505,
        "UNEXPECTED_FRAME - a content frame needs a basic.publish before it",
        0,
        0,
    ),
    (
        content(b"x", channel=2),
        505,
        "UNEXPECTED_FRAME - a content frame needs a basic.publish before it",
        0,
        0,
    ),
    (
        content(b"x", channel=3),
        505,
        "UNEXPECTED_FRAME - a content frame needs a basic.publish before it",
        0,
        0,
    ),
    (
        publish("", "q", channel=2) + body(b"x", 2),
        505,
        "UNEXPECTED_FRAME - content header and body frames are in the wrong order",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + header(1, channel=2) + header(1, channel=2),
        505,
        "UNEXPECTED_FRAME - content header and body frames are in the wrong order",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + header(1, channel=2, class_id=50),
        505,
        "UNEXPECTED_FRAME - the class of the content header must be basic (60)",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + marshal(2, Q.Declare(queue="q")),
        505,
        "UNEXPECTED_FRAME - a method frame interrupts the content of a basic.publish",
        50,
        10,
    ),
    (
        publish("", "q", channel=2) + header(1, channel=2) + publish("", "q", channel=2),
        505,
        "UNEXPECTED_FRAME - a method frame interrupts the content of a basic.publish",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + header(1, channel=2) + marshal(2, spec.Basic.Ack(1)),
        505,
        "UNEXPECTED_FRAME - a method frame interrupts the content of a basic.publish",
        60,
        80,
    ),
    # 530 NOT_ALLOWED
    (
        marshal(2, spec.Basic.Consume(queue="q", consumer_tag="t")) * 2,
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 't'",
        60,
        20,
    ),
    (
        marshal(2048, spec.Channel.Open()),
        530,
        "NOT_ALLOWED - channel number 2048 is above the negotiated channel_max (2047)",
        20,
        10,
    ),
    # 540 NOT_IMPLEMENTED
    (
        publication("", "q", b"x", 2, immediate=True),
        540,
        "NOT_IMPLEMENTED - immediate=true",
        60,
        40,
    ),
    (
        publication("nope", "q", b"x", 2, immediate=True, mandatory=True),
        540,
        "NOT_IMPLEMENTED - immediate=true",
        60,
        40,
    ),
    (
        marshal(2, spec.Basic.Qos(prefetch_size=10)),
        540,
        "NOT_IMPLEMENTED - prefetch_size!=0 (10)",
        60,
        10,
    ),
    (marshal(2, spec.Basic.Recover(requeue=False)), 540, NO_RECOVER, 60, 110),
    (method(2, 60, 100, b"\0"), 540, NO_RECOVER, 60, 100),
    (
        marshal(2, spec.Channel.Flow(active=False)),
        540,
        "NOT_IMPLEMENTED - channel.flow with active=false is not supported",
        20,
        20,
    ),
]


@pytest.mark.parametrize(("provocation", "code", "text", "class_id", "method_id"), HARD)
def test_hard_error_ends_the_connection_and_requeues_its_deliveries(
    provocation: bytes, code: int, text: str, class_id: int, method_id: int
) -> None:
    client = prepared()
    client.send(
        spec.Basic.Consume(queue="q", consumer_tag="held"), Q.Declare(queue="mine", exclusive=True)
    )
    client.connection.receive_data(provocation + marshal(0, spec.Connection.CloseOk()))
    closes = [one for one in client.read() if one.name != "Basic.ConsumeOk"]
    assert refusal(closes) == ("connection", code, text, class_id, method_id)
    assert client.connection.finished and client.connection.reason == "protocol_error"
    assert (client.world.queue("q").depth, client.world.queue("q").unacked) == (
        1,
        0,
    ) and "mine" not in client.world.vhost.queues
    client.world.fates()


@pytest.mark.parametrize("cut", [0, 1, 3, 7, 8, 40])
@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (
            frame(1, 1, bytes(131_073)),
            "a frame has a payload of 131073 bytes; the limit is 131072 bytes",
        ),
        (
            b"\x01\0\1\xff\xff\xff\xff" + bytes(50),
            "a frame has a payload of 4294967295 bytes; the limit is 131072 bytes",
        ),
        (
            b"\x01\0\1\x80\0\0\0" + bytes(50),
            "a frame has a payload of 2147483648 bytes; the limit is 131072 bytes",
        ),
        (method(1, 50, 10, bytes(40))[:-1] + b"\xcd", "frame does not end with byte 206"),
    ],
)
def test_input_behind_a_broken_frame_is_ignored_however_it_is_cut(
    broken: bytes, text: str, cut: int
) -> None:
    client = World().amqp()
    stream = (
        broken
        + marshal(0, spec.Connection.Close(0, "", 0, 0))
        + marshal(0, spec.Connection.CloseOk())
    )
    client.connection.receive_data(stream[:cut])
    client.connection.receive_data(stream[cut:])
    assert refusal(client.read()) == ("connection", 501, f"FRAME_ERROR - {text}", 0, 0)
    assert not client.connection.finished
    client.connection.receive_data(marshal(0, spec.Connection.CloseOk()))
    client.connection.advance(client.connection.deadline)
    assert client.connection.finished and client.connection.reason == "protocol_error"


@pytest.mark.parametrize(
    "before", [b"", publication("", "x", b"y"), marshal(1, Q.Declare(queue="q"))]
)
def test_an_oversized_frame_is_refused_at_its_seventh_byte(before: bytes) -> None:
    client = World().amqp()
    start = b"\x01\0\1" + (131_073).to_bytes(4, "big")
    client.connection.receive_data(before + start[:6])
    assert "Connection.Close" not in names(client.read())
    client.connection.receive_data(start[6:])
    text = "FRAME_ERROR - a frame has a payload of 131073 bytes; the limit is 131072 bytes"
    assert refusal(client.read()) == ("connection", 501, text, 0, 0)


def test_the_seventh_byte_of_a_permitted_frame_is_no_error() -> None:
    client = World().amqp()
    client.connection.receive_data(b"\x01\0\1" + (131_072).to_bytes(4, "big"))
    assert client.read() == [] and not client.connection.finished


def test_a_broken_frame_is_not_about_the_method_before_it() -> None:
    client = World().amqp()
    client.connection.receive_data(
        publication("", "x", b"y")
        + marshal(1, Q.Declare(queue="q"))
        + b"\x01\0\1\xff\xff\xff\xff\0"
    )
    assert client.read()[-1].method_id == 0


def test_a_closing_connection_ignores_everything_but_close_and_close_ok() -> None:
    client = prepared()
    client.connection.receive_data(frame(8, 1, b""))
    client.read()
    assert client.publish("", "q", b"ignored") == [] and client.world.queue("q").depth == 1
    assert client.send(Q.Declare(queue="new")) == [] and "new" not in client.world.vhost.queues
    assert client.send(spec.Channel.Close(0, "", 0, 0)) == []
    client.connection.receive_data(
        frame(8, 1, b"") + frame(99, 5, b"z" * 5_000) + content(b"x" * 100_000)
    )
    assert client.read() == [] and not client.connection.finished
    assert names(client.send(spec.Connection.Close(200, "", 0, 0), channel=0)) == [
        "Connection.CloseOk"
    ]
    assert client.connection.finished


def test_a_closing_connection_that_hears_nothing_ends_by_itself() -> None:
    client = World().amqp()
    client.connection.receive_data(frame(8, 1, b""))
    client.read()
    client.connection.advance(client.connection.deadline)
    assert client.connection.finished and client.read() == []
