"""A driver for kombu over py-amqp, the libraries that Celery uses."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import amqp
import kombu

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


class KombuClient(AmqpClient):
    """A kombu.Connection with a Producer and Consumers.

    Calls that kombu does not offer use methods of the channel of py-amqp.
    """

    def __init__(self, url: str, heartbeat: int = 60) -> None:
        self._connection = kombu.Connection(
            url, heartbeat=heartbeat, transport_options={"confirm_publish": True}
        )
        self._deliveries: deque[Delivery] = deque()
        self._cancelled: deque[str] = deque()
        self._returned: list[Any] = []
        try:
            self._connection.connect()
        except amqp.AccessRefused as error:
            raise LoginRefused(str(error)) from error
        self._open()

    def _open(self) -> None:
        self._channel: Any = self._connection.channel()
        self._producer = kombu.Producer(
            self._channel, on_return=lambda *returned: self._returned.append(returned)
        )
        self._consumers: dict[str, kombu.Consumer] = {}

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except amqp.ChannelError as error:
            self._open()
            raise Refused(error.code, error.reply_text) from error

    def _close(self) -> None:
        self._connection.release()

    def declare_exchange(
        self, name: str, kind: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None:
        with self._refusals():
            self._channel.exchange_declare(
                name, kind, passive=passive, durable=durable, auto_delete=False
            )

    def delete_exchange(self, name: str) -> None:
        with self._refusals():
            self._channel.exchange_delete(name)

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Declared:
        with self._refusals():
            answer = self._channel.queue_declare(
                name, passive, durable, exclusive, auto_delete=False, arguments=arguments
            )
            return Declared(answer.queue, answer.message_count, answer.consumer_count)

    def delete_queue(self, name: str) -> int:
        with self._refusals():
            return int(self._channel.queue_delete(name))

    def bind(
        self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None
    ) -> None:
        with self._refusals():
            self._channel.queue_bind(queue, exchange, key, arguments=arguments)

    def unbind(self, queue: str, exchange: str, key: str) -> None:
        with self._refusals():
            self._channel.queue_unbind(queue, exchange, key)

    def bind_exchange(self, destination: str, source: str, key: str) -> None:
        with self._refusals():
            self._channel.exchange_bind(destination, source, key)

    def unbind_exchange(self, destination: str, source: str, key: str) -> None:
        with self._refusals():
            self._channel.exchange_unbind(destination, source, key)

    def purge(self, queue: str) -> int:
        with self._refusals():
            return int(self._channel.queue_purge(queue))

    def publish(
        self,
        body: bytes,
        key: str,
        exchange: str = "",
        *,
        mandatory: bool = False,
        properties: Properties | None = None,
    ) -> Fate:
        written = {
            "content_type": "application/octet-stream",
            "content_encoding": "binary",
            **(properties or {}),
        }
        if "expiration" in written:
            written["expiration"] = int(written["expiration"]) / 1000
        self._returned.clear()
        try:
            with self._refusals():
                self._producer.publish(body, key, exchange=exchange, mandatory=mandatory, **written)
        except amqp.exceptions.MessageNacked:
            return "nack"
        return "returned" if self._returned else "ack"

    def get(self, queue: str) -> Delivery | None:
        with self._refusals():
            message = kombu.Queue(queue, channel=self._channel, no_declare=True).get()
            return None if message is None else _delivery(message)

    def prefetch(self, count: int) -> None:
        self._channel.basic_qos(0, count, False)

    def consume(self, queue: str, arguments: Mapping[str, Any] | None = None) -> str:
        source = kombu.Queue(
            queue, channel=self._channel, no_declare=True, consumer_arguments=arguments
        )
        consumer = kombu.Consumer(self._channel, [source], on_message=self._on_message)
        with self._refusals():
            consumer.consume()
        tag = str(consumer._active_tags[queue])
        self._consumers[tag] = consumer
        return tag

    def _on_message(self, message: Any) -> None:
        self._deliveries.append(_delivery(message))

    def cancel(self, tag: str) -> None:
        self._consumers.pop(tag).cancel()

    def receive(self) -> Delivery:
        self._work_until(lambda: bool(self._deliveries))
        return self._deliveries.popleft()

    def cancelled(self) -> str:
        self._work_until(lambda: bool(self._cancelled))
        return self._cancelled.popleft()

    def _work_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            with self._refusals():
                try:
                    self._connection.drain_events(timeout=max(0.01, end - time.monotonic()))
                except amqp.ConsumerCancelled as error:
                    self._cancelled.append(str(error.reply_text))

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        delivery.receipt.ack(multiple)

    def nack(self, delivery: Delivery, *, multiple: bool = False, requeue: bool) -> None:
        raise NotImplementedError("py-amqp has no basic.nack")

    def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        delivery.receipt.reject(requeue)

    def idle(self, seconds: float) -> None:
        """Repeat the steps of a kombu consumer loop: drain events, then check the heartbeat."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self._connection.drain_events(timeout=0.25)
            except TimeoutError:
                pass
            self._connection.heartbeat_check()


def _delivery(message: Any) -> Delivery:
    info = message.delivery_info
    properties = dict(message.properties)
    properties["headers"] = properties.pop("application_headers", None) or message.headers
    properties["content_type"], properties["content_encoding"] = (
        message.content_type,
        message.content_encoding,
    )
    # py-amqp decodes some bodies to text.
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    return Delivery(
        body,
        info["exchange"],
        info["routing_key"],
        info["redelivered"],
        present_properties(properties),
        message,
    )
