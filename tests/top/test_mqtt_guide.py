"""The commands of docs/mqtt-guide.md, run in their order beside a client with a session."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.clients import mqtt_publish
from tests.top.api_client import users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running

PAGE: Final = (Path(__file__).parents[2] / "docs" / "mqtt-guide.md").read_text()
#: The commands of the page, without `trellis`.
COMMANDS: Final = [
    shlex.split(line) for line in re.findall(r"^    \.run/bin/trellis (.+)$", PAGE, re.MULTILINE)
]
#: Beginning of each command -> a text in its output. `trellis why` may end with exit code 1,
#: because it may find a problem.
FOUND: Final = {
    "publish": "",
    "retained list": "plant/7/set",
    "list sessions": "pump-7",
    "tail": "plant.7.temp",
    "why client": "client 'pump-7': open connections: 1, MQTT sessions: 1",
    "retained clear": "removed 1",
    "route": "pump-7",
    "why topic": "topic 'plant/7/temp' in vhost '/': queues and sessions reached: 1",
}


async def test_the_commands_of_the_page(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(**users())
    client = await broker.mqtt("pump-7", clean=False)
    await client.subscribe("plant/7/#", 1)
    command_line = Commands(broker, capsys, monkeypatch)
    expected = dict(FOUND)
    for words in COMMANDS:
        name = next(name for name in expected if " ".join(words).startswith(name))
        publishes = asyncio.create_task(publish(broker)) if name == "tail" else None
        code, out, err = await command_line.run(*words)
        if publishes is not None:
            await publishes
        assert code in ((0, 1) if name.startswith("why") else (0,)), (words, err)
        assert expected.pop(name) in out, words
    assert not expected


async def publish(broker: Running) -> None:
    """Publish a message once `trellis tail` has bound its queue."""
    await broker.until(lambda: any(broker.node.broker.vhosts["/"].queues))
    queues = broker.node.broker.vhosts["/"].queues
    await broker.until(lambda: all(queue.bound_to for queue in queues.values()))
    client = await broker.mqtt("sensor")
    await client.socket.send(mqtt_publish("plant/7/temp", b"21.5"))
    await client.ping()
