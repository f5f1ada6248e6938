"""The durable state: what a broker must know again after a crash. Changed by `apply` alone."""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import Message
from broker.store.contract import (
    Defined,
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


class Live:
    """A message and the numbers of the queues that still hold it. (A list: most messages have one
    queue, and a set costs 216 octets.)"""

    __slots__ = ("message", "queues", "vhost")

    def __init__(self, vhost: str, message: Message, queues: list[int]) -> None:
        self.vhost = vhost
        self.message = message
        self.queues = queues


class State:
    """A machine without clock, chance or ids of its own: equal entries make equal states."""

    def __init__(self) -> None:
        self.messages: dict[int, Live] = {}
        #: (queue, position) of messages whose reader has them, unsettled.
        self.stepped: set[tuple[int, int]] = set()
        #: Session -> packet identifiers held.
        self.received: dict[int, set[int]] = {}
        self.definitions: dict[tuple[str, str, str], dict[str, object]] = {}
        #: Where each was defined first: of a queue or session, its number.
        self.numbers: dict[tuple[str, str, str], int] = {}
        self.retained: dict[tuple[str, str], Message] = {}
        #: Stream -> the offset behind its last row.
        self.streams: dict[int, int] = {}
        #: (virtual host, producer) -> its last sequence number.
        self.sequences: dict[tuple[str, str], int] = {}
        #: Number of a thing -> the bindings and subscriptions that lead there or away from there.
        self._ways: dict[int, dict[tuple[str, str, str], None]] = {}

    def apply(self, position: i64, entry: StoreEntry) -> None:
        """Settling twice, or what is not there, changes nothing."""
        if isinstance(entry, MessageStored):
            self.messages[position] = Live(entry.vhost, entry.message, list(entry.queues))
        elif isinstance(entry, MessageSettled):
            live = self.messages.get(entry.position)
            if live is not None and entry.queue in live.queues:
                live.queues.remove(entry.queue)
                self.stepped.discard((entry.queue, entry.position))
                if not live.queues:
                    del self.messages[entry.position]
        elif isinstance(entry, PubrecReceived):
            live = self.messages.get(entry.position)
            if live is not None and entry.queue in live.queues:
                self.stepped.add((entry.queue, entry.position))
        elif isinstance(entry, PacketIdHeld):
            self.received.setdefault(entry.session, set()).add(entry.packet_id)
        elif isinstance(entry, PacketIdReleased):
            held = self.received.get(entry.session, set())
            held.discard(entry.packet_id)
            if not held:
                self.received.pop(entry.session, None)
        elif isinstance(entry, EntryGroup):
            for one in entry.entries:
                self.apply(position, one)
                position += 1
        elif isinstance(entry, Defined):
            key = entry.vhost, entry.kind, entry.name
            self.definitions[key] = entry.definition
            self.numbers.setdefault(key, position)
            for number in _ends(entry.definition):
                self._ways.setdefault(number, {})[key] = None
        elif isinstance(entry, Undefined):
            self._forget((entry.vhost, entry.kind, entry.name))
            for key in list(self._ways.get(entry.number, ())):
                self._forget(key)
            self.received.pop(entry.number, None)
            self.streams.pop(entry.number, None)
        elif isinstance(entry, RetainedSet):
            if entry.message is None:
                self.retained.pop((entry.vhost, entry.key), None)
            else:
                self.retained[entry.vhost, entry.key] = entry.message
        elif isinstance(entry, StreamExtended):
            self.streams[entry.stream] = entry.end
        elif isinstance(entry, Sequenced):
            if entry.sequence >= 0:
                self.sequences[entry.vhost, entry.producer] = entry.sequence
            else:
                self.sequences.pop((entry.vhost, entry.producer), None)
        else:
            raise AssertionError(f"unknown entry {entry!r}")

    def _forget(self, key: tuple[str, str, str]) -> None:
        self.numbers.pop(key, None)
        definition = self.definitions.pop(key, None)
        for number in () if definition is None else _ends(definition):
            ways = self._ways.get(number)
            if ways is not None:
                ways.pop(key, None)
                if not ways:
                    del self._ways[number]


def _ends(definition: dict[str, object]) -> list[int]:
    """From where to where a binding or a subscription leads, by number; nothing else has ends."""
    return [
        end
        for end in (definition.get("source"), definition.get("destination"))
        if isinstance(end, int)
    ]
