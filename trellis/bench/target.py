"""URLs of brokers, such as amqp://user:password@host:port/vhost, and connections to them."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from trellis.bench.errors import BenchError, Unreachable

#: Seconds to wait for an answer of a broker.
TIMEOUT: Final = 10.0
PORTS: Final = {"amqp": 5672, "mqtt": 1883}


class BrokerTarget(NamedTuple):
    """A broker's address for one protocol, with user and password for the login.

    If `user` is None, an MQTT client logs in anonymously.
    """

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
    def url_example(self) -> str:
        """The flag for this broker with an example of a URL, for errors: `--mqtt mqtt://...`."""
        return f"--{self.protocol} {self.protocol}://USER:PASSWORD@HOST:PORT" + (
            "/VHOST" if self.protocol == "amqp" else ""
        )

    def connect(self) -> socket.socket:
        """Return a connected socket with a timeout. Raises Unreachable."""
        try:
            sock = socket.create_connection((self.host, self.port), TIMEOUT)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise Unreachable(
                f"cannot connect to {self} ({reason}); start the broker there, "
                f"or give {self.url_example}"
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


#: The listeners of `trellis serve` with default settings.
DEFAULTS: Final = {
    "amqp": BrokerTarget("amqp", "127.0.0.1", PORTS["amqp"], "guest", "guest"),
    "mqtt": BrokerTarget("mqtt", "127.0.0.1", PORTS["mqtt"], None, None),
}


def parse(protocol: str, url: str) -> BrokerTarget:
    """Return the target that a URL names; `protocol`, the scheme of the URL, is "amqp" or "mqtt".

    Raises ValueError, whose text says what the URL must be.
    """
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
        raise ValueError(f"must be a URL such as {default.url_example.partition(' ')[2]}")
    user = unquote(parts.username) if parts.username is not None else default.user
    password = (
        unquote(parts.password)
        if parts.password is not None
        else default.password
        if parts.username is None
        else ""
    )
    # In AMQP URIs, a missing path means the default virtual host. Most clients treat a lone slash
    # alike.
    vhost = unquote(parts.path[1:]) or "/"
    return BrokerTarget(protocol, parts.hostname, port or PORTS[protocol], user, password, vhost)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise ValueError("the port must be 1 to 65535") from None


class BenchConversation:
    """A blocking connection for requests and answers. `where` names the connection in errors."""

    def __init__(self, target: BrokerTarget, where: str) -> None:
        self.target = target
        self.where = where
        self.sock = target.connect()
        self._unread = b""

    def send(self, data: bytes) -> None:
        """Send data. Raises BenchError if the broker reads nothing for TIMEOUT seconds."""
        try:
            self.sock.sendall(data)
        except TimeoutError:
            raise BenchError(
                f"{self.where}: {self.target} has read nothing for {TIMEOUT:g} s"
            ) from None
        except OSError:
            pass  # The connection is closed. The next read raises an error with the reason.

    def read(self, size: int, awaited: str, timeout: float = TIMEOUT) -> bytes:
        """Return the next `size` bytes.

        Raises BenchError if they do not arrive within `timeout` seconds or the broker closes the
        connection. `awaited` names the expected packet in the error.
        """
        self.sock.settimeout(timeout)
        while len(self._unread) < size:
            try:
                data = self.sock.recv(65_536)
            except TimeoutError:
                raise BenchError(
                    f"{self.where}: no answer from {self.target} for {timeout:g} s; "
                    f"waited for {awaited}"
                ) from None
            except OSError as error:
                raise self.closed(awaited, error.strerror or str(error)) from None
            if not data:
                raise self.closed(awaited, "end of stream")
            self._unread += data
        chunk, self._unread = self._unread[:size], self._unread[size:]
        return chunk

    def closed(self, awaited: str, reason: str) -> BenchError:
        """Return the error for a connection that the broker closed.

        `awaited` names the packet or frame that did not come, and `reason` says what ended the
        connection.
        """
        return BenchError(
            f"{self.where}: {self.target} closed the connection ({reason}); waited for {awaited}"
        )

    def refused(self, reason: str) -> Unreachable:
        """Return the error for a refused login."""
        user = self.target.user
        client = "an anonymous client" if user is None else f"user {user}"
        return Unreachable(
            f"{self.target} refused {client} ({reason}); give {self.target.url_example}"
        )

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
