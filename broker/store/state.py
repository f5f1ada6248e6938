"""The durable state: the part of the broker's state that survives a crash.

Each entry of the store makes one change of the durable state.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message
from broker.store.entries import (
    Defined,
    DeliveryCounted,
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    Sequenced,
    StoreEntry,
    StreamExtended,
    Undefined,
)

#: Largest number of bindings and subscriptions of removed definitions that are removed at once.
LINKS_PER_SLICE: Final[i64] = 500


class StoredMessage:
    """A message and the numbers of the queues that still hold it.

    `queues` is a list, because most messages are in one queue and a set takes 216 bytes.
    """

    __slots__ = ("message", "queues", "vhost")

    def __init__(self, vhost: str, message: Message, queues: list[int]) -> None:
        self.vhost = vhost
        self.message = message
        self.queues = queues


class State:
    """The durable state: the result of all entries so far. Equal entries give equal states."""

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        #: (queue, position) of QoS 2 messages for which the subscriber has sent PUBREC, and not yet
        #: PUBCOMP.
        self.pubrec_received: set[tuple[int, int]] = set()
        #: Session -> packet identifiers of the QoS 2 messages that its client has published without
        #: a PUBREL so far.
        self.held_packet_ids: dict[int, set[int]] = {}
        #: (virtual host, kind, name) -> definition.
        self.definitions: dict[tuple[str, str, str], dict[str, object]] = {}
        #: (virtual host, kind, name) -> position of the first definition: a queue's number.
        self.numbers: dict[tuple[str, str, str], int] = {}
        #: (virtual host, topic) -> retained message.
        self.retained: dict[tuple[str, str], Message] = {}
        #: Stream -> its end: the offset of its next row.
        self.streams: dict[int, int] = {}
        #: (scope, producer) -> its last sequence number; see Sequenced.
        self.sequences: dict[tuple[str, str], int] = {}
        #: Queue -> rank -> its delivery mark. (queue, position) of a message -> its delivery count.
        self.marks: dict[int, dict[int, int]] = {}
        self.counts: dict[tuple[int, int], int] = {}
        #: Number of an exchange, queue or session -> keys of its bindings and subscriptions.
        self._links: dict[int, dict[tuple[str, str, str], None]] = {}
        #: The links of removed definitions that are still to be removed.
        self._removing: list[dict[tuple[str, str, str], None]] = []

    def apply(self, position: i64, entry: StoreEntry) -> None:
        """Apply an entry. The settlement of a settled or unknown message changes nothing."""
        if isinstance(entry, MessageStored):
            self.messages[position] = StoredMessage(entry.vhost, entry.message, list(entry.queues))
        elif isinstance(entry, MessageSettled):
            stored = self.messages.get(entry.position)
            if stored is not None and entry.queue in stored.queues:
                stored.queues.remove(entry.queue)
                self.pubrec_received.discard((entry.queue, entry.position))
                self.counts.pop((entry.queue, entry.position), None)
                if not stored.queues:
                    del self.messages[entry.position]
        elif isinstance(entry, PubrecReceived):
            stored = self.messages.get(entry.position)
            if stored is not None and entry.queue in stored.queues:
                self.pubrec_received.add((entry.queue, entry.position))
        elif isinstance(entry, PacketIdHeld):
            self.held_packet_ids.setdefault(entry.session, set()).add(entry.packet_id)
        elif isinstance(entry, PacketIdReleased):
            held = self.held_packet_ids.get(entry.session, set())
            held.discard(entry.packet_id)
            if not held:
                self.held_packet_ids.pop(entry.session, None)
        elif isinstance(entry, EntryGroup):
            for member in entry.entries:
                self.apply(position, member)
                position += 1
        elif isinstance(entry, Defined):
            key = entry.vhost, entry.kind, entry.name
            self.definitions[key] = entry.definition
            self.numbers.setdefault(key, position)
            for number in _link_ends(entry.definition):
                self._links.setdefault(number, {})[key] = None
        elif isinstance(entry, Undefined):
            self._remove((entry.vhost, entry.kind, entry.name))
            links = self._links.pop(int(entry.number), None)
            if links is not None:
                self._removing.append(links)
                self.remove_links()
            self.held_packet_ids.pop(entry.number, None)
            self.streams.pop(entry.number, None)
            self.marks.pop(entry.number, None)
        elif isinstance(entry, RetainedSet):
            if entry.message is None:
                self.retained.pop((entry.vhost, entry.key), None)
            else:
                self.retained[entry.vhost, entry.key] = entry.message
        elif isinstance(entry, DeliveryMark):
            self.marks.setdefault(entry.queue, {})[entry.rank] = entry.mark
        elif isinstance(entry, DeliveryCounted):
            stored = self.messages.get(entry.position)
            if stored is not None and entry.queue in stored.queues:
                self.counts[entry.queue, entry.position] = entry.count
        elif isinstance(entry, StreamExtended):
            self.streams[entry.stream] = entry.end
        elif isinstance(entry, Sequenced):
            if entry.sequence >= 0:
                self.sequences[entry.scope, entry.producer] = entry.sequence
            else:
                self.sequences.pop((entry.scope, entry.producer), None)
        else:
            raise AssertionError(f"unknown entry {entry!r}")

    def remove_links(self) -> bool:
        """Remove up to LINKS_PER_SLICE bindings and subscriptions of removed definitions.

        Return True if more must be removed. (A session may have 100,000 subscriptions.)
        """
        left: i64 = LINKS_PER_SLICE
        while self._removing:
            links = self._removing[-1]
            while links:
                if left == 0:
                    return True
                left -= 1
                self._remove(links.popitem()[0])
            self._removing.pop()
        return False

    def _remove(self, key: tuple[str, str, str]) -> None:
        self.numbers.pop(key, None)
        definition = self.definitions.pop(key, None)
        for number in () if definition is None else _link_ends(definition):
            links = self._links.get(number)
            if links is not None:
                links.pop(key, None)
                if not links:
                    del self._links[number]


def _link_ends(definition: dict[str, object]) -> list[int]:
    """Return the numbers of a binding's or subscription's source and destination.

    Return an empty list for other definitions.
    """
    return [
        end
        for end in (definition.get("source"), definition.get("destination"))
        if isinstance(end, int)
    ]
