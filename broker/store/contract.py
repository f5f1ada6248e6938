"""The store's contract: one order, one position, tickets for those who must wait.

    append(entry, ticket) --> position           applied at once, written with the batch
    take() --> Batch --> Batch.write()           the only step that may be slow: the server may run it in a thread
    written(batch) --> Ticket --> Waiter         those whose appends are all durable speak now

A ticket counts appends, it does not compare positions: one day a publication may touch several
logs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.messages.message import AT_LEAST_ONCE, Message
from broker.store.disk import Disk

#: Kinds of definitions that may hold messages: an exchange, while it delays them.
HOLDERS: Final = ("queue", "session", "exchange")
#: Messages that a durable queue keeps in memory, if nobody says otherwise.
WINDOW: Final = 4_096


class Waiter:
    """Somebody who may speak only after the store is durable."""

    def settled(self) -> None:
        """Tickets of yours are settled."""
        raise NotImplementedError


class SettledCallback(Waiter):
    """Calls somebody who is no part of the core."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def settled(self) -> None:
        self._tell()


@mypyc_attr(acyclic=True)
class Ticket:
    """Counts appends that are not durable yet, for one waiter."""

    __slots__ = ("outstanding", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.outstanding: i64 = 0


#: The beginning of 2020, from which seconds count in what the store notes of messages that live for
#: a time; and the last of them.
LAPSES_SINCE: Final = 1_577_836_800
LAPSES_MOST: Final = 2_000_000_000


@mypyc_attr(acyclic=True)
class StoreEntry:
    """A change of durable state, decided: it holds no clock, no chance and no question."""


@mypyc_attr(acyclic=True)
class MessageStored(StoreEntry):
    """A persistent message, once, with the numbers of the queues that hold it.

    `serials`, where there are any, says for each queue the how manieth message of it this is, or 0
    where nobody asks: a session's packet identifiers follow from that, so it has the same ones
    after a crash. Below 0: the queue takes the message, which travels exactly once, with less. Of a
    queue whose messages live for a time it says when this one's is over, in seconds since
    LAPSES_SINCE.
    """

    def __init__(
        self, vhost: str, message: Message, queues: list[int], serials: list[int] | None = None
    ) -> None:
        self.vhost = vhost
        self.message = message
        self.queues = queues
        self.serials = serials

    def lapses(self, queue: i64, clock: i64) -> Message:
        """The message as a queue takes it whose messages live for a time. `clock` is what the wall
        clock is ahead of the broker's, in ms."""
        message, serials = self.message, self.serials
        serial: i64 = (
            serials[self.queues.index(int(queue))]
            if serials is not None and queue in self.queues
            else 0
        )
        if serial <= 0:
            return message
        expires: i64 = max(1, (serial + LAPSES_SINCE) * 1_000 - clock)
        if 0 < message.expires <= expires:
            return message
        lapsing = message.copy(message.qos, message.retained)
        lapsing.position = message.position
        lapsing.expires = expires
        return lapsing

    def taken_by(self, queue: i64) -> Message:
        """The message as this queue takes it."""
        message, serials = self.message, self.serials
        if serials is not None and queue in self.queues and serials[self.queues.index(queue)] < 0:
            lowered = message.copy(AT_LEAST_ONCE, message.retained)
            lowered.position = message.position
            return lowered
        return message


@mypyc_attr(acyclic=True)
class MessageSettled(StoreEntry):
    """A queue needs the message at a position no more."""

    def __init__(self, queue: i64, position: i64) -> None:
        self.queue: i64 = queue
        self.position: i64 = position


@mypyc_attr(acyclic=True)
class PubrecReceived(StoreEntry):
    """The reader of a queue has the message at a position (its PUBREC came), and only its PUBCOMP
    is awaited.
    """

    def __init__(self, queue: i64, position: i64) -> None:
        self.queue: i64 = queue
        self.position: i64 = position


@mypyc_attr(acyclic=True)
class PacketIdHeld(StoreEntry):
    """A session's client used a packet identifier for a QoS 2 message: it is held until its PUBREL."""

    def __init__(self, session: i64, packet_id: i64) -> None:
        self.session: i64 = session
        self.packet_id: i64 = packet_id


@mypyc_attr(acyclic=True)
class PacketIdReleased(StoreEntry):
    """... and is let go."""

    def __init__(self, session: i64, packet_id: i64) -> None:
        self.session: i64 = session
        self.packet_id: i64 = packet_id


@mypyc_attr(acyclic=True)
class StreamExtended(StoreEntry):
    """A stream is written up to an offset, not including it: what stands behind that was promised
    to nobody.
    """

    def __init__(self, stream: i64, end: i64) -> None:
        self.stream: i64 = stream
        self.end: i64 = end


@mypyc_attr(acyclic=True)
class Sequenced(StoreEntry):
    """The last sequence number of a producer: what it publishes under this one, or a lower one, was
    published already. Below 0: nobody knows the producer any more."""

    def __init__(self, vhost: str, producer: str, sequence: i64) -> None:
        self.vhost = vhost
        self.producer = producer
        self.sequence: i64 = sequence


class EntryGroup(StoreEntry):
    """Several entries, all of them or none: a transaction, a dead letter with its settlement.

    They stand at consecutive positions: a settlement names a message by its position, so two
    messages cannot share one. None of them is a Many, a Defined or an Undefined.
    """

    def __init__(self, entries: list[StoreEntry]) -> None:
        self.entries = entries


class Defined(StoreEntry):
    """An exchange, queue, binding, session or subscription is declared. `name` is unique within its
    kind and vhost.

    The position of the entry is the number of the queue, or of the session's inbox: a queue
    declared anew has another.
    """

    def __init__(self, vhost: str, kind: str, name: str, definition: dict[str, object]) -> None:
        self.vhost = vhost
        self.kind = kind
        self.name = name
        self.definition = definition


class Undefined(StoreEntry):
    """... and is gone. `number` is that of what may have held messages."""

    def __init__(self, vhost: str, kind: str, name: str, number: i64 = 0) -> None:
        self.vhost = vhost
        self.kind = kind
        self.name = name
        self.number: i64 = number


class RetainedSet(StoreEntry):
    """The last message of a topic; None when it is forgotten."""

    def __init__(self, vhost: str, key: str, message: Message | None) -> None:
        self.vhost = vhost
        self.key = key
        self.message = message


class StreamWrite:
    """What a batch has for one stream."""

    def write(self) -> None:
        """Make it durable; again, after it raised WriteFailed. In the writer's thread."""
        raise NotImplementedError

    def settle(self) -> None:
        """It is durable, and the log says so. In the loop's thread."""
        raise NotImplementedError


class StreamIntake:
    """What the store knows of a stream that something was put into: it takes part in batches. `end`
    is the offset behind the last row, `number` the position of the entry that declared it."""

    def stream_number(self) -> i64:
        raise NotImplementedError

    def stream_end(self) -> i64:
        raise NotImplementedError

    def pending(self) -> i64:
        """Octets that wait to be written."""
        raise NotImplementedError

    def share(self) -> StreamWrite:
        """Hand over what was put since the last call."""
        raise NotImplementedError


class WriteBatch:
    """What was appended between two calls of `take`, and who waits for it."""

    def __init__(self, tickets: list[Ticket], last: i64) -> None:
        self.tickets = tickets
        #: The last position that was given before it was taken.
        self.last: i64 = last
        #: What it has for streams. These are written first: the log says how far they are.
        self.shares: list[StreamWrite] = []
        #: Files of streams that nobody needs any more.
        self.garbage: list[str] = []

    def write_streams(self) -> None:
        """The first step of `write`."""
        for share in self.shares:
            share.write()

    def write(self) -> None:
        """Make the batch durable. May block; touches nothing but the batch and file descriptors."""
        raise NotImplementedError


def _nobody() -> None:
    """Asks nobody: tests take and write themselves."""


class Store:
    """Appends in call order. Called from the core, synchronously, on one thread.

    Between `begin` and `commit` entries are gathered: they become durable all or none.
    """

    def __init__(self) -> None:
        self.position: i64 = 0
        #: Everything up to this position is durable.
        self.durable: i64 = 0
        #: Messages that a durable queue keeps in memory; of the others it knows the positions.
        self.window: i64 = WINDOW
        #: Called when the first entry of a batch comes, and again with the first ticket: somebody
        #: should `take` it.
        self.wanted: Callable[[], None] = _nobody
        #: Whether something was appended that no batch has, and whether somebody waits for that.
        self.waiting = False
        self.urgent = False
        #: Streams that something was put into since the last batch, and how far each was when the
        #: gathering began.
        self.streams: list[StreamIntake] = []
        #: Where they are kept: the store says on which disk, and whoever opens it in which
        #: directory.
        self.stream_disk: Disk = Disk()
        self.stream_root = "streams"
        #: Whether something is written of every publication, so that all publishers wait when too
        #: much waits for the disk.
        self.recording = False
        #: Durable offsets of streams that were there when the store was opened, by their numbers.
        self.stream_ends: dict[int, int] = {}
        #: Whether these are the last that there were: the log had no damage.
        self.stream_ends_sure = True
        #: The last sequence numbers of producers, then: (virtual host, producer) -> number.
        self.sequences: dict[tuple[str, str], int] = {}
        self.garbage: list[str] = []
        self._ends: dict[StreamIntake, int] = {}
        self._tickets: list[Ticket] = []
        self._gathered: list[StoreEntry] = []
        self._gathering: i64 = 0

    def append(self, entry: StoreEntry, ticket: Ticket | None) -> i64:
        """Give the entry its position (> 0, growing), apply it, and let the ticket wait for it.

        Returns the position.
        """
        position: i64 = self.position + 1
        self.position = position
        if self._gathering:
            assert not isinstance(entry, (Defined, Undefined)), "definitions are not gathered"
            self._gathered.append(entry)
        else:
            self.apply(position, entry)
        if ticket is not None:
            ticket.outstanding += 1
            self._tickets.append(ticket)
        if not self.urgent and (ticket is not None or not self.waiting):
            self.urgent = ticket is not None
            self.waiting = True
            self.wanted()
        return position

    def wait(self, position: i64, ticket: Ticket) -> None:
        """Let the ticket wait for what is at a position, if it is not durable yet."""
        if position > self.durable:
            ticket.outstanding += 1
            self._await(position, ticket)

    def _await(self, position: i64, ticket: Ticket) -> None:
        """Let the ticket wait for the batch in which the position is."""
        self._tickets.append(ticket)
        if not self.urgent:
            self.urgent = True
            self.wanted()

    def stirred(self, stream: StreamIntake) -> None:
        """Something was put into the stream, for the first time since the last batch."""
        self.streams.append(stream)
        if not self.waiting:
            self.waiting = True
            self.wanted()

    def join(self, ticket: Ticket) -> None:
        """Let the ticket wait for the batch that comes."""
        ticket.outstanding += 1
        self._await(self.position + 1, ticket)

    def wait_for_all(self, ticket: Ticket) -> None:
        """Let the ticket wait for what was appended so far: it found done what it was to do, and
        that may not be durable yet.
        """
        self.wait(self.position, ticket)

    def begin(self) -> None:
        """What is appended from now on belongs together, with what is put into streams.

        May be said again inside.
        """
        if self._gathering == 0 and self.streams:
            self._ends = {stream: int(stream.stream_end()) for stream in self.streams}
        self._gathering += 1

    def commit(self) -> None:
        """... up to here."""
        if self._gathering == 1:
            self._gather_streams()
        self._gathering -= 1
        if self._gathering == 0 and self._gathered:
            gathered, self._gathered = self._gathered, []
            self.apply(
                self.position - len(gathered) + 1,
                gathered[0] if len(gathered) == 1 else EntryGroup(gathered),
            )

    def _gather_streams(self) -> None:
        """The rows that were put meanwhile are there with the entries, or not at all."""
        ends, self._ends = self._ends, {}
        for stream in self.streams:
            end = stream.stream_end()
            if ends.get(stream) != end and self._gathered:
                self.append(StreamExtended(stream.stream_number(), end), None)

    def apply(self, position: i64, entry: StoreEntry) -> None:
        """Change the durable state: the only way, also in recovery."""
        raise NotImplementedError

    def take(self) -> WriteBatch:
        """What was appended since the last call."""
        assert self._gathering == 0, "a batch was taken in the middle of what belongs together"
        for stream in self.streams:
            self.append(StreamExtended(stream.stream_number(), stream.stream_end()), None)
        self.waiting = self.urgent = False
        tickets, self._tickets = self._tickets, []
        batch = self.batch(tickets)
        streams, self.streams = self.streams, []
        batch.shares = [stream.share() for stream in streams]
        batch.garbage, self.garbage = self.garbage, []
        return batch

    def discard(self, paths: list[str]) -> None:
        """Remove these files of streams with the next batch."""
        self.garbage += paths
        if paths and not self.waiting:
            self.waiting = True
            self.wanted()

    def batch(self, tickets: list[Ticket]) -> WriteBatch:
        """The batch that these tickets wait for."""
        raise NotImplementedError

    def written(self, batch: WriteBatch) -> None:
        """The batch is durable: settle its tickets, then tell every waiter once."""
        self.durable = batch.last
        for share in batch.shares:
            share.settle()
        ready: dict[Waiter, None] = {}
        for ticket in batch.tickets:
            ticket.outstanding -= 1
            if ticket.outstanding == 0:
                ready[ticket.waiter] = None
        for waiter in ready:
            waiter.settled()

    def sync(self) -> None:
        """Take, write and settle at once: for stores that need not wait, and for tests."""
        batch = self.take()
        batch.write()
        self.written(batch)

    # -- long queues

    def page(self, message: Message) -> None:
        """A queue forgets a message that is kept here, and will `fetch` it by its position."""
        raise NotImplementedError

    def fetch(
        self, queue: i64, positions: list[int], lapsing: bool = False
    ) -> list[Message | None]:
        """Messages that are kept here, as this queue took them; None for one that cannot be read,
        which is reported. `lapsing` is whether what was noted of each says when it expires."""
        raise NotImplementedError

    def abandon(self, queue: i64, position: i64) -> None:
        """A queue that is deleted held the message at this position.

        Nobody waits for that: it is dead with its queue.
        """
        raise NotImplementedError
