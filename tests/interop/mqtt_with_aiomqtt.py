"""A driver for aiomqtt. Its event loop runs only while a test waits for a call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import Address
from tests.interop.client import PATIENCE, LoginRefused
from tests.interop.mqtt_client import EXPIRY, Login, MqttClient, Received

T = TypeVar("T")


class AiomqttClient(MqttClient):
    """An aiomqtt.Client. The driver calls its context manager methods directly."""

    def __init__(self, broker: Address, login: Login) -> None:
        self._runner = asyncio.Runner()
        try:
            self._run(self._connect(broker, login))
        except LoginRefused:
            self._runner.close()
            raise

    async def _connect(self, broker: Address, login: Login) -> None:
        version: dict[str, Any] = {
            "clean_session": login.clean,
            "protocol": aiomqtt.ProtocolVersion.V311,
        }
        if login.version == 5:
            # paho has no type annotations for Properties.
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0 if login.clean else EXPIRY
            version = {
                "clean_start": login.clean,
                "protocol": aiomqtt.ProtocolVersion.V5,
                "properties": properties,
            }
        self._client = aiomqtt.Client(
            broker.host,
            broker.port,
            identifier=login.client_id,
            username=login.user,
            password=login.password,
            keepalive=login.keep_alive,
            will=None if login.will is None else aiomqtt.Will(*login.will),
            **version,
        )
        try:
            await self._client.__aenter__()
        except aiomqtt.MqttError as error:
            raise LoginRefused(str(error)) from error

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def with_timeout() -> T:
            return await asyncio.wait_for(work, PATIENCE)

        return self._runner.run(with_timeout())

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        granted: Any = self._run(self._client.subscribe(topic_filter, qos))[0]
        return int(getattr(granted, "value", granted))

    def unsubscribe(self, topic_filter: str) -> None:
        self._run(self._client.unsubscribe(topic_filter))

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        self._run(self._client.publish(topic, payload, qos, retain))

    def receive(self) -> Received:
        async def work() -> Received:
            message = await anext(aiter(self._client.messages))
            assert isinstance(message.payload, bytes)
            return Received(str(message.topic), message.payload, message.qos, bool(message.retain))

        return self._run(work())

    def disconnect(self) -> None:
        self._run(self._client.__aexit__(None, None, None))

    def abort(self) -> None:
        async def work() -> None:
            connection: Any = self._client._client.socket()
            connection.shutdown(2)
            await asyncio.wait([self._client._disconnected])

        self._run(work())

    def wait_until_closed(self) -> None:
        async def work() -> None:
            await anext(aiter(self._client.messages))

        try:
            self._run(work())
        except aiomqtt.MqttError:
            return
        raise AssertionError("a message arrived instead of the end of the connection")

    def close(self) -> None:
        self.disconnect()
        self._runner.close()

    def idle(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))
