"""The stream as a queue: what is put there stays until retention removes it, and each consumer
reads it all.

    put --> Captured --take--> Portion --written--> archive, its end moves --> readers, each at its own offset

A reader takes what is durable only. Acks give its consumer credit, and mean nothing else: nothing
ever comes back.
"""

from __future__ import annotations

from typing import ClassVar, Final

from librt.strings import write_i32_le
from mypy_extensions import i32, i64

from broker.agenda import Agenda, Task
from broker.messages.fates import EXPIRED, OVER_LIMIT, PURGED
from broker.messages.message import Message
from broker.queues.arguments import UNLIMITED, QueueArguments
from broker.queues.consumer import Consumer, Delivery
from broker.queues.queue import Queue
from broker.store.contract import Store, StreamIntake, StreamWrite
from broker.store.disk import StoreError
from broker.stream.archive import Archive, Gone, Portion
from broker.stream.arrow import BatchView
from broker.stream.pages import Pages
from broker.stream.rows import Captured, Packets

#: Rows that all readers of a stream get in one turn.
SLICE: Final[i64] = 20_000
#: Milliseconds between two looks at the age of segments: at most, at least, and this part of the
#: age that they may have.
_LOOK_MOST: Final[i64] = 60_000
_LOOK_LEAST: Final[i64] = 1_000
_LOOK_PART: Final[i64] = 10


class QueueStreamReader:
    """A consumer of a stream, and how far it has read; front ends subclass it."""

    def __init__(self, consumer: Consumer, offset: i64) -> None:
        self.consumer = consumer
        self.offset: i64 = offset

    def ready(self) -> bool:
        """Whether it takes a row now."""
        consumer = self.consumer
        pool = consumer.pool
        return consumer.credit > 0 and (pool is None or pool.credit > 0) and consumer.outlet.open()

    def serve(self, batch: BatchView, row: i64) -> i64:
        """Write rows from this one on out while it is ready; returns how many.

        Must not call the core.
        """
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """It cannot go on: tell its client."""
        raise NotImplementedError


