"""A driver for MQTT.js, which runs in a Node.js process."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from typing import Any

from tests.broker import Address
from tests.interop.client import LoginRefused
from tests.interop.mqtt_client import EXPIRY, Login, MqttClient, Received
from tests.interop.node import Node, NodeError


class MqttjsClient(MqttClient):
    """A client in tests/node/mqtt.js that does not reconnect."""

    def __init__(self, broker: Address, login: Login, node: Node) -> None:
        options: dict[str, Any] = {
            "clientId": login.client_id,
            "clean": login.clean,
            "username": login.user,
            "password": login.password,
            "keepalive": login.keep_alive,
            "protocolVersion": login.version,
        }
        if login.version == 5 and not login.clean:
            options["properties"] = {"sessionExpiryInterval": EXPIRY}
        if login.will is not None:
            options["will"] = {**login.will._asdict(), "payload": login.will.payload.decode()}
        self._node = node
        self._open = True
        try:
            self._client = node.connect("mqtt", f"mqtt://{broker.host}:{broker.port}", options)
        except NodeError as error:
            raise LoginRefused(str(error)) from error
        self.session_present = self._call("present")

    def _call(self, method: str, *args: object) -> Any:
        return self._node.call(self._client, method, *args)

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        return int(self._call("subscribe", topic_filter, qos))

    def unsubscribe(self, topic_filter: str) -> None:
        self._call("unsubscribe", topic_filter)

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        self._call("publish", topic, b64encode(payload).decode(), qos, retain)

    def receive(self) -> Received:
        message = self._call("receive")
        return Received(
            message["topic"], b64decode(message["payload"]), message["qos"], message["retain"]
        )

    def disconnect(self) -> None:
        self._open = False
        self._call("disconnect")

    def abort(self) -> None:
        self._call("abort")

    def wait_until_closed(self) -> None:
        self._call("waitUntilClosed")

    def close(self) -> None:
        if self._open:
            self.disconnect()

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)  # The library keeps working in its own process.
