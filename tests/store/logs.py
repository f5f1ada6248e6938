"""A segment log with a model of its contents, for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from broker.messages.message import PLAIN, Address, Message
from broker.store.checkpoint import Checkpointing
from broker.store.codecs import Codecs
from broker.store.disk import Disk
from broker.store.entries import (
    DeliveryCounted,
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    StoreEntry,
)
from broker.store.files import LogFile
from broker.store.layout import ANNOTATION_MODULUS
from broker.store.reading import Decoder
from broker.store.records import Recorder
from broker.store.replay import Recovery, Replay
from broker.store.segments import SegmentLog
from broker.store.state import State
from broker.store.survivors import Survivors

DIRECTORY = "/data/log"
QUEUES = (3, 4, 5)

#: The comparable form of a state: messages in order of position, (queue, position) of messages with
#: a PUBREC, (session, packet identifier) of held identifiers, retained messages, delivery marks,
#: delivery counts.
Digest = tuple[
    tuple[tuple[int, bytes, tuple[int, ...]], ...],
    frozenset[tuple[int, int]],
    frozenset[tuple[int, int]],
    tuple[tuple[str, bytes], ...],
    frozenset[tuple[int, int, int]],
    frozenset[tuple[tuple[int, int], int]],
]


def digest(state: State) -> Digest:
    """Return everything in a state, in a form that can be compared."""
    return (
        tuple(
            (position, live.message.content, tuple(sorted(live.queues)))
            for position, live in sorted(state.messages.items())
        ),
        frozenset(state.pubrec_received),
        frozenset(
            (session, held)
            for session, identifiers in state.held_packet_ids.items()
            for held in identifiers
        ),
        tuple(sorted((key, message.content) for (_, key), message in state.retained.items())),
        frozenset(
            (queue, rank, mark)
            for queue, ranks in state.marks.items()
            for rank, mark in ranks.items()
        ),
        frozenset(state.counts.items()),
    )


def message(content: bytes, key: str = "key", qos: int = 1) -> Message:
    return Message(Address("amq.topic", key), content, PLAIN, qos)


class EntryReplay(Replay):
    """A replay that decodes each record and passes its entry to a function."""

    def __init__(
        self,
        decoder: Decoder,
        apply: Callable[[int, StoreEntry], None],
        survivors: Survivors | None = None,
    ) -> None:
        self._decoder = decoder
        self._apply = apply
        self._survivors = survivors

    def file(self, files: list[LogFile]) -> None:
        if self._survivors is not None:
            self._survivors.file(files)

    def record(self, kind: int, position: int, data: bytes, start: int, end: int) -> None:
        if self._survivors is not None:
            self._survivors.record(kind, position, data, start, end)
        self._apply(position, self._decoder.entry(kind, position, data, start, end))


class Log:
    """A SegmentLog, a model of its expected content, and the report of its recovery."""

    def __init__(
        self, disk: Disk, segment_size: int = 2_000, directory: str = DIRECTORY, salt: int = 7
    ) -> None:
        self.state = State()
        self.log = SegmentLog(disk, directory, segment_size, salt)
        codecs = Codecs()
        survivors = Survivors({*QUEUES, 9})
        self.recovery: Recovery = self.log.open(
            EntryReplay(Decoder(codecs), self._recover, survivors)
        )
        survivors.count_live(self.log)
        self._retained = dict(survivors.retained)
        self.recovered = digest(self.state)
        self.position = self.recovery.next - 1
        self.recorder = Recorder(codecs, self.log.seed)
        self.published = 0

    def _recover(self, position: int, entry: StoreEntry) -> None:
        for member in entry.entries if isinstance(entry, EntryGroup) else [entry]:
            if isinstance(member, MessageStored) and member.annotations is not None:
                assert member.annotations == annotations_of(
                    member.message.content, member.queues
                ), "each queue has its own annotation"
        self.state.apply(position, entry)

    def add(self, *entries: StoreEntry) -> int:
        """Add entries to the model and encode them as a DurableStore does.

        Return the position of the first entry.
        """
        first = self.position + 1
        for entry in entries:
            position = self.position + 1
            members = entry.entries if isinstance(entry, EntryGroup) else [entry]
            for at, member in enumerate(members):
                if isinstance(member, RetainedSet):
                    member.previous = self._retained.pop((member.vhost, member.key), 0)
                    if member.message is not None:
                        self._retained[member.vhost, member.key] = position + at
            self.state.apply(position, entry)
            if isinstance(entry, MessageSettled):
                self.recorder.add_settled(position, entry.queue, entry.position)
            elif isinstance(entry, PubrecReceived):
                self.recorder.add_pubrec(position, entry.queue, entry.position)
            else:
                self.recorder.add(position, entry)
            self.position += len(entry.entries) if isinstance(entry, EntryGroup) else 1
        return first

    def write(self) -> None:
        """Write the added entries to the log, and sync the log."""
        self.log.append(self.recorder.take())
        self.log.sync()

    def put(self, *entries: StoreEntry) -> int:
        """Add entries and write them to the log; return the position of the first one."""
        first = self.add(*entries)
        self.write()
        return first

    def checkpoint(self, files: int | None = None, holder_numbers: set[int] | None = None) -> None:
        """Make a checkpoint of the first `files` sealed (full) files of the log.

        If `files` is None, make a checkpoint of all of them. `holder_numbers` are the numbers of
        the existing queues and sessions; None means all in the tests.
        """
        chosen = self.log.sealed()[:files]
        Checkpointing(
            self.log, chosen, set(QUEUES) | {9} if holder_numbers is None else holder_numbers
        ).run()


def annotations_of(content: bytes, queues: list[int]) -> list[int]:
    """Return one annotation (a number stored with the message) for each of these queues.

    The annotations follow from the message's content. Some are large, negative or 0.
    """
    number = int(content.split()[0])
    large = (0, 1, ANNOTATION_MODULUS - number)[number % 3]
    return [
        0 if queue == QUEUES[0] else (number + large) * (1 if queue == QUEUES[1] else -1)
        for queue in queues
    ]


def held(state: State) -> list[tuple[int, int]]:
    """Return (queue, position) of every message in every queue."""
    return [(queue, position) for position, live in state.messages.items() for queue in live.queues]


def random_entry(random: Random, log: Log, nested: bool = False) -> StoreEntry:
    """Return a random entry that may follow in the log; if `nested`, no group of entries."""
    copies = held(log.state)
    choice = random.random()
    if copies and choice < 0.4:
        queue, position = random.choice(copies[:8])
        return MessageSettled(queue, position)
    if copies and choice < 0.47:
        return PubrecReceived(*random.choice(copies))
    if copies and choice < 0.485:
        return DeliveryCounted(*random.choice(copies), random.randrange(4))
    if choice < 0.5:
        return DeliveryMark(random.choice(QUEUES), random.randrange(2), random.randrange(200))
    if choice < 0.53:
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
        "/",
        message(content),
        queues,
        annotations_of(content, queues) if random.random() < 0.5 else None,
    )


def read_all(disk: Disk, segment_size: int = 2_000) -> Log:
    """Recover a log from the present content of the disk, and return it."""
    return Log(disk, segment_size)
