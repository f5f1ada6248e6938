"""What can be set: every option once, with its default, type, bounds, unit and help.

A section is a frozen Struct; a field is `Annotated[type, option(...)] = default`. The key in files,
the environment variable, the flag, `--help` and the commented default file all follow from these
declarations (see options.py), so a new option is a new field here and nothing else. Sizes are in
octets, times in seconds.
"""

import os
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from matching.registry import algorithms
from trellis.settings.values import (
    check_addresses,
    check_hash,
    check_journal,
    check_mode,
    check_name,
    check_networks,
    check_origins,
    check_path,
    check_regex,
    check_rule,
    check_tag,
    split_addresses,
    split_networks,
    split_origins,
)

Anonymous = Literal["loopback", "true", "false"]
Level = Literal["debug", "info", "warning", "error"]
ClientCertificate = Literal["none", "optional", "required"]
TlsVersion = Literal["1.2", "1.3"]
JwtAlgorithm = Literal[
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "HS256",
    "HS384",
    "HS512",
]
NameFrom = Literal["common_name", "dns", "email", "uri"]
Plugins = dict[str, dict[str, object]]
Certificates = dict[str, dict[str, str]]

KIB, MIB = 1 << 10, 1 << 20
INT64 = (1 << 63) - 1


def option(
    text: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    unit: str = "",
    check: Callable[[str], None] | None = None,
    choices: Callable[[], tuple[str, ...]] | None = None,
    secret: bool = False,
) -> Meta:
    """The declaration beside a type: help text, inclusive bounds, unit, a further check, the words
    allowed where their type does not say them, whether it is never shown.

    `check` takes the text of a value and raises ValueError with what is expected instead. Numbers
    without an upper bound of their own fit 64 bits.
    """
    if ge is not None and le is None:
        le = INT64
    return Meta(
        ge=ge,
        le=le,
        description=text,
        extra={"unit": unit, "check": check, "choices": choices, "secret": secret},
    )


