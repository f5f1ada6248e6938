"""Metrics of /metrics/detailed: the families of RabbitMQ that a scrape asks for, by object.

    /metrics/detailed?family=queue_coarse_metrics&family=connection_metrics&vhost=orders

Names begin with `rabbitmq_detailed_`, or with `rabbitmq_cluster_` for virtual hosts and exchanges,
as in RabbitMQ. A connection has the label `connection`, which is its protocol and number, so that
the page shows no addresses and no user names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final
from urllib.parse import parse_qsl

from broker.queues.queue import Queue
from broker.routing.exchanges import Exchange
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.channel import Channel
from protocols.amqp.connection.connection import AmqpConnection
from protocols.connection import Connection
from protocols.mqtt.connection.connection import MqttConnection
from trellis.monitoring import client_metrics, message_metrics
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import OBJECTS_MAX, MetricsPage
from trellis.server.node import BrokerNode

#: Steps of work in one turn of the event loop. To list an object is one step.
STEPS_SLICE: Final = 100
#: Destinations of an exchange whose bindings are counted in one step.
DESTINATIONS_STEP: Final = 50
#: Steps of estimating the memory of a queue's messages.
MEMORY_STEPS: Final = 10
#: Beginnings of the names: of single objects, and of virtual hosts and exchanges.
_DETAILED, _CLUSTER = "rabbitmq_detailed", "rabbitmq_cluster"


class DetailedScrape:
    """One scrape: the page, and the virtual hosts whose objects it lists."""

    def __init__(self, node: BrokerNode, http: HttpCounters, vhosts: Sequence[str]) -> None:
        self.node = node
        self.http = http
        self.page = MetricsPage()
        self._vhosts = frozenset(vhosts)
        #: Families that were asked for.
        self.families: frozenset[str] = frozenset()

    def lists(self, vhost: str) -> bool:
        """True if the objects of a virtual host are listed."""
        return not self._vhosts or vhost in self._vhosts

    def queues(self) -> Iterator[tuple[VirtualHost, Queue]]:
        """Yield the queues, and the inboxes of MQTT sessions."""
        for vhost in list(self.node.broker.vhosts.values()):
            if self.lists(vhost.name):
                for queue in chain(list(vhost.queues.values()), list(vhost.inboxes.values())):
                    yield vhost, queue

    def connections(self) -> Iterator[tuple[str, Connection]]:
        """Yield the connections with their virtual host, after their login."""
        for front in self.node.fronts:
            for connection in list(front.connections):
                vhost = _vhost_of(connection)
                if vhost is not None and self.lists(vhost):
                    yield vhost, connection

    def channels(self) -> Iterator[tuple[Connection, Channel]]:
        """Yield the channels of AMQP connections."""
        for _, connection in self.connections():
            if isinstance(connection, AmqpConnection):
                for channel in list(connection.channels.open.values()):
                    yield connection, channel

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to a gauge of single objects."""
        self.page.gauge(f"{_DETAILED}_{name}", text, value, **labels)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to a counter of single objects."""
        self.page.counter(f"{_DETAILED}_{name}", text, value, **labels)


#: Adds one family to a page; yields after each object the work in steps.
Family = Callable[[DetailedScrape], Iterator[int]]


def _queue_coarse(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, queue in scrape.queues():
        message_metrics.add_depth(
            scrape.page,
            int(queue.depth),
            int(queue.unacked),
            f"{_DETAILED}_queue",
            vhost=vhost.name,
            queue=queue.name,
        )
        yield 1


def _queue_consumers(scrape: DetailedScrape) -> Iterator[int]:
    if "queue_metrics" in scrape.families:
        return
    for vhost, queue in scrape.queues():
        _add_consumers(scrape, vhost, queue)
        yield 1


def _add_consumers(scrape: DetailedScrape, vhost: VirtualHost, queue: Queue) -> None:
    scrape.gauge(
        "queue_consumers",
        "Number of consumers of the queue.",
        queue.consumer_count,
        vhost=vhost.name,
        queue=queue.name,
    )


def _queue(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, queue in scrape.queues():
        _add_consumers(scrape, vhost, queue)
        scrape.gauge(
            "queue_process_memory_bytes",
            "Estimated memory of the messages that wait in the queue, in bytes.",
            int(queue.memory_bytes()),
            vhost=vhost.name,
            queue=queue.name,
        )
        yield MEMORY_STEPS if queue.depth else 1


def _connection_coarse(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, connection in scrape.connections():
        labels = {"vhost": vhost, "connection": _label_of(connection)}
        scrape.counter(
            "connection_incoming_bytes",
            "Total number of bytes received on a connection.",
            int(connection.bytes_in),
            **labels,
        )
        scrape.counter(
            "connection_outgoing_bytes",
            "Total number of bytes sent on a connection.",
            int(connection.bytes_out),
            **labels,
        )
        yield 1


def _connection(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, connection in scrape.connections():
        channels = len(connection.channels.open) if isinstance(connection, AmqpConnection) else 0
        scrape.gauge(
            "connection_channels",
            "Number of AMQP channels of a connection.",
            channels,
            vhost=vhost,
            connection=_label_of(connection),
        )
        yield 1


def _channel(scrape: DetailedScrape) -> Iterator[int]:
    for connection, channel in scrape.channels():
        confirms = channel.publisher.confirms
        labels = {
            "vhost": channel.vhost.name,
            "channel": f"{_label_of(connection)}:{int(channel.number)}",
        }
        for name, text, value in (
            (
                "channel_consumers",
                "Number of consumers of a channel.",
                len(channel.receiver.consumers),
            ),
            (
                "channel_messages_unacked",
                "Number of messages delivered on a channel and not acknowledged yet.",
                int(channel.receiver.unacked.count),
            ),
            (
                "channel_messages_unconfirmed",
                "Number of messages published on a channel and not confirmed yet.",
                0 if confirms is None else int(confirms.waiting),
            ),
            (
                "consumer_prefetch",
                "Limit of unacknowledged messages of each consumer; 0 is no limit.",
                int(channel.receiver.prefetch),
            ),
            (
                "channel_prefetch",
                "Limit of unacknowledged messages of all consumers of a channel; 0 is no limit.",
                int(channel.receiver.shared_prefetch),
            ),
        ):
            scrape.gauge(name, text, value, **labels)
        yield 1


def _vhost_status(scrape: DetailedScrape) -> Iterator[int]:
    for vhost in list(scrape.node.broker.vhosts.values()):
        if scrape.lists(vhost.name):
            scrape.page.gauge(
                f"{_CLUSTER}_vhost_status",
                "1 if the virtual host is running, 0 while it is being deleted.",
                int(not vhost.closing),
                vhost=vhost.name,
            )
            yield 1


def _exchanges(scrape: DetailedScrape) -> Iterator[tuple[Exchange, dict[str, str]]]:
    """Yield each exchange with its labels."""
    for vhost in list(scrape.node.broker.vhosts.values()):
        if scrape.lists(vhost.name):
            for exchange in list(vhost.exchanges.values()):
                labels = {"vhost": vhost.name, "exchange": exchange.name, "type": exchange.kind}
                yield exchange, labels


def _exchange_names(scrape: DetailedScrape) -> Iterator[int]:
    for _, labels in _exchanges(scrape):
        scrape.page.gauge(f"{_CLUSTER}_exchange_name", "1 for each exchange.", 1, **labels)
        yield 1


def _exchange_bindings(scrape: DetailedScrape) -> Iterator[int]:
    for exchange, labels in _exchanges(scrape):
        count = 0
        for at, bindings in enumerate(list(exchange.bindings.values()), 1):
            count += len(bindings)
            if at % DESTINATIONS_STEP == 0:
                yield 1
        scrape.page.gauge(
            f"{_CLUSTER}_exchange_bindings", "Number of bindings of the exchange.", count, **labels
        )
        yield 1


def _churn(scrape: DetailedScrape) -> Iterator[int]:
    client_metrics.add_churn(scrape.page, scrape.node, _DETAILED)
    message_metrics.add_queue_churn(scrape.page, scrape.node, _DETAILED)
    yield 1


def _auth_attempts(scrape: DetailedScrape) -> Iterator[int]:
    client_metrics.add_auth_attempts(scrape.page, scrape.node, scrape.http, _DETAILED)
    yield 1


def _nothing(scrape: DetailedScrape) -> Iterator[int]:
    """Add nothing: Trellis does not count what the family is about, or not by object."""
    return iter(())


#: Each family of RabbitMQ, in the order of the page.
FAMILIES: Final[dict[str, Family]] = {
    "connection_churn_metrics": _churn,
    "auth_attempt_metrics": _auth_attempts,
    "vhost_status": _vhost_status,
    "exchange_names": _exchange_names,
    "exchange_bindings": _exchange_bindings,
    "queue_coarse_metrics": _queue_coarse,
    "queue_consumer_count": _queue_consumers,
    "queue_metrics": _queue,
    "connection_coarse_metrics": _connection_coarse,
    "connection_metrics": _connection,
    "channel_metrics": _channel,
    **dict.fromkeys(
        (
            "alarm_metrics",
            "auth_attempt_detailed_metrics",
            "channel_exchange_metrics",
            "channel_process_metrics",
            "channel_queue_exchange_metrics",
            "channel_queue_metrics",
            "exchange_metrics",
            "memory_breakdown_metrics",
            "node_coarse_metrics",
            "node_metrics",
            "node_persister_metrics",
            "queue_delivery_metrics",
            "queue_exchange_metrics",
            "ra_metrics",
            "stream_consumer_metrics",
        ),
        _nothing,
    ),
}


async def detailed_metrics(node: BrokerNode, http: HttpCounters, query: str) -> MetricsPage:
    """Return the families that a query asks for, made in slices of STEPS_SLICE steps.

    Raises ValueError if the query names an unknown family or parameter.
    """
    asked: dict[str, list[str]] = {"family": [], "vhost": []}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in asked:
            raise ValueError(f"unknown parameter '{name}'; there are family and vhost")
        asked[name].append(value)
    for name in asked["family"]:
        if name not in FAMILIES:
            raise ValueError(f"unknown family '{name}'; there are {', '.join(FAMILIES)}")
    scrape = DetailedScrape(node, http, asked["vhost"])
    scrape.families = frozenset(asked["family"])
    steps = listed = cut = 0
    for name, add in FAMILIES.items():
        if name not in scrape.families:
            continue
        for work in add(scrape):
            listed += 1
            steps += work
            if steps >= STEPS_SLICE:
                steps = 0
                await asyncio.sleep(0)
            if listed >= OBJECTS_MAX:
                cut += 1
                break
    scrape.page.gauge(
        "trellis_detailed_families_cut",
        f"Number of families that were cut because a page lists at most {OBJECTS_MAX} objects.",
        cut,
    )
    return scrape.page


def _vhost_of(connection: Connection) -> str | None:
    """Return the name of a connection's virtual host; None before its login."""
    if isinstance(connection, AmqpConnection):
        return None if connection.vhost is None else str(connection.vhost.name)
    if isinstance(connection, MqttConnection) and connection.session is not None:
        return str(connection.vhost.name)
    return None


def _label_of(connection: Connection) -> str:
    return f"{connection.front.name}-{int(connection.number)}"
