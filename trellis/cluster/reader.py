"""Reads the records of the log, and asks the leader of the log's partition for the log's tip.

The tip is the offset of the next record to come.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from broker.replication.contract import LogSpan, LogTrimmed, LogUnreachable
from trellis.cluster.client_errors import CLOSED, LogBehind, LogHole, LogShorter, unreachable
from trellis.cluster.client_options import ClientLog, consumer_options
from trellis.cluster.topic import PARTITION, KafkaTopic
from trellis.settings.cluster import ClusterSettings

#: Longest wait for the next record, in seconds.
WAIT_SECONDS: Final = 0.05
#: Seconds to wait for a record that is known to exist.
FETCH_SECONDS: Final = 3.0
#: Seconds after which a wait for an existing record checks whether the record was trimmed.
TRY_SECONDS: Final = 0.25
#: The largest number of records of one read.
RECORDS_MAX: Final = 500
#: Seconds without a read after which the library fetches no more records.
IDLE_SECONDS: Final = 5.0
#: Seconds for which the log must stay too short before a node stops: a new leader may report an old
#: end of the log for a moment.
SHORT_SECONDS: Final = 5.0

#: Kafka's error for an offset that does not exist: the record was trimmed, or the log ends before
#: it.
_OUT_OF_RANGE: Final = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION,
)


class KafkaReader:
    """A consumer of the partition of the log.

    One thread calls `read`; another thread may call `rest`, which pauses fetching if
    no read came for IDLE_SECONDS.
    """

    def __init__(self, cluster: ClusterSettings, group: str, topic: KafkaTopic) -> None:
        self._cluster = cluster
        self._name = cluster.log_topic
        self._topic = topic
        self._log = ClientLog("read")
        self._consumer = Consumer(consumer_options(cluster, group), logger=self._log)
        self._lock = threading.Lock()
        #: The offset of the next record that the library delivers; None if that is not known.
        self._next: int | None = None
        self._closed = False
        #: True while the library fetches records ahead.
        self._fetching = False
        self._last_read = 0.0
        #: The time since which the log has been shorter than the offset to read; None if the log is
        #: long enough.
        self._short_since: float | None = None
        #: The last error of the library that `_records` did not raise, since the last successful
        #: read; "" if there is none.
        self._error = ""

    def read(self, offset: int) -> LogSpan:
        """Return the records from an offset on, and the tip: the offset of the next record to come.

        Raises LogUnreachable (or its subclass LogBehind), LogTrimmed, LogShorter, LogHole.
        """
        with self._lock:
            if self._closed:
                raise LogUnreachable(f"cannot read topic '{self._name}': {CLOSED}")
            self._last_read = time.monotonic()
            if offset != self._next:
                self._consumer.assign([TopicPartition(self._name, PARTITION, offset)])
                self._fetching = True
            self._next = None  # If this call fails, the next call must assign its offset again.
            records, tip = self._records_and_tip(offset)
            self._short_since = None
            self._error = ""
            self._log.forget_reason()
            self._next = offset + len(records)
            return LogSpan(records, max(tip, self._next))

    def rest(self) -> None:
        """Stop fetching records if no read came for IDLE_SECONDS.

        Does not wait for a read that is running.
        """
        if time.monotonic() < self._last_read + IDLE_SECONDS or not self._lock.acquire(False):
            return
        try:
            if self._closed:
                return
            self._last_read = time.monotonic()
            if self._fetching:
                self._consumer.unassign()
                self._fetching, self._next = False, None
            self._consumer.poll(0)  # Also writes the log lines of the library.
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._consumer.close()

    def _records_and_tip(self, offset: int) -> tuple[list[tuple[int, bytes]], int]:
        """Wait for records from an offset on; return a list of (offset, record), and the tip.

        If the log has a record at the offset, at least one record is returned. The tip is the
        offset of the next record to come.
        """
        records = self._records(offset, WAIT_SECONDS)
        tip = self._topic.tip()
        end = time.monotonic() + FETCH_SECONDS
        while not records and tip > offset and time.monotonic() < end:
            self._check_low(offset)
            records = self._records(offset, TRY_SECONDS)
        if not records and tip != offset:
            self._check_low(offset)
            raise self._failure(offset, tip)
        return records, tip

    def _records(self, offset: int, seconds: float) -> list[tuple[int, bytes]]:
        """Return (offset, record) of all records from an offset on that arrive within some seconds.

        Return an empty list if none arrives, or if the log has no record with this offset.
        """
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        records: list[tuple[int, bytes]] = []
        for message in [first, *self._consumer.consume(RECORDS_MAX - 1, 0)]:
            error = message.error()
            if error is None:
                self._add(message, offset + len(records), records)
            elif records or error.code() in _OUT_OF_RANGE:
                # An error behind records comes again, because the next call begins at another
                # offset.
                self._error = error.str()
                break
            else:
                raise unreachable("read topic", self._cluster, error, self._log.reason)
        return records

    def _add(self, message: Message, due: int, records: list[tuple[int, bytes]]) -> None:
        """Append a Kafka message to `records` if it has the offset `due`.

        Skip a message with a lower offset: it was fetched before the consumer's last assignment.
        Raises LogHole for a higher offset.
        """
        offset = message.offset()
        if offset is None or offset < due:
            return
        if offset > due:
            raise LogHole(
                f"topic '{self._name}' has no record at offset {due}, but one at {offset}: the "
                "topic was compacted, or another program writes to it; run `trellis cluster check`"
            )
        records.append((offset, message.value() or b""))

    def _check_low(self, offset: int) -> None:
        """Raise LogTrimmed if the first record of the log is after an offset."""
        low = self._topic.low()
        if offset < low:
            raise LogTrimmed(low, offset)

    def _failure(self, offset: int, tip: int) -> Exception:
        """Return the error for a read that got no record, although the log should have one."""
        if offset < tip:
            reason = self._error or self._log.reason or "Kafka's client has reported no error"
            return LogUnreachable(
                f"topic '{self._name}' at {self._cluster.servers} has the records {offset} to "
                f"{tip - 1}, but sent none within {FETCH_SECONDS:g} s ({reason}): run `trellis "
                "cluster check`, and look at the log of the Kafka node that leads the partition"
            )
        now = time.monotonic()
        self._short_since = self._short_since or now
        text = f"topic '{self._name}' ends at offset {tip}, but this node has read up to {offset}"
        if now < self._short_since + SHORT_SECONDS:
            return LogBehind(text)
        return LogShorter(
            f"{text}: records were lost, or the topic was created again; keep the data "
            "directories of all nodes, and begin a new topic with the directory that has most of "
            "the log (`trellis cluster adopt`)"
        )
