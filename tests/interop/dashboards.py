"""The queries of RabbitMQ's Grafana dashboards: one for each panel, with its metrics and its join.

    overview        RabbitMQ-Overview, grafana.com 10991, in three revisions
    stream          RabbitMQ-Stream, grafana.com 14798
    queues          dashboards of single queues, channels and connections, over /metrics/detailed

A panel's number is its identifier in the dashboard. The newest overview has other identifiers, so
its panels have the numbers of the earlier revisions. docs/moving-from-rabbitmq.md lists the panels
that have no data on Trellis, with the reason.

Grafana replaces the variables of a query by the labels of `rabbitmq_identity_info`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from trellis.monitoring.stream_protocol import ERRORS

#: The labels that a Prometheus in Kubernetes adds to all metrics of a scraped broker.
NAMESPACE: Final = "messaging"
INSTANCE: Final = "broker:15692"
#: The node name of the broker, which is the name of its cluster.
CLUSTER: Final = "trellis"
#: The queue that the dashboards of single queues show.
QUEUE: Final = "orders"
#: A queue whose consumer acknowledges automatically.
HEARD: Final = "logs"
#: A queue that a client polls with basic.get.
POLLED: Final = "backlog"
#: The virtual host of all queues.
VHOST: Final = "/"


#: The dashboards up to RabbitMQ 3.13. Their joins fail if Prometheus scrapes two pages of a broker.
ONE_JOB: Final = ("overview-channels", "overview-global", "stream")


class Panel(NamedTuple):
    """One query (PromQL) of a panel, with the names of the dashboard and the panel."""

    dashboard: str
    number: str
    query: str
    #: True if the value may be 0 under the load of the test; otherwise it must be above 0.
    may_be_zero: bool = False

    @property
    def name(self) -> str:
        return f"{self.dashboard} {self.number}"

    @property
    def job(self) -> str:
        """The only Prometheus job whose samples the query sees; "" if it sees the samples of all
        jobs.

        The joins of older dashboards are ambiguous if there are samples of several jobs.
        """
        return "rabbitmq" if self.dashboard in ONE_JOB else ""


class Join(NamedTuple):
    """The PromQL join with which a dashboard selects the metrics of one cluster."""

    on: str
    where: str

    def __call__(self, query: str) -> str:
        return (
            f"{query} * on({self.on}) group_left(rabbitmq_cluster, rabbitmq_node) "
            f'rabbitmq_identity_info{{rabbitmq_cluster="{CLUSTER}", namespace="{NAMESPACE}"'
            f"{self.where}}}"
        )


#: The join of the dashboards up to RabbitMQ 3.13.
OLD: Final = Join("instance", "")
#: The join of the dashboards of RabbitMQ 4.
NEW: Final = Join("instance, job", ', rabbitmq_endpoint="$endpoint"')
#: The join of the dashboards of single queues, channels and connections.
DETAILED: Final = Join("instance, job", ', rabbitmq_endpoint=~"detailed|"')


def rate(metric: str) -> str:
    return f"rate(rabbitmq_{metric}[60s])"


def by_node(join: Join, *terms: str) -> str:
    """Return a PromQL query: for each node, the sum of these metrics or expressions (`terms`)."""
    return f"sum({' + '.join(f'({join(term)})' for term in terms)}) by(rabbitmq_node)"


def total(join: Join, *terms: str) -> str:
    return " + ".join(f"sum({join(term)})" for term in terms)


def difference(join: Join, left: str, right: str) -> str:
    return f"({join(f'rabbitmq_{left}')}) - ({join(f'rabbitmq_{right}')})"


#: Panel -> counter whose rate the panel shows in all revisions of the overview.
RATES: Final = {
    "58": "queues_declared_total",
    "60": "queues_created_total",
    "59": "queues_deleted_total",
    "55": "channels_opened_total",
    "56": "channels_closed_total",
    "48": "connections_opened_total",
    "49": "connections_closed_total",
}
#: Panel -> gauge whose value the panel shows for each node.
GAUGES: Final = {
    "8": "disk_space_available_bytes",
    "57": "queues",
    "54": "channels",
    "47": "connections",
}
#: Panel -> gauge whose sum the panel shows.
SUMS: Final = {
    "64": "queue_messages_ready",
    "65": "queue_messages_unacked",
    "37": "connections",
    "40": "queues",
    "38": "channels",
    "67": "build_info",
}
#: Panel -> (limit, used amount): the panel shows their difference.
LEFT: Final = {
    "7": ("resident_memory_limit_bytes", "process_resident_memory_bytes"),
    "2": ("process_max_fds", "process_open_fds"),
    "5": ("process_max_tcp_sockets", "process_open_tcp_sockets"),
}
#: Panel -> (counter in the first revision, counter in later revisions). The panel shows the rate of
#: the counter.
MESSAGES: Final = {
    "13": ("channel_messages_published_total", "global_messages_received_total"),
    "18": ("channel_messages_confirmed_total", "global_messages_confirmed_total"),
    "61": ("queue_messages_published_total", "global_messages_routed_total"),
    "34": ("channel_messages_unroutable_dropped_total", "global_messages_unroutable_dropped_total"),
    "16": (
        "channel_messages_unroutable_returned_total",
        "global_messages_unroutable_returned_total",
    ),
    "15": ("channel_messages_redelivered_total", "global_messages_redelivered_total"),
    "20": (
        "channel_messages_delivered_ack_total",
        "global_messages_delivered_consume_manual_ack_total",
    ),
    "21": ("channel_messages_delivered_total", "global_messages_delivered_consume_auto_ack_total"),
    "22": ("channel_messages_acked_total", "global_messages_acknowledged_total"),
    "24": ("channel_get_total", "global_messages_delivered_get_auto_ack_total"),
    "25": ("channel_get_empty_total", "global_messages_get_empty_total"),
    "23": ("channel_get_ack_total", "global_messages_delivered_get_manual_ack_total"),
}


def _overview(dashboard: str, join: Join, revision: int) -> Iterator[Panel]:
    """Yield the panels of one revision of the overview.

    With `revision` 0 the panels read counters of channels, with `revision` 1 global counters.
    """
    counters = {number: both[revision] for number, both in MESSAGES.items()}
    for number, metric in {**RATES, **counters}.items():
        yield Panel(dashboard, number, by_node(join, rate(metric)))
    for number, metric in GAUGES.items():
        yield Panel(dashboard, number, join(f"rabbitmq_{metric}"))
    for number, metric in SUMS.items():
        yield Panel(dashboard, number, total(join, f"rabbitmq_{metric}"))
    for number, (limit, used) in LEFT.items():
        yield Panel(dashboard, number, difference(join, limit, used))
    for number, metric in (("9", "queue_messages_ready"), ("19", "queue_messages_unacked")):
        yield Panel(dashboard, number, by_node(join, f"rabbitmq_{metric}"))
    yield Panel(dashboard, "62", total(join, rate(counters["13"])))
    outgoing = [rate(counters[number]) for number in ("15", "21", "20", "24", "23")]
    yield Panel(dashboard, "63", total(join, *outgoing))
    yield Panel(dashboard, "14", by_node(join, rate(counters["21"]), rate(counters["20"])))
    yield Panel(dashboard, "69", join("rabbitmq_build_info"))


def overview(endpoint: str) -> Iterator[Panel]:
    """Yield the panels of the three revisions of the overview.

    `endpoint` is the value of the variable `$endpoint`, which selects a page of metrics.
    """
    for panel in _overviews():
        yield panel._replace(query=panel.query.replace("$endpoint", endpoint))


def _overviews() -> Iterator[Panel]:
    for name, join, revision, consumers in (
        ("channels", OLD, 0, "channel_consumers"),
        ("global", OLD, 1, "consumers"),
        ("4", NEW, 1, "global_consumers"),
    ):
        yield from _overview(f"overview-{name}", join, revision)
        yield Panel(f"overview-{name}", "41", total(join, f"rabbitmq_{consumers}"))
    for name in ("channels", "global"):
        channels, consuming = (
            total(OLD, f"rabbitmq_{metric}") for metric in ("channels", "channel_consumers")
        )
        yield Panel(f"overview-{name}", "66", f"{channels} - {consuming}", True)
    unconfirmed = by_node(OLD, rate("channel_messages_unconfirmed"))
    yield Panel("overview-channels", "12", unconfirmed, True)
    waiting = (
        f"sum({NEW(rate('global_messages_received_confirm_total'))} - "
        f"{NEW(rate('global_messages_confirmed_total'))}) by(rabbitmq_node)"
    )
    for dashboard, query in (
        ("overview-global", waiting.replace(NEW.on, OLD.on).replace(NEW.where, OLD.where)),
        ("overview-4", waiting),
    ):
        yield Panel(dashboard, "12", query, True)
    yield Panel("overview-4", "66", total(NEW, "rabbitmq_global_publishers"))
    yield Panel(
        "overview-4",
        "uptime",
        NEW(
            "rabbitmq_erlang_uptime_seconds * on(instance, job) "
            "group_left(rabbitmq_version, erlang_version) rabbitmq_build_info"
        ),
    )


def stream() -> Iterator[Panel]:
    """Yield the panels of the dashboard of streams."""
    chosen = '{protocol="stream"}'
    queries = {
        ("2", "16"): f"rabbitmq_global_publishers{chosen}",
        ("4", "19"): f"rabbitmq_global_consumers{chosen}",
        ("14", "17"): f"irate(rabbitmq_global_messages_received_total{chosen}[60s])",
        ("10", "18"): f"irate(rabbitmq_global_messages_confirmed_total{chosen}[60s])",
        ("8", "20"): f"irate(rabbitmq_global_messages_delivered_total{chosen}[60s])",
    }
    for (number, pie), query in queries.items():
        yield Panel("stream", number, f"sum by(rabbitmq_cluster) ({OLD(query)})", True)
        yield Panel("stream", pie, f"sort_desc(sum by(rabbitmq_node) ({OLD(query)}))", True)
    errors = [
        f"sum by(rabbitmq_cluster) ({OLD(f'rabbitmq_global_stream_error_{error}_total{chosen}')})"
        for error in ERRORS
    ]
    yield Panel("stream", "21", " + ".join(errors), True)
    for error, query in zip(ERRORS, errors, strict=True):
        yield Panel("stream", f"23 {error}", query, True)


def queues() -> Iterator[Panel]:
    """Yield the panels of the dashboards of single queues, channels and connections."""
    chosen = f'{{queue="{QUEUE}", vhost="{VHOST}"}}'
    for metric, queue in {
        "queue_messages": QUEUE,
        "queue_messages_unacked": QUEUE,
        "queue_consumers": QUEUE,
        "queue_messages_ready": POLLED,
    }.items():
        query = f'rabbitmq_detailed_{metric}{{queue="{queue}", vhost="{VHOST}"}}'
        yield Panel("queue", metric, DETAILED(query))
    published = f"rabbitmq_detailed_queue_exchange_messages_published_total{chosen}"
    yield Panel(
        "queue",
        "publishers",
        f"count by(rabbitmq_cluster, vhost, rabbitmq_node) ({DETAILED(f'rate({published}[30s])')})",
    )
    # The variable of the dashboard that lists the queues reads this label.
    yield Panel("queue", "variable", f'count by(queue) ({{queue_vhost="{VHOST}"}})')
    for metric, queue in {
        "queue_exchange_messages_published": QUEUE,
        "queue_messages_delivered_ack": QUEUE,
        "queue_messages_redelivered": QUEUE,
        "queue_messages_acked": QUEUE,
        "queue_messages_delivered": HEARD,
        "queue_get_ack": POLLED,
        "queue_get": POLLED,
    }.items():
        query = f'irate(rabbitmq_detailed_{metric}_total{{queue="{queue}", vhost="{VHOST}"}}[30s])'
        yield Panel("queue", metric, f"sum by(queue, rabbitmq_node) ({DETAILED(query)})")
    for metric in ("incoming_bytes", "outgoing_bytes"):
        query = f"irate(rabbitmq_detailed_connection_{metric}_total[30s])"
        yield Panel("connection", metric, f"sum by(rabbitmq_node) ({DETAILED(query)})")
        # The dashboard's table of connections has one row for each value of `channel`.
        yield Panel("connection", f"{metric}-list", f"count by(channel) ({DETAILED(query)})")
    channels = DETAILED("rabbitmq_detailed_connection_channels")
    yield Panel("connection", "channels", f"sum({channels})")
    for metric in ("channel_consumers", "channel_messages_unacked", "consumer_prefetch"):
        yield Panel("channel", metric, f"sum({DETAILED(f'rabbitmq_detailed_{metric}')})")
    for metric in (
        "channel_messages_unconfirmed",
        "channel_messages_uncommitted",
        "channel_acks_uncommitted",
        "channel_prefetch",
    ):
        yield Panel("channel", metric, f"sum({DETAILED(f'rabbitmq_detailed_{metric}')})", True)
    for metric in ("messages_published", "messages_confirmed", "messages_acked", "get_ack"):
        query = f"irate(rabbitmq_detailed_channel_{metric}_total[30s])"
        yield Panel("channel", metric, f"sum by(rabbitmq_node) ({DETAILED(query)})")