def _matchers() -> tuple[str, ...]:
    """Ours, and those of installed packages."""
    return tuple(algorithm.name for algorithm in algorithms())


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the settings file."""


class Listener(Section, frozen=True, kw_only=True):
    """A section with a port of its own."""

    enabled: Annotated[bool, option("listen on this port")] = True
    host: Annotated[
        str,
        option(
            "IP addresses to listen on, separated by commas; 0.0.0.0 is all of IPv4",
            check=check_addresses,
        ),
    ] = "127.0.0.1,::1"
    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)]

    @property
    def addresses(self) -> list[str]:
        """The addresses of `host`, each once, in order, in their canonical form."""
        return split_addresses(self.host)


class NodeSettings(Section, frozen=True, kw_only=True):
    """This broker among others."""

    name: Annotated[str, option("name in metrics and logs", check=check_name)] = "trellis"


class ProtocolListener(Listener, frozen=True, kw_only=True):
    """A section that clients come in by."""

    proxies: Annotated[
        str,
        option(
            "addresses and networks, separated by commas, whose connections begin with a PROXY header",
            check=check_networks,
        ),
    ] = ""

    @property
    def networks(self) -> list[IPv4Network | IPv6Network]:
        """Where proxies come from."""
        return split_networks(self.proxies)


class Open(ProtocolListener, frozen=True, kw_only=True):
    """An entry that may be a file on this machine, too."""

    socket: Annotated[str, option('path of a Unix socket to listen on as well; "" is none')] = ""
    socket_mode: Annotated[
        str, option("who may connect to it, as the rights of a file", check=check_mode)
    ] = "0660"

    @property
    def mode(self) -> int:
        """`socket_mode` as a number."""
        return int(self.socket_mode, 8)


class Secured(ProtocolListener, frozen=True, kw_only=True):
    """An entry over TLS."""

    enabled: Annotated[bool, option("listen on this port; [tls] says with which certificate")] = (
        False
    )
    client_certificate: Annotated[
        ClientCertificate, option("whether clients show a certificate, signed by one of tls.ca")
    ] = "none"


class Amqp(Open, frozen=True, kw_only=True):
    """AMQP 0-9-1."""

    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 5672
    heartbeat: Annotated[
        int, option("heartbeat offered to clients; 0 offers none", ge=0, le=65535, unit="s")
    ] = 60
    frame_max: Annotated[
        int, option("largest frame offered", ge=4096, le=128 * KIB, unit="bytes")
    ] = 128 * KIB
    channel_max: Annotated[int, option("channels a connection may open", ge=1, le=65535)] = 2047


class Amqps(Secured, frozen=True, kw_only=True):
    """AMQP 0-9-1 over TLS. With a certificate, clients may log in by the mechanism EXTERNAL."""

    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 5671


class Mqtt(Open, frozen=True, kw_only=True):
    """MQTT 3.1, 3.1.1 and 5."""

    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 1883
    anonymous: Annotated[Anonymous, option("who may connect without a user name")] = "loopback"
    max_packet: Annotated[int, option("largest packet", ge=256, le=268_435_460, unit="bytes")] = (
        16 * MIB
    )
    max_levels: Annotated[int, option("levels of a topic or filter", ge=1, le=65535)] = 200
    receive_maximum: Annotated[
        int,
        option(
            "QoS 1 and 2 messages in flight to one client, and from one of MQTT 5", ge=1, le=65535
        ),
    ] = 1024
    topic_alias_maximum: Annotated[
        int, option("topic aliases that a client may use; 0 offers none", ge=0, le=65535)
    ] = 16
    keep_alive_max: Annotated[
        int,
        option(
            "longest keep-alive; clients of MQTT 5 are told a shorter one; 0 is any",
            ge=0,
            le=65535,
            unit="s",
        ),
    ] = 0
    response_prefix: Annotated[
        str,
        option(
            "response information for clients that ask: this and their identifier; empty gives none"
        ),
    ] = "responses/"
    no_subscribe: Annotated[
        tuple[str, ...], option("topic filters that nobody may subscribe to")
    ] = ()
    sys_interval: Annotated[
        int, option("between two publications of $SYS/broker/...; 0 publishes none", ge=0, unit="s")
    ] = 10
    session_expiry: Annotated[
        int,
        option(
            "how long the session of an absent client is kept", ge=0, le=4_294_967_295, unit="s"
        ),
    ] = 1_209_600
    sessions: Annotated[int, option("sessions kept, present and absent clients together", ge=1)] = (
        1_000_000
    )
    subscriptions: Annotated[int, option("subscriptions of one client; 0 is no limit", ge=0)] = (
        100_000
    )
    session_backlog: Annotated[int, option("messages waiting for one client", ge=1)] = 100_000
    retained: Annotated[int, option("retained messages", ge=0)] = 100_000
    retained_bytes: Annotated[int, option("all retained messages together", ge=0, unit="bytes")] = (
        256 * MIB
    )
    qos0_high_mark: Annotated[
        int,
        option(
            "unsent output above which a client's QoS 0 messages are dropped", ge=KIB, unit="bytes"
        ),
    ] = MIB


class Mqtts(Secured, frozen=True, kw_only=True):
    """MQTT over TLS."""

    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 8883
    certificate_user: Annotated[
        bool, option("a client that gives no user name is the user whom its certificate names")
    ] = False


WebSocketPath = Annotated[str, option("path of the WebSocket", check=check_path)]
Origins = Annotated[
    str,
    option(
        "Origins, separated by commas, whose pages may connect beside those of this host; they always give a user; * is every one",
        check=check_origins,
    ),
]


class Ws(ProtocolListener, frozen=True, kw_only=True):
    """MQTT over WebSocket."""

    enabled: Annotated[bool, option("listen on this port")] = False
    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 15675
    path: WebSocketPath = "/ws"
    origins: Origins = ""

    @property
    def origin_list(self) -> list[str]:
        """The Origins of `origins`, in small letters."""
        return split_origins(self.origins)


class Wss(Mqtts, frozen=True, kw_only=True):
    """MQTT over WebSocket over TLS."""

    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 15676
    path: WebSocketPath = "/ws"
    origins: Origins = ""

    @property
    def origin_list(self) -> list[str]:
        """The Origins of `origins`, in small letters."""
        return split_origins(self.origins)


class Tls(Section, frozen=True, kw_only=True):
    """Certificates of amqps, mqtts and wss. Read again at SIGHUP."""

    certificate: Annotated[
        str, option("PEM file: our certificate, and those that signed it but for the root")
    ] = ""
    key: Annotated[
        str, option('PEM file: its private key, not encrypted; "" is the file of the certificate')
    ] = ""
    ca: Annotated[str, option("PEM file: those who sign the certificates of clients")] = ""
    minimum: Annotated[TlsVersion, option("oldest version of TLS")] = "1.2"
    user_from: Annotated[NameFrom, option("what in a client's certificate is its user name")] = (
        "common_name"
    )
    names: Annotated[
        Certificates,
        option(
            "other certificates, by the name that a client asks for; *.NAME is any in front of it"
        ),
    ] = {}


class Metrics(Listener, frozen=True, kw_only=True):
    """Prometheus metrics and health; no user needed."""

    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 15692


class Http(Listener, frozen=True, kw_only=True):
    """HTTP, a user needed: what `trellis list` asks."""

    port: Annotated[int, option("port; 0 takes a free one", ge=0, le=65535)] = 15672


class Data(Section, frozen=True, kw_only=True):
    """What is kept."""

    dir: Annotated[
        str,
        option(
            'directory; "" is $XDG_STATE_HOME/trellis or ~/.local/state/trellis, ":memory:" keeps nothing'
        ),
    ] = ""

    @property
    def directory(self) -> Path | None:
        """The directory meant by `dir`, None when nothing is kept; RuntimeError if there is no home
        directory.
        """
        if self.dir == ":memory:":
            return None
        if self.dir:
            return Path(self.dir).expanduser()
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        # The XDG base directory specification: a relative path is invalid and is ignored.
        return (state if state.is_absolute() else Path.home() / ".local" / "state") / "trellis"


class StoreSettings(Section, frozen=True, kw_only=True):
    """How durable messages are kept."""

    window: Annotated[
        int,
        option(
            "messages of a durable queue that are in memory; of others it knows the place on the disk",
            ge=1,
        ),
    ] = 4096
    segment: Annotated[
        int, option("size of a file of the log", ge=64 * KIB, le=4 * 1024 * MIB, unit="bytes")
    ] = 64 * MIB


class StreamSettings(Section, frozen=True, kw_only=True):
    """Streams (queues of type stream)."""

    journals: Annotated[
        tuple[str, ...],
        option(
            "VHOST=NAME each: this stream gets all that is published in the virtual host",
            check=check_journal,
        ),
    ] = ()


class Auth(Section, frozen=True, kw_only=True):
    """Logins."""

    guest: Annotated[bool, option("accept guest/guest, from loopback only")] = True
    threads: Annotated[int, option("threads that hash passwords", ge=1, le=64)] = 2
    queue: Annotated[int, option("logins that may wait for a verdict; more are refused", ge=1)] = (
        1024
    )
    remember: Annotated[
        int, option("how long a verified password is not hashed again", ge=0, le=86_400, unit="s")
    ] = 300


class Jwt(Section, frozen=True, kw_only=True):
    """Logins by JSON Web Tokens (install the extra `jwt`). Read again at SIGHUP."""

    keys: Annotated[
        str, option('file of public keys that sign tokens, in PEM or as a JWKS; "" takes no tokens')
    ] = ""
    algorithms: Annotated[tuple[JwtAlgorithm, ...], option("algorithms of signatures")] = (
        "RS256",
        "PS256",
        "ES256",
        "EdDSA",
    )
    issuer: Annotated[
        str, option('who must have made a token (claim iss); "" is anybody with a key')
    ] = ""
    audience: Annotated[str, option('for whom a token must be made (claim aud); "" is anybody')] = (
        "trellis"
    )
    user: Annotated[str, option("claim that names the user")] = "sub"
    scopes: Annotated[
        str, option("claim that says what may be done: a text with spaces, or a list")
    ] = "scope"
    prefix: Annotated[
        str,
        option('what scopes for this broker begin with, such as "trellis."; others are left alone'),
    ] = ""
    leeway: Annotated[int, option("how far clocks may differ", ge=0, le=600, unit="s")] = 10


class Limits(Section, frozen=True, kw_only=True):
    """Bounds for the whole broker."""

    message: Annotated[int, option("largest message", ge=1, le=512 * MIB, unit="bytes")] = 16 * MIB
    connections: Annotated[int, option("connections; 0 is 0.9 x the descriptor limit", ge=0)] = 0
    unauthenticated_per_address: Annotated[
        int, option("connections of one address that have not logged in", ge=1)
    ] = 100
    handshake: Annotated[
        float, option("how long a client may take to log in", ge=0.01, le=3600, unit="s")
    ] = 10.0
    routes: Annotated[int, option("entries of the route cache", ge=1)] = 65_536
    address_connections: Annotated[
        int, option("connections of one address, this machine's aside; 0 is no limit", ge=0)
    ] = 0
    user_connections: Annotated[int, option("connections of one user; 0 is no limit", ge=0)] = 0
    vhost_connections: Annotated[
        int, option("connections to one virtual host; 0 is no limit", ge=0)
    ] = 0
    user_channels: Annotated[int, option("AMQP channels of one user; 0 is no limit", ge=0)] = 0
    channel_consumers: Annotated[
        int, option("consumers of one AMQP channel; 0 is no limit", ge=0)
    ] = 0
    memory: Annotated[
        float,
        option(
            "part of the machine's memory, or the container's, above which publishers wait; 0 is no limit",
            ge=0,
            le=1,
        ),
    ] = 0.6
    disk_free: Annotated[
        int,
        option(
            "free disk space for the data directory below which publishers wait; 0 is no limit",
            ge=0,
            unit="bytes",
        ),
    ] = 50 * MIB
    queues: Annotated[int, option("queues; 0 is no limit", ge=0)] = 100_000
    exchanges: Annotated[int, option("exchanges; 0 is no limit", ge=0)] = 100_000


def _rate(of: str, what: str) -> Meta:
    return option(
        f"{what} that {of} may publish in a second; 0 is no limit"
        if what == "messages"
        else f"octets that {of} may send in a second; 0 is no limit",
        ge=0,
        unit="bytes" if what == "bytes" else "",
    )


class RatesSettings(Section, frozen=True, kw_only=True):
    """How fast clients may be.

    Who is faster is not read for a while; who would wait too long is disconnected.
    """

    connection_messages: Annotated[int, _rate("one connection", "messages")] = 0
    connection_bytes: Annotated[int, _rate("one connection", "bytes")] = 0
    user_messages: Annotated[int, _rate("one user", "messages")] = 0
    user_bytes: Annotated[int, _rate("one user", "bytes")] = 0
    vhost_messages: Annotated[int, _rate("one virtual host's clients", "messages")] = 0
    vhost_bytes: Annotated[int, _rate("one virtual host's clients", "bytes")] = 0
    address_messages: Annotated[int, _rate("one address", "messages")] = 0
    address_bytes: Annotated[int, _rate("one address", "bytes")] = 0
    patience: Annotated[
        float,
        option(
            "longest time that a client is not read; who would wait longer is disconnected",
            ge=0,
            le=3600,
            unit="s",
        ),
    ] = 10.0


class DefinitionsSettings(Section, frozen=True, kw_only=True):
    """Exchanges, queues, bindings, users and policies from RabbitMQ."""

    file: Annotated[
        str,
        option(
            "JSON file that is taken in at every start; what is there already stays; empty is none"
        ),
    ] = ""


class MatcherSettings(Section, frozen=True, kw_only=True):
    """Wildcard subscriptions."""

    default: Annotated[
        str,
        option("algorithm of an exchange that names none; see trellis matchers", choices=_matchers),
    ] = "auto"
    allowed: Annotated[
        tuple[str, ...],
        option("algorithms an exchange may name with the argument x-matcher", choices=_matchers),
    ] = (
        "auto",
        "trie",
        "shapes",
        "bitmap",
    )
    profile: Annotated[
        str,
        option(
            "profile that `trellis pipeline advise` wrote, read at the start and on SIGHUP; empty is none"
        ),
    ] = ""


class Shutdown(Section, frozen=True, kw_only=True):
    """The stop at SIGTERM."""

    grace: Annotated[float, option("how long clients have to finish", ge=0, le=3600, unit="s")] = (
        10.0
    )


class Log(Section, frozen=True, kw_only=True):
    """Log lines."""

    level: Annotated[Level, option("least level that is written")] = "info"


class AmqttSettings(Section, frozen=True, kw_only=True):
    """Authentication and topic plugins of amqtt (install the extra `amqtt`)."""

    plugins: Annotated[
        Plugins, option("plugin class path -> table of its options", secret=True)
    ] = {}


class UserSettings(Section, frozen=True, kw_only=True):
    """A user; the three patterns are regular expressions over names, as in RabbitMQ."""

    name: Annotated[str, option("name given at login")]
    password_hash: Annotated[
        str, option("output of `trellis hash-password`", check=check_hash, secret=True)
    ]
    configure: Annotated[str, option("what may be declared and deleted", check=check_regex)] = ".*"
    write: Annotated[str, option("where may be published", check=check_regex)] = ".*"
    read: Annotated[str, option("what may be read", check=check_regex)] = ".*"
    loopback_only: Annotated[bool, option("refuse this user from other machines")] = False
    administrator: Annotated[
        bool, option("may do everything over HTTP: users, virtual hosts, policies, definitions")
    ] = False
    tags: Annotated[
        tuple[str, ...],
        option(
            "what else it may ask the HTTP API for: management, policymaker, monitoring",
            check=check_tag,
        ),
    ] = ()
    vhosts: Annotated[tuple[str, ...], option("virtual hosts that this user may enter")] = ("/",)
    rules: Annotated[
        tuple[str, ...],
        option(
            "rules about topics, the first that matches decides; none at all allow all",
            check=check_rule,
        ),
    ] = ()


class Settings(Section, frozen=True, kw_only=True):
    """All settings."""

    user: Annotated[str, option("one user with every right, beside [[users]]")] = ""
    password: Annotated[
        str, option("password of that user; other users of the machine see flags", secret=True)
    ] = ""
    password_file: Annotated[str, option("file that holds the password of that user")] = ""
    node: NodeSettings = NodeSettings()
    amqp: Amqp = Amqp()
    amqps: Amqps = Amqps()
    mqtt: Mqtt = Mqtt()
    mqtts: Mqtts = Mqtts()
    ws: Ws = Ws()
    wss: Wss = Wss()
    tls: Tls = Tls()
    metrics: Metrics = Metrics()
    http: Http = Http()
    data: Data = Data()
    store: StoreSettings = StoreSettings()
    stream: StreamSettings = StreamSettings()
    auth: Auth = Auth()
    jwt: Jwt = Jwt()
    limits: Limits = Limits()
    rates: RatesSettings = RatesSettings()
    definitions: DefinitionsSettings = DefinitionsSettings()
    matcher: MatcherSettings = MatcherSettings()
    shutdown: Shutdown = Shutdown()
    log: Log = Log()
    amqtt: AmqttSettings = AmqttSettings()
    users: Annotated[tuple[UserSettings, ...], option("users, each a table")] = ()

    @property
    def listeners(self) -> dict[str, Listener]:
        """Section name -> listener, the enabled ones only."""
        every: dict[str, Listener] = {**self._entries, "metrics": self.metrics, "http": self.http}
        return {name: listener for name, listener in every.items() if listener.enabled}

    @property
    def entries(self) -> dict[str, ProtocolListener]:
        """The listeners that clients come in by, the enabled ones only."""
        return {name: entry for name, entry in self._entries.items() if entry.enabled}

    @property
    def _entries(self) -> dict[str, ProtocolListener]:
        return {
            "amqp": self.amqp,
            "amqps": self.amqps,
            "mqtt": self.mqtt,
            "mqtts": self.mqtts,
            "ws": self.ws,
            "wss": self.wss,
        }
