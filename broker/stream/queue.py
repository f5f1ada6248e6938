"""The queue of type stream: messages stay until retention removes them, for all readers.

    put --> CapturedRows --take_write--> RowsWrite --settle--> LocalSegments: the end moves
                                                                       --> readers, by offset

Readers get durable rows only. An acknowledgement gives its consumer credit and has no other effect;
rows are never requeued.
"""

from __future__ import annotations

from typing import Final

from librt.strings import write_i32_le
from mypy_extensions import i32, i64

from broker.agenda import Agenda, Task
from broker.messages.fates import EXPIRED, OVER_LIMIT, PURGED
from broker.messages.message import Message
from broker.queues.arguments import UNLIMITED, QueueArguments
from broker.queues.consumer import Consumer, Delivery
from broker.queues.queue import Queue
from broker.queues.statistics import RESTORED, RETURNED
from broker.store.contract import Store
from broker.store.disk import OutOfDescriptors, StoreError
from broker.store.stream_contract import ShippedRows, StreamIntake, StreamWrite
from broker.stream.archived import RowsPending, RowsUnavailable
from broker.stream.captured_rows import CapturedRows
from broker.stream.local_segments import LocalSegments
from broker.stream.pages import StreamPages
from broker.stream.reader import QueueStreamReader
from broker.stream.removal import removal_of
from broker.stream.row_codecs import PublishRun
from broker.stream.rows_write import RowsWrite

#: Number of rows that the readers of a stream get in one turn of the event loop. The last batch of
#: the turn is completed, so the number may be exceeded.
ROWS_PER_SLICE: Final[i64] = 20_000
#: Time between two retention checks: the maximum age of rows divided by _CHECKS_PER_AGE, but at
#: most _CHECK_INTERVAL_MAX and at least _CHECK_INTERVAL_MIN, in ms.
_CHECK_INTERVAL_MAX: Final[i64] = 60_000
_CHECK_INTERVAL_MIN: Final[i64] = 1_000
_CHECKS_PER_AGE: Final[i64] = 10
#: Time after which a stream is read again if no file descriptor was free, in ms.
READ_RETRY_MS: Final[i64] = 1_000


