"""The contract between the broker and its store: how a message is made durable.

    1. position = store.append(entry, ticket)   in memory, at once: apply the entry, and let the
                                                ticket count one append that is not durable yet
    2. batch = store.take()                     in the event loop: all that was appended so far
    3. batch.write()                            write and sync the files; may block, so the server
                                                calls it in a thread (DurableBatch.write)
    4. store.written(batch)                     in the event loop: settle the tickets of the batch;
                                                Waiter.settled then sends PUBACK, basic.ack, ...

A message is durable when step 3 has returned. Its publisher gets the confirm in step 4, never
before. The store calls `request_batch` when entries wait for a batch. `sync` does steps 2 to 4 at
once, for the memory store and for tests.

Entries are ordered: `append` gives each entry the next position, and batches are written in that
order. A ticket counts appends instead of remembering one position, so that a reply can wait for any
number of appends, even to several logs. `begin` and `commit` enclose a group of entries of which a
crash leaves all or none.

DurableStore (durable.py) writes to disk. MemoryStore (memory.py) keeps the state in memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.agenda import Agenda
from broker.messages.message import Message
from broker.store.audit import AuditTrail
from broker.store.disk import Disk
from broker.store.entries import (
    Defined,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PubrecReceived,
    StoreEntry,
    StreamExtended,
    Undefined,
)
from broker.store.stream_contract import StreamGarbage, StreamIntake, StreamWrite

#: Default number of messages that a durable queue keeps in memory.
WINDOW: Final = 4_096
#: Largest number of messages that wait below the delivery mark of their queue although they were
#: never delivered.
WAITING_MARKED: Final = 1_024
#: Number of positions by which the delivery mark of a queue is ahead of the store while no message
#: waits.
MARK_SPAN: Final = 1 << 18
#: Longest time that a message waits for the delivery mark of its queue to become durable, in ms. If
#: the disk syncs faster, no message waits so long.
MARK_PATIENCE: Final = 100
#: Total size of contents, in bytes, at which `Store.fetch` reads no further messages.
FETCH_BYTES: Final[i64] = 256 << 10


def bounded(messages: Iterator[Message | None]) -> list[Message | None]:
    """Return the first messages, until their contents together have at least FETCH_BYTES bytes.

    Return all messages if their contents are smaller.
    """
    fetched: list[Message | None] = []
    size: i64 = 0
    for message in messages:
        fetched.append(message)
        if message is not None:
            size += len(message.content)
            if size >= FETCH_BYTES:
                return fetched
    return fetched


class Waiter:
    """A sender of replies that must wait until entries of the store are durable."""

    def settled(self) -> None:
        """Send the replies whose tickets are settled.

        The store calls this method when at least one ticket of this waiter has been settled.
        """
        raise NotImplementedError


class SettledCallback(Waiter):
    """A waiter that calls a function when a ticket is settled, for code outside the core."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def settled(self) -> None:
        self._tell()


