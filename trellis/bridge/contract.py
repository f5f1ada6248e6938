"""The messages between the broker and the bridges' worker: one JSON object per line.

broker -> worker                           worker -> broker
Configure  all links to run, at a start    WorkerReady  the worker waits for Configure
           and after each change           LinkReport   the states of all links
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from trellis.settings.bridge import MQTT5, TopicRule

#: Kinds of links.
MQTT, SHOVEL, FEDERATION = "mqtt", "shovel", "federation"
#: States of a link. UP: both ends are connected. CONNECTING: an end is not connected, and the link
#: tries again. ENDED: a shovel has moved all messages that it was to move (src-delete-after).
#: INVALID: the link cannot run, for example because its definition is wrong.
UP, CONNECTING, ENDED, INVALID = "up", "connecting", "ended", "invalid"

#: Largest size in bytes of a line that the broker sends (Configure).
LINE_MAX: Final = 64 << 20
#: Largest size in bytes of the shovels and federation links in such a line. The broker encodes them
#: in one turn of its loop: 2 MiB take 4 ms (32 MiB took 79 ms).
LINKS_BYTES: Final = 2 << 20


class MqttLogin(Struct, frozen=True):
    """The login of a bridge at one of its two brokers.

    `ca`, `certificate` and `key` are paths of PEM files. If `ca` is "", the authorities of the
    system are trusted. If `certificate` is "", the bridge sends no client certificate. If `key` is
    "", the key is in the file `certificate`.
    `protocol` is a value of the setting `remote_protocol`. `packet_max` is the largest packet in
    bytes that the broker accepts, 0 if only the broker knows it.
    """

    host: str
    port: int
    client_id: str
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    protocol: str = MQTT5
    packet_max: int = 0

    @property
    def url(self) -> str:
        """The URL of the broker, without credentials."""
        return f"mqtt{'s' if self.tls else ''}://{self.host}:{self.port}"


class MqttBridge(Struct, frozen=True):
    """A bridge between the local broker and a remote MQTT broker; times are in seconds.

    `window` is the largest number of unacknowledged messages in each direction.
    """

    name: str
    local: MqttLogin
    remote: MqttLogin
    topics: tuple[TopicRule, ...]
    window: int
    max_hops: int
    session_expiry: int
    keep_alive: int
    reconnect_max: int


class AmqpSource(Struct, frozen=True):
    """The source of a shovel.

    `uris` are tried in turn. Messages come from `queue`. If `exchange` is not "", the queue is
    bound to the exchange with the binding keys `keys`. If `queue` is "", the shovel declares an
    exclusive queue, which exists while the shovel is connected. `arguments` of the queue and
    `consumer_arguments` are JSON objects. An exchange that does not exist is declared with the type
    `exchange_kind`, unless the type is "".
    """

    uris: tuple[str, ...]
    queue: str
    exchange: str
    keys: tuple[str, ...]
    arguments: str
    consumer_arguments: str
    exchange_kind: str = ""


class AmqpTarget(Struct, frozen=True):
    """The destination of a shovel.

    Messages go to `queue`. If `queue` is "", they go to `exchange` with the routing key `key`. If
    `exchange` or `key` is None, a message keeps its own exchange or routing key. `arguments` of the
    queue and `properties` (which replace properties of the message) are JSON objects. `uris` are
    tried in turn.
    """

    uris: tuple[str, ...]
    queue: str
    exchange: str | None
    key: str | None
    arguments: str
    properties: str
    forward_headers: bool = False
    timestamp_header: bool = False


class Shovel(Struct, frozen=True):
    """A shovel, or a link of a federated exchange.

    `prefetch` is the largest number of unacknowledged messages; `rate` the largest number of
    messages per second, 0 for no limit. `delete_after` is the number of messages after which the
    shovel ends; 0 means the number in the queue at the start, None means that the shovel does not
    end. A message that `max_hops` links have copied is not copied again; 0 means no limit.
    `reconnect_delay` is in seconds.
    """

    kind: str
    vhost: str
    name: str
    source: AmqpSource
    target: AmqpTarget
    prefetch: int
    reconnect_delay: float
    rate: float
    delete_after: int | None
    max_hops: int = 0


class LocalAmqp(Struct, frozen=True):
    """The AMQP listener of this broker and a login there, for URIs without a host.

    `port` is 0 if the listener is off. `node` is the name of this broker for other brokers: the
    name of the cluster, or of the node if there is no cluster.
    """

    host: str
    port: int
    user: str
    password: str
    node: str


class Configure(Struct, tag=True):
    """All links that the worker is to run. Links that have not changed go on running.

    `number` is a number that no earlier configuration has.
    """

    number: int
    bridges: list[MqttBridge]
    shovels: list[Shovel]
    local: LocalAmqp


class WorkerReady(Struct, tag=True):
    """The notice that the worker can receive a configuration."""


class LinkCounters(Struct):
    """Counts of one link. In a report of the worker, they begin with the last start of the link.

    `sent` and `received` are messages that were copied to and from the remote broker. `refused`
    messages were refused by their destination. `dropped` messages had QoS 0, and their destination
    was unreachable or slow. `looped` messages were not copied, because too many links or this link
    had copied them already. `reconnects` are connections that were lost.
    """

    sent: int = 0
    received: int = 0
    refused: int = 0
    dropped: int = 0
    looped: int = 0
    reconnects: int = 0


class BridgeState(Struct):
    """The state of one link.

    `vhost` is "" for an MQTT bridge. `remote` is a URL without credentials. `in_flight` is the
    number of messages that the link has received and not acknowledged. `error` is the present
    problem, "" if there is none. `refusal` says why the last refused message was refused.
    `protocol` is the protocol of the remote broker, with the version. `echoes` is the number of
    publications that a broker of MQTT 3.1.1 has not sent back to the bridge yet.
    """

    kind: str
    vhost: str
    name: str
    remote: str
    state: str
    error: str
    refusal: str
    in_flight: int
    counters: LinkCounters
    protocol: str = "AMQP 0-9-1"
    echoes: int = 0


class LinkReport(Struct, tag=True):
    """The states of all links of the configuration with this number."""

    number: int
    links: list[BridgeState]


ToWorker = Configure
FromWorker = WorkerReady | LinkReport

to_worker: Final = msgspec.json.Decoder(Configure)
from_worker: Final = msgspec.json.Decoder(FromWorker)


def line(message: ToWorker | FromWorker) -> bytes:
    """Return a message as one line of JSON, with its line feed."""
    return msgspec.json.encode(message) + b"\n"
