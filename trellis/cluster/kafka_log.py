"""The replicated log of a broker on one partition of a Kafka cluster."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaException

from broker.replication.contract import CHUNK_SIZE, LogSpan, LogTrimmed
from broker.replication.errors import ReplicationError
from broker.replication.report import NodeReport
from trellis.cluster.appender import KafkaAppender
from trellis.cluster.client_errors import LogBehind, LogShorter, TopicAbsent, TopicReplaced
from trellis.cluster.reader import KafkaReader
from trellis.cluster.topic import KafkaTopic, TopicFacts
from trellis.cluster.topic_safety import (
    TopicFinding,
    chunk_size_of,
    refuse_unsafe,
    topic_findings,
)
from trellis.cluster.topic_watch import TopicWatch
from trellis.settings.cluster import ClusterSettings

#: A node that reads the log checks the id of the topic at this interval, in seconds.
CHECK_SECONDS: Final = 10.0


class KafkaLog:
    """A `ReplicatedLog` on Kafka. Call `connect` before all other methods.

    The constructor starts to connect to Kafka, and does not wait. So the connections are open when
    this node takes over, and its first append is not delayed.
    """

    def __init__(self, cluster: ClusterSettings, node: str) -> None:
        """Connect to Kafka as the node `node`. Raises ReplicationError if an option is invalid."""
        self._cluster = cluster
        self._group = group_name(cluster, node)
        #: Kafka's id of the topic; "" before `connect`.
        self.topic_id = ""
        #: The properties of the topic that are unsafe for the log, when this node connected.
        self.findings: list[TopicFinding] = []
        self._checked = 0.0
        #: Checks the topic's properties while the node runs; None before `connect`.
        self._watch: TopicWatch | None = None
        try:
            self._topic = KafkaTopic(cluster)
            self._reader = KafkaReader(cluster, self._group, self._topic)
            self._appender = KafkaAppender(cluster)
        except KafkaException as error:
            text = f"cluster.options: Kafka's client refuses an option: {error.args[0].str()}"
            raise ReplicationError(text) from error

    def connect(self, topic_id: str = "", usable: bool = True) -> None:
        """Check the topic, and read its settings.

        `topic_id` is the id of the topic that this node has followed; "" for a new node. Raises
        LogUnreachable, or TopicAbsent if the topic does not exist. Raises ReplicationError if the
        topic has another id, several partitions, or settings with which the log cannot work or can
        lose confirmed messages. If `usable` is False, the settings are not checked.
        """
        self.topic_id = topic_id
        facts = self._check_topic()
        settings = self._topic.settings()
        self.findings = findings = topic_findings(facts, settings)
        if usable:
            refuse_unsafe(self._cluster, findings, settings)
        self._watch = TopicWatch(
            self._topic, self._cluster, findings, chunk_size=chunk_size_of(settings)
        )

    @property
    def identity(self) -> str:
        """Kafka's id of the topic."""
        return self.topic_id

    def expect(self, identity: str) -> None:
        """Check that the topic of this log has the id `identity`; "" permits any topic.

        Raises ReplicationError if the topic has another id.
        """
        if identity and identity != self.topic_id:
            raise self._replaced(self.topic_id, identity)

    @property
    def refusal(self) -> str:
        """The reason why batches must not be appended to the topic now; "" if there is none."""
        return "" if self._watch is None else self._watch.refusal

    @property
    def chunk_size(self) -> int:
        """The largest payload of a chunk that the topic accepts, in bytes, as of the last check."""
        return CHUNK_SIZE if self._watch is None else self._watch.chunk_size

    def check(self, now: bool = False) -> None:
        """Check the properties of the topic again, if a check is due.

        If `now` is True, check at once. Raises LogUnreachable.
        """
        if self._watch is not None:
            self._watch.look(now)

    def append(self, data: bytes) -> int:
        """Append a record, and return its offset once the log has committed it.

        Raises OutcomeUnknown, or its subclass AppendRefused if the record is too large for Kafka.
        """
        self._reader.rest()
        return self._appender.append(data)

    def read(self, offset: int) -> LogSpan:
        """Return the records from an offset on, and the tip: the offset of the next record to come.

        Raises LogUnreachable, LogTrimmed, and ReplicationError if another log has replaced the log
        that this node has followed.
        """
        self._appender.serve()
        if time.monotonic() >= self._checked + CHECK_SECONDS:
            self._check_topic()
        try:
            return self._reader.read(offset)
        except (LogBehind, LogShorter, LogTrimmed, TopicAbsent):
            self._check_topic()  # The topic may have been created again.
            raise

    def read_present(self, offset: int) -> LogSpan:
        """Return the records from an offset on; if they were trimmed, from the first record on.

        Raises LogUnreachable, ReplicationError.
        """
        while True:
            try:
                return self.read(offset)
            except LogTrimmed as trimmed:
                offset = trimmed.low

    def bounds(self) -> tuple[int, int]:
        """Return the offset of the first record of the log, and its tip. Raises LogUnreachable."""
        return self._topic.low(), self._topic.tip()

    def trim(self, offset: int) -> None:
        """Remove the records of the log before an offset. Raises LogUnreachable."""
        self._topic.trim(offset)

    def report(self, report: NodeReport) -> None:
        """Store a report of this node in Kafka, in place of its last report.

        Raises LogUnreachable.
        """
        self._topic.report(self._group, report.offset, report.encode())

    def own_report(self) -> NodeReport | None:
        """Return the report of this node; None if it has not reported. Raises LogUnreachable."""
        stored = self._topic.reports([self._group])[self._group]
        return None if stored is None else NodeReport.decode(*stored)

    def reports(self) -> dict[str, NodeReport]:
        """Return the reports of all nodes of the cluster by name. Raises LogUnreachable."""
        return node_reports(self._cluster, self._topic)

    def remove_report(self, node: str) -> None:
        """Remove the report of a node that does not run. Raises LogUnreachable."""
        self._topic.delete_group(group_name(self._cluster, node))

    def close(self) -> None:
        """Close the connections to Kafka. No other call may follow."""
        self._appender.close()
        self._reader.close()
        self._topic.close()

    def _check_topic(self) -> TopicFacts:
        """Check that the topic has the id that this node follows, and one partition.

        Return the facts about the topic. Raises ReplicationError, TopicAbsent, LogUnreachable.
        """
        self._checked = time.monotonic()
        facts = self._topic.facts()
        if self.topic_id and facts.id != self.topic_id:
            raise self._replaced(facts.id, self.topic_id)
        if facts.partitions != 1:
            raise ReplicationError(
                f"topic '{self._cluster.log_topic}' has {facts.partitions} partitions, must have "
                "1: create a new topic with `trellis cluster check --create`, and set "
                "cluster.topic to it"
            )
        self.topic_id = facts.id
        return facts

    def _replaced(self, topic_id: str, followed: str) -> TopicReplaced:
        return TopicReplaced(
            f"topic '{self._cluster.log_topic}' at {self._cluster.servers} was deleted and created "
            f"again: its id is {topic_id}, but this node has followed the topic with the id "
            f"{followed}, and cannot follow a new one: keep the data directories of all nodes, and "
            "begin the new topic with the directory that has most of the log "
            "(`trellis cluster adopt`)"
        )


def node_reports(cluster: ClusterSettings, topic: KafkaTopic) -> dict[str, NodeReport]:
    """Return the reports of all nodes of a cluster by name. Raises LogUnreachable."""
    prefix = group_name(cluster, "")
    stored_reports = topic.reports(topic.groups(prefix))
    return {
        group.removeprefix(prefix): NodeReport.decode(*report)
        for group, report in stored_reports.items()
        if report is not None
    }


def group_name(cluster: ClusterSettings, node: str) -> str:
    """Return the name of the consumer group in which a node reports its state.

    The group's offset is the offset up to which the node has the log on its disk.
    """
    return f"trellis.{cluster.name}.{node}"
