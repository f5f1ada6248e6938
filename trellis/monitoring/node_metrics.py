"""Metrics of the node: the process, its limits and alarms, and the names of node and cluster.

Dashboards join `rabbitmq_identity_info` with every other metric of the same page, to find the
metrics of one cluster. So each page has this metric, with the kind of the page as the label
`rabbitmq_endpoint`.
"""

from __future__ import annotations

import platform
import time
from typing import Final, NamedTuple

import trellis
from trellis import process
from trellis.monitoring.page import MetricsPage
from trellis.server.node import BrokerNode

#: Values of the label `rabbitmq_endpoint`: the page with totals, and the two pages with single
#: objects.
AGGREGATED: Final = "aggregated"
PER_OBJECT: Final = "per-object"
DETAILED: Final = "detailed"


class Look(NamedTuple):
    """Figures of the node that need slow system calls."""

    #: Number of open file descriptors.
    descriptors: int
    #: Free bytes on the disk of the data directory; 0 if there is no directory.
    free: int


def look(node: BrokerNode) -> Look:
    """Read the figures that need slow system calls.

    Reading takes long if many file descriptors are open, so call `look` in a thread.
    """
    free = 0 if node.directory is None else process.free_disk_bytes(node.directory)
    return Look(process.open_descriptors(), free)


def add_used(page: MetricsPage, node: BrokerNode, seen: Look, prefix: str = "rabbitmq") -> None:
    """Add to the page the numbers of file descriptors and connections, memory and free disk space.

    Names begin with `prefix`.
    """
    page.gauge(f"{prefix}_process_open_fds", "Number of open file descriptors.", seen.descriptors)
    page.gauge(
        f"{prefix}_process_open_tcp_sockets",
        "Number of open connections of clients.",
        sum(len(front.connections) for front in node.fronts),
    )
    page.gauge(
        f"{prefix}_process_resident_memory_bytes",
        "Resident memory in use, in bytes.",
        process.resident_bytes(),
    )
    if node.directory is not None:
        page.gauge(
            f"{prefix}_disk_space_available_bytes",
            "Free disk space for the data directory, in bytes.",
            seen.free,
        )


def add_limits(page: MetricsPage, node: BrokerNode, prefix: str = "rabbitmq") -> None:
    """Add to the page the limits of the process, and its age. The names begin with `prefix`."""
    page.gauge(
        f"{prefix}_process_max_fds",
        "Maximum number of open file descriptors.",
        node.max_descriptors,
    )
    page.gauge(
        f"{prefix}_process_max_tcp_sockets",
        "Maximum number of open connections of clients.",
        node.admission.connections,
    )
    page.gauge(
        f"{prefix}_resident_memory_limit_bytes",
        "Memory above which publishers are blocked, in bytes.",
        node.alarm_watch.memory_limit,
    )
    if node.directory is not None:
        page.gauge(
            f"{prefix}_disk_space_available_limit_bytes",
            "Free disk space below which publishers are blocked, in bytes.",
            node.alarm_watch.disk_limit,
        )
    page.gauge(
        f"{prefix}_erlang_uptime_seconds",
        "Time since the start of the broker in seconds, under the name that dashboards read.",
        round(time.monotonic() - node.started_at, 3),
    )


def add_identity(page: MetricsPage, node: BrokerNode, endpoint: str) -> None:
    """Add to the page the names and versions of the node; `endpoint` is the kind of the page."""
    name = node.settings.node.name
    page.gauge(
        "rabbitmq_identity_info",
        "Name of this node and of its cluster. `rabbitmq_endpoint` is the kind of this page of "
        "metrics: with totals, or with single objects.",
        1,
        rabbitmq_node=f"{name}@{platform.node()}",
        rabbitmq_cluster=name,
        rabbitmq_endpoint=endpoint,
    )
    page.gauge(
        "rabbitmq_build_info",
        "Product name and version of this broker.",
        1,
        rabbitmq_version=trellis.__version__,
        product_name="Trellis",
        product_version=trellis.__version__,
    )


def add_alarms(page: MetricsPage, node: BrokerNode) -> None:
    """Add to the page a gauge for each alarm."""
    for alarm, name in (
        ("memory_used_watermark", "memory"),
        ("free_disk_space_watermark", "disk"),
        ("file_descriptor_limit", ""),
    ):
        page.gauge(
            f"rabbitmq_alarms_{alarm}",
            f"1 while the alarm {alarm} is on, else 0.",
            int(name in node.broker.alarms.on),
        )
