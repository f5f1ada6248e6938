"""The first command of docs/asyncapi.md, on a broker with clients of both protocols."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

import pytest
import yaml

pytest.importorskip("pyarrow", reason="the extra [asyncapi] is not installed")

from tests.clients import mqtt_publish, publication
from tests.top.api_client import journaled
from tests.top.commands import Commands
from tests.top.conftest import Start

PAGE: Final = (Path(__file__).parents[2] / "docs" / "asyncapi.md").read_text()
#: The commands of the page, without `trellis`.
COMMANDS: Final = [shlex.split(line) for line in re.findall(r"^    trellis (.+)$", PAGE, re.M)]


async def test_the_commands_of_the_page(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await start(**journaled(tmp_path))
    client = await broker.amqp()
    await client.queue("orders", "amq.topic", "orders.*")
    await client.socket.send(publication("amq.topic", "orders.new", b'{"id": 1}'))
    device = await broker.mqtt("device")
    await device.subscribe("sensors/+/temperature")
    for number in range(3):
        await device.socket.send(mqtt_publish(f"sensors/{number}/temperature", b"21.5"))
    await broker.until(lambda: broker.durable_rows("all") == 4)
    monkeypatch.chdir(tmp_path)
    command_line = Commands(broker, capsys, monkeypatch)

    with_journal, without_journal = COMMANDS
    assert await command_line.out(*with_journal) == "messages.yaml written: 2 addresses\n"
    document = yaml.safe_load((tmp_path / "messages.yaml").read_text())
    operations = {
        (each["action"], each["channel"]["$ref"].rpartition("/")[2])
        for each in document["operations"].values()
    }
    assert operations == {
        ("send", "amqp.amq.topic.orders.new"),
        ("receive", "queue.orders"),
        ("send", "mqtt.sensors._sensor_.temperature"),
        ("receive", "mqtt.sensors._sensor_.temperature"),
    }
    addresses = {each["address"] for each in document["channels"].values()}
    assert addresses == {"orders.new", "orders", "sensors/{sensor}/temperature"}

    binding = {"source": "amq.topic", "destination": "orders", "routing_key": "orders.*"}
    definitions = {"queues": [{"name": "orders"}], "bindings": [binding]}
    (tmp_path / "definitions.json").write_text(json.dumps(definitions))
    document = yaml.safe_load(await command_line.out(*without_journal))
    assert {each["address"] for each in document["channels"].values()} == {
        "orders",
        "orders.{order}",
    }
