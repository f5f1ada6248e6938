"""Replies to declarations: none with nowait, and none before a durable change is on disk."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import World, marshal
from tests.wire.amqp.declared import Q, X, depth
from tests.wire.amqp.speech import names, refusal

# -- nowait


def test_nowait_is_answered_by_silence_everywhere() -> None:
    client = World().amqp()
    quiet = [
        X.Declare(exchange="x", exchange_type="fanout", nowait=True, durable=True),
        X.Declare(exchange="y", nowait=True),
        X.Declare(exchange="amq.topic", passive=True, nowait=True),
        X.Bind(destination="x", source="amq.fanout", nowait=True),
        X.Unbind(destination="x", source="amq.fanout", nowait=True),
        X.Delete(exchange="y", nowait=True),
        Q.Declare(queue="q", nowait=True, durable=True),
        Q.Declare(queue="", nowait=True),
        Q.Declare(queue="q", passive=True, nowait=True),
        Q.Bind(queue="q", exchange="x", nowait=True),
        Q.Purge(queue="q", nowait=True),
        spec.Basic.Consume(queue="q", consumer_tag="t", nowait=True),
        spec.Basic.Cancel("t", nowait=True),
        spec.Confirm.Select(nowait=True),
    ]
    assert client.send(*quiet) == []
    assert "y" not in client.world.vhost.exchanges and len(client.world.vhost.queues) == 2
    frames = client.publish("x", "", b"bound and confirmed")
    assert names(frames) == ["Basic.Ack"] and depth(client, "q") == (1, 0)
    assert (
        client.send(Q.Delete(queue="q", nowait=True)) == [] and "q" not in client.world.vhost.queues
    )


def test_an_error_is_told_in_spite_of_nowait() -> None:
    client = World().amqp()
    assert refusal(client.send(Q.Bind(queue="nope", exchange="amq.topic", nowait=True))).code == 404


# -- changes that must be durable first


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (Q.Declare(queue="q", durable=True), "Queue.DeclareOk"),
        (X.Declare(exchange="x", durable=True), "Exchange.DeclareOk"),
        (Q.Bind(queue="d", exchange="amq.topic", routing_key="a"), "Queue.BindOk"),
        (Q.Delete(queue="d"), "Queue.DeleteOk"),
        (X.Bind(destination="dx", source="amq.topic"), "Exchange.BindOk"),
        (X.Delete(exchange="dx"), "Exchange.DeleteOk"),
        (Q.Unbind(queue="d", exchange="amq.direct", routing_key="k"), "Queue.UnbindOk"),
    ],
)
def test_durable_changes_are_answered_when_the_disk_has_them_and_nothing_is_heard_before(
    method: Any, answer: str
) -> None:
    client = World().amqp()
    client.send(Q.Declare(queue="d", durable=True))
    client.send(X.Declare(exchange="dx", durable=True))
    client.send(Q.Bind(queue="d", exchange="amq.direct", routing_key="k"))
    client.world.slow_disk = True
    assert client.send(method, Q.Declare(queue="later")) == [] and client.connection.stalled
    assert "later" not in client.world.vhost.queues
    client.world.durable()
    assert names(client.read()) == [answer, "Queue.DeclareOk"]


def test_transient_things_do_not_wait_for_the_disk() -> None:
    client = World().amqp()
    client.world.slow_disk = True
    assert names(
        client.send(
            Q.Declare(queue="q"),
            X.Declare(exchange="x"),
            Q.Bind(queue="q", exchange="amq.topic"),
            Q.Declare(queue="e", durable=True, exclusive=True),
            Q.Delete(queue="q"),
            X.Delete(exchange="x"),
        )
    ) == [
        "Queue.DeclareOk",
        "Exchange.DeclareOk",
        "Queue.BindOk",
        "Queue.DeclareOk",
        "Queue.DeleteOk",
        "Exchange.DeleteOk",
    ]


def test_a_connection_lost_while_the_disk_is_slow_is_released() -> None:
    client = World().amqp()
    client.world.slow_disk = True
    client.send(Q.Declare(queue="q", durable=True))
    client.connection.on_closed()
    client.world.durable()
    assert client.read() == [] and client.connection.finished


def test_shutdown_is_told_while_the_disk_is_slow_and_the_late_answer_is_not() -> None:
    client = World().amqp()
    client.world.slow_disk = True
    client.send(Q.Declare(queue="q", durable=True))
    client.connection.close("shutdown")
    assert refusal(client.read()).code == 320
    client.world.durable()
    assert client.read() == []
    client.connection.receive_data(marshal(0, spec.Connection.CloseOk()))
    assert client.connection.finished
