"""Reads the records of the log, and asks the leader of the partition for the tip."""

from __future__ import annotations

import threading
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from broker.replication.contract import LogSpan, LogTrimmed, LogUnreachable
from trellis.cluster.client_errors import LogHole, LogShorter, unreachable
from trellis.cluster.client_options import ClientLog, consumer_options
from trellis.cluster.topic import PARTITION
from trellis.settings.cluster import ClusterSettings

#: Seconds of a wait for the next record.
WAIT_SECONDS: Final = 0.05
#: Seconds within which the leader must tell the tip.
TIP_SECONDS: Final = 0.5
#: The largest number of records of one read.
RECORDS_MAX: Final = 500
#: Seconds without a read after which the library fetches no more records.
IDLE_SECONDS: Final = 5.0
#: Seconds for which the log must be too short before a node stops: a new leader may tell an old end
#: for a moment.
SHORT_SECONDS: Final = 5.0

#: The offset does not exist: it was trimmed, or the log ends before it.
_OUT_OF_RANGE: Final = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION,
)


class KafkaReader:
    """A consumer of one partition. One thread reads; another one may call `rest`."""

    def __init__(self, cluster: ClusterSettings, group: str) -> None:
        self._cluster = cluster
        self._topic = cluster.log_topic
        self._consumer = Consumer(consumer_options(cluster, group), logger=ClientLog("read"))
        self._lock = threading.Lock()
        #: The offset of the next record that the library delivers; None if it fetches none.
        self._next: int | None = None
        self._last_read = 0.0
        #: Since when the log is shorter than the offset to read; None if it is not.
        self._short_since: float | None = None

    def read(self, offset: int) -> LogSpan:
        """Return records from an offset on, and the tip.

        Raises LogUnreachable, LogTrimmed, LogShorter, LogHole.
        """
        with self._lock:
            self._last_read = time.monotonic()
            if offset != self._next:
                self._consumer.assign([TopicPartition(self._topic, PARTITION, offset)])
            self._next = None  # After an error, the next call begins at its offset again.
            records = self._records(offset)
            end = records[-1][0] + 1 if records else offset
            low, tip = self._bounds()
            if not records:
                self._check_range(offset, low, tip)
            self._next = end
            return LogSpan(records, max(tip, end))

    def bounds(self) -> tuple[int, int]:
        """Return the first offset of the log and its tip. Raises LogUnreachable."""
        with self._lock:
            return self._bounds()

    def rest(self) -> None:
        """Stop fetching records if no read came for a time; never waits for a read."""
        if time.monotonic() < self._last_read + IDLE_SECONDS or not self._lock.acquire(False):
            return
        try:
            self._last_read = time.monotonic()
            if self._next is not None:
                self._consumer.unassign()
                self._next = None
            self._consumer.poll(0)  # Delivers the log lines of the library.
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._consumer.close()

    def _records(self, offset: int) -> list[tuple[int, bytes]]:
        """Return the records that have arrived, in order from an offset on."""
        first = self._consumer.poll(WAIT_SECONDS)
        if first is None:
            return []
        records: list[tuple[int, bytes]] = []
        for message in [first, *self._consumer.consume(RECORDS_MAX - 1, 0)]:
            error = message.error()
            if error is None:
                self._add(message, offset + len(records), records)
            elif records:
                # The next call begins behind these records, and gets the error again.
                break
            elif error.code() not in _OUT_OF_RANGE:
                raise unreachable("read topic", self._cluster, KafkaException(error))
        return records

    def _add(self, message: Message, due: int, records: list[tuple[int, bytes]]) -> None:
        """Add a record whose offset is due. A record from before the assignment is left out."""
        offset = message.offset()
        if offset is None or offset < due:
            return
        if offset > due:
            raise LogHole(
                f"topic '{self._topic}' has no record at offset {due}, but one at {offset}: it was "
                "compacted, or another program writes to it; run `trellis cluster check`"
            )
        records.append((offset, message.value() or b""))

    def _bounds(self) -> tuple[int, int]:
        """Return the first offset and the tip, both from the leader of the partition."""
        at = TopicPartition(self._topic, PARTITION)
        try:
            found = self._consumer.get_watermark_offsets(at, TIP_SECONDS, cached=False)
        except KafkaException as error:
            raise unreachable("ask for the tip of topic", self._cluster, error) from error
        if found is None:
            raise LogUnreachable(
                f"cannot ask for the tip of topic '{self._topic}' at {self._cluster.servers}: no "
                f"answer of the leader within {TIP_SECONDS:g} s"
            )
        return found[0], found[1]

    def _check_range(self, offset: int, low: int, tip: int) -> None:
        """Raise an error if the log has no place for a record with this offset."""
        if offset < low:
            raise LogTrimmed(low, offset)
        if offset <= tip:
            self._short_since = None
            return
        now = time.monotonic()
        self._short_since = self._short_since or now
        text = f"topic '{self._topic}' ends at offset {tip}, but this node has read up to {offset}"
        if now < self._short_since + SHORT_SECONDS:
            raise LogUnreachable(text)
        raise LogShorter(
            f"{text}: records were lost, or the topic was made anew; do not delete the data "
            "directory, and adopt the directory that is farthest (`trellis cluster adopt`)"
        )
