"""The interface through which tests use an AMQP client of any library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import pytest

#: The outcome of a publication: confirmed by the broker, rejected by the broker, or returned before
#: the confirm (a mandatory message without a queue).
Fate = Literal["ack", "nack", "returned"]
#: Message properties by their names in AMQP 0-9-1 (section 1.8.3), with underscores. `timestamp` is
#: in seconds; `expiration` is a text with milliseconds.
Properties = Mapping[str, Any]


class Refused(Exception):
    """Raised if the broker closed the channel. The driver has opened another channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Declared(NamedTuple):
    """The fields of queue.declare-ok: name, message count and consumer count of a queue."""

    queue: str
    messages: int
    consumers: int


@dataclass(frozen=True)
class Delivery:
    """A message that a library delivered.

    `receipt` is the library's own object for acknowledging or rejecting the message.
    """

    body: bytes
    exchange: str
    routing_key: str
    redelivered: bool
    properties: dict[str, Any]
    receipt: Any


class AmqpClient(ABC):
    """A connection with one channel in confirm mode.

    Every method that the broker may refuse raises Refused.
    """

    #: True if the library accepts every name of a queue or exchange that the broker accepts.
    any_name: ClassVar[bool] = True
    _closed = False

    def close(self) -> None:
        """Close the connection unless it was closed before."""
        if not self._closed:
            self._closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def declare_exchange(
        self, name: str, kind: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None: ...

    @abstractmethod
    def delete_exchange(self, name: str) -> None: ...

    @abstractmethod
    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Declared: ...

    @abstractmethod
    def delete_queue(self, name: str) -> int:
        """Delete a queue; return the number of messages that it held."""

    @abstractmethod
    def bind(
        self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None
    ) -> None: ...

    @abstractmethod
    def unbind(self, queue: str, exchange: str, key: str) -> None: ...

    @abstractmethod
    def bind_exchange(self, destination: str, source: str, key: str) -> None: ...

    @abstractmethod
    def unbind_exchange(self, destination: str, source: str, key: str) -> None: ...

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Purge a queue; return the number of purged messages."""

    @abstractmethod
    def publish(
        self,
        body: bytes,
        key: str,
        exchange: str = "",
        *,
        mandatory: bool = False,
        properties: Properties | None = None,
    ) -> Fate:
        """Publish a message, wait for the broker's confirm, and return the outcome."""

    @abstractmethod
    def get(self, queue: str) -> Delivery | None: ...

    @abstractmethod
    def prefetch(self, count: int) -> None: ...

    @abstractmethod
    def consume(self, queue: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Start a consumer and return its tag. `receive` returns its deliveries."""

    @abstractmethod
    def cancel(self, tag: str) -> None: ...

    @abstractmethod
    def receive(self) -> Delivery:
        """Wait for the next delivery to any consumer and return it."""

    @abstractmethod
    def cancelled(self) -> str:
        """Wait until the broker cancels a consumer; return the consumer's tag."""

    @abstractmethod
    def ack(self, delivery: Delivery, *, multiple: bool = False) -> None: ...

    @abstractmethod
    def nack(self, delivery: Delivery, *, multiple: bool = False, requeue: bool) -> None: ...

    @abstractmethod
    def reject(self, delivery: Delivery, *, requeue: bool) -> None: ...

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Wait without other calls while the library does its periodic work (heartbeats)."""

    def depth(self, queue: str) -> int:
        """Return the number of ready messages in the queue.

        The broker answers after it has handled everything that this client sent before.
        """
        return self.declare_queue(queue, passive=True).messages

    @contextmanager
    def refused(self, code: int, text: str) -> Iterator[None]:
        """Check that the broker refuses the calls in this block with a reply code and text."""
        with pytest.raises(Refused) as caught:
            yield
        assert caught.value.code == code
        assert text in caught.value.text


def present_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `properties` without the values None and {}."""
    return {name: value for name, value in properties.items() if value is not None and value != {}}
