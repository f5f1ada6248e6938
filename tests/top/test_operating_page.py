"""The commands of docs/operating.md, run in their order with the outputs that the page shows."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running

PAGE: Final = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
#: The commands of the page, each with the output that follows it; "" if the page shows none.
EXAMPLES: Final = [
    (shlex.split(command), output.strip())
    for command, output in re.findall(
        r"^    \.run/bin/trellis (.+)\n((?:\n    (?!\.run).*)?)", PAGE, re.MULTILINE
    )
]


@pytest.fixture
async def broker(start: Start) -> Running:
    """Start a broker with the page's queues; the queue `dead` has a dead letter of `orders`."""
    running = await start(**users())
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name, arguments in (("orders", dead), ("orders.new", {}), ("dead", {})):
        await api(running, "PUT", f"queues/%2F/{name}", {"arguments": arguments})
    await api(running, "POST", "bindings/%2F/e/amq.topic/q/orders", {"routing_key": "orders.new"})
    await put(running, "orders")
    rejected = {"count": 1, "ackmode": "reject_requeue_false"}
    assert len((await api(running, "POST", "queues/%2F/orders/get", rejected))[1]) == 1
    await running.until(lambda: depth(running, "dead") == 1)
    return running


def depth(broker: Running, name: str) -> int:
    return int(broker.node.broker.vhosts["/"].queues[name].depth)


async def put(broker: Running, queue: str) -> None:
    """Publish a message to a queue."""
    client = await broker.amqp()
    before = depth(broker, queue)
    await client.socket.send(publication("", queue, b"x", delivery_mode=2))
    await broker.until(lambda: depth(broker, queue) > before)


async def follow(broker: Running, commands: Commands, words: list[str]) -> tuple[int, str, str]:
    """Run `trellis tail`, and publish a message that it shows."""
    exchange = broker.node.broker.vhosts["/"].exchanges["amq.topic"]
    bound = len(list(exchange))
    task = asyncio.create_task(commands.run(*words))
    await broker.until(lambda: len(list(exchange)) > bound)
    sender = await broker.mqtt("sender", user="known/known")
    for topic in ("orders/followed", "plant/7/state"):
        await sender.socket.send(mqtt_publish(topic, b"followed"))
    return await task


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == PAGE.count("\n    .run/bin/trellis ") > 12
    assert {words[0] for words, _ in EXAMPLES} >= {"peek", "publish", "tail", "move", "redrive"}


async def test_the_commands_of_the_page_work_as_written(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(broker, capsys, monkeypatch)
    for words, output in EXAMPLES:
        if words[0] == "purge":
            await put(broker, "orders")
        if words[0] == "tail":
            code, out, _ = await follow(broker, commands, words)
            assert out.endswith("   followed\n")
        else:
            code, out, err = await commands.run(*words)
            assert err == "", words
        assert code == 0, words
        if output:
            assert out == f"{output}\n", words
