"""What a test asks of an AMQP client, whichever library it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import pytest

#: What became of a publication: confirmed, refused, or confirmed after it came back (mandatory and
#: unroutable).
Fate = Literal["ack", "nack", "returned"]
#: Properties by the names of the specification (section 1.8.3); `timestamp` in seconds,
#: `expiration` as text.
Properties = Mapping[str, Any]


class Refused(Exception):
    """The broker closed the channel. The driver has opened another one."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Declared(NamedTuple):
    """The answer to queue.declare."""

    queue: str
    messages: int
    consumers: int


@dataclass(frozen=True)
class Delivery:
    """A message as the library gave it. `receipt` is what the library settles it by."""

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

    #: Whether the library lets any name through to the broker.
    any_name: ClassVar[bool] = True
    _closed = False

    def close(self) -> None:
        """Say goodbye, once."""
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
        """Returns how many messages went with it."""

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
        """Returns how many messages were purged."""

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
        """Publish and wait for the broker's word."""

    @abstractmethod
    def get(self, queue: str) -> Delivery | None: ...

    @abstractmethod
    def prefetch(self, count: int) -> None: ...

    @abstractmethod
    def consume(self, queue: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Returns the consumer tag. What comes is given by `receive`."""

    @abstractmethod
    def cancel(self, tag: str) -> None: ...

    @abstractmethod
    def receive(self) -> Delivery:
        """The next delivery of any consumer."""

    @abstractmethod
    def cancelled(self) -> str:
        """The tag of the next consumer that the broker cancels."""

    @abstractmethod
    def ack(self, delivery: Delivery, *, multiple: bool = False) -> None: ...

    @abstractmethod
    def nack(self, delivery: Delivery, *, multiple: bool = False, requeue: bool) -> None: ...

    @abstractmethod
    def reject(self, delivery: Delivery, *, requeue: bool) -> None: ...

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Do what the library does when its user does nothing."""

    def depth(self, queue: str) -> int:
        """How many messages wait in the queue. The answer comes behind all that was sent before."""
        return self.declare_queue(queue, passive=True).messages

    @contextmanager
    def refused(self, code: int, text: str) -> Iterator[None]:
        """What is done within is refused with this code and words."""
        with pytest.raises(Refused) as caught:
            yield
        assert caught.value.code == code
        assert text in caught.value.text


def known(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Without the properties that a message has not."""
    return {name: value for name, value in properties.items() if value is not None and value != {}}
