"""A driver for the client of amqtt. Its event loop runs only while a test waits for a call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import quote

from amqtt.client import MQTTClient
from amqtt.errors import ConnectError

from tests.broker import Address
from tests.interop.client import PATIENCE, LoginRefused
from tests.interop.mqtt_client import Login, MqttClient, Received

T = TypeVar("T")


class AmqttClient(MqttClient):
    """An amqtt.client.MQTTClient that does not reconnect."""

    def __init__(self, broker: Address, login: Login) -> None:
        self._runner = asyncio.Runner()
        self._ended = False
        try:
            self._run(self._connect(broker, login))
        except LoginRefused:
            self._runner.close()
            raise

    async def _connect(self, broker: Address, login: Login) -> None:
        settings: dict[str, Any] = {
            "auto_reconnect": False,
            "keep_alive": login.keep_alive,
            "ping_delay": 0,
        }
        if login.will is not None:
            settings["will"] = {**login.will._asdict(), "message": login.will.payload.decode()}
            del settings["will"]["payload"]
        user = "" if login.user is None else f"{quote(login.user)}:{quote(login.password or '')}@"
        self._client = MQTTClient(login.client_id, settings)
        try:
            await self._client.connect(f"mqtt://{user}{broker.host}:{broker.port}/", login.clean)
        except ConnectError as error:
            await self._drop()
            raise LoginRefused(f"return code {error.return_code}") from error

    async def _drop(self) -> None:
        """Close the socket, which the library keeps open even after a refused login."""
        handler: Any = self._client._handler
        await handler.writer.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def with_timeout() -> T:
            return await asyncio.wait_for(work, PATIENCE)

        return self._runner.run(with_timeout())

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        granted: list[int] = self._run(self._client.subscribe([(topic_filter, qos)]))
        return granted[0]

    def unsubscribe(self, topic_filter: str) -> None:
        self._run(self._client.unsubscribe([topic_filter]))

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        self._run(self._client.publish(topic, payload, qos, retain))

    def receive(self) -> Received:
        message = self._run(self._client.deliver_message())
        assert message is not None
        return Received(message.topic, bytes(message.data), message.qos or 0, message.retain)

    def disconnect(self) -> None:
        """Close the connection with a DISCONNECT packet, after a ping.

        amqtt's `disconnect` never ends if a packet arrives just when amqtt stops reading. The ping
        makes amqtt read all packets that are under way.
        """
        if not self._ended:
            self._ended = True
            self._run(self._client.ping())
            self._run(self._client.disconnect())

    def abort(self) -> None:
        self._run(self._drop())
        self.wait_until_closed()

    def wait_until_closed(self) -> None:
        self._ended = True
        self._run(self._client._no_more_connections.wait())

    def close(self) -> None:
        self.disconnect()
        self._runner.close()

    def idle(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))