class StreamQueue(Queue):
    """A queue of type stream (`x-queue-type`).

    `depth` is the number of rows, including rows that are not durable yet.
    """

    def __init__(
        self,
        vhost: str,
        name: str,
        agenda: Agenda,
        store: Store,
        terms: QueueArguments,
        local: LocalSegments,
    ) -> None:
        super().__init__(vhost, name, agenda, store, True)
        self.arguments = terms
        self.local = local
        if local.archived is not None:
            local.archived.changed = ArchiveChange(self)
        self.pages = StreamPages(local)
        self.pending_rows = PendingRows(self)
        self.readers: list[QueueStreamReader] = []
        #: Number of rows delivered to readers.
        self.served: i64 = 0
        self._wall = -1.0
        self._retained_segments = 0
        self._retention_check: RetentionCheck | None = None
        self._read_retry: ReadRetry | None = None
        self._next_reader = 0
        local.segment_writer.segment_size = terms.segment_bytes

    @property
    def end(self) -> i64:
        """The offset of the next row to be published."""
        return self.pending_rows.captured.end

    # -- rows that come in

    def put(self, message: Message) -> None:
        """Add a message, which the writer's thread converts to a row. Hot path: 20 ns."""
        intake = self.pending_rows
        captured = intake.captured
        if self.agenda.wall != self._wall or intake.idle:
            self._record_time(captured)
        captured.items.append(message)
        write_i32_le(captured.routed, i32(message.address.routed))
        captured.end += 1
        intake.size += len(message.content)
        self.depth += 1

    def put_run(self, packets: PublishRun) -> None:
        """Add a run of publications, which the writer's thread parses. Hot path."""
        intake = self.pending_rows
        captured = intake.captured
        if self.agenda.wall != self._wall or intake.idle:
            self._record_time(captured)
        captured.items.append(packets)
        write_i32_le(captured.routed, 0)
        captured.end += packets.count
        intake.size += len(packets.packets)
        self.depth += packets.count

    def _record_time(self, captured: CapturedRows) -> None:
        """Record the publishing time of the next rows.

        Called once per turn of the event loop, and once per batch of the store.
        """
        self._wall = self.agenda.wall
        captured.times.append((len(captured.items), int(self._wall * 1_000_000)))
        if self.pending_rows.idle:
            self.pending_rows.idle = False
            self.store.add_stream(self.pending_rows)

    def begin_at(self, end: i64) -> None:
        """Continue a stream that was recovered: the next row gets the offset `end`."""
        self.depth = self.local.rows
        self.note(RESTORED, int(self.depth))
        self.local.end = end
        self.pending_rows.captured = CapturedRows(end)
        self._apply_retention()

    @property
    def head_age(self) -> int | None:
        """Always None: the rows of a stream do not wait for a consumer, so they have no age."""
        return None

    # -- readers and deliveries

    def on_extended(self) -> None:
        """Apply retention and serve the readers, after more rows became durable."""
        if len(self.local.segments) != self._retained_segments:
            self._apply_retention()
        if self.readers:
            self.schedule_drain()

    def attach(self, reader: QueueStreamReader) -> None:
        """Begin to serve a reader. Its consumer must be subscribed already."""
        self.readers.append(reader)
        self.schedule_drain()

    def unsubscribe(self, consumer: Consumer) -> None:
        super().unsubscribe(consumer)
        self.readers = [reader for reader in self.readers if reader.consumer is not consumer]
        if not self.readers:
            self.pages.clear()

    def unsubscribe_all(self, leaving: list[Consumer]) -> None:
        super().unsubscribe_all(leaving)
        gone = dict.fromkeys(leaving)
        self.readers = [reader for reader in self.readers if reader.consumer not in gone]
        if not self.readers:
            self.pages.clear()

    def run(self) -> None:
        """Deliver about ROWS_PER_SLICE durable rows in one turn to the readers that are ready."""
        self._drain_scheduled = False
        left: i64 = ROWS_PER_SLICE
        readers = self.readers
        count: i64 = len(readers)
        turn: i64 = self._next_reader
        seen: i64 = 0
        while seen < count and left > 0:
            seen += 1
            if turn >= count:
                turn = 0
            reader = readers[turn]
            turn += 1
            if (
                not self.arguments.single_active_consumer
                or self.consumers
                and reader.consumer is self.consumers[0]
            ):
                left -= self._serve(reader, left)
        self._next_reader = turn
        if left <= 0:
            self.drain_in_next_turn()

    def _serve(self, reader: QueueStreamReader, most: i64) -> i64:
        """Deliver up to `most` rows, or more to complete a batch; return the number of rows."""
        given: i64 = 0
        end: i64 = self.local.end
        try:
            if reader.offset < 0:
                reader.offset = reader.find_start()
            while given < most and reader.offset < end and reader.ready():
                for batch in self.pages.page_with(reader.offset).views:
                    row: i64 = reader.offset - batch.base
                    if row < 0:
                        break
                    if row < batch.rows:
                        count = reader.serve(batch, row)
                        reader.offset += count
                        given += count
                        if row + count < batch.rows:
                            break
        except RowsPending:
            pass  # The reader is served again when the archive has delivered the rows.
        except OutOfDescriptors:
            self._retry_later()
        except (RowsUnavailable, StoreError) as error:
            self.readers = [other for other in self.readers if other is not reader]
            reader.fail(str(error))
        self.served += given
        return given

    def _retry_later(self) -> None:
        """Serve the readers again in READ_RETRY_MS ms, because no file descriptor is free now."""
        if self._read_retry is None:
            self._read_retry = ReadRetry(self)
            self.agenda.at(self.agenda.now + READ_RETRY_MS, self._read_retry)

    def retry_reading(self) -> None:
        """Serve the readers again, after a shortage of file descriptors."""
        self._read_retry = None
        if self.readers:
            self.schedule_drain()

    def take(self, consumer: Consumer) -> Delivery | None:
        raise AssertionError("basic.get is refused for streams")

    # -- settlements, which only give credit: no message returns, so a stream is never held

    def hold(self) -> None:
        """Do nothing: a stream requeues no rows, so its deliveries need not pause."""

    def free(self) -> None:
        """Do nothing: `hold` does not pause the deliveries of a stream."""

    def settle(self, message: Message) -> None:
        self.acknowledged_reads()

    def acknowledged_reads(self) -> None:
        """Schedule a delivery of rows, because an acknowledgement gave a consumer credit."""
        if not self._drain_scheduled and self.readers:
            self.schedule_drain()

    def requeue(self, delivery: Delivery) -> None:
        self.acknowledged_reads()

    def reject(self, message: Message) -> None:
        self.acknowledged_reads()

    def unrepresentable(self, message: Message) -> None:
        self.acknowledged_reads()

    def events(self) -> list[int]:
        """Return the counts of rare events of the queue.

        The count RETURNED is the number of rows delivered to readers. The statistics add this count
        to the deliveries.
        """
        events = list(self._events)
        events[RETURNED] = int(self.served)
        return events

    # -- retention and deletion

    def update_arguments(self, terms: QueueArguments) -> None:
        """Replace the queue's arguments, and apply their segment size and retention."""
        self.arguments = terms
        self.local.segment_writer.segment_size = terms.segment_bytes
        self._apply_retention()

    def _apply_retention(self) -> None:
        """Remove the oldest segments while they are too old or the stream exceeds its maximum size.

        A reader whose next row is removed continues from the archive, or gets an error if there is
        no archive.
        """
        terms, local = self.arguments, self.local
        if local.archived is not None:
            local.archived.add_full(local.segments)
        self._retained_segments = len(local.segments)
        before: i64 = -1
        if terms.max_age >= 0:
            before = max(i64(self.agenda.wall * 1000) - terms.max_age, 0) * 1000
        for fate, oldest, most in (
            (EXPIRED, before, -1),
            (OVER_LIMIT, -1, -1 if terms.max_bytes == UNLIMITED else terms.max_bytes),
        ):
            out = local.take_expired(oldest, most)
            if not out:
                continue
            self.pages.drop(out)
            for segment in out:
                self.count(fate, int(segment.end - segment.base))
                self.depth -= segment.end - segment.base
            self.store.discard(removal_of(local, out, False))
        if terms.max_age >= 0 and len(local.segments) > 1 and self._retention_check is None:
            self._retention_check = RetentionCheck(self)
            self.agenda.at(
                self.agenda.now
                + min(
                    max(terms.max_age // _CHECKS_PER_AGE, _CHECK_INTERVAL_MIN), _CHECK_INTERVAL_MAX
                ),
                self._retention_check,
            )

    def check_retention(self) -> None:
        """Remove the segments that have become too old, and schedule the next check."""
        self._retention_check = None
        self._apply_retention()

    def on_archive_changed(self) -> None:
        """Apply retention after an upload, and serve readers that waited for the archive."""
        self._apply_retention()
        if self.readers:
            self.schedule_drain()

    def purge(self) -> int:
        """Count all rows as purged; return their number. Called only when the stream is deleted."""
        purged = int(self.depth)
        self.count(PURGED, purged)
        self.depth = 0
        return purged

    def on_deleted(self) -> int:
        if self._retention_check is not None:
            self._retention_check.queue = None
        if self._read_retry is not None:
            self._read_retry.queue = None
        self.readers = []
        if self.local.archived is not None:
            self.local.archived.on_deleted()
        purged = super().on_deleted()
        self.local.segment_writer.release_file()
        self.pages.clear()
        self.discard_all()
        if self.pending_rows.idle:
            self.pending_rows.queue = None
        return purged

    def discard_all(self) -> None:
        """Remove the files and the directory of the deleted stream."""
        local = self.local
        segments, local.segments = local.segments, []
        self.store.discard(removal_of(local, segments, True))


class PendingRows(StreamIntake):
    """The rows of a stream that wait for the next batch of the store."""

    def __init__(self, queue: StreamQueue) -> None:
        #: None once the queue is deleted, to break the reference cycle.
        self.queue: StreamQueue | None = queue
        self.number: i64 = 0
        self.captured = CapturedRows(0)
        self.size: i64 = 0
        self.row_overhead: i64 = queue.store.row_overhead
        #: True if no row was added since the last batch.
        self.idle = True

    def stream_number(self) -> i64:
        return self.number

    def stream_end(self) -> i64:
        return self.captured.end

    def pending_bytes(self) -> i64:
        captured = self.captured
        return self.size + self.row_overhead * (captured.end - captured.base)

    def take_write(self) -> StreamWrite:
        captured = self.captured
        self.captured = CapturedRows(captured.end)
        size: i64 = self.size
        self.size = 0
        self.idle = True
        queue = self.queue
        assert queue is not None
        return StreamBatchWrite(queue, RowsWrite(queue.local, captured, size))


class StreamBatchWrite(StreamWrite):
    """The rows of a stream in one batch of the store. When they are durable, readers get them."""

    def __init__(self, queue: StreamQueue, portion: RowsWrite) -> None:
        self._queue = queue
        self._rows_write = portion

    def prepare(self) -> list[ShippedRows]:
        return self._rows_write.prepare()

    def write(self) -> None:
        self._rows_write.write()

    def settle(self) -> None:
        self._rows_write.settle()
        queue = self._queue
        if queue.dead:
            # If rows still wait for the next batch of the store, this batch needs `pending_rows`.
            if queue.pending_rows.idle:
                queue.pending_rows.queue = None
            queue.discard_all()
        else:
            queue.on_extended()


class RetentionCheck(Task):
    """A scheduled retention check of a stream. `queue` is None once the stream is deleted."""

    def __init__(self, queue: StreamQueue) -> None:
        self.queue: StreamQueue | None = queue

    def run(self) -> None:
        if self.queue is not None:
            self.queue.check_retention()


class ArchiveChange(Task):
    """Tells a stream that its archived rows changed.

    A segment was uploaded, or a request for archived rows succeeded, failed or was dropped.
    """

    def __init__(self, queue: StreamQueue) -> None:
        self._queue = queue

    def run(self) -> None:
        if not self._queue.dead:
            self._queue.on_archive_changed()


class ReadRetry(Task):
    """A timer after which a stream is read again. `queue` is None once the stream is deleted."""

    def __init__(self, queue: StreamQueue) -> None:
        self.queue: StreamQueue | None = queue

    def run(self) -> None:
        if self.queue is not None:
            self.queue.retry_reading()
