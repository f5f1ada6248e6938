"""Checks the properties of the Kafka topic that holds the replicated log.

A finding is about an unsafe property. `trellis cluster check` prints the findings, and a node logs
them when it has connected, and when they change (topic_watch.py). A node refuses a topic on which
the log cannot work. Unless `cluster.unsafe` is true, a node also refuses a topic that can lose
confirmed messages. Hosted Kafka may not show each setting; a setting that is not shown has no
finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from broker.replication.contract import CHUNK_LEAST, CHUNK_SIZE
from broker.replication.errors import ReplicationError
from trellis.cluster.client_options import MESSAGE_MAX, MESSAGE_OVERHEAD
from trellis.cluster.topic import IN_SYNC, REPLICAS, TopicFacts
from trellis.settings.cluster import ClusterSettings

#: The smallest permitted value of max.message.bytes.
MESSAGE_LEAST: Final = CHUNK_LEAST + MESSAGE_OVERHEAD


@dataclass(frozen=True, slots=True)
class TopicFinding:
    """An unsafe property of the topic, and what to do, as a line of text."""

    #: The property, such as the name of a setting. Its text changes with its value.
    name: str
    text: str
    #: True if the log can lose confirmed messages because of the property.
    loses: bool = False
    #: True if the log cannot work on the topic because of the property.
    unusable: bool = False
    #: The setting of the topic that mends it, as NAME=VALUE; "" if no setting of the topic does.
    mend: str = ""

    def is_refused(self, cluster: ClusterSettings) -> bool:
        """True if the nodes of a cluster refuse a topic with this property."""
        return self.unusable or self.loses and not cluster.unsafe


def mending_command(cluster: ClusterSettings, finding: TopicFinding) -> str:
    """Return the command of Kafka that mends a finding; "" if no setting of the topic mends it.

    The path of the program is relative to Kafka's directory.
    """
    if not finding.mend:
        return ""
    return (
        f"bin/kafka-configs.sh --bootstrap-server {cluster.servers} --alter --entity-type topics "
        f"--entity-name {cluster.log_topic} --add-config {finding.mend}"
    )


def refuse_lossy(name: str, findings: Iterable[TopicFinding]) -> None:
    """Raise ReplicationError if a topic with these findings can lose confirmed messages."""
    texts = [finding.text for finding in findings if finding.loses]
    if texts:
        raise ReplicationError(
            f"topic '{name}' can lose confirmed messages: {'; '.join(texts)}; only for a trial, "
            "set cluster.unsafe to true on all nodes"
        )


def refuse_unusable(name: str, settings: Mapping[str, str]) -> None:
    """Raise ReplicationError if the log cannot work on a topic with these settings."""
    policy = settings.get("cleanup.policy", "")
    if "compact" in policy:
        raise ReplicationError(
            f"topic '{name}' has cleanup.policy={policy}, and compaction removes batches of the "
            "log: set cleanup.policy to delete"
        )
    accepted = int(settings.get("max.message.bytes", MESSAGE_MAX))
    if accepted < MESSAGE_LEAST:
        raise ReplicationError(
            f"topic '{name}' has max.message.bytes={accepted}, and a chunk of a batch needs at "
            f"least {MESSAGE_LEAST}: set max.message.bytes to {MESSAGE_MAX}"
        )


def refuse_unsafe(
    cluster: ClusterSettings, findings: Iterable[TopicFinding], settings: Mapping[str, str]
) -> None:
    """Raise ReplicationError if a node refuses a topic with these findings and settings."""
    refuse_unusable(cluster.log_topic, settings)
    if not cluster.unsafe:
        refuse_lossy(cluster.log_topic, findings)


def refusal_of(
    cluster: ClusterSettings, findings: Iterable[TopicFinding], settings: Mapping[str, str]
) -> str:
    """Return why a node refuses a topic with these findings and settings; "" if it does not."""
    try:
        refuse_unsafe(cluster, findings, settings)
    except ReplicationError as error:
        return str(error)
    return ""


def chunk_size_of(settings: Mapping[str, str]) -> int:
    """Return the largest payload of a chunk that a topic with these settings accepts, in bytes."""
    accepted = int(settings.get("max.message.bytes", MESSAGE_MAX))
    return max(1, min(CHUNK_SIZE, accepted - MESSAGE_OVERHEAD))


def topic_findings(facts: TopicFacts, settings: Mapping[str, str]) -> list[TopicFinding]:
    """Return the findings about a topic with these facts and settings."""
    return [*_copy_findings(facts), *_setting_findings(settings, facts.replicas)]


def _copy_findings(facts: TopicFacts) -> Iterator[TopicFinding]:
    """Yield a finding for each unsafe fact about the topic's partitions and replicas."""
    again = "create a new topic with `trellis cluster check --create`, and set cluster.topic to it"
    if facts.partitions != 1:
        yield TopicFinding("partitions", f"has {facts.partitions} partitions, must have 1: {again}")
    if facts.replicas < REPLICAS:
        yield TopicFinding(
            "replicas",
            f"its replicas are {facts.replicas}, must be {REPLICAS}: a lost Kafka node loses or "
            f"stops the log; {again}, or reassign its partition to {REPLICAS} nodes",
            loses=facts.replicas < IN_SYNC,
        )
    if not facts.has_leader:
        yield TopicFinding(
            "in_sync", "its partition has no leader: start the Kafka nodes that hold it"
        )
    elif facts.in_sync < facts.replicas:
        yield TopicFinding(
            "in_sync",
            f"{facts.in_sync} of {facts.replicas} replicas are in sync: start the missing Kafka "
            "nodes, and wait until they have caught up",
        )


