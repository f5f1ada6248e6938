"""A driver for gmqtt, an MQTT 5 library. Its event loop runs only during a test's calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

import gmqtt

from tests.broker import Address
from tests.interop.client import PATIENCE, LoginRefused
from tests.interop.mqtt_client import EXPIRY, Login, MqttClient, Received

T = TypeVar("T")


class GmqttClient(MqttClient):
    """A gmqtt.Client that does not reconnect."""

    def __init__(self, broker: Address, login: Login) -> None:
        self._runner = asyncio.Runner()
        try:
            self._run(self._connect(broker, login))
        except LoginRefused:
            self._runner.close()
            raise

    async def _connect(self, broker: Address, login: Login) -> None:
        self._received: asyncio.Queue[Received] = asyncio.Queue()
        self._granted: asyncio.Queue[int] = asyncio.Queue()
        self._unsubscribed: asyncio.Queue[int] = asyncio.Queue()
        self._closed = asyncio.Event()
        will = login.will and gmqtt.Message(
            login.will.topic, login.will.payload, login.will.qos, login.will.retain
        )
        options = {} if login.clean else {"session_expiry_interval": EXPIRY}
        client: Any = gmqtt.Client(
            login.client_id, clean_session=login.clean, will_message=will, **options
        )
        self._client = client
        client.set_config({"reconnect_retries": 0})
        if login.user is not None:
            client.set_auth_credentials(login.user, login.password)
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_subscribe = lambda _client, _mid, codes, _properties: self._granted.put_nowait(
            int(codes[0])
        )
        client.on_unsubscribe = lambda _client, mid, *_: self._unsubscribed.put_nowait(mid)
        client.on_disconnect = lambda *_: self._closed.set()
        try:
            await client.connect(broker.host, broker.port, keepalive=login.keep_alive)
        except gmqtt.mqtt.handler.MQTTConnectError as error:
            raise LoginRefused(str(error)) from error

    def _on_connect(self, _client: Any, flags: int, _code: int, _properties: Any) -> None:
        self.session_present = bool(flags & 1)

    async def _on_message(
        self, _client: Any, topic: str, payload: bytes, qos: int, properties: Any
    ) -> int:
        self._received.put_nowait(Received(topic, bytes(payload), qos, bool(properties["retain"])))
        return 0

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def with_timeout() -> T:
            return await asyncio.wait_for(work, PATIENCE)

        return self._runner.run(with_timeout())

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        async def work() -> int:
            self._client.subscribe(topic_filter, qos)
            return await self._granted.get()

        return self._run(work())

    def unsubscribe(self, topic_filter: str) -> None:
        async def work() -> None:
            self._client.unsubscribe(topic_filter)
            await self._unsubscribed.get()

        self._run(work())

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        async def work() -> None:
            self._client.publish(topic, payload, qos, retain)
            for _ in itertools.count():
                await asyncio.sleep(0.005)  # gmqtt has no event for PUBACK.
                if self._client._persistent_storage.is_empty:
                    return

        self._run(work())

    def receive(self) -> Received:
        return self._run(self._received.get())

    def disconnect(self) -> None:
        self._run(self._client.disconnect())

    def abort(self) -> None:
        async def work() -> None:
            self._client._connection._transport.abort()
            await self._closed.wait()

        self._run(work())

    def wait_until_closed(self) -> None:
        self._run(self._closed.wait())

    def close(self) -> None:
        if not self._closed.is_set():
            self.disconnect()
        self._runner.close()

    def idle(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))
