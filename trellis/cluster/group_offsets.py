"""The offsets that consumer groups have committed for the partition of the log.

Each group has a consumer here. The admin client of the library could ask for the offsets of any
group, but it ends the process with SIGSEGV if the group's coordinator (a Kafka node) moves or still
loads its groups: librdkafka's issue 5040. A consumer asks for the coordinator again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from broker.replication.contract import LogUnreachable
from trellis.cluster.client_errors import CLOSED, GroupAbsent, error_in, unreachable
from trellis.cluster.client_options import ClientLog, Options, committing_options
from trellis.settings.cluster import ClusterSettings

#: Seconds within which Kafka must answer.
REQUEST_SECONDS: Final = 5.0
#: Seconds between two checks whether the answer to a commit has come.
POLL_SECONDS: Final = 0.02


class GroupOffsets:
    """Reads and commits the offsets of consumer groups. Several threads may call it."""

    def __init__(self, cluster: ClusterSettings, partition: int) -> None:
        self._cluster = cluster
        self._name = cluster.log_topic
        self._partition = partition
        self._members: dict[str, _Member] = {}
        self._lock = threading.Lock()
        self._closed = False

    def commit(self, group: str, offset: int, text: str) -> None:
        """Commit an offset and a text in the name of a group. Raises LogUnreachable."""
        position = TopicPartition(self._name, self._partition, offset, metadata=text)
        task = "report the synced offset in topic"
        member = self._member(group)
        try:
            with member as consumer:
                consumer.commit(offsets=[position], asynchronous=True)
                error = member.committed(offset, text)
        except KafkaException as raised:
            error = error_in(raised)
        if error is not None:
            raise unreachable(task, self._cluster, error)

    def read(self, group: str) -> tuple[int, str] | None:
        """Return the offset and text that a group committed; None without one.

        Raises LogUnreachable.
        """
        wanted = [TopicPartition(self._name, self._partition)]
        task = "read the synced offsets in topic"
        try:
            with self._member(group) as consumer:
                found = consumer.committed(wanted, timeout=REQUEST_SECONDS)[0]
        except KafkaException as error:
            failed = unreachable(task, self._cluster, error_in(error))
            if isinstance(failed, GroupAbsent):
                return None
            raise failed from error
        if found.error is not None:
            raise unreachable(task, self._cluster, found.error)
        return (found.offset, found.metadata or "") if found.offset >= 0 else None

    def close(self) -> None:
        """Close the connections to Kafka, after the calls that are running.

        Later calls raise LogUnreachable.
        """
        with self._lock:
            self._closed = True
            members = list(self._members.values())
        for member in members:
            member.close()

    def _member(self, group: str) -> _Member:
        with self._lock:
            if self._closed:
                raise self._refusal()
            member = self._members.get(group)
            if member is None:
                options = committing_options(self._cluster, group)
                member = self._members[group] = _Member(options, self._refusal)
            return member

    def _refusal(self) -> LogUnreachable:
        return LogUnreachable(f"cannot use the offsets of topic '{self._name}': {CLOSED}")


class _Member:
    """The consumer of a group, for one call at a time.

    The consumer reads no records, so Kafka does not count it as a member of the group. The library
    does not allow a call beside `close`.
    """

    def __init__(self, options: Options, refusal: Callable[[], LogUnreachable]) -> None:
        self._consumer: Consumer | None = Consumer(
            {**options, "on_commit": self._on_commit}, logger=ClientLog("report")
        )
        self._refusal = refusal
        self._lock = threading.Lock()
        #: The error of each answered commit; the key is the offset and text of the commit.
        self._answers: dict[tuple[int, str], KafkaError | None] = {}

    def committed(self, offset: int, text: str) -> KafkaError | None:
        """Wait for the answer to a commit, and return its error; None if Kafka has the offset.

        The library's own commit that waits does so without end while no node of Kafka answers.
        """
        assert self._consumer is not None
        end = time.monotonic() + REQUEST_SECONDS
        self._answers.clear()
        while (offset, text) not in self._answers:
            if time.monotonic() >= end:
                return KafkaError(KafkaError._TIMED_OUT)
            self._consumer.poll(POLL_SECONDS)  # Calls `_on_commit`.
        return self._answers[offset, text]

    def _on_commit(self, error: KafkaError | None, positions: list[TopicPartition]) -> None:
        for each in positions:
            self._answers[each.offset, each.metadata or ""] = error or each.error

    def __enter__(self) -> Consumer:
        self._lock.acquire()
        if self._consumer is None:
            self._lock.release()
            raise self._refusal()
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """Close the consumer, after the call that is running."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
