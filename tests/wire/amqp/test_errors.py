"""Errors: code and text, whether the channel or the connection closes, and the effect on others.

There is one table for the soft errors and one for the hard ones: the methods before, the methods
that cause the error, and the reply.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.limits import BrokerLimits
from tests.clients import Amqp, World, marshal, publication, unmarshal
from tests.wire.amqp.refused import DECLARING
from tests.wire.amqp.speech import (
    METHOD,
    Refusal,
    body,
    content,
    deliveries,
    frame,
    header,
    long,
    method,
    names,
    open_channel,
    publish,
    refusal,
    reopen,
    short,
)

Q, X = spec.Queue, spec.Exchange


def exclusive(world: World) -> None:
    world.amqp().send(Q.Declare(queue="theirs", exclusive=True))


def prepared(limit: int = 0) -> Amqp:
    """Return a client with channels 1 and 2, and queues and exchanges to cause errors with.

    Queue `q` has one message, `full` is full, `taken` has an exclusive consumer; there is an
    exchange `x`, and an exclusive queue of another connection.
    """
    limits = BrokerLimits()
    if limit:
        limits.message = limit
    world = World(limits)
    exclusive(world)
    client = world.amqp()
    client.queue("q")
    client.queue("full")
    client.queue("taken")
    client.send(spec.Basic.Consume(queue="taken", exclusive=True))
    client.publish("", "full", b"waits")
    client.send(
        X.Declare(exchange="x", exchange_type="direct"),
        X.Declare(exchange="inside", exchange_type="fanout", internal=True),
        Q.Bind(queue="q", exchange="x", routing_key="k"),
    )
    client.publish("", "q", b"waits")
    client.queue("single", x_single_active_consumer=True)
    client.send(X.Declare(exchange="hash", exchange_type="x-consistent-hash"))
    open_channel(client, 2)
    return client


LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}' in vhost '/'. It "
    "could be originally declared on "
    "another connection or the exclusive property value does not match that of the original "
    "declaration."
)
NO_Q, NO_X = (
    "NOT_FOUND - no queue 'nope' in vhost '/'",
    "NOT_FOUND - no exchange 'nope' in vhost '/'",
)
NO_LAST = "NOT_FOUND - no previously declared queue"
DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"
SYSTEM = "ACCESS_REFUSED - deletion of system exchange '{}' in vhost '/' not allowed"
RESERVED = "ACCESS_REFUSED - {} contains reserved prefix 'amq.*'"


def arguments(**given: Any) -> Any:
    return {name.replace("_", "-"): value for name, value in given.items()}


#: Errors that close the channel only.
SOFT: list[tuple[Any, int, str, int, int]] = [
    # 404
    (Q.Declare(queue="nope", passive=True), 404, NO_Q, 50, 10),
    (Q.Declare(queue="", passive=True), 404, NO_LAST, 50, 10),
    (Q.Bind(queue="nope", exchange="x"), 404, NO_Q, 50, 20),
    (Q.Bind(queue="q", exchange="nope"), 404, NO_X, 50, 20),
    (Q.Bind(queue="", exchange="x"), 404, NO_LAST, 50, 20),
    (Q.Unbind(queue="", exchange="x"), 404, NO_LAST, 50, 50),
    (Q.Purge(queue="nope"), 404, NO_Q, 50, 30),
    (Q.Purge(queue=""), 404, NO_LAST, 50, 30),
    (Q.Delete(queue=""), 404, NO_LAST, 50, 40),
    (X.Declare(exchange="nope", passive=True), 404, NO_X, 40, 10),
    (X.Bind(destination="nope", source="x"), 404, NO_X, 40, 30),
    (X.Bind(destination="x", source="nope"), 404, NO_X, 40, 30),
    (spec.Basic.Consume(queue="nope"), 404, NO_Q, 60, 20),
    (spec.Basic.Consume(queue=""), 404, NO_LAST, 60, 20),
    (spec.Basic.Get(queue="nope"), 404, NO_Q, 60, 70),
    (spec.Basic.Get(queue=""), 404, NO_LAST, 60, 70),
    (publication("nope", "k", b"x", 2), 404, NO_X, 60, 40),
    (publication("nope", "k", b"", 2), 404, NO_X, 60, 40),
    # 403
    (Q.Declare(queue="amq.mine"), 403, RESERVED.format("queue name 'amq.mine'"), 50, 10),
    (X.Declare(exchange="amq.mine"), 403, RESERVED.format("exchange name 'amq.mine'"), 40, 10),
    (X.Delete(exchange="amq.topic"), 403, SYSTEM.format("amq.topic"), 40, 20),
    (X.Delete(exchange="amq.nope"), 403, SYSTEM.format("amq.nope"), 40, 20),
    (X.Declare(exchange=""), 403, DEFAULT, 40, 10),
    (X.Declare(exchange="", passive=True), 403, DEFAULT, 40, 10),
    (X.Delete(exchange=""), 403, DEFAULT, 40, 20),
    (X.Bind(destination="", source="x"), 403, DEFAULT, 40, 30),
    (X.Bind(destination="x", source=""), 403, DEFAULT, 40, 30),
    (X.Unbind(destination="", source="x"), 403, DEFAULT, 40, 40),
    (X.Unbind(destination="x", source=""), 403, DEFAULT, 40, 40),
    (Q.Bind(queue="q", exchange="", routing_key="q"), 403, DEFAULT, 50, 20),
    (Q.Unbind(queue="q", exchange="", routing_key="q"), 403, DEFAULT, 50, 50),
    (
        publication("inside", "k", b"x", 2),
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'inside' in vhost '/'",
        60,
        40,
    ),
    (
        spec.Basic.Consume(queue="single", exclusive=True),
        403,
        (
            "ACCESS_REFUSED - queue 'single' in vhost '/' in exclusive use: it has a single active "
            "consumer"
        ),
        60,
        20,
    ),
    # 405
    (Q.Declare(queue="theirs"), 405, LOCKED.format("theirs"), 50, 10),
    (Q.Declare(queue="theirs", exclusive=True), 405, LOCKED.format("theirs"), 50, 10),
    (
        Q.Declare(queue="theirs", durable=True, arguments={"x-max-length": -1}),
        405,
        LOCKED.format("theirs"),
        50,
        10,
    ),
    (Q.Declare(queue="theirs", passive=True), 405, LOCKED.format("theirs"), 50, 10),
    (Q.Bind(queue="theirs", exchange="x"), 405, LOCKED.format("theirs"), 50, 20),
    (Q.Unbind(queue="theirs", exchange="x"), 405, LOCKED.format("theirs"), 50, 50),
    (Q.Purge(queue="theirs"), 405, LOCKED.format("theirs"), 50, 30),
    (Q.Delete(queue="theirs"), 405, LOCKED.format("theirs"), 50, 40),
    (spec.Basic.Get(queue="theirs"), 405, LOCKED.format("theirs"), 60, 70),
    (spec.Basic.Consume(queue="theirs"), 405, LOCKED.format("theirs"), 60, 20),
    (Q.Declare(queue="q", exclusive=True, durable=True), 405, LOCKED.format("q"), 50, 10),
    # 406
    (
        spec.Basic.Consume(queue="amq.rabbitmq.reply-to"),
        406,
        "PRECONDITION_FAILED - reply consumer cannot acknowledge",
        60,
        20,
    ),
    (
        publication("", "k", b"x", 2, reply_to="amq.rabbitmq.reply-to"),
        406,
        "PRECONDITION_FAILED - fast reply consumer does not exist",
        60,
        40,
    ),
    (
        publication("", "k", b"x", 2, headers={"CC": "q"}),
        406,
        "PRECONDITION_FAILED - invalid message: the header 'CC' is not a list of routing keys",
        60,
        40,
    ),
    (
        spec.Basic.Consume(queue="q", arguments={"x-priority": "high"}),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': 'high' is "
            f"not an integer from -{1 << 31} to {1 << 31}"
        ),
        60,
        20,
    ),
    (
        Q.Declare(queue="y", arguments={"x-queue-type": "quorum"}),
        406,
        (
            "PRECONDITION_FAILED - invalid property 'non-durable' for queue 'y' in vhost '/': "
            "queues of type quorum cannot have it"
        ),
        50,
        10,
    ),
    (
        X.Declare(
            exchange="y",
            exchange_type="x-consistent-hash",
            arguments={"hash-header": "h", "hash-property": "message_id"},
        ),
        406,
        "PRECONDITION_FAILED - hash-header and hash-property are mutually exclusive",
        40,
        10,
    ),
    (
        Q.Bind(queue="q", exchange="hash", routing_key="much"),
        406,
        "PRECONDITION_FAILED - The binding key must be an integer: 'much'",
        50,
        20,
    ),
    (
        Q.Bind(queue="q", exchange="hash", routing_key="0"),
        406,
        "PRECONDITION_FAILED - The binding key must be greater than 0 and at most 1000000: '0'",
        50,
        20,
    ),
    (spec.Basic.Ack(1), 406, "PRECONDITION_FAILED - unknown delivery tag 1", 60, 80),
    (spec.Basic.Ack(0), 406, "PRECONDITION_FAILED - unknown delivery tag 0", 60, 80),
    (spec.Basic.Ack(9, multiple=True), 406, "PRECONDITION_FAILED - unknown delivery tag 9", 60, 80),
    (
        method(2, 60, 80, b"\xff" * 8 + b"\0"),
        406,
        f"PRECONDITION_FAILED - unknown delivery tag {2**64 - 1}",
        60,
        80,
    ),
    (
        method(2, 60, 80, b"\x80" + bytes(7) + b"\1"),
        406,
        f"PRECONDITION_FAILED - unknown delivery tag {2**63}",
        60,
        80,
    ),
    (spec.Basic.Nack(1), 406, "PRECONDITION_FAILED - unknown delivery tag 1", 60, 120),
    (
        spec.Basic.Nack(1, multiple=True),
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
        60,
        120,
    ),
    (
        method(2, 60, 120, b"\xff" * 8 + b"\1"),
        406,
        f"PRECONDITION_FAILED - unknown delivery tag {2**64 - 1}",
        60,
        120,
    ),
    (spec.Basic.Reject(1), 406, "PRECONDITION_FAILED - unknown delivery tag 1", 60, 90),
    (
        method(2, 60, 90, b"\xff" * 8 + b"\1"),
        406,
        f"PRECONDITION_FAILED - unknown delivery tag {2**64 - 1}",
        60,
        90,
    ),
    (
        X.Declare(exchange="y", exchange_type="nope"),
        406,
        (
            "PRECONDITION_FAILED - invalid exchange type 'nope'; known are direct, fanout, "
            "headers, topic, x-consistent-hash, "
            "x-delayed-message"
        ),
        40,
        10,
    ),
    (
        X.Declare(exchange="x", exchange_type="topic"),
        406,
        (
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': received "
            "'topic' but current is 'direct'"
        ),
        40,
        10,
    ),
    (
        X.Declare(exchange="y", arguments=arguments(alternate_exchange=7)),
        406,
        (
            "PRECONDITION_FAILED - invalid arg 'alternate-exchange' for exchange 'y' in vhost '/': "
            "not a string"
        ),
        40,
        10,
    ),
    (
        X.Delete(exchange="x", if_unused=True),
        406,
        "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use",
        40,
        20,
    ),
    (
        Q.Delete(queue="full", if_empty=True),
        406,
        "PRECONDITION_FAILED - queue 'full' in vhost '/' not empty",
        50,
        40,
    ),
    (
        Q.Delete(queue="q", if_unused=True),
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' in use",
        50,
        40,
    ),
    (
        spec.Basic.Consume(queue="taken"),
        403,
        "ACCESS_REFUSED - queue 'taken' in vhost '/' in exclusive use",
        60,
        20,
    ),
    (
        spec.Basic.Consume(queue="q", exclusive=True),
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
        60,
        20,
    ),
    (
        Q.Bind(queue="q", exchange="amq.headers", arguments=arguments(x_match="most")),
        406,
        (
            "PRECONDITION_FAILED - invalid x-match field value 'most'; expected all, any, "
            "all-with-x, any-with-x"
        ),
        50,
        20,
    ),
    (
        Q.Bind(queue="q", exchange="amq.match", arguments=arguments(x_match=1)),
        406,
        (
            "PRECONDITION_FAILED - invalid x-match field value 1; expected all, any, all-with-x, "
            "any-with-x"
        ),
        50,
        20,
    ),
    (
        X.Bind(destination="x", source="amq.headers", arguments=arguments(x_match=["any"])),
        406,
        (
            "PRECONDITION_FAILED - invalid x-match field value ['any']; expected all, any, "
            "all-with-x, any-with-x"
        ),
        40,
        30,
    ),
    (
        publication("", "q", b"x", 2, expiration="soon"),
        406,
        "PRECONDITION_FAILED - invalid expiration 'soon': not a number of milliseconds",
        60,
        40,
    ),
    (
        publication("", "q", b"x", 2, expiration="-1"),
        406,
        "PRECONDITION_FAILED - invalid expiration '-1': not a number of milliseconds",
        60,
        40,
    ),
    (
        publication("", "q", b"x", 2, expiration="0" * 30 + "9" * 30),
        406,
        (
            f"PRECONDITION_FAILED - invalid expiration '{'0' * 30 + '9' * 30}': not a number of "
            "milliseconds"
        ),
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + content(b"x", b"\x01\x00" + short(b"\xff\xfe"), 2),
        406,
        "PRECONDITION_FAILED - invalid expiration '\ufffd\ufffd': not a number of milliseconds",
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + content(b"x", b"\x01\x00" + short(""), 2),
        406,
        "PRECONDITION_FAILED - invalid expiration '': not a number of milliseconds",
        60,
        40,
    ),
    (
        publication("", "q", b"x", 2, user_id="another"),
        406,
        (
            "PRECONDITION_FAILED - user_id property set to 'another' but authenticated user was "
            "'guest'"
        ),
        60,
        40,
    ),
    (
        publication("", "nowhere", b"x", 2, user_id="guestguest"),
        406,
        (
            "PRECONDITION_FAILED - user_id property set to 'guestguest' but authenticated user was "
            "'guest'"
        ),
        60,
        40,
    ),
]


def data(provocation: Any, channel: int) -> bytes:
    return provocation if isinstance(provocation, bytes) else marshal(channel, provocation)


@pytest.mark.parametrize(("provocation", "code", "text", "class_id", "method_id"), SOFT + DECLARING)
def test_a_soft_error_ends_its_channel_and_leaves_the_others_alone(
    provocation: Any, code: int, text: str, class_id: int, method_id: int
) -> None:
    client = prepared()
    held = deliveries(client.send(spec.Basic.Consume(queue="q", consumer_tag="t")))
    assert [one.number for one in held] == [1]
    before = {
        name: (queue.depth, queue.unacked) for name, queue in client.world.vhost.queues.items()
    }
    client.connection.receive_data(data(provocation, 2))
    frames = client.connection.data_to_send()
    assert frames[1:3] == b"\0\2"
    client.connection.receive_data(
        publication("", "q", b"ignored", 2)
        + marshal(2, Q.Declare(queue="ignored"))
        + method(2, 30, 10)
        + method(2, 60, 99, b"\xff")
        + marshal(2, spec.Basic.Consume(queue="q"))
        + body(b"x", 2)
    )
    assert client.read() == [] and "ignored" not in client.world.vhost.queues
    assert refusal(unmarshal(frames)) == ("channel", code, text, class_id, method_id)
    assert {
        name: (queue.depth, queue.unacked) for name, queue in client.world.vhost.queues.items()
    } == before
    reopen(client, 2)
    assert client.send(spec.Basic.Ack(1)) == [] and client.world.queue("q").unacked == 0
    assert names(client.send(Q.Declare(queue="new"), channel=2)) == ["Queue.DeclareOk"]
    client.world.fates()


#: Errors that close the connection. Channel 2 is open, 3 is not.
HARD: list[tuple[Any, int, str, int, int]] = [
    # 501
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
        "FRAME_ERROR - ticket of Queue.Declare: the value is cut off",
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
        "FRAME_ERROR - arguments of Queue.Declare: an entry has no value",
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
        "FRAME_ERROR - arguments of Queue.Declare: a value is cut off",
        50,
        10,
    ),
    (
        method(2, 60, 80, b"\0"),
        501,
        "FRAME_ERROR - delivery_tag of Basic.Ack: the value is cut off",
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
    # 502
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
    # 503
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
    # 504
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
    # 505
    (frame(8, 2, b""), 505, "UNEXPECTED_FRAME - a heartbeat must use channel 0, not 2", 0, 0),
    (body(b"x", 2), 505, "UNEXPECTED_FRAME - a content frame must follow a basic.publish", 0, 0),
    (
        content(b"x", channel=2),
        505,
        "UNEXPECTED_FRAME - a content frame must follow a basic.publish",
        0,
        0,
    ),
    (
        content(b"x", channel=3),
        505,
        "UNEXPECTED_FRAME - a content frame must follow a basic.publish",
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
        "UNEXPECTED_FRAME - content header has another class than basic",
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
    # 530
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
        (
            "NOT_ALLOWED - number of channels opened (2048) has reached the negotiated channel_max "
            "(2047)"
        ),
        20,
        10,
    ),
    # 540
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
    (
        marshal(2, spec.Basic.Recover(requeue=False)),
        540,
        "NOT_IMPLEMENTED - requeue=false is not supported",
        60,
        110,
    ),
    (method(2, 60, 100, b"\0"), 540, "NOT_IMPLEMENTED - requeue=false is not supported", 60, 100),
    (
        marshal(2, spec.Channel.Flow(active=False)),
        540,
        "NOT_IMPLEMENTED - active=false is not supported",
        20,
        20,
    ),
]


@pytest.mark.parametrize(("provocation", "code", "text", "class_id", "method_id"), HARD)
def test_a_hard_error_ends_the_connection_and_gives_back_what_it_held(
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
        (frame(1, 1, bytes(131_065)), "a frame has a payload of 131065 bytes; the limit is 131064"),
        (
            b"\x01\0\1\xff\xff\xff\xff" + bytes(50),
            "a frame has a payload of 4294967295 bytes; the limit is 131064",
        ),
        (
            b"\x01\0\1\x80\0\0\0" + bytes(50),
            "a frame has a payload of 2147483648 bytes; the limit is 131064",
        ),
        (method(1, 50, 10, bytes(40))[:-1] + b"\xcd", "frame does not end with byte 206"),
    ],
)
def test_what_follows_a_broken_frame_is_not_heard_however_it_is_cut(
    broken: bytes, text: str, cut: int
) -> None:
    client = World().amqp()
    said = (
        broken
        + marshal(0, spec.Connection.Close(0, "", 0, 0))
        + marshal(0, spec.Connection.CloseOk())
    )
    client.connection.receive_data(said[:cut])
    client.connection.receive_data(said[cut:])
    assert refusal(client.read()) == ("connection", 501, f"FRAME_ERROR - {text}", 0, 0)
    assert not client.connection.finished
    client.connection.receive_data(marshal(0, spec.Connection.CloseOk()))
    client.connection.advance(client.connection.deadline)
    assert client.connection.finished and client.connection.reason == "protocol_error"


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


def test_both_sides_may_close_a_channel_at_once() -> None:
    client = prepared()
    assert refusal(client.send(Q.Declare(queue="nope", passive=True), channel=2)).code == 404
    assert names(client.send(spec.Channel.Close(0, "", 0, 0), channel=2)) == ["Channel.CloseOk"]
    assert client.send(spec.Channel.Open(), channel=2) == []
    reopen(client, 2)


def test_a_channel_that_its_client_closed_may_be_opened_again_and_begins_anew() -> None:
    client = prepared()
    client.send(
        spec.Basic.Qos(prefetch_count=1),
        spec.Confirm.Select(),
        spec.Basic.Get(queue="q"),
        channel=2,
    )
    assert names(client.send(spec.Channel.Close(0, "", 0, 0), spec.Channel.Open(), channel=2)) == [
        "Channel.CloseOk",
        "Channel.OpenOk",
    ]
    assert client.publish("", "q", b"no confirm", 2) == []
    assert [
        one.number for one in deliveries(client.send(spec.Basic.Get(queue="q"), channel=2))
    ] == [1]
    assert refusal(client.send(Q.Purge(queue=""), channel=2)).text == NO_LAST


#: Methods without an effect that get a reply all the same.
FINE: list[tuple[Any, str]] = [
    (Q.Delete(queue="nope"), "Queue.DeleteOk"),
    (Q.Delete(queue="nope", if_unused=True, if_empty=True), "Queue.DeleteOk"),
    (X.Delete(exchange="nope"), "Exchange.DeleteOk"),
    (X.Delete(exchange="nope", if_unused=True), "Exchange.DeleteOk"),
    (Q.Unbind(queue="nope", exchange="x"), "Queue.UnbindOk"),
    (Q.Unbind(queue="q", exchange="nope"), "Queue.UnbindOk"),
    (Q.Unbind(queue="q", exchange="x", routing_key="other"), "Queue.UnbindOk"),
    (X.Unbind(destination="nope", source="x"), "Exchange.UnbindOk"),
    (X.Unbind(destination="x", source="nope"), "Exchange.UnbindOk"),
    (X.Unbind(destination="x", source="amq.topic", routing_key="other"), "Exchange.UnbindOk"),
    (spec.Basic.Cancel(consumer_tag="nope"), "Basic.CancelOk"),
    (spec.Basic.Cancel(consumer_tag=""), "Basic.CancelOk"),
    (X.Declare(exchange="amq.topic", exchange_type="topic", durable=True), "Exchange.DeclareOk"),
    (X.Declare(exchange="amq.direct", exchange_type="direct", durable=True), "Exchange.DeclareOk"),
    (X.Declare(exchange="amq.match", exchange_type="headers", durable=True), "Exchange.DeclareOk"),
    (X.Declare(exchange="amq.topic", passive=True, exchange_type="nope"), "Exchange.DeclareOk"),
    (method(2, 30, 10, short("/data") + b"\x1f"), "access"),
    (spec.Channel.Flow(active=True), "Channel.FlowOk"),
    (spec.Confirm.Select(), "Confirm.SelectOk"),
    (spec.Basic.Qos(), "Basic.QosOk"),
    (spec.Basic.Recover(requeue=True), "Basic.RecoverOk"),
    (method(2, 60, 100, b"\1"), ""),
    (spec.Basic.Ack(0, multiple=True), ""),
    (spec.Basic.Nack(0, multiple=True), ""),
    (spec.Channel.CloseOk(), ""),
    (spec.Channel.FlowOk(active=True), ""),
    (spec.Basic.CancelOk("t"), ""),
]


@pytest.mark.parametrize(("provocation", "answer"), FINE)
def test_what_is_done_already_is_fine(provocation: Any, answer: str) -> None:
    client = prepared()
    client.connection.receive_data(data(provocation, 2) * 2)
    if answer == "access":
        assert client.read_bytes() == method(2, 30, 11, b"\0\1") * 2
    else:
        assert names(client.read()) == ([answer] * 2 if answer else [])
    assert names(client.send(Q.Declare(queue="q", passive=True), channel=2)) == ["Queue.DeclareOk"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_message_above_the_limit_is_refused_with_406_in_one_chunk_and_in_pieces(
    whole: bool,
) -> None:
    client = prepared(limit=10)
    for size, fits in ((10, True), (11, False), (5_000, False)):
        data = publication("", "q", b"x" * size, 2)
        for piece in [data] if whole else [data[at : at + 7] for at in range(0, len(data), 7)]:
            client.connection.receive_data(piece)
        if fits:
            assert client.read() == []
            continue
        text = f"PRECONDITION_FAILED - message size {size} is larger than configured max size 10"
        assert refusal(client.read()) == ("channel", 406, text, 60, 40)
        reopen(client, 2)
    assert client.world.fates() == {"routed": 3, "too_large": 2}


def test_a_huge_announced_body_is_refused_before_it_comes() -> None:
    client = prepared()
    client.connection.receive_data(publish("", "q", channel=2) + header(2**63 - 1, channel=2))
    text = (
        f"PRECONDITION_FAILED - message size {2**63 - 1} is larger than configured max size "
        f"{16 << 20}"
    )
    assert refusal(client.read()) == ("channel", 406, text, 60, 40)


def test_an_error_in_the_middle_of_a_run_confirms_what_came_before_it() -> None:
    client = prepared()
    client.send(spec.Confirm.Select(), channel=2)
    client.connection.receive_data(
        publication("", "q", b"1", 2) * 3
        + publication("nope", "q", b"2", 2)
        + publication("", "q", b"3", 2)
    )
    ack, close = client.read()
    assert (ack.delivery_tag, ack.multiple, close.reply_code) == (3, True, 404)
    assert client.world.queue("q").depth == 4


def test_long_names_in_texts_are_cut_between_characters() -> None:
    client = World().amqp()
    text = refusal(client.send(Q.Declare(queue="é" * 127, passive=True))).text
    assert text.encode()[:20] == b"NOT_FOUND - no queue" and 253 <= len(text.encode()) <= 255


def test_channels_end_one_by_one_and_the_connection_lives_on() -> None:
    client = World().amqp()
    for number in range(2, 20):
        open_channel(client, number)
        assert (
            refusal(client.send(Q.Declare(queue="nope", passive=True), channel=number)).scope
            == "channel"
        )
    for number in range(2, 20):
        reopen(client, number)
    assert client.world.amqp_front.channels == 19


@pytest.mark.parametrize("limit", ["queues", "exchanges"])
def test_limits_on_names_are_refused_with_530(limit: str) -> None:
    limits = BrokerLimits()
    limits.queues, limits.exchanges = 2, 8
    client = World(limits).amqp()
    make: Any = (
        (lambda name: Q.Declare(queue=name))
        if limit == "queues"
        else (lambda name: X.Declare(exchange=name))
    )
    assert len(client.send(make("a"), make("b"), make("a"))) == 3
    answer: Refusal = refusal(client.send(make("c")))
    assert (answer.scope, answer.code) == (
        "connection",
        530,
    ) and f"its limit of {2 if limit == 'queues' else 8}" in answer.text
