"""A driver for amqplib, which runs in a Node.js process."""

from __future__ import annotations

import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.interop.amqp_client import (
    AmqpClient,
    Declared,
    Delivery,
    Fate,
    Properties,
    Refused,
    present_properties,
)
from tests.interop.client import LoginRefused
from tests.interop.node import Node, NodeError


class AmqplibClient(AmqpClient):
    """A client in tests/node/amqp.js: the promise API of amqplib with a confirm channel."""

    def __init__(self, url: str, heartbeat: int, node: Node) -> None:
        self._node = node
        try:
            self._client = node.connect("amqplib", f"{url}?heartbeat={heartbeat}", {})
        except NodeError as error:
            raise LoginRefused(str(error)) from error

    def _call(self, method: str, *args: object) -> Any:
        try:
            return self._node.call(self._client, method, *args)
        except NodeError as error:
            if isinstance(error.code, int):
                raise Refused(error.code, str(error)) from error
            raise

    def _close(self) -> None:
        self._call("close")

    def declare_exchange(
        self, name: str, kind: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None:
        self._call("declareExchange", name, kind, passive, durable)

    def delete_exchange(self, name: str) -> None:
        self._call("deleteExchange", name)

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Declared:
        return Declared(
            *self._call("declareQueue", name, passive, durable, exclusive, arguments or {})
        )

    def delete_queue(self, name: str) -> int:
        return int(self._call("deleteQueue", name))

    def bind(
        self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._call("bind", queue, exchange, key, arguments or {})

    def unbind(self, queue: str, exchange: str, key: str) -> None:
        self._call("unbind", queue, exchange, key)

    def bind_exchange(self, destination: str, source: str, key: str) -> None:
        self._call("bindExchange", destination, source, key)

    def unbind_exchange(self, destination: str, source: str, key: str) -> None:
        self._call("unbindExchange", destination, source, key)

    def purge(self, queue: str) -> int:
        return int(self._call("purge", queue))

    def publish(
        self,
        body: bytes,
        key: str,
        exchange: str = "",
        *,
        mandatory: bool = False,
        properties: Properties | None = None,
    ) -> Fate:
        written = {_camel(name): value for name, value in (properties or {}).items()}
        fate: Fate = self._call(
            "publish", b64encode(body).decode(), key, exchange, mandatory, written
        )
        return fate

    def get(self, queue: str) -> Delivery | None:
        message = self._call("get", queue)
        return None if message is None else _delivery(message)

    def prefetch(self, count: int) -> None:
        self._call("prefetch", count)

    def consume(self, queue: str, arguments: Mapping[str, Any] | None = None) -> str:
        return str(
            self._call(
                "consume",
                queue,
                {name: _encoded(value) for name, value in (arguments or {}).items()},
            )
        )

    def cancel(self, tag: str) -> None:
        self._call("cancel", tag)

    def receive(self) -> Delivery:
        return _delivery(self._call("receive"))

    def cancelled(self) -> str:
        return str(self._call("cancelled"))

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        self._call("ack", delivery.receipt, multiple)

    def nack(self, delivery: Delivery, *, multiple: bool = False, requeue: bool) -> None:
        self._call("nack", delivery.receipt, multiple, requeue)

    def reject(self, delivery: Delivery, *, requeue: bool) -> None:
        self._call("reject", delivery.receipt, requeue)

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)  # The library keeps working in its own process.


def _encoded(value: object) -> object:
    """Return a datetime in amqplib's notation of timestamps; return other values unchanged."""
    return (
        {"!": "timestamp", "value": int(value.timestamp())}
        if isinstance(value, datetime)
        else value
    )


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), name)


def _delivery(message: Mapping[str, Any]) -> Delivery:
    properties = present_properties(
        {_snake(name): value for name, value in message["properties"].items()}
    )
    return Delivery(
        b64decode(message["body"]),
        message["exchange"],
        message["key"],
        message["redelivered"],
        properties,
        message["tag"],
    )
