"""Where the broker is: amqp://user:password@host:port/vhost or mqtt://user:password@host:port, and
how to reach it.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from trellis.bench.errors import BenchError, Unreachable

#: Seconds without an octet from a broker that is asked something.
TIMEOUT: Final = 10.0
PORTS: Final = {"amqp": 5672, "mqtt": 1883}


class Target(NamedTuple):
    """A broker's listener. Without a user an MQTT client is anonymous."""

    protocol: str
    host: str
    port: int
    user: str | None
    password: str | None
    vhost: str = "/"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"

    @property
    def shape(self) -> str:
        """What a URL for this protocol looks like."""
        return f"--{self.protocol} {self.protocol}://USER:PASSWORD@HOST:PORT" + (
            "/VHOST" if self.protocol == "amqp" else ""
        )

    def connect(self) -> socket.socket:
        """A connected socket with TIMEOUT. Raises Unreachable."""
        try:
            sock = socket.create_connection((self.host, self.port), TIMEOUT)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise Unreachable(
                f"cannot connect to {self} ({reason}); start the broker there, or give {self.shape}"
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


#: `trellis serve` with its defaults.
DEFAULTS: Final = {
    "amqp": Target("amqp", "127.0.0.1", PORTS["amqp"], "guest", "guest"),
    "mqtt": Target("mqtt", "127.0.0.1", PORTS["mqtt"], None, None),
}


def parse(protocol: str, url: str) -> Target:
    """The target that a URL names. Raises ValueError, which says what is wrong."""
    default = DEFAULTS[protocol]
    parts = urlsplit(url)
    port = _port(parts)
    if (
        parts.scheme != protocol
        or not parts.hostname
        or parts.query
        or parts.fragment
        or (protocol == "mqtt" and parts.path.strip("/"))
    ):
        raise ValueError(f"must be such as {default.shape.partition(' ')[2]}")
    user = unquote(parts.username) if parts.username is not None else default.user
    password = (
        unquote(parts.password)
        if parts.password is not None
        else default.password
        if parts.username is None
        else ""
    )
    # AMQP URIs: no path is the default virtual host, and so is, by common use, a lone slash.
    vhost = unquote(parts.path[1:]) or "/"
    return Target(protocol, parts.hostname, port or PORTS[protocol], user, password, vhost)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise ValueError("the port must be 1 to 65535") from None


class BenchConversation:
    """A connection that is being set up: blocking, with a timeout. `where` names it in errors."""

    def __init__(self, target: Target, where: str) -> None:
        self.target = target
        self.where = where
        self.sock = target.connect()
        self._held = b""

    def send(self, octets: bytes) -> None:
        try:
            self.sock.sendall(octets)
        except TimeoutError:
            raise BenchError(
                f"{self.where}: {self.target} takes no octets for {TIMEOUT:g} s"
            ) from None
        except OSError:
            pass  # What it said before it closed comes with the next read.

    def read(self, size: int, awaited: str, timeout: float = TIMEOUT) -> bytes:
        """Exactly so many octets. Raises BenchError, which says what was awaited."""
        self.sock.settimeout(timeout)
        while len(self._held) < size:
            try:
                data = self.sock.recv(65_536)
            except TimeoutError:
                raise BenchError(
                    f"{self.where}: no answer from {self.target} for {timeout:g} s; waited for {awaited}"
                ) from None
            except OSError as error:
                raise self.closed(awaited, error.strerror or str(error)) from None
            if not data:
                raise self.closed(awaited, "end of stream")
            self._held += data
        octets, self._held = self._held[:size], self._held[size:]
        return octets

    def closed(self, awaited: str, reason: str) -> BenchError:
        return BenchError(
            f"{self.where}: {self.target} closed the connection ({reason}); waited for {awaited}"
        )

    def refused(self, reason: str) -> Unreachable:
        user = self.target.user
        who = "an anonymous client" if user is None else f"user {user}"
        return Unreachable(f"{self.target} refused {who} ({reason}); give {self.target.shape}")

    def close(self) -> None:
        self.sock.close()
