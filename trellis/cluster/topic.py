"""The topic of the log: its id and settings, its trimming, and the offsets that nodes report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from broker.replication.contract import LogUnreachable
from trellis.cluster.client_errors import GroupAbsent, TopicAbsent, error_in, unreachable
from trellis.cluster.client_options import MESSAGE_MAX, ClientLog, admin_options
from trellis.cluster.group_offsets import GroupOffsets
from trellis.settings.cluster import ClusterSettings

#: The only partition of the log.
PARTITION: Final = 0
#: Seconds within which Kafka must answer a request.
REQUEST_SECONDS: Final = 5.0
#: Seconds in which the leader must report the tip, which is the offset of the next record.
TIP_SECONDS: Final = 0.5
#: Seconds between two checks whether all copies of a new topic are in sync.
KNOWN_SECONDS: Final = 0.05
#: Number of copies of the log, and of the copies that must have a record before Kafka acknowledges
#: it.
REPLICAS: Final = 3
IN_SYNC: Final = 2
_ASK: Final = "ask the leader for the first or last offset of topic"
#: Settings of a topic that Trellis creates. Trellis trims the log itself; Kafka frees the space of
#: whole segments.
TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "max.message.bytes": str(MESSAGE_MAX),
    "min.insync.replicas": str(IN_SYNC),
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "segment.bytes": str(128 << 20),
    "unclean.leader.election.enable": "false",
}


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The id, partitions and replicas of the log's topic, as the Kafka cluster reports them."""

    #: Kafka's id of the topic: a topic that is deleted and created again has another id.
    id: str
    partitions: int
    #: Number of copies of the partition, and of the copies that are in sync (have all acknowledged
    #: records).
    replicas: int
    in_sync: int
    has_leader: bool


