"""A log with a model beside it: what tests of every kind do to logs."""

from __future__ import annotations

from random import Random

from broker.messages.message import PLAIN, Address, Message
from broker.store.checkpoint import Checkpointing
from broker.store.codecs import Codecs
from broker.store.contract import (
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    StoreEntry,
)
from broker.store.disk import Disk
from broker.store.layout import SERIALS
from broker.store.reading import Decoder
from broker.store.records import Recorder
from broker.store.recovery import Applying, Recovery
from broker.store.segments import SegmentLog
from broker.store.state import State

DIRECTORY = "/data/log"
QUEUES = (3, 4, 5)

#: Copies in order, those with their readers, identifiers held, retained messages.
Digest = tuple[
    tuple[tuple[int, bytes, tuple[int, ...]], ...],
    frozenset[tuple[int, int]],
    frozenset[tuple[int, int]],
    tuple[tuple[str, bytes], ...],
]


def digest(state: State) -> Digest:
    """All of a state, to compare."""
    return (
        tuple(
            (position, live.message.content, tuple(sorted(live.queues)))
            for position, live in sorted(state.messages.items())
        ),
        frozenset(state.stepped),
        frozenset(
            (session, held)
            for session, identifiers in state.received.items()
            for held in identifiers
        ),
        tuple(sorted((key, message.content) for (_, key), message in state.retained.items())),
    )


def message(content: bytes, key: str = "key", qos: int = 1) -> Message:
    return Message(Address("amq.topic", key), content, PLAIN, qos)


class Log:
    """A SegmentLog, what it should hold, and what recovery said."""

    def __init__(
        self, disk: Disk, segment_octets: int = 2_000, directory: str = DIRECTORY, salt: int = 7
    ) -> None:
        self.state = State()
        self.log = SegmentLog(disk, directory, segment_octets, salt)
        codecs = Codecs()
        self.recovery: Recovery = self.log.open(Applying(Decoder(codecs), self._recover))
        self.recovered = digest(self.state)
        self.position = self.recovery.next - 1
        self.recorder = Recorder(codecs, self.log.seed)
        self.published = 0

    def _recover(self, position: int, entry: StoreEntry) -> None:
        for one in entry.entries if isinstance(entry, EntryGroup) else [entry]:
            if isinstance(one, MessageStored) and one.serials is not None:
                assert one.serials == serials(one.message.content, one.queues), (
                    "each queue has its own serial"
                )
        self.state.apply(position, entry)

    def add(self, *entries: StoreEntry) -> int:
        """Give an entry its position, apply it, and encode it; returns the first position."""
        first = self.position + 1
        for entry in entries:
            position = self.position + 1
            self.state.apply(position, entry)
            self.recorder.add(position, entry)
            self.position += len(entry.entries) if isinstance(entry, EntryGroup) else 1
        return first

    def write(self) -> None:
        """Make what was added durable."""
        self.log.append(self.recorder.take())
        self.log.sync()

    def put(self, *entries: StoreEntry) -> int:
        """Add and write."""
        first = self.add(*entries)
        self.write()
        return first

    def checkpoint(self, files: int | None = None, exist: set[int] | None = None) -> None:
        """A checkpoint of the first sealed files."""
        chosen = self.log.sealed()[:files]
        Checkpointing(self.log, chosen, set(QUEUES) | {9} if exist is None else exist).run()


def serials(content: bytes, queues: list[int]) -> list[int]:
    """Those of a random message: they follow from it.

    Some are large, some are below 0, some are none.
    """
    number = int(content.split()[0])
    large = (0, 1, SERIALS - number)[number % 3]
    return [
        0 if queue == QUEUES[0] else (number + large) * (1 if queue == QUEUES[1] else -1)
        for queue in queues
    ]


def held(state: State) -> list[tuple[int, int]]:
    """(queue, position) of every copy."""
    return [(queue, position) for position, live in state.messages.items() for queue in live.queues]


def random_entry(random: Random, log: Log, nested: bool = False) -> StoreEntry:
    """Something that may happen next."""
    copies = held(log.state)
    choice = random.random()
    if copies and choice < 0.4:
        queue, position = random.choice(copies[:8])
        return MessageSettled(queue, position)
    if copies and choice < 0.47:
        return PubrecReceived(*random.choice(copies))
    if choice < 0.52:
        return PacketIdHeld(9, random.randrange(1, 5))
    if choice < 0.57:
        return PacketIdReleased(9, random.randrange(1, 5))
    if choice < 0.65:
        key = f"k{random.randrange(3)}"
        log.published += 1
        return RetainedSet(
            "/",
            key,
            message(b"retained %d" % log.published, key) if random.random() < 0.8 else None,
        )
    if choice < 0.75 and not nested:
        return EntryGroup([random_entry(random, log, True) for _ in range(random.randrange(1, 4))])
    log.published += 1
    queues = random.sample(QUEUES, random.choice((1, 1, 1, 2, 3)))
    content = b"%d " % log.published + b"x" * random.choice((0, 10, 100, 700))
    return MessageStored(
        "/", message(content), queues, serials(content, queues) if random.random() < 0.5 else None
    )


def read_all(disk: Disk, segment_octets: int = 2_000) -> Log:
    """The log as it is on the disk."""
    return Log(disk, segment_octets)
