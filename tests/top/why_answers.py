"""Answers of `GET /api/why/...`, and the messages and consumers that they are about."""

from __future__ import annotations

import shlex
from typing import Any

import pamqp.commands as spec

from tests.top.api_client import api
from tests.top.running import Amqp0, Running
from trellis.cli import parser


async def why(broker: Running, path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask `GET /api/why/PATH`; return its answer, and the `text` of each finding by `problem`.

    Check that the parser of `trellis` accepts the command `next` of the answer and of each finding.
    """
    status, answer = await api(broker, "GET", f"why/{path}")
    assert status == 200, answer
    for part in (answer, *answer["findings"]):
        parsed(part["next"])
    return answer, {finding["problem"]: finding["text"] for finding in answer["findings"]}


def parsed(line: str) -> None:
    """Check that the parser of `trellis` accepts a command line."""
    words = shlex.split(line)
    assert words[0] == "trellis" and parser(words[1]).parse(words[1:]).command == words[1], line


async def of_queue(broker: Running, name: str, seconds: float = 0) -> dict[str, str]:
    return (await why(broker, f"queues/%2F/{name}?seconds={seconds}"))[1]


async def publish(broker: Running, key: str, count: int = 1) -> None:
    message = {"properties": {}, "routing_key": key, "payload": "x", "payload_encoding": "string"}
    for _ in range(count):
        assert (await api(broker, "POST", "exchanges/%2F/amq.default/publish", message))[0] == 200


async def consume(client: Amqp0, queue: str, prefetch: int) -> None:
    await client.call(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
    await client.call(spec.Basic.Consume(queue=queue, consumer_tag="c"), spec.Basic.ConsumeOk)
