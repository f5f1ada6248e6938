"""Metrics of AMQP channels and of connections, as sums over all channels and connections.

The sums have the metric names that RabbitMQ's dashboards read. RabbitMQ uses the same names for the
metrics of single channels.
"""

from __future__ import annotations

from typing import Final

from broker.messages.fates import UNROUTABLE
from broker.routing.publish_context import IngressCounters
from protocols.amqp.channel.channel import Channel
from protocols.amqp.connection.connection import AmqpConnection
from protocols.connection import Connection
from protocols.mqtt.connection.connection import MqttConnection
from trellis.monitoring.pace import Pace
from trellis.monitoring.page import Labels, MetricsPage
from trellis.server.node import BrokerNode

#: Names and help texts of the gauges of a channel, in the order of `channel_values`.
GAUGES: Final = (
    ("channel_consumers", "Number of consumers of AMQP channels."),
    (
        "channel_messages_unacked",
        "Number of messages delivered on AMQP channels and not acknowledged yet.",
    ),
    (
        "channel_messages_unconfirmed",
        "Number of messages published on AMQP channels and not confirmed yet.",
    ),
    (
        "channel_messages_uncommitted",
        "Number of messages published in transactions that are not committed yet.",
    ),
    (
        "channel_acks_uncommitted",
        "Number of acknowledgements in transactions that are not committed yet.",
    ),
    (
        "consumer_prefetch",
        "Limit of unacknowledged messages of each consumer of a channel; 0 is no limit.",
    ),
    (
        "channel_prefetch",
        "Limit of unacknowledged messages of all consumers of a channel; 0 is no limit.",
    ),
)

#: Names and help texts of the counters of published messages: for all channels together, and for a
#: single channel.
PUBLISHED: Final = ("channel_messages_published", "Total number of messages published.")
CONFIRMED: Final = ("channel_messages_confirmed", "Total number of messages confirmed.")
RETURNED: Final = (
    "channel_messages_unroutable_returned",
    "Total number of unroutable messages returned to their publisher.",
)
DROPPED: Final = (
    "channel_messages_unroutable_dropped",
    "Total number of unroutable messages dropped.",
)

#: Names and help texts of the counters of delivered messages, by the keys of `Channel.statistics`.
#: A queue has the same counters, with names that begin with "queue" instead of "channel".
DELIVERIES: Final = (
    ("get", "get_ack", "Total number of messages fetched with manual acknowledgement."),
    ("get_no_ack", "get", "Total number of messages fetched with automatic acknowledgement."),
    (
        "deliver",
        "messages_delivered_ack",
        "Total number of messages delivered to consumers with manual acknowledgement.",
    ),
    (
        "deliver_no_ack",
        "messages_delivered",
        "Total number of messages delivered to consumers with automatic acknowledgement.",
    ),
    ("redeliver", "messages_redelivered", "Total number of messages redelivered."),
    ("ack", "messages_acked", "Total number of messages acknowledged by consumers."),
)


def channel_values(channel: Channel) -> tuple[int, ...]:
    """Return the values of the gauges of an AMQP channel, in the order of GAUGES."""
    publisher, receiver = channel.publisher, channel.receiver
    confirms, transaction = publisher.confirms, publisher.transaction
    return (
        len(receiver.consumers),
        int(receiver.unacked.count),
        0 if confirms is None else int(confirms.waiting),
        0 if transaction is None else len(transaction.publications),
        0 if transaction is None else len(transaction.settlements),
        int(receiver.prefetch),
        int(receiver.shared_prefetch),
    )


def add_channel(page: MetricsPage, prefix: str, values: tuple[int, ...], labels: Labels) -> None:
    """Add to the page the gauges in `values`: of one channel, or the sums over all channels.

    The names begin with `prefix`.
    """
    for (name, text), value in zip(GAUGES, values, strict=True):
        page.listed(f"{prefix}_{name}", "gauge", text, value, labels)


