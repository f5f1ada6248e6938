"""A model of the store: the state that all appended entries make, and a start must recover."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from mypy_extensions import i64

from broker.messages.message import Message
from broker.store.contract import Ticket, WriteBatch
from broker.store.durable import DurableStore
from broker.store.entries import (
    Defined,
    MessageSettled,
    MessageStored,
    PubrecReceived,
    StoreEntry,
    Undefined,
)
from broker.store.opening import OpenedStore
from broker.store.state import State
from broker.stream.queue import PendingRows
from tests.store.simulation.ledger import DISK, Complain


class Journal:
    """The entries that the broker appends to the log, and the state that they make.

    `entries` has the entries since the last start of the broker. Entries up to the position
    `durable` are certainly on the disk. Later entries, up to the position `begun`, may be there.
    """

    def __init__(self, complain: Complain) -> None:
        self._complain = complain
        self.state = State()
        self.entries: list[tuple[int, StoreEntry]] = []
        #: The last position of the written batches.
        self.durable = 0
        #: The last position of the batches whose writing began.
        self.begun = 0
        #: Called with the rows that a batch takes from a stream.
        self.taken: Callable[[PendingRows], None] = lambda intake: None
        #: Called after a start, with the end of each stream.
        self.extended: Callable[[dict[int, int]], None] = lambda ends: None

    def recovered(self, opened: OpenedStore) -> None:
        """Report the differences between an opened store and the model."""
        last = int(opened.recovery.last)
        lost = [
            position
            for position, entry in self.entries
            if last < position <= self.durable and _logged(entry)
        ]
        early = [
            position
            for position, entry in self.entries
            if self.begun < position <= last and _logged(entry)
        ]
        if lost or early:
            self._complain(
                DISK,
                f"the log goes to {last}; {self.durable} was durable, {self.begun} was begun:"
                f" {lost} {early}",
            )
        for position, entry in self.entries:
            if position <= last and _logged(entry):
                self.state.apply(position, entry)
        self.entries.clear()
        self._compare(opened)
        self.durable = self.begun = int(opened.store.position)

    def _compare(self, opened: OpenedStore) -> None:
        survivors, state, store = opened.survivors, self.state, opened.store
        exist = survivors.holder_numbers
        for position, live in list(state.messages.items()):
            live.queues = [queue for queue in live.queues if queue in exist]
            if not live.queues:
                del state.messages[position]
        wanted: dict[int, array[int]] = {}
        for position, live in sorted(state.messages.items()):
            for queue in live.queues:
                wanted.setdefault(queue, array("q")).append(position)
        copies = survivors.copies.by_queue()
        if copies != wanted:
            self._complain(DISK, f"queues hold {copies}, and should hold {wanted}")
        state.pubrec_received = {
            (queue, position)
            for queue, position in state.pubrec_received
            if position in state.messages and queue in state.messages[position].queues
        }
        stepped = {
            (queue, position)
            for queue, position in survivors.pubrec_received
            if survivors.copies.is_held(queue, position)
        }
        if stepped != state.pubrec_received:
            self._complain(
                DISK, f"{stepped} have their readers, and it should be {state.pubrec_received}"
            )
        state.held_packet_ids = {
            session: held for session, held in state.held_packet_ids.items() if session in exist
        }
        received = {
            session: set(held) for session, held in survivors.held_packet_ids.items() if held
        }
        if received != state.held_packet_ids:
            self._complain(
                DISK, f"identifiers {received} are held, and should be {state.held_packet_ids}"
            )
        state.streams = {stream: end for stream, end in state.streams.items() if stream in exist}
        if store.stream_ends != state.streams:
            self._complain(
                DISK, f"streams go to {store.stream_ends}, and should to {state.streams}"
            )
        if store.sequences != state.sequences:
            self._complain(
                DISK, f"producers are at {store.sequences}, and should be at {state.sequences}"
            )
        state.marks = {queue: marks for queue, marks in state.marks.items() if queue in exist}
        marks = {queue: known for queue in survivors.marks if (known := survivors.marks_of(queue))}
        if marks != state.marks:
            self._complain(DISK, f"marks are {marks}, and should be {state.marks}")
        state.counts = {
            (queue, position): count
            for (queue, position), count in state.counts.items()
            if position in state.messages and queue in state.messages[position].queues
        }
        counts = {
            copy: count
            for copy, (count, _) in survivors.counts.items()
            if survivors.copies.is_held(*copy)
        }
        if counts != state.counts:
            self._complain(DISK, f"delivery counts are {counts}, and should be {state.counts}")
        self.extended(dict(state.streams))
        if survivors.retained.keys() != state.retained.keys():
            self._complain(
                DISK,
                f"{sorted(survivors.retained)} are retained, and should be"
                f" {sorted(state.retained)}",
            )
        self._compare_contents(
            store, sorted({position for held in copies.values() for position in held})
        )

    def _compare_contents(self, store: DurableStore, positions: list[int]) -> None:
        for position, message in zip(positions, store.fetch(0, positions), strict=True):
            live = self.state.messages.get(position)
            if live is not None and (message is None or _seen(message) != _seen(live.message)):
                self._complain(DISK, f"the message at {position} is not what it was")


class WatchedStore(DurableStore):
    """A durable store that reports every entry to the journal."""

    journal: Journal

    def take(self) -> WriteBatch:
        for stream in self.streams:
            assert isinstance(stream, PendingRows)
            self.journal.taken(stream)
        return super().take()

    def apply(self, position: i64, entry: StoreEntry) -> None:
        self.journal.entries.append((position, entry))
        super().apply(position, entry)

    def append_message(
        self,
        vhost: str,
        message: Message,
        queues: list[int],
        serials: list[int] | None,
        ticket: Ticket | None,
    ) -> int:
        position = super().append_message(vhost, message, queues, serials, ticket)
        if not self._group_depth:
            stored = MessageStored(vhost, message, queues, serials)
            self.journal.entries.append((position, stored))
        return position

    def append_settled(self, queue: int, position: int) -> None:
        super().append_settled(queue, position)
        if not self._group_depth:
            settled = MessageSettled(queue, position)
            self.journal.entries.append((self.position, settled))

    def append_pubrec(self, queue: int, position: int, ticket: Ticket | None) -> int:
        appended = super().append_pubrec(queue, position, ticket)
        if not self._group_depth:
            self.journal.entries.append((appended, PubrecReceived(queue, position)))
        return appended


def watched(opened: OpenedStore, journal: Journal, kind: type[WatchedStore]) -> WatchedStore:
    """Return an opened store whose entries are reported to a journal."""
    plain = opened.store
    store = kind(
        plain.log,
        plain.catalog,
        plain._recorder._codecs,
        plain.position,
        plain.holder_numbers,
        plain._report,
    )
    store.journal = journal
    store.stream_ends, store.stream_ends_exact, store.sequences = (
        plain.stream_ends,
        plain.stream_ends_exact,
        plain.sequences,
    )
    store.restore_marks(
        {queue: opened.survivors.marks_of(queue) for queue in opened.survivors.marks}
    )
    opened.store = store
    return store


def _logged(entry: StoreEntry) -> bool:
    return not isinstance(entry, (Defined, Undefined))


def _seen(message: Message) -> tuple[object, ...]:
    return (
        message.body,
        message.address.exchange,
        message.address.key,
        message.qos,
        message.retained,
    )
