"""The metrics of a node of a cluster, available also while the node serves no clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trellis.monitoring.page import MetricsPage

if TYPE_CHECKING:
    from broker.replication.figures import ClusterFigures

#: The states of a node, in the order in which the node passes through them.
STATES: Final = ("following", "claiming", "opening", "active", "fenced")


def add_cluster(page: MetricsPage, figures: ClusterFigures) -> None:
    """Add to the page the metrics of a node of a cluster."""
    name = figures.cluster
    for state in STATES:
        page.gauge(
            "trellis_cluster_state",
            "1 for the state of this node of a cluster, 0 for the other states.",
            state == figures.state,
            cluster=name,
            state=state,
        )
    page.gauge(
        "trellis_cluster_epoch",
        "Epoch of the claim in force: the number of claims by which nodes became active.",
        figures.epoch,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_offset",
        "Offset of the last valid record of the replicated log that this node has read. "
        "The difference between the active node and a standby is the standby's lag in records.",
        figures.offset,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_batch",
        "Number of the last batch of the replicated log that this node has.",
        figures.batch,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_silence_seconds",
        "Seconds for which this standby has read no record of the active node. The standby claims "
        "the log when cluster.silence is reached.",
        figures.silence,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_lease_seconds",
        "Seconds for which this active node may still serve clients if the log acknowledges no "
        "further record.",
        figures.lease,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_trimmed_offset",
        "Offset before which this active node has removed the records of the replicated log; -1 if "
        "it has removed none.",
        figures.trimmed,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_log_bytes",
        "Size in bytes of the batches in the replicated log, also of batches that earlier active "
        "nodes appended. Above cluster.keep_most, the log is no longer kept for the node that is "
        "farthest behind.",
        figures.log_bytes,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_nodes",
        "Number of listed nodes: each record of the replicated log is kept until all of them have "
        "read it.",
        figures.listed,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_nodes_struck",
        "Number of nodes for which the replicated log is not kept any more, because they are too "
        "far behind: they must be seeded (`trellis cluster seed`).",
        figures.struck,
        cluster=name,
    )
    page.gauge(
        "trellis_cluster_survivor_bytes",
        "Memory in bytes of the positions of live records. A standby keeps these positions, so "
        "that it need not read its log when it becomes active. 0 on the active node.",
        figures.survivor_bytes,
        cluster=name,
    )
    page.counter(
        "trellis_cluster_batches_appended",
        "Total number of batches that this active node appended to the replicated log.",
        figures.appended,
        cluster=name,
    )
    page.counter(
        "trellis_cluster_append_seconds",
        "Total time that this active node waited for the replicated log to acknowledge batches, "
        "in seconds.",
        figures.append_seconds,
        cluster=name,
    )
