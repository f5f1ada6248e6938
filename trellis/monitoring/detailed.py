"""Metrics of /metrics/detailed: the families of RabbitMQ that a scrape asks for, by object.

    /metrics/detailed?family=queue_coarse_metrics&family=connection_metrics&vhost=orders

Names begin with `rabbitmq_detailed_`, or with `rabbitmq_cluster_` for virtual hosts and exchanges,
as in RabbitMQ. On /metrics/per-object, they begin with `rabbitmq_`. A connection has the label
`connection`, which is its protocol and number, so that the page shows no addresses and no user
names. Its label `channel` has the same text, because RabbitMQ lists connections under `channel`.

The families of deliveries and publications list only objects that had a delivery or publication, as
in RabbitMQ: an idle queue adds no series to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import parse_qsl

from broker.queues.queue import Queue
from broker.queues.statistics import STATISTICS
from broker.routing.exchanges import Exchange
from broker.stream.queue import StreamQueue
from protocols.amqp.connection.connection import AmqpConnection
from trellis.monitoring import channel_metrics, client_metrics, message_metrics, node_metrics
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.ingress import ROUTES_SLICE
from trellis.monitoring.pace import Pace
from trellis.monitoring.page import OBJECTS_MAX, Labels, MetricsPage
from trellis.monitoring.scrape import DetailedScrape, labels_of
from trellis.server.node import BrokerNode
from trellis.settings.errors import printable

#: Number of an exchange's destinations whose bindings are counted in one step.
DESTINATIONS_STEP: Final = 50
#: Number of steps of work that are counted for the estimate of the memory of one queue's messages.
MEMORY_STEPS: Final = 10
#: Prefixes of metric names: for most single objects, and for virtual hosts and exchanges.
_DETAILED: Final = "rabbitmq_detailed"
_CLUSTER: Final = "rabbitmq_cluster"
#: Largest number of unknown families that a page names, and of characters of a name.
_NAMES_MAX: Final = 5
_NAME_MAX: Final = 60


#: A function that adds one family of metrics to the page of a scrape. After each object, it yields
#: the number of steps of work for the object: 0 for an object that is not listed.
Family = Callable[[DetailedScrape], Iterator[int]]


def _queue_coarse(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, queue in scrape.queues():
        labels = {"vhost": vhost.name, "queue": queue.name}
        message_metrics.add_depth_of(scrape.page, queue, labels, f"{scrape.prefix}_queue")
        yield 1


def _queue_consumers(scrape: DetailedScrape) -> Iterator[int]:
    if "queue_metrics" in scrape.families:
        return
    for vhost, queue in scrape.queues():
        _add_consumers(scrape, queue, {"vhost": vhost.name, "queue": queue.name})
        yield 1


def _add_consumers(scrape: DetailedScrape, queue: Queue, labels: Labels) -> None:
    prefix = f"{scrape.prefix}_queue"
    message_metrics.add_consumers(scrape.page, queue.consumer_count, labels, prefix)


def _queue(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, queue in scrape.queues():
        labels = {"vhost": vhost.name, "queue": queue.name}
        _add_consumers(scrape, queue, labels)
        scrape.gauge(
            "queue_process_memory_bytes",
            "Estimated memory of the messages that wait in the queue, in bytes.",
            int(queue.memory_bytes()),
            labels,
        )
        scrape.gauge(
            "queue_messages_paged_out",
            "Number of waiting messages that are on disk and not in memory.",
            int(queue.paged),
            labels,
        )
        yield MEMORY_STEPS if queue.depth else 1


def _queue_delivery(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, queue in scrape.queues():
        counts = dict(zip(STATISTICS, queue.statistics(), strict=True))
        labels = {"vhost": vhost.name, "queue": queue.name}
        yield int(scrape.deliveries("queue", counts, labels))


def _queue_published(name: str) -> Family:
    """Return a family of metrics with the number of messages published to each queue.

    `name` is the name of the metric. RabbitMQ counts separately for each exchange; here, one
    number counts the messages of all exchanges. Dashboards find the virtual host of the queue by
    the label `queue_vhost` or `vhost`.
    """

    def family(scrape: DetailedScrape) -> Iterator[int]:
        for vhost, queue in scrape.queues():
            published = queue.statistics()[0]
            if published:
                labels = {"vhost": vhost.name, "queue_vhost": vhost.name, "queue": queue.name}
                text = "Total number of messages published to the queue."
                scrape.counter(name, text, published, labels)
            yield int(published > 0)

    return family


def _stream_consumers(scrape: DetailedScrape) -> Iterator[int]:
    for vhost, queue in scrape.queues():
        if isinstance(queue, StreamQueue) and queue.readers:
            scrape.gauge(
                "stream_consumer_max_offset_lag",
                "Number of rows of the stream that its slowest consumer has not received.",
                max(0, int(queue.local.end) - min(int(one.offset) for one in queue.readers)),
                {"vhost": vhost.name, "queue": queue.name},
            )
            yield len(queue.readers)
        else:
            yield 0


def _exchange_published(scrape: DetailedScrape) -> Iterator[int]:
    for vhost in list(scrape.node.broker.vhosts.values()):
        if scrape.lists(vhost.name):
            for _ in vhost.contexts.collect_steps(ROUTES_SLICE):
                yield 0
            for exchange in list(vhost.exchanges.values()):
                if exchange.published:
                    labels = {"vhost": vhost.name, "exchange": exchange.name}
                    text = "Total number of messages published to the exchange."
                    published = int(exchange.published)
                    scrape.counter("exchange_messages_published", text, published, labels)
                yield int(exchange.published > 0)


def _connection_coarse(scrape: DetailedScrape) -> Iterator[int]:
    for listed in scrape.connections():
        if listed is None:
            yield 0
            continue
        vhost, connection = listed
        labels = labels_of(vhost, connection)
        text = "Total number of bytes received on connections."
        scrape.counter("connection_incoming_bytes", text, int(connection.bytes_in), labels)
        text = "Total number of bytes sent on connections."
        scrape.counter("connection_outgoing_bytes", text, int(connection.bytes_out), labels)
        yield 1


def _connection(scrape: DetailedScrape) -> Iterator[int]:
    for listed in scrape.connections():
        if listed is None:
            yield 0
            continue
        vhost, connection = listed
        channels = len(connection.channels.open) if isinstance(connection, AmqpConnection) else 0
        labels = labels_of(vhost, connection)
        scrape.gauge("connection_channels", "Number of open AMQP channels.", channels, labels)
        yield 1


def _channel(scrape: DetailedScrape) -> Iterator[int]:
    for listed in scrape.channels():
        if listed is None:
            yield 0
            continue
        channel, labels = listed
        values = channel_metrics.channel_values(channel)
        channel_metrics.add_channel(scrape.page, scrape.prefix, values, labels)
        yield 1


def _channel_published(scrape: DetailedScrape) -> Iterator[int]:
    for listed in scrape.channels():
        if listed is None:
            yield 0
            continue
        channel, labels = listed
        counts = channel.statistics()
        for key, (name, text) in (
            ("publish", channel_metrics.PUBLISHED),
            ("confirm", channel_metrics.CONFIRMED),
            ("return_unroutable", channel_metrics.RETURNED),
        ):
            if counts["publish"]:
                scrape.counter(name, text, counts[key], labels)
        yield int(counts["publish"] > 0)


def _channel_deliveries(scrape: DetailedScrape) -> Iterator[int]:
    for listed in scrape.channels():
        if listed is None:
            yield 0
            continue
        channel, labels = listed
        yield int(scrape.deliveries("channel", channel.statistics(), labels))


def _node_coarse(scrape: DetailedScrape) -> Iterator[int]:
    node_metrics.add_used(scrape.page, scrape.node, scrape.seen, scrape.prefix)
    yield 0


def _node(scrape: DetailedScrape) -> Iterator[int]:
    node_metrics.add_limits(scrape.page, scrape.node, scrape.prefix)
    yield 0


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
    """Yield each exchange that the scrape lists, with its labels."""
    for vhost in list(scrape.node.broker.vhosts.values()):
        if scrape.lists(vhost.name):
            for exchange in list(vhost.exchanges.values()):
                if exchange.options.internal or not exchange.name:
                    continue  # RabbitMQ leaves out internal exchanges and the default exchange.
                labels = {"vhost": vhost.name, "exchange": exchange.name, "type": exchange.kind}
                yield exchange, labels


def _exchange_names(scrape: DetailedScrape) -> Iterator[int]:
    for _, labels in _exchanges(scrape):
        scrape.page.gauge(f"{_CLUSTER}_exchange_name", "1 for each exchange.", 1, **labels)
        yield 1


def _exchange_bindings(scrape: DetailedScrape) -> Iterator[int]:
    for exchange, labels in _exchanges(scrape):
        count = 0
        for at, destination in enumerate(exchange.bindings.destinations(), 1):
            count += exchange.bindings.count(destination)
            if at % DESTINATIONS_STEP == 0:
                yield 1
        scrape.page.gauge(
            f"{_CLUSTER}_exchange_bindings", "Number of bindings of the exchange.", count, **labels
        )
        yield 1


def _churn(scrape: DetailedScrape) -> Iterator[int]:
    client_metrics.add_churn(scrape.page, scrape.node, scrape.prefix)
    message_metrics.add_queue_churn(scrape.page, scrape.node, scrape.prefix)
    yield 0


def _auth_attempts(scrape: DetailedScrape) -> Iterator[int]:
    client_metrics.add_auth_attempts(scrape.page, scrape.node, scrape.http, scrape.prefix)
    yield 0


def _nothing(scrape: DetailedScrape) -> Iterator[int]:
    """List no objects, for a family whose events Trellis does not count for each object."""
    return iter(())


#: Each family of RabbitMQ, in the order of the page.
FAMILIES: Final[dict[str, Family]] = {
    "connection_churn_metrics": _churn,
    "auth_attempt_metrics": _auth_attempts,
    "node_coarse_metrics": _node_coarse,
    "node_metrics": _node,
    "vhost_status": _vhost_status,
    "exchange_names": _exchange_names,
    "exchange_bindings": _exchange_bindings,
    "queue_coarse_metrics": _queue_coarse,
    "queue_consumer_count": _queue_consumers,
    "queue_metrics": _queue,
    "connection_coarse_metrics": _connection_coarse,
    "connection_metrics": _connection,
    "channel_metrics": _channel,
    "channel_exchange_metrics": _channel_published,
    "channel_queue_metrics": _channel_deliveries,
    "channel_queue_exchange_metrics": _queue_published("queue_messages_published"),
    "exchange_metrics": _exchange_published,
    "queue_delivery_metrics": _queue_delivery,
    "queue_exchange_metrics": _queue_published("queue_exchange_messages_published"),
    "stream_consumer_metrics": _stream_consumers,
    **dict.fromkeys(
        (
            "auth_attempt_detailed_metrics",
            "channel_process_metrics",
            "node_persister_metrics",
            "ra_metrics",
        ),
        _nothing,
    ),
}

#: Families about the whole node, which list no objects, so they are never cut short.
_WHOLE: Final = frozenset(
    ("connection_churn_metrics", "auth_attempt_metrics", "node_coarse_metrics", "node_metrics")
)

#: Families of /metrics/per-object, besides the depths and consumers of queues.
PER_OBJECT: Final = (
    "connection_churn_metrics",
    "auth_attempt_metrics",
    "node_coarse_metrics",
    "node_metrics",
    "connection_coarse_metrics",
    "connection_metrics",
    "channel_metrics",
    "channel_exchange_metrics",
    "channel_queue_metrics",
    "channel_queue_exchange_metrics",
    "queue_delivery_metrics",
    "stream_consumer_metrics",
)


async def detailed_metrics(node: BrokerNode, http: HttpCounters, query: str) -> MetricsPage:
    """Return a page with the families of metrics that the query string names.

    As in RabbitMQ, unknown families and parameters are ignored, so that one configuration of
    Prometheus may scrape brokers of several versions. One metric counts the unknown families; its
    help text names the unknown families, if there are any, and all known families.
    """
    parameters = parse_qsl(query, keep_blank_values=True)
    families = [value for name, value in parameters if name == "family"]
    vhosts = [value for name, value in parameters if name == "vhost"]
    scrape = await begin(node, http, families, vhosts, _DETAILED)
    await fill(scrape, OBJECTS_MAX)
    node_metrics.add_identity(scrape.page, node, node_metrics.DETAILED)
    unknown = sorted(scrape.families - FAMILIES.keys())
    text = "Number of metric families that the query names and that do not exist."
    if unknown:
        named = ", ".join(f"'{printable(name[:_NAME_MAX])}'" for name in unknown[:_NAMES_MAX])
        text = f"{text} Unknown: {named}. Known: {', '.join(FAMILIES)}."
    scrape.page.gauge("trellis_detailed_families_unknown", text, len(unknown))
    return scrape.page


async def begin(
    node: BrokerNode,
    http: HttpCounters,
    families: Sequence[str],
    vhosts: Sequence[str],
    prefix: str,
) -> DetailedScrape:
    """Return a new scrape of families of metrics, with an empty page."""
    scrape = DetailedScrape(node, http, families, vhosts, prefix)
    if "node_coarse_metrics" in scrape.families:
        loop = asyncio.get_running_loop()
        scrape.seen = await loop.run_in_executor(None, node_metrics.look, node)
    return scrape


async def fill(scrape: DetailedScrape, most: int) -> None:
    """Add the families of a scrape to its page, until `most` objects are listed.

    Also adds a metric with the number of families that were cut short.
    """
    listed = cut = 0
    pace = Pace()
    for name, add in FAMILIES.items():
        if name not in scrape.families:
            continue
        if listed >= most and name not in _WHOLE and add is not _nothing:
            cut += 1
            continue
        for work in add(scrape):
            listed += work > 0
            await pace.add(max(1, work))
            if listed >= most and work:
                cut += 1
                break
    scrape.page.gauge(
        "trellis_detailed_families_cut",
        "Number of metric families that are incomplete, because this page lists at most "
        f"{OBJECTS_MAX} objects.",
        cut,
    )
