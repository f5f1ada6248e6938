"""The offsets that consumer groups have committed for the partition of the log.

This module uses one consumer for each group. The library's admin client can request the offsets of
any group too, but the client ends the process in two cases: with SIGSEGV if the Kafka node answers
that it is not the group's coordinator (librdkafka's issue 5040), and with SIGABRT if a connection
to the coordinator is lost during a request (librdkafka's pull request 5397). A consumer does not
have these faults.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from broker.replication.contract import LogUnreachable
from trellis.cluster.client_errors import CLOSED, GroupAbsent, error_in, unreachable
from trellis.cluster.client_options import ClientLog, offset_options
from trellis.settings.cluster import ClusterSettings

#: Seconds within which Kafka must answer.
REQUEST_SECONDS: Final = 5.0
#: Seconds between two checks whether the answer to a commit has come.
POLL_SECONDS: Final = 0.02
#: Seconds that `close` waits for the consumers. A consumer cannot close while Kafka does not answer
#: its commit.
CLOSE_SECONDS: Final = 1.0


class GroupOffsets:
    """Reads and commits the offsets of consumer groups. Several threads may use an instance."""

    def __init__(self, cluster: ClusterSettings, partition: int) -> None:
        self._cluster = cluster
        self._partition = partition
        self._consumers: dict[str, _GroupConsumer] = {}
        self._lock = threading.Lock()
        self._closed = False

    def commit(self, group: str, offset: int, text: str) -> None:
        """Commit an offset and a text in the name of a group. Raises LogUnreachable."""
        position = TopicPartition(self._cluster.log_topic, self._partition, offset, metadata=text)
        try:
            error = self._consumer(group).commit(position)
        except KafkaException as raised:
            error = error_in(raised)
        if error is not None:
            raise self._failure("report the synced offset in topic", group, error)

    def read(self, group: str) -> tuple[int, str] | None:
        """Return the offset and text that a group committed; None if it has committed none.

        Raises LogUnreachable.
        """
        wanted = TopicPartition(self._cluster.log_topic, self._partition)
        task = "read the synced offsets in topic"
        try:
            position = self._consumer(group).committed(wanted)
        except KafkaException as raised:
            failed = self._failure(task, group, error_in(raised))
            if isinstance(failed, GroupAbsent):
                return None
            raise failed from raised
        if position.error is not None:
            raise self._failure(task, group, position.error)
        return (position.offset, position.metadata or "") if position.offset >= 0 else None

    def close(self) -> None:
        """Wait for running calls, then close the connections to Kafka.

        Later calls raise LogUnreachable.
        """
        with self._lock:
            self._closed = True
        closing = [consumer.close() for consumer in self._consumers.values()]
        end = time.monotonic() + CLOSE_SECONDS
        for thread in closing:
            thread.join(max(0.0, end - time.monotonic()))

    def _failure(self, task: str, group: str, error: KafkaError) -> LogUnreachable:
        """Return the error of a request, with the reason that the group's consumer has logged."""
        consumer = self._consumers.get(group)
        reason = "" if consumer is None else consumer.log.reason
        return unreachable(task, self._cluster, error, reason)

    def _consumer(self, group: str) -> _GroupConsumer:
        with self._lock:
            if self._closed:
                raise _closed(self._cluster.log_topic)
            if group not in self._consumers:
                self._consumers[group] = _GroupConsumer(self._cluster, group)
            return self._consumers[group]


class _GroupConsumer:
    """The consumer of a group. It reads no records, so it is not a member of the group in Kafka.

    One call runs at a time, because the library permits no other call during `close`.
    """

    def __init__(self, cluster: ClusterSettings, group: str) -> None:
        options = {**offset_options(cluster, group), "on_commit": self._on_commit}
        self._topic = cluster.log_topic
        self.log = ClientLog("report")
        self._consumer: Consumer | None = Consumer(options, logger=self.log)
        self._lock = threading.Lock()
        #: True while the last commit has no answer, and the error in the last answer.
        self._is_waiting = False
        self._error: KafkaError | None = None

    def commit(self, position: TopicPartition) -> KafkaError | None:
        """Commit a position, and wait for the answer.

        Return the error, such as a timeout; None if Kafka has stored the position. The library
        repeats a commit until Kafka answers, and the repetition of an older commit could replace a
        newer position. So a commit is sent only after the answer to the previous commit. Raises
        KafkaException, LogUnreachable.
        """
        end = time.monotonic() + REQUEST_SECONDS
        with self._lock:
            consumer = self._open()
            if not self._has_answer(consumer, end):
                return KafkaError(KafkaError._TIMED_OUT)
            consumer.commit(offsets=[position], asynchronous=True)
            self._is_waiting = True
            if not self._has_answer(consumer, end):
                return KafkaError(KafkaError._TIMED_OUT)
            return self._error

    def committed(self, wanted: TopicPartition) -> TopicPartition:
        """Return the position that the group committed. Raises KafkaException, LogUnreachable."""
        with self._lock:
            consumer = self._open()
            try:
                position: TopicPartition = consumer.committed([wanted], timeout=REQUEST_SECONDS)[0]
            finally:
                consumer.poll(0)  # Delivers the log lines of the library.
            return position

    def close(self) -> threading.Thread:
        """Start and return a thread that waits for the running call and closes the consumer."""
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        return closing

    def _close(self) -> None:
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _has_answer(self, consumer: Consumer, end: float) -> bool:
        """Wait until the time `end` for the last commit's answer; return True if it has come."""
        while self._is_waiting and time.monotonic() < end:
            consumer.poll(POLL_SECONDS)  # Calls `_on_commit`.
        return not self._is_waiting

    def _on_commit(self, error: KafkaError | None, positions: list[TopicPartition]) -> None:
        self._is_waiting = False
        self._error = error or positions[0].error

    def _open(self) -> Consumer:
        if self._consumer is None:
            raise _closed(self._topic)
        return self._consumer


def _closed(topic: str) -> LogUnreachable:
    return LogUnreachable(f"cannot use the offsets of topic '{topic}': {CLOSED}")
