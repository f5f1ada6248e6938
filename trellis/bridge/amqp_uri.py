"""The URI of an AMQP broker, in the form of RabbitMQ's shovels and federation upstreams."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

#: Port of each scheme.
PORTS: Final = {"amqp": 5672, "amqps": 5671}
#: Options in the query of a URI. The options in OPTIONS have an effect; the options in IGNORED are
#: permitted, and have no effect.
OPTIONS: Final = (
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
    "heartbeat",
)
IGNORED: Final = ("connection_timeout", "channel_max", "auth_mechanism", "fail_if_no_peer_cert")
#: User and password of a URI of another broker that names no user, as in RabbitMQ.
DEFAULT_USER: Final = "guest"
_FORM: Final = 'must be "amqp://USER:PASSWORD@HOST:PORT/VHOST", "amqps://..." or "amqp://"'


class AmqpUri(NamedTuple):
    """The parts of an AMQP URI.

    `host` "" means this broker. `vhost` and `user` are None if the URI does not contain them. `ca`,
    `certificate` and `key` are paths of PEM files. `verify` is False if the certificate of the
    broker is not checked. `server_name` "" means `host`. `heartbeat` is in seconds.
    """

    host: str
    port: int
    vhost: str | None
    user: str | None
    password: str
    tls: bool
    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify: bool = True
    server_name: str = ""
    heartbeat: int = 30

    @property
    def login(self) -> tuple[str, str]:
        """User and password at the broker; DEFAULT_USER for both if the URI names no user."""
        return (DEFAULT_USER, DEFAULT_USER) if self.user is None else (self.user, self.password)

    @property
    def shown(self) -> str:
        """The URI without credentials and options."""
        scheme = "amqps" if self.tls else "amqp"
        if not self.host:
            return f"{scheme}://" + (f"/{self.vhost}" if self.vhost else "")
        path = "" if self.vhost is None else f"/{self.vhost}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{path}"


def parse_uri(text: str) -> AmqpUri:
    """Return the parts of an AMQP URI. Raises ValueError, whose text has no credentials."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(_FORM) from None
    if parts.scheme not in PORTS or "://" not in text or parts.fragment or port == 0:
        raise ValueError(_FORM)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in (*OPTIONS, *IGNORED):
            raise ValueError(f"unknown option '{name}'; the options are {', '.join(OPTIONS)}")
    verify = options.get("verify", "verify_peer")
    if verify not in ("verify_peer", "verify_none"):
        raise ValueError("the option 'verify' must be verify_peer or verify_none")
    heartbeat = options.get("heartbeat", "30")
    if not heartbeat.isdecimal() or not 0 < int(heartbeat) <= 3600:
        raise ValueError("the option 'heartbeat' must be 1 to 3600 seconds")
    path = parts.path.removeprefix("/")
    if "/" in path:
        raise ValueError("write a '/' in the name of the virtual host as %2F")
    return AmqpUri(
        parts.hostname or "",
        port or PORTS[parts.scheme],
        unquote(path) if parts.path and (path or parts.hostname) else None,
        None if parts.username is None else unquote(parts.username),
        unquote(parts.password or ""),
        parts.scheme == "amqps",
        options.get("cacertfile", ""),
        options.get("certfile", ""),
        options.get("keyfile", ""),
        verify == "verify_peer",
        options.get("server_name_indication", ""),
        int(heartbeat),
    )
