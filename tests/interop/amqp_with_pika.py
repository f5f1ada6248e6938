"""A driver for pika, with its blocking connection."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pika
from pika import exceptions

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

_PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class PikaClient(AmqpClient):
    """A pika.BlockingConnection with one channel."""

    def __init__(self, url: str, heartbeat: int = 60) -> None:
        parameters = pika.URLParameters(url)
        parameters.heartbeat = heartbeat
        self._deliveries: deque[Delivery] = deque()
        self._cancelled: deque[str] = deque()
        try:
            self._connection = pika.BlockingConnection(parameters)
        except exceptions.ProbableAuthenticationError as error:
            raise LoginRefused(str(error)) from error
        self._open()

    def _open(self) -> None:
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.add_on_cancel_callback(
            lambda frame: self._cancelled.append(frame.method.consumer_tag)
        )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except exceptions.ChannelClosedByBroker as error:
            self._open()
            raise Refused(error.reply_code, error.reply_text) from error

    def _close(self) -> None:
        self._connection.close()

    def declare_exchange(
        self, name: str, kind: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None:
        with self._refusals():
            self._channel.exchange_declare(name, kind, passive=passive, durable=durable)

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
                name, passive=passive, durable=durable, exclusive=exclusive, arguments=arguments
            ).method
        return Declared(answer.queue, answer.message_count, answer.consumer_count)

    def delete_queue(self, name: str) -> int:
        with self._refusals():
            return int(self._channel.queue_delete(name).method.message_count)

    def bind(
        self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None
    ) -> None:
        with self._refusals():
            self._channel.queue_bind(queue, exchange, key, arguments)

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
            return int(self._channel.queue_purge(queue).method.message_count)

    def publish(
        self,
        body: bytes,
        key: str,
        exchange: str = "",
        *,
        mandatory: bool = False,
        properties: Properties | None = None,
    ) -> Fate:
        try:
            with self._refusals():
                written = pika.BasicProperties(**properties or {})
                self._channel.basic_publish(exchange, key, body, written, mandatory)
        except exceptions.UnroutableError:
            return "returned"
        except exceptions.NackError:
            return "nack"
        return "ack"

    def get(self, queue: str) -> Delivery | None:
        with self._refusals():
            method, properties, body = self._channel.basic_get(queue)
        return None if method is None else _delivery(method, properties, body)

    def prefetch(self, count: int) -> None:
        self._channel.basic_qos(prefetch_count=count)

    def consume(self, queue: str, arguments: Mapping[str, Any] | None = None) -> str:
        with self._refusals():
            return str(self._channel.basic_consume(queue, self._on_message, arguments=arguments))

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._deliveries.append(_delivery(method, properties, body))

    def cancel(self, tag: str) -> None:
        self._channel.basic_cancel(tag)

    def receive(self) -> Delivery:
        self._work_until(lambda: bool(self._deliveries))
        return self._deliveries.popleft()

    def cancelled(self) -> str:
        self._work_until(lambda: bool(self._cancelled))
        return self._cancelled.popleft()

    def _work_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"pika received nothing within {PATIENCE} s")
            with self._refusals():
                self._connection.process_data_events(left)

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        self._channel.basic_ack(delivery.receipt, multiple)

    def nack(self, delivery: Delivery, *, multiple: bool = False, requeue: bool) -> None:
        self._channel.basic_nack(delivery.receipt, multiple, requeue)

    def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        self._channel.basic_reject(delivery.receipt, requeue)

    def idle(self, seconds: float) -> None:
        self._connection.sleep(seconds)


def _delivery(method: Any, properties: Any, body: bytes) -> Delivery:
    fields = present_properties({name: getattr(properties, name) for name in _PROPERTIES})
    return Delivery(
        body, method.exchange, method.routing_key, method.redelivered, fields, method.delivery_tag
    )
