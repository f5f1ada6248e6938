"""The section [cluster]: the replicated log of a broker on several nodes."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import field

from broker.replication.errors import ReplicationError
from broker.replication.timing import BEAT, LEASE, SILENCE, check_times
from trellis.settings.declaration import Section, option

if TYPE_CHECKING:
    from broker.replication.contract import Timing

#: Defaults of the retention of the log: bytes and seconds between two marks, and the largest size
#: of the log in bytes.
RETENTION_BYTES: Final = 1 << 30
RETENTION_SECONDS: Final = 600.0
RETENTION_MOST: Final = 10 << 30
#: Length of the longest name of a broker: the names of the topic and of the consumer groups contain
#: the name of the broker.
NAME_MAX: Final = 100
#: Options of librdkafka whose values the rules of the replicated log fix.
FIXED_OPTIONS: Final = frozenset(
    (
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "client.rack",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "linger.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.send.max.retries",
        "message.timeout.ms",
        "metadata.broker.list",
        "partitioner",
        "queue.buffering.max.ms",
        "request.required.acks",
        "retries",
        "transactional.id",
    )
)

OptionValue = str | int | float | bool


def check_word(text: str) -> None:
    """Raise ValueError unless the text is empty or may be part of the name of a Kafka topic."""
    if not re.fullmatch(r"[A-Za-z0-9._-]*", text) or len(text) > NAME_MAX or text in (".", ".."):
        raise ValueError(
            f"must be at most {NAME_MAX} letters, digits, dots, underscores and hyphens, "
            'such as "orders"'
        )


def check_servers(text: str) -> None:
    """Raise ValueError unless the text is empty or a list of HOST:PORT separated by commas."""
    for server in text.split(",") if text else ():
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(
                'must be HOST:PORT of Kafka nodes, separated by commas, such as "kafka-1:9092"'
            )


def check_host(text: str) -> None:
    """Raise ValueError unless the text is empty or may be a host name or an IP address."""
    if not re.fullmatch(r"[A-Za-z0-9._-]*|[0-9A-Fa-f:.]+", text):
        raise ValueError('must be a host name or an IP address without a port, such as "broker-1"')


class ClusterSettings(Section, frozen=True, kw_only=True):
    """High availability over a Kafka cluster (install the extra `cluster`)."""

    name: Annotated[
        str,
        option(
            "name of the broker, the same on all of its nodes; node.name is the name of one node",
            check=check_word,
        ),
    ] = ""
    servers: Annotated[
        str,
        option(
            'HOST:PORT of Kafka nodes, separated by commas; "" runs this broker without a cluster',
            check=check_servers,
        ),
    ] = ""
    topic: Annotated[
        str,
        option(
            'Kafka topic of this broker\'s replicated log; "" is trellis-NAME', check=check_word
        ),
    ] = ""
    silence: Annotated[
        float,
        option(
            "the silence: the time in seconds without a record of the active node in the "
            "replicated log, after which a standby takes over",
            ge=0.1,
            le=600,
            unit="s",
        ),
    ] = SILENCE
    lease: Annotated[
        float,
        option(
            "the lease: the time in seconds for which the active node may serve clients after it "
            "has sent the last record that Kafka acknowledged, so that two nodes never serve "
            "clients at once; must be below cluster.silence",
            ge=0.05,
            le=600,
            unit="s",
        ),
    ] = LEASE
    beat: Annotated[
        float,
        option(
            "seconds after which the active node appends a heartbeat record to the replicated log "
            "if it has appended no other record; must be below half of cluster.lease",
            ge=0.01,
            le=60,
            unit="s",
        ),
    ] = BEAT
    advertised: Annotated[
        str,
        option(
            "host at which clients reach this node; standbys send this host to clients while this "
            'node is active; "" is the name of the machine',
            check=check_host,
        ),
    ] = ""
    keep: Annotated[
        int,
        option(
            "target size of the replicated log in bytes: after each quarter of this size, the "
            "active node appends a mark, a record at which a node can begin to read; the records "
            "before a mark that all nodes have reached are removed",
            ge=1 << 20,
            unit="bytes",
        ),
    ] = RETENTION_BYTES
    keep_time: Annotated[
        float,
        option(
            "seconds after which the active node appends a mark even if the log has grown by less "
            "than a quarter of cluster.keep",
            ge=1,
            le=86_400,
            unit="s",
        ),
    ] = RETENTION_SECONDS
    keep_most: Annotated[
        int,
        option(
            "size of the replicated log in bytes above which the active node removes records that "
            "the slowest standby has not read; this standby must then be seeded (`trellis cluster "
            "seed`)",
            ge=1 << 20,
            unit="bytes",
        ),
    ] = RETENTION_MOST
    grace: Annotated[
        float,
        option(
            "seconds that MQTT clients have to connect again after a takeover; after this time, "
            "the wills of absent clients are published, or their will delays begin",
            ge=0,
            le=86_400,
            unit="s",
        ),
    ] = 30.0
    unsafe: Annotated[
        bool,
        option(
            "accept a Kafka topic that can lose confirmed messages, because it has fewer than 2 "
            "replicas, a min.insync.replicas below 2, retention or unclean leader "
            "election; only for trials and tests"
        ),
    ] = False
    redirect: Annotated[
        bool,
        option(
            "a standby answers clients with the address of the active node; false keeps the ports "
            "of a standby closed"
        ),
    ] = True
    options: Annotated[
        dict[str, object],
        option(
            "options of Kafka's client (librdkafka), such as the options for TLS and SASL",
            secret=True,
        ),
    ] = field(default_factory=dict)

    @property
    def enabled(self) -> bool:
        """True if this broker is a node of a cluster."""
        return bool(self.servers)

    @property
    def log_topic(self) -> str:
        """The name of the Kafka topic of the replicated log."""
        return self.topic or f"trellis-{self.name}"

    @property
    def timing(self) -> "Timing":
        """The time limits of the cluster.

        Raises ReplicationError if the times contradict each other.
        """
        # Imported here, because a broker without a cluster does not need the replicated log.
        from broker.replication.contract import Timing

        return Timing(self.silence, self.lease, self.beat)

    @property
    def client_options(self) -> dict[str, OptionValue]:
        """The options of Kafka's client by their dotted names.

        TOML reads the unquoted key `security.protocol` as a table `security`, so tables are joined
        to dotted names. Raises ValueError if a value is neither text, number nor boolean.
        """
        return dict(_flat("", self.options))


def _flat(prefix: str, table: dict[str, object]) -> Iterator[tuple[str, OptionValue]]:
    """Yield the values in a table and in its tables, each with its dotted name.

    `prefix` is the beginning of the names. Raises ValueError for a value that is not allowed.
    """
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, OptionValue):
            yield prefix + name, value
        else:
            raise ValueError(f'"{prefix}{name}" must be text, a number, true or false')


def cluster_problems(cluster: ClusterSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield a Problem (see checks.py) for each rule that the section [cluster] breaks."""
    if cluster.enabled and not cluster.name:
        problem = "a cluster needs cluster.name; set it to the same name on all of its nodes"
        yield ("cluster.name", "cluster.servers"), problem
    try:
        check_times(cluster.silence, cluster.lease, cluster.beat)
    except ReplicationError as error:
        yield ("cluster.silence", "cluster.lease", "cluster.beat"), str(error)
    try:
        fixed = sorted(FIXED_OPTIONS.intersection(cluster.client_options))
    except ValueError as error:
        yield ("cluster.options",), str(error)
        return
    for name in fixed:
        problem = f'"{name}" is fixed by the rules of the replicated log; remove this option'
        yield ("cluster.options",), problem
