"""`trellis cluster check`: lists the settings of Kafka that are unsafe for the replicated log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from broker.replication.contract import LogUnreachable
from broker.replication.records import Claim, Mark, ReplicationError, decode
from trellis.cluster.client_errors import TopicAbsent
from trellis.cluster.client_options import MESSAGE_MAX, delivery_seconds
from trellis.cluster.kafka_log import KafkaLog
from trellis.cluster.topic import IN_SYNC, REPLICAS, KafkaTopic, TopicFacts
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
    yield from (f"{where}: {text}" for text in _of_copies(facts))
    settings = topic.settings()
    yield from (f"{where}: {text}" for text in _of_settings(settings, facts.replicas))
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


def _of_copies(facts: TopicFacts) -> Iterator[str]:
    """Yield a line for each problem with the topic's partitions and replicas."""
    again = "create a new topic with `trellis cluster check --create`, and set cluster.topic to it"
    if facts.partitions != 1:
        yield f"has {facts.partitions} partitions, must have 1: {again}"
    if facts.replicas < REPLICAS:
        yield (
            f"its replicas are {facts.replicas}, must be {REPLICAS}: a lost Kafka node loses or "
            f"stops the log; {again}, or reassign its partition to {REPLICAS} nodes"
        )
    if not facts.has_leader:
        yield "its partition has no leader: start the Kafka nodes that hold it"
    elif facts.in_sync < facts.replicas:
        yield (
            f"{facts.in_sync} of {facts.replicas} replicas are in sync: start the missing Kafka "
            "nodes, and wait until they have caught up"
        )


def _of_settings(settings: Mapping[str, str], replicas: int) -> Iterator[str]:
    """Yield a line for each unsafe setting of the topic."""
    in_sync = int(settings.get("min.insync.replicas", "1"))
    if in_sync < IN_SYNC:
        yield (
            f"min.insync.replicas is {in_sync}, must be {IN_SYNC}: confirmed messages are lost "
            f"with one Kafka node; set it to {IN_SYNC}"
        )
    elif in_sync >= replicas:
        yield (
            f"min.insync.replicas is {in_sync} with {replicas} replicas: each lost Kafka node "
            f"stops the log; set it to {IN_SYNC}, with {REPLICAS} replicas"
        )
    if "compact" in settings.get("cleanup.policy", ""):
        yield (
            f"cleanup.policy is {settings['cleanup.policy']}, must be delete: compaction removes "
            "batches of the log; set it to delete"
        )
    for name in ("retention.ms", "retention.bytes"):
        if settings.get(name, "-1") != "-1":
            yield (
                f"{name} is {settings[name]}, must be -1: Kafka would remove records that a "
                "standby still needs; set it to -1, because Trellis trims the log itself"
            )
    if settings.get("unclean.leader.election.enable") == "true":
        yield (
            "unclean.leader.election.enable is true, must be false: a Kafka node without all "
            "records may become the leader, and confirmed messages are lost; set it to false"
        )
    accepted = int(settings.get("max.message.bytes", MESSAGE_MAX))
    if accepted < MESSAGE_MAX:
        yield (
            f"max.message.bytes is {accepted}, below the {MESSAGE_MAX} of a whole chunk: large "
            f"batches need more requests; set it to {MESSAGE_MAX}"
        )


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
        for value, found in nodes.items():
            text = finding(int(value), cluster)
            if text:
                yield f"Kafka nodes {', '.join(map(str, found))}: {name} is {value}{text}"


def _of_timeout(milliseconds: int, cluster: ClusterSettings) -> str:
    """Return why the value of Kafka's setting SESSION_TIMEOUT is unsafe; "" if it is safe.

    The text is the end of a line of findings.
    """
    seconds = milliseconds / 1000
    silence, lease = seconds + SILENCE_MARGIN, seconds + LEASE_MARGIN
    if cluster.silence >= silence and cluster.lease >= lease:
        return ""
    return (
        f", and cluster.silence is {cluster.silence:g} s with a cluster.lease of "
        f"{cluster.lease:g} s: until Kafka has replaced a lost node, the broker stands still, and "
        f"may close all connections; set silence to at least {silence:g} and lease to at least "
        f"{lease:g}" + (f", or {SHORTER}" if seconds > SHORT_SECONDS else "")
    )


def _of_expiration(milliseconds: int, cluster: ClusterSettings) -> str:
    """Return why the value of Kafka's setting EXPIRATION is unsafe; "" if it is safe.

    The text is the end of a line of findings.
    """
    least = max(EXPIRATION_LEAST, int(delivery_seconds(cluster) * 10_000))
    if milliseconds >= least:
        return ""
    return (
        f", must be at least {least}: Kafka may forget which records a node has appended, and "
        "append a repeated one again; set it to 86400000"
    )


def _of_records(cluster: ClusterSettings) -> Iterator[str]:
    """Yield a line if the first or the last records of the log are not those of this broker."""
    log = KafkaLog(cluster, "check")
    try:
        log.connect()
        low, tip = log.bounds()
        for begin in sorted({low, max(low, tip - SAMPLE)}):
            for offset, data in log.read(begin).records[:SAMPLE]:
                problem = _foreign(data, cluster.name)
                if problem:
                    yield f"the record at offset {offset} {problem}; set cluster.topic to another"
                    return
    finally:
        log.close()


def _foreign(data: bytes, name: str) -> str:
    """Return the reason why this broker cannot have written a record; "" if there is none."""
    try:
        record = decode(data)
    except ReplicationError as error:
        return f"is not one of this version of Trellis ({error})"
    if isinstance(record, Claim | Mark) and record.state.name != name:
        return f"is of the broker '{record.state.name}', and this broker is '{name}'"
    return ""


#: The errors that end a check.
FAILURES: Final = (LogUnreachable, ReplicationError)
