"""The same random topologies and publications here and in RabbitMQ: what every queue holds, and
every refusal, must be equal.

Known differences, for which nothing is drawn or compared: RabbitMQ 3.10 and 4 differ in queues of
type quorum and in x-death's further headers; the texts of refused arguments are Erlang's terms
there; a message that expires at once and comes before others by its priority stays in RabbitMQ's
queue, for it looks at the head only when the queue was empty.
"""

from __future__ import annotations

import random
from typing import Any

import pika
import pytest

from tests.broker import BrokerProcess
from tests.interop.rabbitmq import RabbitMq
from tests.interop.side import Side

TOPOLOGIES = 25
WORDS = ["a", "b", "", "c.d"]
KINDS = ["direct", "fanout", "topic", "headers"]


def topic(draw: random.Random) -> str:
    return ".".join(draw.choice(["a", "b", "*", "#", ""]) for _ in range(draw.randint(0, 3)))


def steps(seed: int) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Declarations, bindings, publications and settlements."""
    draw = random.Random(seed)
    found: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    exchanges = [f"d{seed}-x{number}" for number in range(4)]
    queues = [f"d{seed}-q{number}" for number in range(5)]
    for exchange in exchanges:
        arguments: dict[str, Any] = (
            {"alternate-exchange": draw.choice(exchanges)} if draw.random() < 0.3 else {}
        )
        found.append(
            (
                "exchange_declare",
                (exchange, draw.choice(KINDS)),
                {"arguments": arguments, "internal": draw.random() < 0.1},
            )
        )
    ranked = draw.random() < 0.4
    for queue in queues:
        arguments = {}
        if draw.random() < 0.4:
            arguments["x-max-length"] = draw.randint(0, 4)
            if draw.random() < 0.5:
                arguments["x-overflow"] = draw.choice(["drop-head", "reject-publish"])
        if draw.random() < 0.3:
            arguments["x-max-length-bytes"] = draw.randint(0, 20)
        if ranked:
            arguments["x-max-priority"] = draw.randint(1, 5)
        if draw.random() < 0.4:
            arguments["x-dead-letter-exchange"] = draw.choice(["", *exchanges])
            if draw.random() < 0.6:
                arguments["x-dead-letter-routing-key"] = draw.choice(queues)
        if draw.random() < 0.2 and not ranked:
            arguments["x-message-ttl"] = 0
        found.append(("queue_declare", (queue,), {"arguments": arguments}))
    for _ in range(12):
        arguments = (
            {"x-match": draw.choice(["all", "any"]), "h": draw.choice(WORDS)}
            if draw.random() < 0.5
            else {}
        )
        if draw.random() < 0.75:
            found.append(
                (
                    "queue_bind",
                    (draw.choice(queues), draw.choice(exchanges), topic(draw)),
                    {"arguments": arguments},
                )
            )
        else:
            found.append(
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
            expiration=draw.choice([None, None, None, "100000", "x" if ranked else "0", "x"]),
        )
        exchange = draw.choice([*exchanges, ""])
        key = (
            draw.choice(queues)
            if not exchange or draw.random() < 0.2
            else topic(draw).replace("*", "a").replace("#", "b")
        )
        found.append(
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
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(TOPOLOGIES))
def test_both_brokers_do_the_same(broker: BrokerProcess, rabbitmq: RabbitMq, seed: int) -> None:
    ours, theirs = Side(broker.amqp.port), Side(rabbitmq.port)
    for side in (ours, theirs):
        for name, args, given in steps(seed):
            side.do(name, *args, **given)
        side.connection.sleep(0.2)  # Dead letters find their way behind the confirm.
        for number in range(5):
            side.drain(f"d{seed}-q{number}")
        for number in range(5):
            side.do("queue_delete", f"d{seed}-q{number}")
        for number in range(4):
            side.do("exchange_delete", f"d{seed}-x{number}")
        side.connection.close()
    refusals = [
        [one for one in side.seen if one[0] == "basic_publish" and len(one) == 3]
        for side in (ours, theirs)
    ]
    assert [one[1] for one in refusals[0]] == [one[1] for one in refusals[1]]
    assert [one for one in ours.seen if one not in refusals[0]] == [
        one for one in theirs.seen if one not in refusals[1]
    ]
