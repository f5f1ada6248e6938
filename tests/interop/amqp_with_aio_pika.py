"""A driver for aio-pika. Its event loop runs only while a test waits for a call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

import aio_pika
import aiormq
from aio_pika.abc import AbstractIncomingMessage
from pamqp import commands as spec

from tests.interop.amqp_client import (
    AmqpClient,
    Declared,
    Delivery,
    Fate,
    Properties,
    Refused,
    present_properties,
)
from tests.interop.client import PATIENCE, LoginRefused

T = TypeVar("T")

_CODES: dict[type[Exception], int] = {
    aiormq.ChannelAccessRefused: 403,
    aiormq.ChannelNotFoundEntity: 404,
    aiormq.ChannelLockedResource: 405,
    aiormq.ChannelPreconditionFailed: 406,
}
_UNCONVERTED = (
    "content_type",
    "content_encoding",
    "headers",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
)


class AioPikaClient(AmqpClient):
    """A connection made with aio_pika.connect, which does not reconnect."""

    any_name: ClassVar[bool] = False

    def __init__(self, url: str, heartbeat: int = 60) -> None:
        self._runner = asyncio.Runner()
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._cancelled: asyncio.Queue[str] = asyncio.Queue()
        try:
            self._connection = self._run(aio_pika.connect(f"{url}?heartbeat={heartbeat}"))
        except aiormq.ProbableAuthenticationError as error:
            self._runner.close()
            raise LoginRefused(str(error)) from error
        self._run(self._open())

    async def _open(self) -> None:
        self._channel = await self._connection.channel(
            publisher_confirms=True, on_return_raises=True
        )
        underlay = await self._channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(self._on_cancel)

    def _on_cancel(self, frame: spec.Basic.Cancel) -> None:
        self._cancelled.put_nowait(frame.consumer_tag or "")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def with_timeout() -> T:
            return await asyncio.wait_for(work, PATIENCE)

        try:
            return self._runner.run(with_timeout())
        except aiormq.ChannelClosed as error:
            self._runner.run(self._open())
            raise Refused(_CODES[type(error)], str(error)) from error

    def _close(self) -> None:
        self._run(self._connection.close())
        self._runner.close()

    async def _queue(self, name: str) -> aio_pika.abc.AbstractQueue:
        return await self._channel.get_queue(name, ensure=False)

    async def _exchange(self, name: str) -> aio_pika.abc.AbstractExchange:
        return (
            await self._channel.get_exchange(name, ensure=False)
            if name
            else self._channel.default_exchange
        )

    def declare_exchange(
        self, name: str, kind: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None:
        self._run(self._channel.declare_exchange(name, kind, passive=passive, durable=durable))

    def delete_exchange(self, name: str) -> None:
        self._run(self._channel.exchange_delete(name))

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Declared:
        given = dict(arguments or {})
        queue = self._run(
            self._channel.declare_queue(
                name, passive=passive, durable=durable, exclusive=exclusive, arguments=given
            )
        )
        answer = queue.declaration_result
        return Declared(queue.name, answer.message_count or 0, answer.consumer_count or 0)

    def delete_queue(self, name: str) -> int:
        answer = self._run(self._channel.queue_delete(name))
        assert isinstance(answer, spec.Queue.DeleteOk)
        return answer.message_count or 0

    def bind(
        self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None
    ) -> None:
        async def work() -> None:
            await (await self._queue(queue)).bind(exchange, key, arguments=dict(arguments or {}))

        self._run(work())

    def unbind(self, queue: str, exchange: str, key: str) -> None:
        async def work() -> None:
            await (await self._queue(queue)).unbind(exchange, key)

        self._run(work())

    def bind_exchange(self, destination: str, source: str, key: str) -> None:
        async def work() -> None:
            await (await self._exchange(destination)).bind(source, key)

        self._run(work())

    def unbind_exchange(self, destination: str, source: str, key: str) -> None:
        async def work() -> None:
            await (await self._exchange(destination)).unbind(source, key)

        self._run(work())

    def purge(self, queue: str) -> int:
        async def work() -> int:
            answer = await (await self._queue(queue)).purge()
            assert isinstance(answer, spec.Queue.PurgeOk)
            return answer.message_count or 0

        return self._run(work())

    def publish(
        self,
        body: bytes,
        key: str,
        exchange: str = "",
        *,
        mandatory: bool = False,
        properties: Properties | None = None,
    ) -> Fate:
        async def work() -> None:
            await (await self._exchange(exchange)).publish(
                _message(body, properties or {}), key, mandatory=mandatory
            )

        try:
            self._run(work())
        except aiormq.PublishError:
            return "returned"
        except aiormq.DeliveryError:
            return "nack"
        return "ack"

    def get(self, queue: str) -> Delivery | None:
        async def work() -> AbstractIncomingMessage | None:
            return await (await self._queue(queue)).get(fail=False)

        message = self._run(work())
        return None if message is None else _delivery(message)

    def prefetch(self, count: int) -> None:
        self._run(self._channel.set_qos(count))

    def consume(self, queue: str, arguments: Mapping[str, Any] | None = None) -> str:
        async def work() -> str:
            return await (await self._queue(queue)).consume(
                self._on_message, arguments=dict(arguments or {})
            )

        return self._run(work())

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        self._deliveries.put_nowait(_delivery(message))

    def cancel(self, tag: str) -> None:
        async def work() -> None:
            await (await self._channel.get_underlay_channel()).basic_cancel(tag)

        self._run(work())

    def receive(self) -> Delivery:
        return self._run(self._deliveries.get())

    def cancelled(self) -> str:
        return self._run(self._cancelled.get())

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        self._run(delivery.receipt.ack(multiple))

    def nack(self, delivery: Delivery, *, multiple: bool = False, requeue: bool) -> None:
        self._run(delivery.receipt.nack(multiple, requeue))

    def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        self._run(delivery.receipt.reject(requeue))

    def idle(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))


def _message(body: bytes, properties: Properties) -> aio_pika.Message:
    """Return a message of aio-pika.

    The expiration (ms) becomes seconds, and the timestamp (seconds) a datetime, as aio-pika expects
    them. aio-pika cannot send the property cluster_id.
    """
    written = {
        name: value
        for name, value in properties.items()
        if name in (*_UNCONVERTED, "delivery_mode")
    }
    if "expiration" in properties:
        written["expiration"] = int(properties["expiration"]) / 1000
    if "timestamp" in properties:
        written["timestamp"] = datetime.fromtimestamp(properties["timestamp"], UTC)
    return aio_pika.Message(body, **written)


def _delivery(message: AbstractIncomingMessage) -> Delivery:
    properties = {name: getattr(message, name) for name in _UNCONVERTED}
    properties["delivery_mode"] = message.delivery_mode and int(message.delivery_mode)
    properties["cluster_id"] = message.cluster_id
    if isinstance(message.expiration, int | float):
        properties["expiration"] = str(round(message.expiration * 1000))
    if message.timestamp is not None:
        properties["timestamp"] = int(message.timestamp.timestamp())
    return Delivery(
        message.body,
        message.exchange or "",
        message.routing_key or "",
        bool(message.redelivered),
        present_properties(properties),
        message,
    )
