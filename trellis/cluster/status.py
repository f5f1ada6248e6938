"""`trellis cluster status`, `forget` and `seed`: use the nodes' reports, stored in Kafka."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import trellis
from broker.replication.contract import LogUnreachable
from broker.replication.errors import ReplicationError
from broker.replication.records import ClusterState, decode
from broker.replication.report import NodeReport
from broker.store.disk import StoreError
from broker.store.opening import CATALOG
from trellis.cluster.clock import wall_ms
from trellis.cluster.kafka_log import KafkaLog, group_name, node_reports
from trellis.cluster.topic import KafkaTopic, TopicFacts
from trellis.cluster.topic_safety import TopicFinding, refusal_of, topic_findings
from trellis.settings.cluster import ClusterSettings

#: Seconds without a report after which a node counts as lost. Nodes report every 5 s.
LOST_SECONDS: Final = 12.0
#: State of a node that has not reported for LOST_SECONDS.
LOST: Final = "lost"
#: The errors that end the commands `status`, `forget` and `seed`.
FAILURES: Final = (LogUnreachable, ReplicationError, StoreError)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The topic of a cluster's log, and a row for each node that has reported."""

    facts: TopicFacts
    #: Offset of the first record, and the offset that the next record will have.
    low: int
    tip: int
    rows: list[dict[str, object]]

    #: The format of batches in force, as the nodes have reported it; 0 before the first report.
    format: int = 0
    #: The properties of the topic that are unsafe.
    findings: list[TopicFinding] = field(default_factory=list)
    #: The reason why the nodes refuse the topic; "" if they accept the topic. While the nodes
    #: refuse the topic, the active node confirms no message.
    refusal: str = ""

    @property
    def has_active(self) -> bool:
        """True if a node is active."""
        return any(row["state"] == "active" for row in self.rows)

    def next_active(self, silence: float) -> str:
        """Return a line for a cluster without an active node: which node becomes active, and when.

        `silence` is the setting `cluster.silence` in seconds.
        """
        for row in self.rows:
            if row["state"] == "opening":
                return f"no node is active yet: node '{row['node']}' is becoming active"
        return f"no node is active: a standby takes over after {silence:g} s"


def status(cluster: ClusterSettings) -> ClusterStatus:
    """Return the topic and the nodes of a cluster. Raises LogUnreachable, ReplicationError."""
    topic = KafkaTopic(cluster)
    facts, low, tip = topic.facts(), topic.low(), topic.tip()
    settings = topic.settings()
    findings = topic_findings(facts, settings)
    reports, now = node_reports(cluster, topic), wall_ms()
    newest = max((report.batch for report in reports.values()), default=0)
    written = _times_of_records({report.offset for report in reports.values()}, cluster)
    rows = [
        {
            **_row(name, report, newest, low, now),
            "seconds_behind": _seconds_behind(report, written.get(report.offset), now),
        }
        for name, report in sorted(reports.items())
    ]
    rows += [
        {"node": name, "state": "unreported"}
        for name in sorted(_unreported(reports) - reports.keys())
    ]
    in_force = max((report.format for report in reports.values()), default=0)
    refusal = refusal_of(cluster, findings, settings)
    return ClusterStatus(facts, low, tip, rows, in_force, findings, refusal)


def _row(name: str, report: NodeReport, newest: int, low: int, now: int) -> dict[str, object]:
    age = (now - report.wall) / 1000
    server = report.server
    return {
        "node": name,
        "state": report.state if age <= LOST_SECONDS else LOST,
        "host": server.host,
        "version": report.version,
        "formats": _formats(report),
        "clock_ms": report.clock_ms,
        "epoch": report.epoch,
        "batches_behind": newest - report.batch,
        "offset": report.offset,
        "seen_s": round(age, 1),
        "must_be_seeded": report.offset < low,
        "ports": server.ports,
    }


def _seconds_behind(report: NodeReport, written: int | None, now: int) -> float:
    """Return by how many seconds a node is behind the active node.

    The result is the age of the first record that the node lacks: the age at the time of the node's
    report, or the age at `now` if the node has not reported for LOST_SECONDS. `written` is the time
    at which the active node wrote this record; None if the node lacks no record. Both times are in
    ms of Unix time.
    """
    if written is None:
        return 0.0
    lost = now - report.wall > LOST_SECONDS * 1000
    at = now if lost else report.wall - report.clock_ms
    return max(0.0, round((at - written) / 1000, 1))


def _times_of_records(offsets: set[int], cluster: ClusterSettings) -> dict[int, int]:
    """Return when the record at each offset was written, in ms of Unix time.

    If the log was trimmed beyond an offset, the result has the time of the first record of the log.
    An offset at which the log has no record yet is missing in the result. Raises LogUnreachable,
    ReplicationError.
    """
    times: dict[int, int] = {}
    log = KafkaLog(cluster, "status")
    try:
        log.connect(usable=False)
        low, tip = log.bounds()
        for offset in offsets:
            if offset >= tip:
                continue
            records = log.read_present(max(low, offset)).records
            if records:
                times[offset] = decode(records[0][1]).wall
    finally:
        log.close()
    return times


