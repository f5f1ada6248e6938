"""The settings and commands of docs/bridges.md work as the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from tests.bridge.amqp import take, trellis_pair
from tests.bridge.running import BridgingBroker, Received, Recorder

PAGE = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text()


def bodies_of_curl() -> list[dict[str, Any]]:
    """Return the JSON bodies of the page's curl commands, in order."""
    return [json.loads(body) for body in re.findall(r"-d '\s*(\{.*?\})'\n", PAGE, re.DOTALL)]


def test_the_first_bridge_of_the_page(tmp_path: Path) -> None:
    remote = BridgingBroker(tmp_path / "remote")
    settings = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
    host, port = remote.mqtt
    local = BridgingBroker(
        tmp_path / "local", settings.replace("mqtt.example.org:1883", f"{host}:{port}")
    )
    local.wait_up("head-office")
    near = Recorder(local.mqtt.port, "near", "commands/#")
    far = Recorder(remote.mqtt.port, "far", "plant7/sensors/#")
    near.publish("sensors/a", b"21")
    assert far.take(1) == [Received("plant7/sensors/a", b"21", 1, False)]
    far.publish("plant7/commands/b", b"on")
    assert near.take(1) == [Received("commands/b", b"on", 1, False)]
    command = re.findall(r"\$ (trellis list bridges .*)\n *(.*)\n", PAGE)[0]
    listed = local.trellis(*shlex.split(command[0])[1:])
    heading, row = listed.stdout.splitlines()
    assert heading.split() == command[1].split()
    assert row.split()[:4] == ["mqtt", "head-office", f"mqtt://{host}:{port}", "up"]
    for recorder in (near, far):
        recorder.close()
    local.stop()
    remote.stop()


def test_the_shovel_and_the_federated_exchange_of_the_page(tmp_path: Path) -> None:
    pair = trellis_pair(tmp_path)
    shovel, upstream = (each["value"] for each in bodies_of_curl())
    shovel["dest-uri"] = upstream["uri"] = pair.remote_uri
    pair.near.queue_declare("orders", durable=True)
    pair.near.basic_publish("", "orders", b"order")
    pair.local.request("PUT", "parameters/shovel/%2F/to-cloud", {"value": shovel})
    pair.local.wait_up("to-cloud")
    assert take(pair.far, "orders", 1)[0][1] == b"order"

    for client in (pair.near, pair.far):
        client.exchange_declare("orders", "topic", durable=True)
    path = "parameters/federation-upstream/%2F/head-office"
    pair.local.request("PUT", path, {"value": upstream})
    command = re.findall(r"\n    trellis (policies set .*)\n", PAGE)[0]
    result = pair.local.trellis(*shlex.split(command))
    assert result.returncode == 0, result.stderr
    pair.local.wait_up("head-office -> orders")
    pair.near.queue_declare("eu")
    pair.near.queue_bind("eu", "orders", "#")
    for key in ("us.1", "eu.1"):
        pair.far.basic_publish("orders", key, key.encode())
    assert take(pair.near, "eu", 1)[0][1] == b"eu.1"
    pair.close()
