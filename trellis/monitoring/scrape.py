"""One scrape of metrics with a sample for each object, such as a queue or a connection.

The module selects the objects to list, and makes their labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.queues.queue import Queue
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.channel import Channel
from protocols.amqp.connection.connection import AmqpConnection
from protocols.connection import Connection
from protocols.front import Front
from protocols.mqtt.connection.connection import MqttConnection
from trellis.monitoring import node_metrics
from trellis.monitoring.channel_metrics import DELIVERIES
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import Labels, MetricsPage
from trellis.server.node import BrokerNode


class DetailedScrape:
    """One scrape: its page, the families of metrics, and the virtual hosts whose objects it lists.

    The metric names begin with `prefix`.
    """

    def __init__(
        self,
        node: BrokerNode,
        http: HttpCounters,
        families: Sequence[str],
        vhosts: Sequence[str],
        prefix: str,
    ) -> None:
        self.node = node
        self.http = http
        self.page = MetricsPage()
        self.families = frozenset(families)
        self.prefix = prefix
        #: Figures that need slow system calls; zeros unless a family needs them.
        self.seen = node_metrics.Look(0, 0)
        self._vhosts = frozenset(vhosts)

    def lists(self, vhost: str) -> bool:
        """True if the scrape lists the objects of a virtual host."""
        return not self._vhosts or vhost in self._vhosts

    def queues(self) -> Iterator[tuple[VirtualHost, Queue]]:
        """Yield the queues that the scrape lists, and the inboxes of MQTT sessions."""
        for vhost in list(self.node.broker.vhosts.values()):
            if self.lists(vhost.name):
                yield from queues_of(vhost)

    def connections(self) -> Iterator[tuple[str, Connection] | None]:
        """Yield (name of the virtual host, connection) for each logged-in connection to list.

        Yield None for each connection that is not listed: to skip it is a step of work, too.
        """
        for front in self.node.fronts:
            yield from self._connections_of(front)

    def _connections_of(self, front: Front) -> Iterator[tuple[str, Connection] | None]:
        for connection in list(front.connections):
            vhost = _vhost_of(connection)
            if vhost is None or not self.lists(vhost):
                yield None
            else:
                yield vhost, connection

    def channels(self) -> Iterator[tuple[Channel, Labels] | None]:
        """Yield the channels of AMQP connections with their labels.

        Yield None for each connection that is not listed or has no channel.
        """
        for listed in self._connections_of(self.node.amqp):
            connection = None if listed is None else listed[1]
            if not isinstance(connection, AmqpConnection) or not connection.channels.open:
                yield None
                continue
            for channel in list(connection.channels.open.values()):
                labels = {
                    "vhost": channel.vhost.name,
                    "channel": f"{_label_of(connection)}:{int(channel.number)}",
                }
                yield channel, labels

    def gauge(self, name: str, text: str, value: float, labels: Labels) -> None:
        """Add the value of one object, such as a queue, to the gauge `name`.

        `labels` identify the object. `text` is the HELP text of the metric.
        """
        self.page.listed(f"{self.prefix}_{name}", "gauge", text, value, labels)

    def counter(self, name: str, text: str, value: float, labels: Labels) -> None:
        """Add the value of one object, such as a queue, to the counter `name`.

        `labels` identify the object. `text` is the HELP text of the metric.
        """
        self.page.listed(f"{self.prefix}_{name}", "counter", text, value, labels)

    def deliveries(self, kind: str, counts: dict[str, int], labels: Labels) -> bool:
        """Add the delivery counters of a queue or channel; return True.

        If all counters are 0, add none of them, and return False.
        """
        if not any(counts[key] for key, _, _ in DELIVERIES):
            return False
        for key, name, text in DELIVERIES:
            self.counter(f"{kind}_{name}", text, counts[key], labels)
        return True


def queues_of(vhost: VirtualHost) -> Iterator[tuple[VirtualHost, Queue]]:
    """Yield each present queue and inbox of a virtual host, with the virtual host.

    A queue or inbox that is deleted during the iteration is skipped.
    """
    declarations = vhost.declarations
    for table, names in (
        (declarations.queues, declarations.queue_names),
        (declarations.inboxes, declarations.inbox_names),
    ):
        for group in names.groups():
            for name in group:
                queue = table.get(name)
                if queue is not None:
                    yield vhost, queue


def _vhost_of(connection: Connection) -> str | None:
    """Return the name of a connection's virtual host; None before its login."""
    if isinstance(connection, AmqpConnection):
        return None if connection.vhost is None else str(connection.vhost.name)
    if isinstance(connection, MqttConnection) and connection.session is not None:
        return str(connection.vhost.name)
    return None


def labels_of(vhost: str, connection: Connection) -> Labels:
    """Return the labels of a connection. RabbitMQ's dashboards use the label `channel`."""
    name = _label_of(connection)
    return {"vhost": vhost, "connection": name, "channel": name}


def _label_of(connection: Connection) -> str:
    return f"{connection.front.name}-{int(connection.number)}"
