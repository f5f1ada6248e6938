"""Tests of exchanges and bindings: first and repeated declarations, and deletions."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import World
from tests.wire.amqp.declared import Q, X, args
from tests.wire.amqp.speech import names, read, refusal


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"durable": True},
        {"auto_delete": True},
        {"internal": True},
        {"durable": True, "auto_delete": True},
    ],
)
def test_an_exchange_may_be_declared_again_alike(kind: str, flags: Any) -> None:
    client = World().amqp()
    declare = X.Declare(exchange="x", exchange_type=kind, **flags)
    assert names(client.send(declare, declare) + client.read()) == ["Exchange.DeclareOk"] * 2
    assert names(client.send(X.Declare(exchange="x", passive=True))) == ["Exchange.DeclareOk"]
    text = (
        "PRECONDITION_FAILED - inequivalent arg '{}' for exchange 'x' in vhost '/': received "
        "'{}' but current is '{}'"
    )
    for flag in ("durable", "auto_delete", "internal"):
        other: Any = {**flags, flag: not flags.get(flag, False)}
        answer = refusal(client.send(X.Declare(exchange="x", exchange_type=kind, **other)))
        assert (answer.code, answer.text) == (
            406,
            text.format(flag, str(other[flag]).lower(), str(not other[flag]).lower()),
        )
        client.send(spec.Channel.CloseOk(), spec.Channel.Open())


@pytest.mark.parametrize(
    ("first", "second", "received", "current"),
    [
        ({}, args(alternate_exchange="y"), "the value 'y' of type 'longstr'", "none"),
        (args(alternate_exchange="y"), {}, "none", "the value 'y' of type 'longstr'"),
        (args(alternate_exchange="y"), args(alternate_exchange="z"), "'z'", "'y'"),
    ],
)
def test_another_alternate_exchange_is_refused(
    first: Any, second: Any, received: str, current: str
) -> None:
    client = World().amqp()
    client.send(X.Declare(exchange="x", arguments=first))
    assert refusal(client.send(X.Declare(exchange="x", arguments=second))).text == (
        "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'x' in vhost "
        "'/': "
        f"received {received} but current is {current}"
    )


def test_unknown_exchange_arguments_are_ignored() -> None:
    client = World().amqp()
    declare = X.Declare(exchange="x", arguments=args(x_what=1))
    assert (
        names(
            client.send(
                declare,
                X.Declare(exchange="x"),
                X.Declare(exchange="x", arguments=args(x_other="y")),
            )
        )
        == ["Exchange.DeclareOk"] * 3
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_predeclared_exchanges_are_there_durable_and_stay(name: str, kind: str) -> None:
    client = World().amqp()
    assert names(client.send(X.Declare(exchange=name, exchange_type=kind, durable=True))) == [
        "Exchange.DeclareOk"
    ]
    assert refusal(client.send(X.Declare(exchange=name, exchange_type=kind))).code == 406
    client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert refusal(client.send(X.Delete(exchange=name))).code == 403
    client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert names(client.send(X.Declare(exchange=name, passive=True))) == ["Exchange.DeclareOk"]


def test_a_deleted_exchange_takes_its_bindings_on_both_sides_with_it() -> None:
    client = World().amqp()
    client.queue("q")
    client.send(
        X.Declare(exchange="x", exchange_type="fanout"),
        Q.Bind(queue="q", exchange="x"),
        X.Bind(destination="x", source="amq.fanout"),
    )
    client.publish("amq.fanout", "", b"1")
    assert names(client.send(X.Delete(exchange="x"))) == ["Exchange.DeleteOk"]
    client.publish("amq.fanout", "", b"2")
    client.send(X.Declare(exchange="x", exchange_type="fanout"))
    client.publish("x", "", b"3")
    assert read(client, "q") == [b"1"] and client.world.fates() == {"routed": 1, "unroutable": 2}


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    client = World().amqp()
    client.queue("q")
    client.queue("p")
    client.send(
        X.Declare(exchange="x", auto_delete=True), X.Declare(exchange="y", exchange_type="fanout")
    )
    assert "x" in client.world.vhost.exchanges
    client.send(
        Q.Bind(queue="q", exchange="x", routing_key="1"),
        Q.Bind(queue="p", exchange="x", routing_key="1"),
        X.Bind(destination="y", source="x", routing_key="2"),
    )
    client.send(Q.Unbind(queue="q", exchange="x", routing_key="1"), Q.Delete(queue="p"))
    assert "x" in client.world.vhost.exchanges
    client.send(X.Delete(exchange="y"))
    assert "x" not in client.world.vhost.exchanges


def test_delete_if_unused_deletes_an_exchange_only_once_it_is_unused() -> None:
    client = World().amqp()
    client.queue("q")
    client.send(X.Declare(exchange="x"), Q.Bind(queue="q", exchange="x", routing_key="k"))
    assert (
        refusal(client.send(X.Delete(exchange="x", if_unused=True))).text
        == "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    )
    client.send(
        spec.Channel.CloseOk(),
        spec.Channel.Open(),
        Q.Unbind(queue="q", exchange="x", routing_key="k"),
    )
    assert names(client.send(X.Delete(exchange="x", if_unused=True))) == ["Exchange.DeleteOk"]
    assert "x" not in client.world.vhost.exchanges


def test_a_binding_made_twice_is_one_and_arguments_tell_bindings_apart() -> None:
    client = World().amqp()
    client.queue("q")
    bind = Q.Bind(queue="q", exchange="amq.direct", routing_key="k")
    client.send(
        bind, bind, Q.Bind(queue="q", exchange="amq.direct", routing_key="k", arguments={"a": 1})
    )
    assert len(list(client.world.vhost.exchange("amq.direct"))) == 2
    client.publish("amq.direct", "k", b"once")
    client.send(Q.Unbind(queue="q", exchange="amq.direct", routing_key="k"))
    client.publish("amq.direct", "k", b"still")
    client.send(Q.Unbind(queue="q", exchange="amq.direct", routing_key="k", arguments={"a": 2}))
    client.publish("amq.direct", "k", b"still")
    client.send(Q.Unbind(queue="q", exchange="amq.direct", routing_key="k", arguments={"a": 1}))
    client.publish("amq.direct", "k", b"never")
    assert read(client, "q") == [b"once", b"still", b"still"]
