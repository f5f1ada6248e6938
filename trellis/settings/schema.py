"""Every setting, declared once with its default, type, bounds, unit and help text.

A new setting is a new field here, in limits.py for the sections limits and rates, in listeners.py
for the sections of protocols and ports (amqp, mqtt, ws, tls, http, ...), in tokens.py for the
section jwt, or in cluster.py for the section cluster. declaration.py explains the form of a field,
and CONTRIBUTING.md ("a setting") lists the steps. Sizes are in bytes, times in seconds.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from msgspec import field

from broker.limits import BrokerLimits
from matching.registry import algorithms
from trellis.settings.archive_location import check_archive
from trellis.settings.bridge import BridgeSettings, Shovels
from trellis.settings.cluster import ClusterSettings
from trellis.settings.declaration import KIB, MIB, CoreField, Section, option
from trellis.settings.limits import Limits, RatesSettings
from trellis.settings.listeners import (
    BROKER,
    Amqp,
    Amqps,
    Http,
    Listener,
    Metrics,
    Mqtt,
    Mqtts,
    ProtocolListener,
    Tls,
    Ws,
    Wss,
)
from trellis.settings.telemetry import TelemetrySettings
from trellis.settings.tokens import Jwt
from trellis.settings.values import (
    check_hash,
    check_journal,
    check_name,
    check_object_name,
    check_optional_name,
    check_regex,
    check_rule,
    check_tag,
)

Level = Literal["debug", "info", "warning", "error"]
Plugins = dict[str, dict[str, object]]


def _matchers() -> tuple[str, ...]:
    """Return the names of all matching algorithms, built-in or of installed packages."""
    return tuple(algorithm.name for algorithm in algorithms())


class NodeSettings(Section, frozen=True, kw_only=True):
    """The name of this node."""

    name: Annotated[
        str, option("name of this broker in metrics, logs and AMQP handshakes", check=check_name)
    ] = "trellis"


class Data(Section, frozen=True, kw_only=True):
    """Directory of durable data."""

    dir: Annotated[
        str,
        option(
            'data directory; "" is $XDG_STATE_HOME/trellis or ~/.local/state/trellis, '
            '":memory:" keeps nothing on disk'
        ),
    ] = ""

    @property
    def directory(self) -> Path | None:
        """The path of the data directory, None for `:memory:`.

        Raises RuntimeError if the path needs the home directory, and the system knows none.
        """
        if self.dir == ":memory:":
            return None
        if self.dir:
            return Path(self.dir).expanduser()
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        # XDG base directory specification: a relative path is invalid and must be ignored.
        return (state if state.is_absolute() else Path.home() / ".local" / "state") / "trellis"


class StoreSettings(Section, frozen=True, kw_only=True):
    """Storage of durable messages."""

    window: Annotated[
        int,
        option(
            "largest number of messages of each durable queue that stay in memory; all further "
            "messages are read from disk when their turn comes",
            ge=1,
        ),
    ] = 4096
    segment: Annotated[
        int,
        option(
            "size in bytes at which a log file is full",
            ge=64 * KIB,
            le=4 * 1024 * MIB,
            unit="bytes",
        ),
    ] = 64 * MIB
    reserve: Annotated[
        bool,
        option(
            "keep a file with the size of two log files on the disk, and remove it when the disk "
            "is full, so that consumers can still settle messages"
        ),
    ] = True


class StreamSettings(Section, frozen=True, kw_only=True):
    """Streams (queues of type stream)."""

    journals: Annotated[
        tuple[str, ...],
        option(
            "VHOST=NAME for each journal: the stream NAME records every message published in VHOST",
            check=check_journal,
        ),
    ] = ()
    archive: Annotated[
        str,
        option(
            "upload full segments of all streams as Parquet to this archive, and read removed "
            'segments from it: "file:///path" or "s3://bucket/prefix" '
            '("?endpoint=URL&region=NAME"); "" is none',
            check=check_archive,
        ),
    ] = ""
    archive_backlog: Annotated[
        int,
        option(
            "largest total size in bytes of the segments that wait for their upload; above this "
            "size, retention removes the oldest of these segments, and their rows are lost",
            ge=0,
            unit="bytes",
        ),
    ] = 10 * 1024 * MIB
    archive_cache: Annotated[
        int,
        option(
            "largest total size in bytes of the segments that were fetched from the archive, and "
            "that the data directory keeps for readers; the newest two stay even if they are "
            "larger",
            ge=0,
            unit="bytes",
        ),
    ] = 1024 * MIB


class Auth(Section, frozen=True, kw_only=True):
    """Logins with a password."""

    guest: Annotated[bool, option("accept user guest with password guest, from loopback only")] = (
        True
    )
    threads: Annotated[int, option("number of threads that hash passwords", ge=1, le=64)] = 2
    queue: Annotated[
        int,
        option(
            "largest number of logins that wait for a hashing thread; further logins are refused",
            ge=1,
        ),
    ] = 1024
    remember: Annotated[
        int,
        option(
            "seconds for which the broker remembers a verified password after a login, and after "
            "the last connection with this password ends, so that the next login needs no hashing; "
            "0 remembers none",
            ge=0,
            le=86_400,
            unit="s",
        ),
    ] = 300


class DefinitionsSettings(Section, frozen=True, kw_only=True):
    """Exchanges, queues, bindings, users and policies exported from RabbitMQ or Trellis."""

    file: Annotated[
        str,
        option(
            'JSON file that is imported at every start; existing objects do not change; "" is none'
        ),
    ] = ""


class MatcherSettings(Section, frozen=True, kw_only=True):
    """Matching of wildcard subscriptions and bindings."""

    default: Annotated[
        str,
        option(
            "algorithm of exchanges without the argument x-matcher; `trellis matchers` lists all",
            choices=_matchers,
            fills=CoreField(BrokerLimits, "matcher"),
        ),
    ] = BROKER.matcher
    allowed: Annotated[
        tuple[str, ...],
        option(
            "algorithms that an exchange may name with the argument x-matcher",
            choices=_matchers,
            fills=CoreField(BrokerLimits, "matchers", list),
        ),
    ] = tuple(BROKER.matchers)
    profile: Annotated[
        str,
        option(
            "profile written by `trellis pipeline advise`, read at the start and at SIGHUP; "
            '"" is none'
        ),
    ] = ""


class Shutdown(Section, frozen=True, kw_only=True):
    """The clean stop of the broker, at SIGTERM or SIGINT."""

    grace: Annotated[
        float,
        option(
            "longest time in seconds that a stop waits for clients to disconnect",
            ge=0,
            le=3600,
            unit="s",
        ),
    ] = 10.0


class Log(Section, frozen=True, kw_only=True):
    """The level of log lines, and the audit log."""

    level: Annotated[Level, option("lowest level that is logged")] = "info"
    audit: Annotated[
        str,
        option(
            "file of the audit log: one line of JSON for each change that a user makes; "
            '"" means none'
        ),
    ] = ""


class AmqttSettings(Section, frozen=True, kw_only=True):
    """Authentication and topic plugins of amqtt (install the extra `amqtt`)."""

    plugins: Annotated[
        Plugins, option("one table of options for each plugin, by its class path", secret=True)
    ] = field(default_factory=dict)


class UserSettings(Section, frozen=True, kw_only=True):
    """A user; configure, write and read are regular expressions over names, as in RabbitMQ."""

    name: Annotated[str, option("name given at login", check=check_object_name)]
    password_hash: Annotated[
        str, option("output of `trellis hash-password`", check=check_hash, secret=True)
    ]
    configure: Annotated[
        str,
        option(
            "regular expression for the names that the user may declare and delete",
            check=check_regex,
        ),
    ] = ".*"
    write: Annotated[
        str,
        option("regular expression for the names that the user may publish to", check=check_regex),
    ] = ".*"
    read: Annotated[
        str,
        option(
            "regular expression for the names that the user may consume from", check=check_regex
        ),
    ] = ".*"
    loopback_only: Annotated[bool, option("accept this user from this machine only")] = False
    administrator: Annotated[
        bool,
        option("allow everything over HTTP: users, virtual hosts, policies, definitions"),
    ] = False
    tags: Annotated[
        tuple[str, ...],
        option(
            "tags for the HTTP API: management, policymaker, monitoring",
            check=check_tag,
        ),
    ] = ()
    vhosts: Annotated[
        tuple[str, ...],
        option("virtual hosts that this user may connect to", check=check_object_name),
    ] = ("/",)
    rules: Annotated[
        tuple[str, ...],
        option(
            "access rules for topics; the first rule that matches decides; an empty list allows "
            "every topic",
            check=check_rule,
        ),
    ] = ()


class Settings(Section, frozen=True, kw_only=True):
    """All settings of the broker."""

    user: Annotated[
        str,
        option(
            "name of one user with all permissions, in addition to [[users]]",
            check=check_optional_name,
        ),
    ] = ""
    password: Annotated[
        str,
        option(
            "password of the user that `user` names; a flag is visible to other users of the "
            "machine",
            secret=True,
        ),
    ] = ""
    password_file: Annotated[
        str, option("file whose first line is the password of the user that `user` names")
    ] = ""
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
    cluster: ClusterSettings = ClusterSettings()
    auth: Auth = Auth()
    jwt: Jwt = Jwt()
    limits: Limits = Limits()
    rates: RatesSettings = RatesSettings()
    definitions: DefinitionsSettings = DefinitionsSettings()
    matcher: MatcherSettings = MatcherSettings()
    shovels: Shovels = Shovels()
    shutdown: Shutdown = Shutdown()
    log: Log = Log()
    telemetry: TelemetrySettings = TelemetrySettings()
    amqtt: AmqttSettings = AmqttSettings()
    users: Annotated[tuple[UserSettings, ...], option("users, each a table")] = ()
    bridge: Annotated[
        tuple[BridgeSettings, ...], option("bridges to remote MQTT brokers, each a table")
    ] = ()

    @property
    def listeners(self) -> dict[str, Listener]:
        """The enabled listeners, by the name of their section."""
        every: dict[str, Listener] = {
            **self._protocol_listeners,
            "metrics": self.metrics,
            "http": self.http,
        }
        return {name: listener for name, listener in every.items() if listener.enabled}

    @property
    def protocol_listeners(self) -> dict[str, ProtocolListener]:
        """The enabled listeners for AMQP and MQTT clients, by the name of their section."""
        every = self._protocol_listeners
        return {name: listener for name, listener in every.items() if listener.enabled}

    @property
    def _protocol_listeners(self) -> dict[str, ProtocolListener]:
        return {
            "amqp": self.amqp,
            "amqps": self.amqps,
            "mqtt": self.mqtt,
            "mqtts": self.mqtts,
            "ws": self.ws,
            "wss": self.wss,
        }
