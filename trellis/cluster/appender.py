"""Appends records to the log, each at most once."""

from __future__ import annotations

import threading
import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from broker.replication.contract import AppendRefused, OutcomeUnknown
from trellis.cluster.client_errors import CLOSED, DEFAULT_ADVICE, described, error_in
from trellis.cluster.client_options import ClientLog, delivery_seconds, producer_options
from trellis.cluster.topic import PARTITION
from trellis.settings.cluster import ClusterSettings

#: An append ends if the library has not reported its outcome this number of seconds after the
#: library's own deadline.
LATE_SECONDS: Final = 2.0
#: Longest time in seconds of one wait for a report from the library. A report ends the wait at
#: once; `close` ends it within this time.
WAIT_SECONDS: Final = 0.2
#: Errors for a record that is larger than a setting permits. Kafka compares the size with
#: max.message.bytes and segment.bytes of the topic before it appends anything; the library compares
#: it with message.max.bytes (`cluster.options`).
_TOO_LARGE: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)


class KafkaAppender:
    """A producer that has at most one record in flight.

    One thread appends. Another thread may call `serve`, which writes log lines.
    """

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster
        self._seconds = delivery_seconds(cluster)
        self._lock = threading.Lock()
        self._closing = self._closed = False
        # Made before the first append, because a new producer needs 0.5 s to connect and to get an
        # id.
        self._producer = self._new_producer()

    def append(self, data: bytes) -> int:
        """Append a record, and return its offset.

        Raises OutcomeUnknown, or AppendRefused if Kafka refuses the record because of its size.
        After either error, the record is not sent again. Kafka may still have appended the record,
        or append it later: the library repeats a request that gets no answer, so an earlier request
        may succeed although the last request has failed.
        """
        with self._lock:
            if self._closing:
                raise self._unknown(data, CLOSED)
            return self._append(data)

    def serve(self) -> None:
        """Write the pending log lines of Kafka's client library, unless an append is running.

        A running append writes these lines itself.
        """
        if self._lock.acquire(False):
            try:
                if not self._closing:
                    self._producer.poll(0)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the connections to Kafka.

        An append that is waiting for its outcome then raises OutcomeUnknown.
        """
        self._closing = True
        with self._lock:
            if not self._closed:
                self._closed = True
                self._close()

    def _append(self, data: bytes) -> int:
        reports: list[tuple[KafkaError | None, Message]] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            reports.append((error, message))

        try:
            self._producer.produce(
                self._cluster.log_topic, data, partition=PARTITION, on_delivery=on_delivery
            )
            self._wait(reports)
        except KafkaException as error:
            raise self._failed(data, error_in(error)) from error
        except BufferError as error:
            raise self._unknown(data, str(error)) from error
        if not reports:
            late = f"no answer within {self._seconds + LATE_SECONDS:g} s; {DEFAULT_ADVICE}"
            raise self._unknown(data, CLOSED if self._closing else late)
        failure, message = reports[0]
        offset = message.offset()
        if failure is not None:
            raise self._failed(data, failure)
        if offset is None or offset < 0:
            raise self._unknown(data, "Kafka acknowledged the record without an offset")
        return offset

    def _close(self) -> None:
        self._producer.purge()
        self._producer.close()

    def _wait(self, reports: list[tuple[KafkaError | None, Message]]) -> None:
        """Wait until the library reports the outcome, the deadline passes, or the log is closed."""
        end = time.monotonic() + self._seconds + LATE_SECONDS
        while not reports and not self._closing and time.monotonic() < end:
            self._producer.poll(WAIT_SECONDS)

    def _failed(self, data: bytes, failure: KafkaError) -> OutcomeUnknown:
        """Return the error of an append for which Kafka or the library reported a failure."""
        unknown = self._unknown(data, described(failure))
        return AppendRefused(str(unknown), len(data)) if failure.code() in _TOO_LARGE else unknown

    def _unknown(self, data: bytes, reason: str) -> OutcomeUnknown:
        """Return the error of an append with an unknown outcome, and replace the producer.

        The old producer cannot send the record any more. The new producer has its own sequence
        numbers, so Kafka accepts its first record.
        """
        if not self._closing:
            self._close()
            self._producer = self._new_producer()
        topic, servers = self._cluster.log_topic, self._cluster.servers
        return OutcomeUnknown(
            f"cannot append {len(data)} bytes to topic '{topic}' at {servers}: {reason}"
        )

    def _new_producer(self) -> Producer:
        return Producer(producer_options(self._cluster), logger=ClientLog("append"))