class KafkaTopic:
    """Requests about the topic of the log.

    Each method waits for Kafka's answer, and may raise LogUnreachable.
    """

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster
        self._name = cluster.log_topic
        self._log = ClientLog("admin")
        self._admin = AdminClient(admin_options(cluster), logger=self._log)
        self._offsets = GroupOffsets(cluster, PARTITION)

    def facts(self) -> TopicFacts:
        """Ask Kafka for its id of the topic, and for the topic's partitions and replicas.

        Raises TopicAbsent if the topic does not exist.
        """
        futures = self._admin.describe_topics(
            TopicCollection([self._name]), request_timeout=REQUEST_SECONDS
        )
        description = self._wait("describe topic", futures[self._name])
        first = description.partitions[PARTITION]
        return TopicFacts(
            str(description.topic_id),
            len(description.partitions),
            len(first.replicas),
            len(first.isr),
            first.leader is not None and first.leader.id >= 0,
        )

    def settings(self) -> dict[str, str]:
        """Return the settings of the topic in force, by name."""
        return self._settings(ResourceType.TOPIC, self._name, "read the settings of topic")

    def nodes(self) -> list[int]:
        """Return the ids of the nodes of the Kafka cluster that are Kafka brokers."""
        description = self._wait(
            "list the nodes for topic",
            self._admin.describe_cluster(request_timeout=REQUEST_SECONDS),
        )
        return sorted(int(node.id) for node in description.nodes)

    def node_settings(self, node: int) -> dict[str, str]:
        """Return the settings of a Kafka node, by name."""
        task = f"read the settings of Kafka node {node} for topic"
        return self._settings(ResourceType.BROKER, str(node), task)

    def create(self, replicas: int = REPLICAS) -> None:
        """Create the topic with the settings of TOPIC_SETTINGS and this number of replicas."""
        new = NewTopic(
            self._name,
            num_partitions=1,
            replication_factor=replicas,
            config={
                **TOPIC_SETTINGS,
                "min.insync.replicas": str(min(IN_SYNC, replicas)),
            },
        )
        futures = self._admin.create_topics([new], request_timeout=REQUEST_SECONDS)
        self._wait("create topic", futures[self._name])
        end = time.monotonic() + REQUEST_SECONDS
        while not self._is_in_sync() and time.monotonic() < end:
            time.sleep(KNOWN_SECONDS)

    def delete(self) -> None:
        """Delete the topic with all its records."""
        futures = self._admin.delete_topics([self._name], request_timeout=REQUEST_SECONDS)
        self._wait("delete topic", futures[self._name])

    def _is_in_sync(self) -> bool:
        """True if the Kafka nodes know the topic, and all its copies are in sync."""
        try:
            facts = self.facts()
        except TopicAbsent:
            return False
        return facts.has_leader and facts.in_sync == facts.replicas

    def low(self) -> int:
        """Return the offset of the first record of the log."""
        return self._offset(OffsetSpec.earliest(), REQUEST_SECONDS)

    def tip(self) -> int:
        """Return the offset that the next record will have, as the partition's leader reports it.

        The request uses the connection of the admin client. On a consumer's connection, the answer
        would come later, because the fetch for new records blocks that connection.
        """
        return self._offset(OffsetSpec.latest(), TIP_SECONDS)

    def trim(self, offset: int) -> None:
        """Delete all records before an offset. Do nothing if they are deleted already."""
        if offset <= self.low():
            return
        wanted = TopicPartition(self._name, PARTITION, offset)
        futures = self._admin.delete_records([wanted], request_timeout=REQUEST_SECONDS)
        self._wait("trim topic", next(iter(futures.values())))

    def report(self, group: str, offset: int, text: str) -> None:
        """Commit an offset and a text in the name of a consumer group."""
        self._offsets.commit(group, offset, text)

    def reports(self, groups: Iterable[str]) -> dict[str, tuple[int, str] | None]:
        """Return offset and text that each consumer group committed; None if it committed none."""
        return {group: self._offsets.read(group) for group in groups}

    def close(self) -> None:
        """Close the connections that commit and read offsets."""
        self._offsets.close()

    def groups(self, prefix: str) -> list[str]:
        """Return the names of all consumer groups that begin with a prefix."""
        task = "list the consumer groups for topic"
        future = self._admin.list_consumer_groups(request_timeout=REQUEST_SECONDS)
        listing = self._wait(task, future)
        for error in listing.errors:
            known = error if isinstance(error, KafkaError) else error_in(error)
            raise self._failure(task, known)
        return sorted(
            group.group_id for group in listing.valid if group.group_id.startswith(prefix)
        )

    def delete_group(self, group: str) -> None:
        """Delete a consumer group, unless it does not exist."""
        futures = self._admin.delete_consumer_groups([group], request_timeout=REQUEST_SECONDS)
        with suppress(GroupAbsent):
            self._wait("delete a consumer group of topic", futures[group])

    def _offset(self, spec: OffsetSpec, seconds: float) -> int:
        """Ask the partition's leader for the offset at one end of the log, and return it.

        `spec` chooses the end: the first record of the log, or the next record to come. Each
        request takes at most `seconds`.
        """
        try:
            return self._ask_offset(spec, seconds)
        except LogUnreachable:
            # The library keeps asking the Kafka node that it takes for the leader, even after that
            # node has answered that another node leads now. Reading the topic's metadata makes the
            # library ask the new leader.
            self._learn_leader(seconds)
            return self._ask_offset(spec, seconds)

    def _ask_offset(self, spec: OffsetSpec, seconds: float) -> int:
        futures = self._admin.list_offsets(
            {TopicPartition(self._name, PARTITION): spec},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=seconds,
        )
        offset = int(self._wait(_ASK, next(iter(futures.values()))).offset)
        if offset < 0:  # With this offset, the library reports a lost connection.
            raise self._failure(_ASK, KafkaError(KafkaError._TRANSPORT))
        return offset

    def _learn_leader(self, seconds: float) -> None:
        try:
            self._admin.list_topics(self._name, timeout=seconds)
        except KafkaException as error:
            raise self._failure(_ASK, error_in(error)) from error

    def _settings(self, kind: ResourceType, name: str, task: str) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        futures = self._admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
        entries = self._wait(task, futures[resource])
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def _wait(self, task: str, future: Future[Any]) -> Any:
        """Return the result of a request; `task` is the text after "cannot" in its error."""
        try:
            return future.result(REQUEST_SECONDS + 1)
        except KafkaException as error:
            raise self._failure(task, error_in(error)) from error
        except TimeoutError as error:
            raise self._failure(task, KafkaError(KafkaError._TIMED_OUT)) from error
        finally:
            self._admin.poll(0)

    def _failure(self, task: str, error: KafkaError) -> LogUnreachable:
        """Return the error of a request, with the reason that the library has logged."""
        self._admin.poll(0)  # Delivers the log lines of the library.
        return unreachable(task, self._cluster, error, self._log.reason)
