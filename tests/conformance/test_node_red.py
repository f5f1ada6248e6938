"""Node-RED as a client: its flow receives messages over MQTT, changes them and publishes them."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import BrokerProcess
from tests.foreign import require
from trellis.parent_process import end_with_parent

PROGRAM: Final = Path(__file__).parent / "node_modules" / "node-red" / "red.js"
PATIENCE: Final = 90
#: Settings of Node-RED: no editor, and no HTTP pages.
SETTINGS: Final = """
module.exports = {
  uiPort: %d, uiHost: '127.0.0.1', disableEditor: true, httpAdminRoot: false, httpNodeRoot: false,
  credentialSecret: false, flowFile: 'flows.json', telemetry: { enabled: false },
};
"""
FUNCTION: Final = """
msg.topic = msg.topic.replace('/in/', '/out/');
msg.payload = { seen: msg.payload, qos: msg.qos, retain: msg.retain };
msg.retain = true;
return msg;
"""


def flow(name: str, version: str, host: str, port: int) -> list[dict[str, Any]]:
    """Return a flow: an MQTT node, a function and another MQTT node, with one connection.

    Node-RED treats each text that equals a node's id as a reference to that node, so ids have a
    prefix that no other text has.
    """
    return [
        {"id": "id-tab", "type": "tab"},
        {
            "id": "id-broker",
            "type": "mqtt-broker",
            "broker": host,
            "port": str(port),
            "clientid": f"{name}-red",
            "autoConnect": True,
            "usetls": False,
            "protocolVersion": version,
            "keepalive": "60",
            "cleansession": True,
            "birthTopic": f"{name}/state",
            "birthPayload": "on",
            "birthQos": "1",
            "birthRetain": "true",
            "closeTopic": f"{name}/state",
            "closePayload": "off",
            "closeQos": "1",
            "closeRetain": "true",
        },
        {
            "id": "id-in",
            "type": "mqtt in",
            "z": "id-tab",
            "topic": f"{name}/in/+",
            "qos": "2",
            "datatype": "auto-detect",
            "broker": "id-broker",
            "inputs": 0,
            "wires": [["id-function"]],
        },
        {
            "id": "id-function",
            "type": "function",
            "z": "id-tab",
            "func": FUNCTION,
            "outputs": 1,
            "wires": [["id-out"]],
        },
        {
            "id": "id-out",
            "type": "mqtt out",
            "z": "id-tab",
            "topic": "",
            "broker": "id-broker",
            "wires": [],
        },
    ]


@pytest.fixture(params=["4", "5"])
def version(request: pytest.FixtureRequest) -> str:
    """Return the protocol level of Node-RED's connection: MQTT 3.1.1 or 5."""
    return str(request.param)


@pytest.fixture
def node_red(
    broker: BrokerProcess, version: str, unique: str, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Node-RED with the flow."""
    node = require("conformance")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "settings.js").write_text(SETTINGS % port)
    (tmp_path / "flows.json").write_text(json.dumps(flow(unique, version, *broker.mqtt)))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [node, str(PROGRAM), "--userDir", str(tmp_path)],
            preexec_fn=end_with_parent,
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
    yield process
    process.terminate()
    process.wait(PATIENCE)
    text = (tmp_path / "log").read_text()
    assert "[error]" not in text, text


@pytest.mark.long
async def test_a_flow_of_node_red(
    broker: BrokerProcess, node_red: subprocess.Popen[bytes], version: str, unique: str
) -> None:
    host, port = broker.mqtt
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("trace", "7")]
    properties.ContentType = "application/json"
    async with (
        aiomqtt.Client(host, port, protocol=aiomqtt.ProtocolVersion.V5) as client,
        asyncio.timeout(PATIENCE),
    ):
        await client.subscribe(f"{unique}/#", qos=2)
        messages = aiter(client.messages)
        assert await following(messages, f"{unique}/state") == b"on"
        await client.publish(
            f"{unique}/in/a", b'{"n": 1}', qos=2, retain=True, properties=properties
        )
        answer = await message(messages, f"{unique}/out/a")
        assert isinstance(answer.payload, bytes)
        payload = json.loads(answer.payload)
        assert payload["seen"] == {"n": 1}
        assert payload["qos"] == 2
        if version == "5":
            assert ("trace", "7") in getattr(answer.properties, "UserProperty", [])
        node_red.terminate()
        assert await following(messages, f"{unique}/state") == b"off"


async def message(messages: Any, topic: str) -> aiomqtt.Message:
    """Return the next message with this topic."""
    async for each in messages:
        if str(each.topic) == topic:
            assert isinstance(each, aiomqtt.Message)
            return each
    raise AssertionError("the connection ended")


async def following(messages: Any, topic: str) -> object:
    """Return the payload of the next message with this topic."""
    return (await message(messages, topic)).payload
