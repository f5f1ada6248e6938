"""The interface through which tests use an MQTT client of any library or tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple


class Will(NamedTuple):
    """A will: the message that the broker publishes if it loses the client's connection."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True)
class Login:
    """The fields of a CONNECT packet. Without `user`, the client connects anonymously."""

    client_id: str
    clean: bool = True
    will: Will | None = None
    user: str | None = None
    password: str | None = None
    keep_alive: int = 60
    #: Protocol level: 4 for MQTT 3.1.1, 5 for MQTT 5.
    version: int = 4


#: Session expiry interval, in seconds, that MQTT 5 clients request for sessions that are not clean.
EXPIRY = 1_000


class Received(NamedTuple):
    """A message that a library delivered."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class MqttClient(ABC):
    """A connected MQTT client.

    The constructor raises LoginRefused if the broker refuses the login. A command line tool
    connects later: for such a tool, the first call of another method raises LoginRefused.
    """

    #: The session present flag of CONNACK; None if the library does not report the flag.
    session_present: bool | None = None

    @abstractmethod
    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """Subscribe to a topic filter; return the granted QoS, or 128 for a failure."""

    @abstractmethod
    def unsubscribe(self, topic_filter: str) -> None: ...

    @abstractmethod
    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        """Publish a message and wait until the broker has acknowledged it (QoS 0: until sent)."""

    @abstractmethod
    def receive(self) -> Received:
        """Wait for the next message of any subscription and return it."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection with a DISCONNECT packet."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the connection without a DISCONNECT packet."""

    @abstractmethod
    def wait_until_closed(self) -> None:
        """Wait until the library has noticed that the broker closed the connection."""

    @abstractmethod
    def close(self) -> None:
        """Close the client in any state."""

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Wait without other calls while the library does its periodic work (pings)."""