@mypyc_attr(acyclic=True)
class Ticket:
    """A counter for one reply, such as a publisher confirm, that must wait for durable entries.

    `outstanding` is the number of appends to the store that are not durable yet. At 0 the ticket is
    settled, and the store calls `waiter.settled`, which sends the reply.
    """

    __slots__ = ("outstanding", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.outstanding: i64 = 0


class WriteBatch:
    """The entries appended between two calls of `Store.take`, and the tickets that wait."""

    def __init__(self, tickets: list[Ticket], last: i64) -> None:
        self.tickets = tickets
        #: The position of the last entry in this batch, or before this batch if it has no entry.
        self.last: i64 = last
        #: Rows of streams. They are written before the log, which records the ends of the streams.
        self.stream_writes: list[StreamWrite] = []
        #: Files of streams to remove, because retention dropped them or their stream is deleted.
        self.garbage: list[StreamGarbage] = []

    def write_streams(self) -> None:
        """Make the rows of streams durable: the first step of `write`."""
        for share in self.stream_writes:
            share.write()

    @property
    def size(self) -> int:
        """The approximate size of the batch in memory, in bytes."""
        return 0

    def write(self) -> None:
        """Make the batch durable.

        May block, so the server calls it in a thread. Uses only the batch and its open files.
        """
        raise NotImplementedError


def _ignore_request() -> None:
    """Ignore the request for a batch, in tests that call `take` or `sync` themselves."""


class Store:
    """The base of the stores: the order of entries, groups, tickets and batches.

    All methods run in the event loop's thread and return at once; only WriteBatch.write may block.
    """

    def __init__(self) -> None:
        #: The deferred work of the broker that this store belongs to.
        self.agenda = Agenda()
        #: The position of the last entry.
        self.position: i64 = 0
        #: All entries up to this position are durable.
        self.durable: i64 = 0
        #: Number of the batch that the next entry joins.
        self.batch_number: i64 = 0
        #: Number of messages that a durable queue keeps in memory. Of further messages the queue
        #: keeps only the positions.
        self.window: i64 = WINDOW
        #: True if the store records which messages were delivered (DeliveryMark, DeliveryCounted).
        self.keeps_deliveries = False
        self.waiting_marked: i64 = WAITING_MARKED
        self.mark_span: i64 = MARK_SPAN
        self.mark_patience: i64 = MARK_PATIENCE
        #: Number of messages that were delivered although the delivery mark that covers them was
        #: not durable, because the disk was too slow or full.
        self.unmarked_deliveries: i64 = 0
        #: Called for the first entry of a batch, and again for the first ticket of the batch, so
        #: that the server calls `take`.
        self.request_batch: Callable[[], None] = _ignore_request
        #: True if entries or rows wait for the next batch.
        self.unbatched = False
        #: True if a ticket waits for the next batch.
        self.urgent = False
        #: Streams that got rows since the last batch.
        self.streams: list[StreamIntake] = []
        #: The audit trail of changed definitions; None if there is none.
        self.audit: AuditTrail | None = None
        #: Number of bytes that each waiting row of a stream adds to the size of the next batch,
        #: besides its content. Nodes of a cluster hold all encoded rows of a batch in memory.
        self.row_overhead: i64 = 0
        #: The disk and the directory of the files of streams.
        self.stream_disk: Disk = Disk()
        self.stream_root = "streams"
        #: True if there is a journal (a stream that records every publication of its virtual host).
        #: Then all publishers are throttled while the disk cannot keep up, not only the publishers
        #: of persistent messages.
        self.journaling = False
        self._journals: i64 = 0
        #: The durable ends of the streams at the start of the broker: stream number -> offset.
        self.stream_ends: dict[int, int] = {}
        #: True if `stream_ends` has the last ends that were written, False if the log was damaged.
        self.stream_ends_exact = True
        #: The last sequence numbers of producers at the start of the broker, for deduplication:
        #: (scope, producer) -> number; see Sequenced. The dict has the order in which they were
        #: stored.
        self.sequences: dict[tuple[str, str], int] = {}
        #: Files of streams to remove with the next batch.
        self.garbage: list[StreamGarbage] = []
        #: The ends of `streams` when the current group began.
        self._ends_before_group: dict[StreamIntake, int] = {}
        #: Tickets of the next batch.
        self._tickets: list[Ticket] = []
        #: Entries of the current group, and the number of calls of `begin` that no `commit` has
        #: ended.
        self._group: list[StoreEntry] = []
        self._group_depth: i64 = 0

    def count_journals(self, added: i64) -> None:
        """Change the number of journals by `added`, which is negative for deleted journals."""
        self._journals += added
        self.journaling = self._journals > 0

    def append(self, entry: StoreEntry, ticket: Ticket | None) -> i64:
        """Apply an entry, and make the ticket wait until the entry is durable.

        Return the position of the entry. Positions start at 1 and grow by 1.
        """
        position: i64 = self.position + 1
        self.position = position
        if self._group_depth:
            assert not isinstance(entry, (Defined, Undefined)), "a definition cannot join a group"
            self._group.append(entry)
        else:
            self.apply(position, entry)
        self._announce(ticket)
        return position

    def define(
        self,
        entry: Defined | Undefined,
        ticket: Ticket | None,
        shown: Mapping[str, object] | None = None,
    ) -> i64:
        """Append the change of a definition, as `append` does, and record it in the audit trail.

        Return the position of the entry.

        `shown` has the fields to record instead of the stored fields; see `AuditTrail.changed`.
        """
        if self.audit is not None:
            self.audit.changed(entry, shown)
        return self.append(entry, ticket)

    def append_message(
        self,
        vhost: str,
        message: Message,
        queues: list[int],
        annotations: list[int] | None,
        ticket: Ticket | None,
    ) -> i64:
        """Append a `MessageStored` of these values. Return its position. Hot path."""
        return self.append(MessageStored(vhost, message, queues, annotations), ticket)

    def prepare(self, entry: MessageStored) -> None:
        """Encode an entry in advance, if possible, before it is appended to a group.

        A large group is applied in one turn of the event loop. Prepared entries shorten this turn.
        """

    def append_settled(self, queue: i64, position: i64) -> None:
        """Append a `MessageSettled`: `queue` has settled the message at `position`. Hot path.

        No ticket waits for the entry.
        """
        self.append(MessageSettled(queue, position), None)

    def append_pubrec(self, queue: i64, position: i64, ticket: Ticket | None) -> i64:
        """Append a `PubrecReceived` of these values. Return the position of the entry. Hot path."""
        return self.append(PubrecReceived(queue, position), ticket)

    def _announce(self, ticket: Ticket | None) -> None:
        """Make the ticket, if any, wait for the next batch, and request this batch if needed.

        A ticket that waits for several consecutive entries of one batch counts only one append.
        """
        if ticket is not None:
            tickets = self._tickets
            if not tickets or tickets[-1] is not ticket:
                ticket.outstanding += 1
                tickets.append(ticket)
            if self.urgent:
                return
            self.urgent = True
        elif self.unbatched:
            return
        self.unbatched = True
        self.request_batch()

    def wait_for(self, position: i64, ticket: Ticket) -> None:
        """Make the ticket wait for the entry at a position, unless the entry is already durable."""
        if position > self.durable:
            ticket.outstanding += 1
            self._add_ticket(position, ticket)

    def _add_ticket(self, position: i64, ticket: Ticket) -> None:
        """Make the ticket wait for the batch that holds the entry at a position."""
        self._tickets.append(ticket)
        if not self.urgent:
            self.urgent = True
            self.request_batch()

    def add_stream(self, stream: StreamIntake) -> None:
        """Include the rows of a stream in the next batch."""
        self.streams.append(stream)
        if not self.unbatched:
            self.unbatched = True
            self.request_batch()

    def wait_for_next_batch(self, ticket: Ticket) -> None:
        """Make the ticket wait until the next batch is durable."""
        ticket.outstanding += 1
        self._add_ticket(self.position + 1, ticket)

    def wait_for_all(self, ticket: Ticket) -> None:
        """Make the ticket wait until all entries appended so far are durable.

        Called for a request that changes nothing, such as the declaration of an existing queue: the
        queue's first declaration may not be durable yet.
        """
        self.wait_for(self.position, ticket)

    def reply_when_all_durable(self, ticket: Ticket | None) -> None:
        """Make the ticket, if there is one, wait until all entries so far are durable."""
        if ticket is not None:
            self.wait_for_all(ticket)

    def begin(self) -> None:
        """Begin a group: after a crash, the store has all its entries and rows, or none. Groups
        nest.
        """
        if self._group_depth == 0 and self.streams:
            self._ends_before_group = {stream: int(stream.stream_end()) for stream in self.streams}
        self._group_depth += 1

    def commit(self) -> None:
        """End the group that the last `begin` began. The outermost `commit` applies the group's
        entries.
        """
        if self._group_depth == 1:
            self._gather_streams()
        self._group_depth -= 1
        if self._group_depth == 0 and self._group:
            gathered, self._group = self._group, []
            self.apply(
                self.position - len(gathered) + 1,
                gathered[0] if len(gathered) == 1 else EntryGroup(gathered),
            )

    def _gather_streams(self) -> None:
        """Add to the group of entries the end offset of each stream that the group extends.

        So after a crash, the store has all rows and entries of the group, or none.
        """
        ends, self._ends_before_group = self._ends_before_group, {}
        for stream in self.streams:
            end = stream.stream_end()
            if ends.get(stream) != end and self._group:
                self.append(StreamExtended(stream.stream_number(), end), None)

    def apply(self, position: i64, entry: StoreEntry) -> None:
        """Apply an entry to the state that the next batch makes durable."""
        raise NotImplementedError

    def take(self) -> WriteBatch:
        """Return a batch of all entries and rows since the last call."""
        assert self._group_depth == 0, "a batch was taken while a group of entries was open"
        for stream in self.streams:
            self.append(StreamExtended(stream.stream_number(), stream.stream_end()), None)
        self.unbatched = self.urgent = False
        self.batch_number += 1
        tickets, self._tickets = self._tickets, []
        batch = self.batch(tickets)
        streams, self.streams = self.streams, []
        batch.stream_writes = [stream.take_write() for stream in streams]
        batch.garbage, self.garbage = self.garbage, []
        return batch

    def discard(self, garbage: StreamGarbage) -> None:
        """Schedule files of a stream for removal with the next batch."""
        self.garbage.append(garbage)
        if not self.unbatched:
            self.unbatched = True
            self.request_batch()

    def batch(self, tickets: list[Ticket]) -> WriteBatch:
        """Return a new batch of the entries since the last batch, for which these tickets wait."""
        raise NotImplementedError

    def written(self, batch: WriteBatch) -> None:
        """Settle the tickets of a durable batch, and call each of their waiters once.

        If a waiter raises an exception, it is raised again after all waiters were called.
        """
        self.durable = batch.last
        for share in batch.stream_writes:
            share.settle()
        ready: dict[Waiter, None] = {}
        for ticket in batch.tickets:
            ticket.outstanding -= 1
            if ticket.outstanding == 0:
                ready[ticket.waiter] = None
        failure: Exception | None = None
        for waiter in ready:
            try:
                waiter.settled()
            except Exception as error:  # noqa: BLE001  the other clients must get their replies
                failure = error
        if failure is not None:
            raise failure

    def sync(self) -> None:
        """Take a batch, write it and settle its tickets: for the memory store and for tests."""
        batch = self.take()
        batch.write()
        self.written(batch)

    # -- long queues

    def page_out(self, message: Message) -> None:
        """Take over a stored message from a queue, which keeps only the message's position.

        The queue reads the message back with `fetch`.
        """
        raise NotImplementedError

    def fetch(
        self, queue: i64, positions: list[int], expiring: bool = False
    ) -> list[Message | None]:
        """Return the stored messages at these positions, as the queue with this number holds them.

        The result is shorter than `positions` if the contents exceed FETCH_BYTES (see `bounded`). A
        message that cannot be read is reported, and is None in the result. `expiring` is True if
        the annotations of the queue are expiry times.
        """
        raise NotImplementedError

    def release(self, queue: i64, position: i64) -> None:
        """Release the message at a position for a queue that is deleted, without writing a record.

        No record is needed, because the durable deletion of the queue includes its messages.
        """
        raise NotImplementedError