def _setting_findings(settings: Mapping[str, str], replicas: int) -> Iterator[TopicFinding]:
    """Yield a finding for each unsafe setting of the topic.

    `settings` are the topic's settings, `replicas` is its number of replicas.
    """
    in_sync = int(settings.get("min.insync.replicas", IN_SYNC))
    if in_sync < IN_SYNC:
        yield TopicFinding(
            "min.insync.replicas",
            f"min.insync.replicas is {in_sync}, must be {IN_SYNC}: confirmed messages are lost "
            f"with one Kafka node; set it to {IN_SYNC}",
            loses=True,
            mend=f"min.insync.replicas={IN_SYNC}",
        )
    elif in_sync >= replicas:
        yield TopicFinding(
            "min.insync.replicas",
            f"min.insync.replicas is {in_sync} with {replicas} replicas: each lost Kafka node "
            f"stops the log; set it to {IN_SYNC}, with {REPLICAS} replicas",
            mend=f"min.insync.replicas={IN_SYNC}" if replicas > IN_SYNC else "",
        )
    if "compact" in settings.get("cleanup.policy", ""):
        yield TopicFinding(
            "cleanup.policy",
            f"cleanup.policy is {settings['cleanup.policy']}, must be delete: compaction removes "
            "batches of the log; set it to delete",
            loses=True,
            unusable=True,
            mend="cleanup.policy=delete",
        )
    for name in ("retention.ms", "retention.bytes"):
        if settings.get(name, "-1") != "-1":
            yield TopicFinding(
                name,
                f"{name} is {settings[name]}, must be -1: Kafka would remove records that a "
                "standby still needs; set it to -1, because Trellis trims the log itself",
                loses=True,
                mend=f"{name}=-1",
            )
    if settings.get("unclean.leader.election.enable") == "true":
        yield TopicFinding(
            "unclean.leader.election.enable",
            "unclean.leader.election.enable is true, must be false: a Kafka node without all "
            "records may become the leader, and confirmed messages are lost; set it to false",
            loses=True,
            mend="unclean.leader.election.enable=false",
        )
    accepted = int(settings.get("max.message.bytes", MESSAGE_MAX))
    if accepted < MESSAGE_LEAST:
        yield TopicFinding(
            "max.message.bytes",
            f"max.message.bytes is {accepted}, must be at least {MESSAGE_LEAST}: the smallest "
            f"chunks of a batch do not fit; set it to {MESSAGE_MAX}",
            unusable=True,
            mend=f"max.message.bytes={MESSAGE_MAX}",
        )
    elif accepted < MESSAGE_MAX:
        yield TopicFinding(
            "max.message.bytes",
            f"max.message.bytes is {accepted}, below the {MESSAGE_MAX} of a whole chunk: large "
            f"batches need more requests; set it to {MESSAGE_MAX}",
            mend=f"max.message.bytes={MESSAGE_MAX}",
        )
