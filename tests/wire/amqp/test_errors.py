"""Soft errors: code and text, the end of the channel, and the effect on other channels.

There is one table of errors. A row has the methods that cause the error, and the reply.
"""

from __future__ import annotations

from typing import Any, Final

import pamqp.commands as spec
import pytest

from tests.clients import marshal, publication, unmarshal
from tests.wire.amqp.provoked import NO_LAST, Q, X, data, prepared
from tests.wire.amqp.refused import DECLARING
from tests.wire.amqp.speech import (
    body,
    content,
    deliveries,
    method,
    names,
    publish,
    refusal,
    reopen,
    short,
)

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

DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"

SYSTEM = "ACCESS_REFUSED - deletion of system exchange '{}' in vhost '/' not allowed"

#: The end of the error text for an invalid expiration; the limit is 2**50 ms.
MILLISECONDS: Final = "must be a number of milliseconds from 0 to 1125899906842624"

RESERVED = "ACCESS_REFUSED - {} contains reserved prefix 'amq.*'"


def arguments(**given: Any) -> Any:
    return {name.replace("_", "-"): value for name, value in given.items()}


#: Errors that close the channel only.
SOFT: list[tuple[Any, int, str, int, int]] = [
    # 404 NOT_FOUND
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
    # 403 ACCESS_REFUSED
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
            "ACCESS_REFUSED - queue 'single' in vhost '/' in exclusive use: a queue with "
            "x-single-active-consumer accepts no exclusive consumer"
        ),
        60,
        20,
    ),
    # 405 RESOURCE_LOCKED
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
    # 406 PRECONDITION_FAILED
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
            "queues of type quorum must be durable, not exclusive and not auto-delete"
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
        (
            "PRECONDITION_FAILED - exchange 'y' can have only one of the arguments "
            "'hash-header' and 'hash-property': remove one of them"
        ),
        40,
        10,
    ),
    (
        Q.Bind(queue="q", exchange="hash", routing_key="much"),
        406,
        (
            "PRECONDITION_FAILED - invalid binding key 'much' for exchange 'hash': must be a "
            "whole number, the weight of the binding"
        ),
        50,
        20,
    ),
    (
        Q.Bind(queue="q", exchange="hash", routing_key="0"),
        406,
        (
            "PRECONDITION_FAILED - invalid binding key '0' for exchange 'hash': the weight "
            "must be from 1 to 1000000"
        ),
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
            "PRECONDITION_FAILED - invalid exchange type 'nope'; known types are direct, fanout, "
            "headers, topic, x-consistent-hash, x-delayed-message, x-local-random, "
            "x-message-deduplication, x-modulus-hash, x-random, x-recent-history"
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
            "must be a string"
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
        "PRECONDITION_FAILED - invalid expiration 'soon': " + MILLISECONDS,
        60,
        40,
    ),
    (
        publication("", "q", b"x", 2, expiration="-1"),
        406,
        "PRECONDITION_FAILED - invalid expiration '-1': " + MILLISECONDS,
        60,
        40,
    ),
    (
        publication("", "q", b"x", 2, expiration="0" * 30 + "9" * 30),
        406,
        f"PRECONDITION_FAILED - invalid expiration '{'0' * 30 + '9' * 30}': " + MILLISECONDS,
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + content(b"x", b"\x01\x00" + short(b"\xff\xfe"), 2),
        406,
        "PRECONDITION_FAILED - invalid expiration '\ufffd\ufffd': " + MILLISECONDS,
        60,
        40,
    ),
    (
        publish("", "q", channel=2) + content(b"x", b"\x01\x00" + short(""), 2),
        406,
        "PRECONDITION_FAILED - invalid expiration '': " + MILLISECONDS,
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


#: The cause in the log line of an error, by the beginning of the error's text.
CAUSES: Final = {
    "ACCESS_REFUSED - ": {"cause": "access"},
    "NOT_FOUND - no exchange ": {"cause": "missing_exchange"},
    "NOT_FOUND - no queue ": {"cause": "missing_queue"},
    "NOT_FOUND - no previously declared queue": {"cause": "missing_queue"},
}


@pytest.mark.parametrize(("provocation", "code", "text", "class_id", "method_id"), SOFT + DECLARING)
def test_a_soft_error_ends_its_channel_and_leaves_the_others_alone(
    provocation: Any, code: int, text: str, class_id: int, method_id: int
) -> None:
    client = prepared()
    logged: list[tuple[str, dict[str, object]]] = []
    client.world.amqp_front.log = lambda event, fields: logged.append((event, fields))
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
    assert logged == [
        (
            "channel_closed",
            {
                "protocol": "amqp091",
                "user": "guest",
                "vhost": "/",
                "address": "127.0.0.1",
                "channel": 2,
                **next((cause for start, cause in CAUSES.items() if text.startswith(start)), {}),
                "note": text,
            },
        )
    ]
    assert {
        name: (queue.depth, queue.unacked) for name, queue in client.world.vhost.queues.items()
    } == before
    reopen(client, 2)
    assert client.send(spec.Basic.Ack(1)) == [] and client.world.queue("q").unacked == 0
    assert names(client.send(Q.Declare(queue="new"), channel=2)) == ["Queue.DeclareOk"]
    client.world.fates()


def test_an_impersonator_publishes_with_the_name_of_another_user() -> None:
    """A user with the tag `impersonator` may put any name into `user_id`, as in RabbitMQ."""
    client = prepared()
    client.world.guests.identities["guest"].tags = ["impersonator"]
    before = client.world.queue("q").depth
    client.connection.receive_data(publication("", "q", b"x", 2, user_id="another"))
    assert client.world.queue("q").depth == before + 1
    client.world.guests.identities["guest"].tags = ["monitoring"]
    client.connection.receive_data(publication("", "q", b"x", 2, user_id="another"))
    (_, code, text, _, _) = refusal(unmarshal(client.connection.data_to_send()))
    assert (code, text) == (
        406,
        (
            "PRECONDITION_FAILED - user_id property set to 'another' but authenticated user was "
            "'guest'"
        ),
    )
