"""`trellis cluster check`: lists the settings of Kafka that are unsafe for the replicated log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.replication.contract import LogUnreachable
from broker.replication.errors import ReplicationError
from broker.replication.records import Claim, Mark, decode
from trellis.cluster.client_errors import TopicAbsent
from trellis.cluster.client_options import delivery_seconds
from trellis.cluster.kafka_log import KafkaLog
from trellis.cluster.topic import KafkaTopic
from trellis.cluster.topic_safety import topic_findings
from trellis.settings.cluster import ClusterSettings

#: Number of records that are read at each end of the log.
SAMPLE: Final = 100
#: The setting of a Kafka node for the time in ms after which a lost node is replaced.
SESSION_TIMEOUT: Final = "broker.session.timeout.ms"
#: The setting of a Kafka node for the time in ms during which the node recognizes repeated records,
#: and the smallest safe value.
EXPIRATION: Final = "producer.id.expiration.ms"
EXPIRATION_LEAST: Final = 600_000
#: The value of SESSION_TIMEOUT, in seconds, that Trellis recommends.
SHORT_SECONDS: Final = 2
SHORTER: Final = f"{SESSION_TIMEOUT} to 2000 and broker.heartbeat.interval.ms to 400"
#: The text that is added to a finding if nodes refuse to start with this topic.
REFUSED: Final = "nodes refuse this topic"
#: Seconds by which silence and lease must exceed SESSION_TIMEOUT.
SILENCE_MARGIN: Final = 1.5
LEASE_MARGIN: Final = 0.5


def findings(cluster: ClusterSettings) -> Iterator[str]:
    """Yield a line of text for each setting of Kafka that is unsafe for the log.

    Raises LogUnreachable, ReplicationError.
    """
    topic = KafkaTopic(cluster)
    where = f"topic '{cluster.log_topic}'"
    try:
        facts = topic.facts()
    except TopicAbsent:
        yield f"{where} does not exist: create it with `trellis cluster check --create`"
        return
    for finding in topic_findings(facts, topic.settings()):
        refused = f" ({REFUSED})" if finding.is_refused(cluster) else ""
        yield f"{where}: {finding.text}{refused}"
    yield from _of_nodes(topic, cluster)
    if facts.partitions == 1 and facts.has_leader:
        yield from (f"{where}: {text}" for text in _of_records(cluster))


def create(cluster: ClusterSettings) -> bool:
    """Create the topic unless it exists; return True if it was created. Raises LogUnreachable."""
    topic = KafkaTopic(cluster)
    try:
        topic.facts()
    except TopicAbsent:
        topic.create()
        return True
    return False


def _of_nodes(topic: KafkaTopic, cluster: ClusterSettings) -> Iterator[str]:
    """Yield a line for each unsafe setting of the Kafka nodes.

    Settings that a hosted Kafka does not show are not checked.
    """
    for name, finding in ((SESSION_TIMEOUT, _of_timeout), (EXPIRATION, _of_expiration)):
        nodes: dict[str, list[int]] = {}
        for node in topic.nodes():
            value = topic.node_settings(node).get(name)
            if value is not None:
                nodes.setdefault(value, []).append(node)
        for value, ids in nodes.items():
            text = finding(int(value), cluster)
            if text:
                yield f"Kafka nodes {', '.join(map(str, ids))}: {name} is {value}{text}"


def _of_timeout(milliseconds: int, cluster: ClusterSettings) -> str:
    """Return why the value of Kafka's setting SESSION_TIMEOUT is unsafe; "" if it is safe.

    `_of_nodes` appends the text to the name and the value of the setting.
    """
    seconds = milliseconds / 1000
    silence, lease = seconds + SILENCE_MARGIN, seconds + LEASE_MARGIN
    if cluster.silence >= silence and cluster.lease >= lease:
        return ""
    return (
        f", and cluster.silence is {cluster.silence:g} s with a cluster.lease of "
        f"{cluster.lease:g} s: until Kafka has replaced a lost node, the broker stands still, and "
        f"may close all connections; set cluster.silence to at least {silence:g} s and "
        f"cluster.lease to at least {lease:g} s"
        + (f", or {SHORTER}" if seconds > SHORT_SECONDS else "")
    )


def _of_expiration(milliseconds: int, cluster: ClusterSettings) -> str:
    """Return why the value of Kafka's setting EXPIRATION is unsafe; "" if it is safe.

    `_of_nodes` appends the text to the name and the value of the setting.
    """
    least = max(EXPIRATION_LEAST, int(delivery_seconds(cluster) * 10_000))
    if milliseconds >= least:
        return ""
    return (
        f", must be at least {least}: Kafka may forget which records a node has appended, and "
        "append a repeated record again; set it to 86400000"
    )


def _of_records(cluster: ClusterSettings) -> Iterator[str]:
    """Yield a line if another program or broker wrote the first or the last records of the log."""
    log = KafkaLog(cluster, "check")
    try:
        log.connect(usable=False)
        low, tip = log.bounds()
        for begin in sorted({low, max(low, tip - SAMPLE)}):
            for offset, data in log.read_present(begin).records[:SAMPLE]:
                problem = _foreign(data, cluster.name)
                if problem:
                    advice = "set cluster.topic to another topic"
                    yield f"the record at offset {offset} {problem}; {advice}"
                    return
    finally:
        log.close()


def _foreign(data: bytes, name: str) -> str:
    """Return the reason why this broker cannot have written a record; "" if there is none."""
    try:
        record = decode(data)
    except ReplicationError as error:
        return f"is not a record of this version of Trellis ({error})"
    if isinstance(record, Claim | Mark) and record.state.name != name:
        return f"belongs to the broker '{record.state.name}', and this broker is '{name}'"
    return ""


#: The errors that end a check.
FAILURES: Final = (LogUnreachable, ReplicationError)
