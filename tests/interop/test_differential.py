"""Comparison of Trellis and RabbitMQ on equal random topologies and publications.

The messages of every queue and the refusals of both brokers must be equal. These known differences
are not compared:

- quorum queues and the headers other than x-death, in which RabbitMQ 3.10 and 4 differ
- the texts of refused arguments, which contain Erlang terms in RabbitMQ
- messages that expire immediately, in queues with priorities: if such a message overtakes others,
  it stays in RabbitMQ's queue. On arrival, RabbitMQ checks for expiry only if the queue was empty
"""

from __future__ import annotations

import random
from typing import Any

import pika
import pytest

from tests.broker import BrokerProcess
from tests.interop.recording_client import RecordingClient
from tests.rabbitmq import RabbitMq

TOPOLOGIES = 25
WORDS = ["a", "b", "", "c.d"]
KINDS = ["direct", "fanout", "topic", "headers"]


def topic(draw: random.Random) -> str:
    """Draw a binding key of up to three words."""
    return ".".join(draw.choice(["a", "b", "*", "#", ""]) for _ in range(draw.randint(0, 3)))


def steps(seed: int) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Draw declarations, bindings and publications as (channel method, arguments, keywords)."""
    draw = random.Random(seed)
    drawn: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    exchanges = [f"d{seed}-x{number}" for number in range(4)]
    queues = [f"d{seed}-q{number}" for number in range(5)]
    for exchange in exchanges:
        arguments: dict[str, Any] = (
            {"alternate-exchange": draw.choice(exchanges)} if draw.random() < 0.3 else {}
        )
        drawn.append(
            (
                "exchange_declare",
                (exchange, draw.choice(KINDS)),
                {"arguments": arguments, "internal": draw.random() < 0.1},
            )
        )
    has_priorities = draw.random() < 0.4
    for queue in queues:
        arguments = {}
        if draw.random() < 0.4:
            arguments["x-max-length"] = draw.randint(0, 4)
            if draw.random() < 0.5:
                arguments["x-overflow"] = draw.choice(["drop-head", "reject-publish"])
        if draw.random() < 0.3:
            arguments["x-max-length-bytes"] = draw.randint(0, 20)
        if has_priorities:
            arguments["x-max-priority"] = draw.randint(1, 5)
        if draw.random() < 0.4:
            arguments["x-dead-letter-exchange"] = draw.choice(["", *exchanges])
            if draw.random() < 0.6:
                arguments["x-dead-letter-routing-key"] = draw.choice(queues)
        if draw.random() < 0.2 and not has_priorities:
            arguments["x-message-ttl"] = 0
        drawn.append(("queue_declare", (queue,), {"arguments": arguments}))
    for _ in range(12):
        arguments = (
            {"x-match": draw.choice(["all", "any"]), "h": draw.choice(WORDS)}
            if draw.random() < 0.5
            else {}
        )
        if draw.random() < 0.75:
            drawn.append(
                (
                    "queue_bind",
                    (draw.choice(queues), draw.choice(exchanges), topic(draw)),
                    {"arguments": arguments},
                )
            )
        else:
            drawn.append(
                (
                    "exchange_bind",
                    (draw.choice(exchanges), draw.choice(exchanges), topic(draw)),
                    {"arguments": arguments},
                )
            )
    for number in range(40):
        headers: dict[str, Any] = {"h": draw.choice(WORDS)} if draw.random() < 0.5 else {}
        if draw.random() < 0.15:
            headers["CC"] = [draw.choice(queues), topic(draw).replace("*", "a").replace("#", "b")]
        if draw.random() < 0.1:
            headers["BCC"] = [draw.choice(queues)]
        properties = pika.BasicProperties(
            headers=headers or None,
            priority=draw.choice([None, 0, 1, 3, 9]),
            expiration=draw.choice(
                [None, None, None, "100000", "x" if has_priorities else "0", "x"]
            ),
        )
        exchange = draw.choice([*exchanges, ""])
        key = (
            draw.choice(queues)
            if not exchange or draw.random() < 0.2
            else topic(draw).replace("*", "a").replace("#", "b")
        )
        drawn.append(
            (
                "basic_publish",
                (
                    exchange,
                    key,
                    b"%d" % number + b"x" * draw.randint(0, 6),
                    properties,
                    draw.random() < 0.3,
                ),
                {},
            )
        )
    return drawn


@pytest.mark.long
@pytest.mark.parametrize("seed", range(TOPOLOGIES))
def test_both_brokers_do_the_same(broker: BrokerProcess, rabbitmq: RabbitMq, seed: int) -> None:
    trellis = RecordingClient(broker.amqp.port)
    peer = RecordingClient(rabbitmq.port)
    for client in (trellis, peer):
        for name, args, given in steps(seed):
            client.do(name, *args, **given)
        # Dead letters are routed after the confirm of their message, so the messages are read
        # later.
        client.connection.sleep(0.2)
        for number in range(5):
            client.drain(f"d{seed}-q{number}")
        for number in range(5):
            client.do("queue_delete", f"d{seed}-q{number}")
        for number in range(4):
            client.do("exchange_delete", f"d{seed}-x{number}")
        client.connection.close()
    refusals = [
        [one for one in client.recorded if one[0] == "basic_publish" and len(one) == 3]
        for client in (trellis, peer)
    ]
    assert [one[1] for one in refusals[0]] == [one[1] for one in refusals[1]]
    assert [one for one in trellis.recorded if one not in refusals[0]] == [
        one for one in peer.recorded if one not in refusals[1]
    ]