def _formats(report: NodeReport) -> str:
    """Return the batch formats that a node can read, as text such as `1-2`.

    Return "" if the node has not reported them.
    """
    oldest, newest = report.oldest, report.newest
    return "" if not newest else f"{newest}" if oldest == newest else f"{oldest}-{newest}"


def announce(cluster: ClusterSettings, node: str, directory: str) -> None:
    """Report the new node `node`, which gets a copy of a data directory.

    From now on, the log keeps every record that the new node lacks. `directory` is the data
    directory to copy, which belongs to a running node. Raises LogUnreachable, ReplicationError,
    StoreError.
    """
    topic = KafkaTopic(cluster)
    report = node_reports(cluster, topic).get(node)
    if report is not None and wall_ms() - report.wall <= LOST_SECONDS * 1000:
        raise ReplicationError(_still_here(node, report))
    state = stored_state(directory)
    if state.name != cluster.name:
        raise ReplicationError(
            f"the data directory '{directory}' belongs to "
            + (f"the broker '{state.name}'" if state.name else "a broker without a cluster")
            + f", and this cluster is '{cluster.name}': correct cluster.name or data.dir"
        )
    announced = NodeReport(state.last + 1, trellis.__version__, "seeding", wall=wall_ms())
    topic.report(group_name(cluster, node), announced.offset, announced.encode())


def _still_here(node: str, report: NodeReport) -> str:
    return (
        f"node '{node}' is {report.state} and reported a moment ago: stop it, and repeat this "
        f"command after {LOST_SECONDS:g} s"
    )


def stored_state(directory: str) -> ClusterState:
    """Return the state of the replicated log in a data directory, also while its broker runs.

    The state has an empty name if the directory belongs to no cluster. Raises StoreError.
    """
    path = f"{directory}/{CATALOG}"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as catalog:
            row = catalog.execute("SELECT state FROM replica").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the catalog '{path}': {error}") from error
    return ClusterState("") if row is None else ClusterState.decode(row[0])


def _unreported(reports: Mapping[str, NodeReport]) -> set[str]:
    """Return the names of the nodes that have sent no report although the log is kept for them.

    The active node's report contains these names.
    """
    return {name for report in reports.values() for name in report.unreported.splitlines()}


def removal_lines(cluster: ClusterSettings, node: str) -> list[str]:
    """Return lines about the effect that the removal of a node would have.

    The call changes nothing. Raises LogUnreachable, ReplicationError.
    """
    topic = KafkaTopic(cluster)
    reports = node_reports(cluster, topic)
    report = _report_of_stopped(reports, node)
    removal = f"node '{node}' will be removed from the list of nodes"
    lines = [f"{removal}: the records that are kept for this node can be trimmed"]
    if report is None:
        lines.append("Kafka has no report of the node: how many records it lacks is unknown")
    else:
        low, tip = topic.low(), topic.tip()
        others = [one.offset for name, one in reports.items() if name != node]
        kept = max(0, min(others, default=tip) - max(low, report.offset))
        lines.append(
            f"the node's last report is {(wall_ms() - report.wall) / 1000:,.0f} s old; it lacks "
            f"{max(0, tip - report.offset):,} records of the log, and the log is kept for this "
            f"node alone from offset {report.offset:,} on: {kept:,} records"
        )
    lines.append(
        "once these records are trimmed, the node cannot follow the log any more: before it comes "
        f"back, seed it with `trellis cluster seed {node} TARGET`"
    )
    return lines


def _report_of_stopped(reports: Mapping[str, NodeReport], node: str) -> NodeReport | None:
    """Return the last report of a node that may be removed.

    Return None if Kafka has lost the report of a listed node. Raises ReplicationError if the node
    is not known, or if the node still sends reports.
    """
    report = reports.get(node)
    if report is None and node not in _unreported(reports):
        names = ", ".join(sorted(reports)) or "none"
        raise ReplicationError(f"node '{node}' has not reported; nodes that have reported: {names}")
    if report and not report.forgotten and wall_ms() - report.wall <= LOST_SECONDS * 1000:
        raise ReplicationError(_still_here(node, report))
    return report


def remove_node(cluster: ClusterSettings, node: str) -> None:
    """Remove a node from the cluster, so that the log is no longer kept for this node.

    The active node removes the name from the list of nodes. Raises LogUnreachable,
    ReplicationError.
    """
    topic = KafkaTopic(cluster)
    report = _report_of_stopped(node_reports(cluster, topic), node) or NodeReport(0)
    gone = NodeReport(report.offset, report.version, LOST, wall=report.wall, forgotten=True)
    topic.report(group_name(cluster, node), gone.offset, gone.encode())
