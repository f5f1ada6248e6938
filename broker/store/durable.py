"""The store on disk: a log for entries at message rate, a catalog (SQLite) for definitions.

append   the Recorder encodes the entry; a definition waits in a list of changes
take     one DurableBatch of the records and the changes
write    write_streams --> log.append --> log.sync --> catalog.write, in the writer's thread
written  settle the tickets (contract.py)
fetch    a message of a long queue: from the entries not written yet, else from the log
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from broker.messages.message import Message
from broker.store.catalog import Catalog
from broker.store.codecs import Codecs
from broker.store.contract import Store, Ticket, WriteBatch, bounded
from broker.store.disk import OutOfDescriptors, StoreError
from broker.store.durable_batch import BatchShipping, DurableBatch
from broker.store.entries import (
    HOLDERS,
    Defined,
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PubrecReceived,
    RetainedSet,
    StoreEntry,
    Undefined,
)
from broker.store.log_reader import LogReader
from broker.store.paged_messages import PagedMessages, PagedRelease
from broker.store.reading import Decoder
from broker.store.records import Recorder
from broker.store.segments import SegmentLog

#: Largest number of delivery marks that a batch appends again, in up to 0.2 ms.
MARKS_PER_BATCH: Final = 100
#: Advice for an operator about a lost message.
REMEDY: Final = "check the disk, stop the broker, and run `trellis store verify`"


class DurableStore(Store):
    """A store with an open log and an open catalog.

    `report` is called with a sentence about each message that cannot be read.
    """

    def __init__(
        self,
        log: SegmentLog,
        catalog: Catalog,
        codecs: Codecs,
        position: i64,
        holder_numbers: set[int],
        report: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.position = self.durable = position
        self.log = log
        self.catalog = catalog
        self.stream_disk = log.disk
        self.stream_root = f"{log.directory.rpartition('/')[0]}/streams"
        #: Numbers of the definitions that can hold messages. The number of a removed definition
        #: stays until its removal is durable, because a crash before that brings the definition
        #: back.
        self.holder_numbers = holder_numbers
        self._report = report
        self._recorder = Recorder(codecs, log.seed)
        self._decoder = Decoder(codecs)
        self._changes: list[tuple[int, StoreEntry]] = []
        self._paged = PagedMessages()
        self._paged_release = PagedRelease(self.agenda)
        #: Queue number and position (i64 each) of messages of deleted queues, which the next batch
        #: takes as `DurableBatch.released`.
        self._released = BytesWriter()
        self._writing: DurableBatch | None = None
        self.keeps_deliveries = True
        #: Appends batches to the replicated log; None without a cluster.
        self.shipping: BatchShipping | None = None
        #: (queue, rank) -> its delivery mark, and the number of segments that were begun before the
        #: mark was appended. The marks are in the order in which they were appended.
        self._marks: dict[tuple[int, int], tuple[int, int]] = {}

    def restore_marks(self, marks: dict[int, dict[int, int]]) -> None:
        """Set the delivery marks (`DeliveryMark`) that recovery found.

        `marks` maps the number of a queue to its marks by rank (priority, or 0).
        """
        for queue, ranks in marks.items():
            for rank, mark in ranks.items():
                self._marks[queue, rank] = mark, -1

    def set_clocks(self, now: i64, wall: float) -> None:
        """Set the clocks by which expiry times are converted to the wall clock for the log.

        `now` is the broker's clock in ms, `wall` Unix time in seconds.
        """
        self._recorder.clock = self._decoder.clock = i64(wall * 1000) - now

    @property
    def unreleased_parts(self) -> int:
        """Number of parts of PagedMessages that wait to be freed: the log has their messages."""
        return len(self._paged_release.parts)

    @property
    def unwritten_bytes(self) -> int:
        """The size of all entries and rows that are not durable yet, in bytes.

        Hot path: the server reads this property with every chunk that a client sends.
        """
        size: i64 = self._recorder.size + self._stream_bytes()
        return int(size) if self._writing is None else int(size) + self._writing.size

    def _stream_bytes(self) -> i64:
        size: i64 = 0
        for stream in self.streams:
            size += stream.pending_bytes()
        return size

    def apply(self, position: i64, entry: StoreEntry) -> None:
        if isinstance(entry, Defined):
            self._changes.append((position, entry))
            if entry.kind in HOLDERS:
                number = entry.definition.get("number")
                self.holder_numbers.add(number if isinstance(number, int) else position)
        elif isinstance(entry, Undefined):
            self._changes.append((position, entry))
        else:
            self._recorder.add(position, entry)
            if isinstance(entry, DeliveryMark):
                self._note_mark(entry)
            elif isinstance(entry, EntryGroup):
                for member in entry.entries:
                    if isinstance(member, DeliveryMark):
                        self._note_mark(member)

    def _note_mark(self, entry: DeliveryMark) -> None:
        key = int(entry.queue), int(entry.rank)
        self._marks.pop(key, None)
        self._marks[key] = int(entry.mark), self.log.rolls

    def _refresh_marks(self) -> None:
        """Append again the oldest delivery marks whose last record is in a full segment.

        If the last mark of a queue with few deliveries stayed in an old segment, it could be the
        only live entry there, and prevent that the segment is dropped. A batch gets at most
        MARKS_PER_BATCH such marks.
        """
        left = MARKS_PER_BATCH
        rolls = self.log.rolls
        while left and self._marks:
            left -= 1
            key = next(iter(self._marks))
            mark, appended = self._marks[key]
            if appended == rolls:
                return
            if key[0] not in self.holder_numbers:
                del self._marks[key]
                continue
            self.position += 1
            self.apply(self.position, DeliveryMark(key[0], key[1], mark))

    def prepare(self, entry: MessageStored) -> None:
        self._recorder.prepare(entry)

    def append_message(
        self,
        vhost: str,
        message: Message,
        queues: list[int],
        annotations: list[int] | None,
        ticket: Ticket | None,
    ) -> i64:
        if self._group_depth:
            return self.append(MessageStored(vhost, message, queues, annotations), ticket)
        position: i64 = self.position + 1
        self.position = position
        self._recorder.add_message(position, vhost, message, queues, annotations)
        self._announce(ticket)
        return position

    def append_settled(self, queue: i64, position: i64) -> None:
        if self._group_depth:
            self.append(MessageSettled(queue, position), None)
            return
        self.position += 1
        self._recorder.add_settled(self.position, queue, position)
        if not self.unbatched:
            self._announce(None)

    def append_pubrec(self, queue: i64, position: i64, ticket: Ticket | None) -> i64:
        if self._group_depth:
            return self.append(PubrecReceived(queue, position), ticket)
        appended: i64 = self.position + 1
        self.position = appended
        self._recorder.add_pubrec(appended, queue, position)
        self._announce(ticket)
        return appended

    def batch(self, tickets: list[Ticket]) -> WriteBatch:
        assert self._writing is None, "the previous batch is not written yet"
        if self._marks and self._recorder.count:
            self._refresh_marks()
        changes, self._changes = self._changes, []
        batch = self._writing = DurableBatch(
            tickets, self.position, self._recorder.take(), changes, self.log, self.catalog
        )
        batch.shipping = self.shipping
        batch.stream_root = self.stream_root
        batch.paged, self._paged = self._paged, PagedMessages()
        batch.released = self._released.getvalue()
        self._released = BytesWriter()
        batch.stream_bytes = int(self._stream_bytes())
        return batch

    def _add_ticket(self, position: i64, ticket: Ticket) -> None:
        writing = self._writing
        if writing is None or position > writing.last:
            super()._add_ticket(position, ticket)
        else:
            writing.tickets.append(ticket)

    def written(self, batch: WriteBatch) -> None:
        writing, self._writing = self._writing, None
        assert writing is batch and writing is not None
        for _, entry in writing.changes:
            if isinstance(entry, Undefined):
                self.holder_numbers.discard(entry.number)
        self._paged_release.add(writing.paged, self.agenda)
        try:
            super().written(batch)
        finally:
            if not self.unbatched and len(self._released):
                writing.count_released(self._released.getvalue())
                self._released = BytesWriter()

    def close(self) -> None:
        """Close the catalog and the log. All batches must be written.

        Raises StoreError if the log cannot be closed.
        """
        self.catalog.close()
        self.log.close()

    # -- long queues

    def page_out(self, message: Message) -> None:
        if message.position > self.durable and self._paged.add(message):
            self._paged_release.do_slice()

    def fetch(
        self, queue: i64, positions: list[int], expiring: bool = False
    ) -> list[Message | None]:
        reader = LogReader(self.log)
        return bounded(self._fetch(reader, queue, position, expiring) for position in positions)

    def _fetch(
        self, reader: LogReader, queue: i64, position: i64, expiring: bool
    ) -> Message | None:
        if position > self.durable:
            message = self._paged.find(position)
            if message is None and self._writing is not None:
                message = self._writing.paged.find(position)
            if message is not None:
                return message
        stored = self.read_stored(reader, position)
        if stored is None:
            return None
        return (
            stored.with_expiry(queue, self._decoder.clock) if expiring else stored.for_queue(queue)
        )

    def read_stored(self, reader: LogReader, position: i64) -> MessageStored | None:
        """Return the entry of the message at a position.

        If the message cannot be read, report the loss and return None. If only a file descriptor is
        missing, raise OutOfDescriptors: the message is not lost.
        """
        try:
            if reader.read(position):
                entry = self._decoder.entry(
                    reader.kind, position, reader.data, reader.start, reader.end
                )
                if isinstance(entry, MessageStored):
                    return entry
            reason = "the log has no message there"
        except OutOfDescriptors:
            raise
        except StoreError as error:
            reason = str(error)
        self._report(f"the message at log position {position} is lost: {reason}; {REMEDY}")
        return None

    def read_retained(self, reader: LogReader, position: i64) -> Message | None:
        """Return the retained message that the entry at a position set; None if it removed one.

        If the message cannot be read, report the loss and return None. If only a file descriptor is
        missing, raise OutOfDescriptors: the message is not lost.
        """
        try:
            if reader.read(position):
                entry = self._decoder.entry(
                    reader.kind, position, reader.data, reader.start, reader.end
                )
                if isinstance(entry, RetainedSet):
                    return entry.message
            reason = "the log has no retained message there"
        except OutOfDescriptors:
            raise
        except StoreError as error:
            reason = str(error)
        self._report(f"the retained message at log position {position} is lost: {reason}; {REMEDY}")
        return None

    def release(self, queue: i64, position: i64) -> None:
        if self._writing is None and not self.unbatched:
            self.log.settle(queue, position)
        else:
            # The deletion of the queue may not be durable yet: settle the message with the next
            # batch.
            write_i64_be(self._released, queue)
            write_i64_be(self._released, position)