class StreamQueue(Queue):
    """A queue of type stream.

    `depth` is the rows that are there, those not durable yet among them.
    """

    hash_kind: ClassVar[str] = "StreamQueue"

    def __init__(
        self,
        vhost: str,
        name: str,
        agenda: Agenda,
        store: Store,
        terms: QueueArguments,
        archive: Archive,
    ) -> None:
        super().__init__(vhost, name, agenda, store, True)
        self.arguments = terms
        self.archive = archive
        self.pages = Pages(archive)
        self.intake = Intake(self)
        self.readers: list[QueueStreamReader] = []
        #: Rows given to readers.
        self.served: i64 = 0
        self._wall = -1.0
        self._sealed = 0
        self._look: Look | None = None
        self._turn_of = 0
        archive.pen.segment_octets = terms.segment_bytes

    @property
    def end(self) -> i64:
        """The offset of what comes next, durable or not."""
        return self.intake.captured.end

    # -- in

    def put(self, message: Message) -> None:
        """Take a reference: the writer's thread makes rows of it. Hot path: 20 ns."""
        intake = self.intake
        captured = intake.captured
        if self.agenda.wall != self._wall or intake.idle:
            self._note_time(captured)
        captured.items.append(message)
        write_i32_le(captured.routed, i32(message.address.routed))
        captured.end += 1
        intake.octets += len(message.content)
        self.depth += 1

    def put_packets(self, packets: Packets) -> None:
        """The same, of a run of publications that nobody took apart."""
        intake = self.intake
        captured = intake.captured
        if self.agenda.wall != self._wall or intake.idle:
            self._note_time(captured)
        captured.items.append(packets)
        write_i32_le(captured.routed, 0)
        captured.end += packets.count
        intake.octets += len(packets.octets)
        self.depth += packets.count

    def _note_time(self, captured: Captured) -> None:
        """A turn has begun, or a batch."""
        self._wall = self.agenda.wall
        captured.times.append((len(captured.items), int(self._wall * 1_000_000)))
        if self.intake.idle:
            self.intake.idle = False
            self.store.add_stream(self.intake)

    def begin_at(self, end: i64) -> None:
        """It was there before, and goes on with this offset."""
        self.depth = self.archive.rows
        self.archive.end = end
        self.intake.captured = Captured(end)
        self._retain()

    # -- out

    def extended(self) -> None:
        """More is durable."""
        if len(self.archive.segments) != self._sealed:
            self._retain()
        if self.readers:
            self.schedule_drain()

    def attach(self, reader: QueueStreamReader) -> None:
        """A consumer that is subscribed already begins to read."""
        self.readers.append(reader)
        self.schedule_drain()

    def unsubscribe(self, consumer: Consumer) -> None:
        super().unsubscribe(consumer)
        self.readers = [reader for reader in self.readers if reader.consumer is not consumer]
        if not self.readers:
            self.pages.clear()

    def run(self) -> None:
        """Serve every reader that is ready, up to the end of what is durable."""
        self._drain_scheduled = False
        left: i64 = SLICE
        readers = self.readers
        count: i64 = len(readers)
        turn: i64 = self._turn_of
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
        self._turn_of = turn
        if left <= 0:
            self._drain_scheduled = True
            self.agenda.later(self)

    def _serve(self, reader: QueueStreamReader, most: i64) -> i64:
        """Give a reader what it takes; returns how many rows."""
        given: i64 = 0
        end: i64 = self.archive.end
        try:
            while given < most and reader.offset < end and reader.ready():
                for batch in self.pages.at(reader.offset).views:
                    row: i64 = reader.offset - batch.base
                    if row < 0:
                        break
                    if row < batch.rows:
                        count = reader.serve(batch, row)
                        reader.offset += count
                        given += count
                        if row + count < batch.rows:
                            break
        except (Gone, StoreError) as error:
            self.readers = [other for other in self.readers if other is not reader]
            reader.fail(str(error))
        self.served += given
        return given

    def take(self, consumer: Consumer) -> Delivery | None:
        raise AssertionError("a stream is consumed")

    # -- settled: credit is all that this means

    def settle(self, message: Message) -> None:
        self.acknowledged_reads()

    def acknowledged_reads(self) -> None:
        """A consumer has credit again."""
        if not self._drain_scheduled and self.readers:
            self.schedule_drain()

    def requeue(self, delivery: Delivery) -> None:
        self.acknowledged_reads()

    def reject(self, message: Message) -> None:
        self.acknowledged_reads()

    def unrepresentable(self, message: Message) -> None:
        self.acknowledged_reads()

    # -- what is removed

    def update_arguments(self, terms: QueueArguments) -> None:
        """From now on these hold."""
        self.arguments = terms
        self.archive.pen.segment_octets = terms.segment_bytes
        self._retain()

    def _retain(self) -> None:
        """Remove the segments that are too old, or too much.

        Who wanted to read them is told so when it comes there.
        """
        terms, archive = self.arguments, self.archive
        self._sealed = len(archive.segments)
        before: i64 = -1
        if terms.max_age >= 0:
            before = max(i64(self.agenda.wall * 1000) - terms.max_age, 0) * 1000
        for fate, oldest, most in (
            (EXPIRED, before, -1),
            (OVER_LIMIT, -1, -1 if terms.max_bytes == UNLIMITED else terms.max_bytes),
        ):
            out = archive.expired(oldest, most)
            if not out:
                continue
            self.pages.forget(out)
            for segment in out:
                self.count(fate, int(segment.end - segment.base))
                self.depth -= segment.end - segment.base
            # The oldest first, each for good: after a crash there is no gap among those that are
            # left.
            here = f"{archive.pen.directory}/."
            self.store.discard(
                [path for segment in out for path in (segment.path, f"{segment.path}.index", here)]
            )
        if terms.max_age >= 0 and len(archive.segments) > 1 and self._look is None:
            self._look = Look(self)
            self.agenda.at(
                self.agenda.now + min(max(terms.max_age // _LOOK_PART, _LOOK_LEAST), _LOOK_MOST),
                self._look,
            )

    def looked(self) -> None:
        """It is time to look at ages again."""
        self._look = None
        self._retain()

    def purge(self) -> int:
        """Only when it is deleted."""
        purged = int(self.depth)
        self.count(PURGED, purged)
        self.depth = 0
        return purged

    def on_deleted(self) -> int:
        if self._look is not None:
            self._look.queue = None
        self.readers = []
        purged = super().on_deleted()
        self.pages.clear()
        self.discard_all()
        if self.intake.idle:
            self.intake.queue = None
        return purged

    def discard_all(self) -> None:
        """It is deleted: its files go, and its directory."""
        archive = self.archive
        segments, archive.segments = archive.segments, []
        self.store.discard(
            [
                *(path for segment in segments for path in (segment.path, f"{segment.path}.index")),
                f"{archive.pen.directory}/",
            ]
        )


class Intake(StreamIntake):
    """What is put between two batches of the store."""

    def __init__(self, queue: StreamQueue) -> None:
        #: None once the queue is gone: neither keeps the other.
        self.queue: StreamQueue | None = queue
        self.number: i64 = 0
        self.captured = Captured(0)
        self.octets: i64 = 0
        #: Nothing was put since the last batch.
        self.idle = True

    def stream_number(self) -> i64:
        return self.number

    def stream_end(self) -> i64:
        return self.captured.end

    def pending_bytes(self) -> i64:
        return self.octets

    def take_write(self) -> StreamWrite:
        captured = self.captured
        self.captured = Captured(captured.end)
        size: i64 = self.octets
        self.octets = 0
        self.idle = True
        queue = self.queue
        assert queue is not None
        return StreamShare(queue, Portion(queue.archive, captured, size))


class StreamShare(StreamWrite):
    """A stream's part of a batch."""

    def __init__(self, queue: StreamQueue, portion: Portion) -> None:
        self._queue = queue
        self._portion = portion

    def write(self) -> None:
        self._portion.write()

    def settle(self) -> None:
        self._portion.settle()
        queue = self._queue
        if queue.dead:
            if queue.intake.idle:  # Else the next batch has what was put meanwhile.
                queue.intake.queue = None
            queue.discard_all()
        else:
            queue.extended()


class Look(Task):
    """Time to look at the age of a stream's segments. A queue that is gone is not kept by it."""

    def __init__(self, queue: StreamQueue) -> None:
        self.queue: StreamQueue | None = queue

    def run(self) -> None:
        if self.queue is not None:
            self.queue.looked()