class ClientTotals:
    """Sums over all AMQP channels and all connections, counted in slices."""

    def __init__(self) -> None:
        #: Sums over the open channels, in the order of GAUGES.
        self.channels = (0,) * len(GAUGES)
        #: Number of channels that have published.
        self.publishers = 0
        #: Number of MQTT clients that have a subscription.
        self.subscribers = 0
        #: Bytes received and sent by all connections since the start, open or closed.
        self.bytes_in = 0
        self.bytes_out = 0

    async def count(self, node: BrokerNode) -> None:
        """Count all connections and their channels, in slices."""
        open_ones: list[Connection] = []
        for front in node.fronts:
            # The bytes of ended connections and the list of open connections are read in one turn.
            # A connection that ends later is counted from the list, so the total never falls.
            self.bytes_in += front.bytes_in
            self.bytes_out += front.bytes_out
            open_ones += front.connections
        pace = Pace()
        for connection in open_ones:
            await pace.add(1 + self._add(connection))

    def _add(self, connection: Connection) -> int:
        """Add the counters of one connection to the sums; return the number of its channels."""
        self.bytes_in += int(connection.bytes_in)
        self.bytes_out += int(connection.bytes_out)
        if isinstance(connection, AmqpConnection):
            channels = list(connection.channels.open.values())
            for channel in channels:
                values = channel_values(channel)
                self.channels = tuple(map(int.__add__, self.channels, values))
                self.publishers += channel.publisher.published > 0
            return len(channels)
        if isinstance(connection, MqttConnection) and connection.session is not None:
            subscriptions = connection.session.subscriptions
            self.subscribers += bool(len(subscriptions) or subscriptions.memberships)
        return 0


def add_totals(page: MetricsPage, node: BrokerNode, totals: ClientTotals) -> None:
    """Add to the page the sums over all connections and channels."""
    add_channel(page, "rabbitmq", totals.channels, {})
    page.gauge("rabbitmq_connection_channels", "Number of open AMQP channels.", node.amqp.channels)
    page.counter(
        "rabbitmq_connection_incoming_bytes",
        "Total number of bytes received on connections.",
        totals.bytes_in,
    )
    page.counter(
        "rabbitmq_connection_outgoing_bytes",
        "Total number of bytes sent on connections.",
        totals.bytes_out,
    )
    add_clients(page, node, totals)


def add_clients(page: MetricsPage, node: BrokerNode, totals: ClientTotals) -> None:
    """Add to the page the number of publishers and of consumers by protocol."""
    text = "Number of AMQP channels that have published."
    page.gauge("rabbitmq_global_publishers", text, totals.publishers, protocol=node.amqp.name)
    text = "Number of AMQP consumers, and of MQTT clients that have a subscription."
    page.gauge("rabbitmq_global_consumers", text, totals.channels[0], protocol=node.amqp.name)
    page.gauge("rabbitmq_global_consumers", text, totals.subscribers, protocol=node.mqtt.name)


def add_messages(
    page: MetricsPage, node: BrokerNode, vhosts: list[dict[str, IngressCounters]]
) -> None:
    """Add to the page the message counters of all AMQP channels together.

    Also add the number of messages that were published to queues and MQTT sessions.
    """
    tally = node.amqp.tally
    for (name, text), value in (
        (PUBLISHED, sum(one.received for one in _received(node, vhosts))),
        (CONFIRMED, int(tally.confirmed)),
        (RETURNED, int(tally.returned)),
    ):
        page.counter(f"rabbitmq_{name}", text, value)
    counts = {
        "get": int(tally.get_manual),
        "get_no_ack": int(tally.get_auto),
        "deliver": int(tally.delivered_manual),
        "deliver_no_ack": int(tally.delivered_auto),
        "redeliver": int(tally.redelivered),
        "ack": int(tally.acknowledged),
    }
    for key, name, text in DELIVERIES:
        page.counter(f"rabbitmq_channel_{name}", text, counts[key])
    add_undivided(page, node, vhosts)
    page.counter(
        "rabbitmq_queue_messages_published",
        "Total number of messages published to queues and MQTT sessions.",
        sum(one.copies for ingress in vhosts for one in ingress.values()),
    )


def add_undivided(
    page: MetricsPage, node: BrokerNode, vhosts: list[dict[str, IngressCounters]]
) -> None:
    """Add to the page the counters that exist only for all AMQP channels together."""
    tally = node.amqp.tally
    unroutable = sum(one.fates[UNROUTABLE] for one in _received(node, vhosts))
    name, text = DROPPED
    page.counter(f"rabbitmq_{name}", text, unroutable - int(tally.returned))
    page.counter(
        "rabbitmq_channel_get_empty",
        "Total number of fetches from empty queues.",
        int(tally.get_empty),
    )


def _received(node: BrokerNode, vhosts: list[dict[str, IngressCounters]]) -> list[IngressCounters]:
    """Return the counters of the messages that came over AMQP."""
    names = node.amqp.context_names
    return [ingress[way] for ingress in vhosts for way in names if way in ingress]
