"""Tests of methods without effect, of limits, and of channels that end.

A method without effect (its object does not exist, or it repeats an earlier method) gets its usual
reply. Messages, queues and exchanges above a limit are refused.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pamqp.commands as spec
import pytest

from broker.errors import BrokerError, InvalidArgument
from broker.limits import BrokerLimits
from protocols.amqp.errors import from_broker
from tests.clients import World, publication
from tests.wire.amqp.provoked import NO_LAST, Q, X, data, prepared
from tests.wire.amqp.speech import (
    Refusal,
    deliveries,
    header,
    method,
    names,
    open_channel,
    publish,
    refusal,
    reopen,
    short,
)


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


#: Methods that have no effect, each with the name of the reply that the client gets nevertheless;
#: the name is "" for methods that get no reply.
WITHOUT_EFFECT: list[tuple[Any, str]] = [
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


@pytest.mark.parametrize(("provocation", "answer"), WITHOUT_EFFECT)
def test_repeated_request_is_no_error(provocation: Any, answer: str) -> None:
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


def test_error_within_a_run_confirms_the_publications_before_it() -> None:
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
    ) and f"the limit of {2 if limit == 'queues' else 8}" in answer.text


def test_a_binding_above_the_limit_of_wildcards_closes_the_channel_with_406() -> None:
    limits = BrokerLimits()
    limits.pattern_nodes = 200
    client = World(limits).amqp()
    client.queue("many")
    patterns = [".".join(words) for words in product("*a", repeat=8)]
    for pattern in patterns:
        replies = client.send(Q.Bind(queue="many", exchange="amq.topic", routing_key=pattern))
        if names(replies) != ["Queue.BindOk"]:
            break
    wrong = refusal(replies)
    assert (wrong.scope, wrong.code) == ("channel", 406)
    assert wrong.text.startswith(
        "PRECONDITION_FAILED - too many different combinations of wildcards in the "
        f"{patterns.index(pattern) + 1} bindings of 'many' (limits.pattern_nodes is 200): use "
        f"fewer, or raise the limit; refused: binding '{pattern}' to exchange "
        "'amq.topic', with which a lookup could visit "
    )
    reopen(client)
    for bound in patterns[: patterns.index(pattern)]:
        client.send(Q.Unbind(queue="many", exchange="amq.topic", routing_key=bound))
    replies = client.send(Q.Bind(queue="many", exchange="amq.topic", routing_key=pattern))
    assert names(replies) == ["Queue.BindOk"]


def subclasses(kind: type[BrokerError]) -> set[type[BrokerError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_each_error_of_the_broker_has_a_reply_code() -> None:
    for kind in subclasses(BrokerError) - {BrokerError}:
        error = kind("x", "y", "z") if kind is InvalidArgument else kind("x")
        assert from_broker(error).code in (403, 404, 405, 406, 530), kind
