"""What a test asks of an MQTT client, whichever library or tool it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple


class Will(NamedTuple):
    """What the broker shall publish when the client is lost."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True)
class Login:
    """What a client says in CONNECT. No user is an anonymous one."""

    client_id: str
    clean: bool = True
    will: Will | None = None
    user: str | None = None
    password: str | None = None
    keep_alive: int = 60
    #: 4 is 3.1.1.
    version: int = 4


#: Seconds for which a client of MQTT 5 asks the broker to keep its session, where it is not a clean
#: one.
EXPIRY = 1_000


class Received(NamedTuple):
    """A message as the library gave it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class MqttClient(ABC):
    """A connected client.

    Making one raises LoginRefused, or its first use does: a command line tool connects then.
    """

    #: What CONNACK said of an older session; None where the library does not tell.
    session_present: bool | None = None

    @abstractmethod
    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """Returns the QoS granted, or 128."""

    @abstractmethod
    def unsubscribe(self, topic_filter: str) -> None: ...

    @abstractmethod
    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        """Returns when the broker has taken it over; with QoS 0, when it is sent."""

    @abstractmethod
    def receive(self) -> Received:
        """The next message of any subscription."""

    @abstractmethod
    def disconnect(self) -> None:
        """With DISCONNECT."""

    @abstractmethod
    def abort(self) -> None:
        """Lose the connection, without DISCONNECT."""

    @abstractmethod
    def wait_until_closed(self) -> None:
        """Until the library has noticed that the broker ended the connection."""

    @abstractmethod
    def close(self) -> None:
        """Whatever state it is in."""

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Do what the library does when its user does nothing."""
