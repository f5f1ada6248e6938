"""A simulated broker of a cluster.

It is a standby, or the owner of the replicated log (the active node) with its queues and clients.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from broker.replication.contract import (
    Apply,
    Fenced,
    LogTrimmed,
    ReceivedBatch,
    ReplicaFull,
    Sleep,
    Steps,
)
from broker.replication.follower import Follower
from broker.replication.formats import FORMATS
from broker.replication.owner import LogOwner
from broker.replication.standby import Standby
from tests.replication.simulation.directory import Directory, Entry, encode_entries
from tests.replication.simulation.world import Computer, World

if TYPE_CHECKING:
    from tests.replication.simulation.cluster import Cluster

#: Size of a chunk in bytes: small, so that many batches have several chunks.
CHUNK = 120
#: Seconds between two marks.
MARK_SECONDS = 0.5


class Node(Computer):
    """A simulated node of the cluster: a standby, or the owner of the log (the active node)."""

    directory_type: type[Directory] = Directory
    follower_type: type[Follower] = Follower
    standby_type: type[Standby] = Standby

    def __init__(self, world: World, name: str, cluster: Cluster) -> None:
        super().__init__(world, name)
        self.cluster = cluster
        self.directory = self.directory_type("broker")
        #: The formats of batches that the version of this node reads.
        self.formats = FORMATS
        self.running = False
        #: The offset at which this node starts to read after a restart, as the owner knows it.
        self.synced: int | None = None
        #: True if an operator removed this node from the list, so that the log may be trimmed past
        #: it.
        self.is_struck = False
        self._clear()

    def _clear(self) -> None:
        """Clear all state that the node has only in memory."""
        self.owner: LogOwner | None = None
        self.standby: Standby | None = None
        #: The number of the standby to which this owner hands the log over; 0 without a switch.
        self.successor = 0
        #: The format that this owner shall put in force; 0 for none.
        self.wanted = 0
        #: True once the owner hands the log over: it does not act any more.
        self.is_frozen = False
        #: True if clients are served.
        self.is_open = False
        self.position = 0
        self.pending: list[Entry] = []
        #: Replies to clients: ("confirm", identity), ("deliver", position) of a message, or
        #: ("answer", 0) to a ping.
        self.outbox: deque[tuple[str, int]] = deque()
        self.live: dict[int, int] = {}
        #: Positions of messages that wait for a consumer.
        self.ready: deque[int] = deque()
        #: Positions of messages that were delivered and are not acknowledged.
        self.unacknowledged: set[int] = set()
        #: Number of times that all connections of clients were aborted.
        self.connections = 0
        #: Identity of the newest message that this node took from the publisher.
        self._newest = 0

    # -- life

    def start(self) -> None:
        """Start as a standby, from the state that the directory has stored."""
        self._clear()
        self.running = True
        self.directory.open()
        self.opened()
        follower = self.follower_type(self.directory.state, self.formats)
        standby = self.standby_type(
            follower,
            self.world.timing,
            lambda: self.world.now,
            lambda: int(self.world.now * 1000),
            lambda: self.world.random.getrandbits(60),
            bytes(32),
        )
        standby.salt = self.world.random.getrandbits(32)
        standby.handover_nonce = self.cluster.new_handover_nonce()
        self.standby = standby
        self.carry_out(standby.follow(), self.apply, self.own, self.end)

    def opened(self) -> None:
        """Do nothing: a start writes nothing before the node has read the whole log."""

    def crash(self) -> None:
        """Lose the memory, and data that was not synced."""
        self.life += 1
        self.running = False
        self.directory.crash(self.world.random)
        self._clear()

    def end(self, error: Exception) -> None:
        """End the process because of an error; after a while, the process starts again."""
        self.world.say(f"{self.name} ends: {error}")
        self.crash()
        self.cluster.ended(self, error)

    def apply(self, step: Apply) -> Any:
        """Apply a batch to the directory; yield between two writes, where a crash may happen."""
        yield from self.directory.apply(step)
        self.synced = self.directory.restart_offset

    def checkpoint(self) -> None:
        """Make a checkpoint of the directory, if that is allowed now."""
        if self.running and self.directory.may_checkpoint():
            self.directory.checkpoint()

    # -- the owner

    def own(self, owner: LogOwner) -> None:
        """Become the owner of the log, which is the active node.

        First begin to append beats (records that show that the owner is there). Then open the
        directory and serve clients.
        """
        self.owner = owner
        self.world.say(f"{self.name} owns epoch {owner.epoch}")
        self.cluster.owned(self, owner.epoch)
        self.carry_out(self.write(owner), self.apply, self._unreachable, self.end)
        self.local(self.world.choice((0.001, 0.02, 0.4)), self._open)
        self._watch(owner)

    def _unreachable(self, result: Any) -> None:
        raise AssertionError("the writer of an owner must not return")

    def _watch(self, owner: LogOwner) -> None:
        """At intervals, abort all client connections if the lease is over.

        After the end of the lease, another node may be the owner.
        """
        if self.owner is not owner:
            return
        if self.world.now >= owner.abort_at:
            self.connections += 1
            self.outbox.clear()
            self.ready = deque(sorted(self.live))
            self.unacknowledged.clear()
        self.local(0.05, lambda: self._watch(owner))

    def _open(self) -> None:
        """Begin to serve clients, with the messages that the directory has."""
        self.live = self.directory.live()
        self.position = self.directory.log_end
        self.ready = deque(sorted(self.live))
        self.is_open = True
        self.turn()

    def write(self, owner: LogOwner) -> Steps[None]:
        """Append batches, beats and marks to the replicated log, as the owner does.

        Write each batch to the directory after the log has it, then confirm its messages.
        """
        marked = self.world.now
        while True:
            yield from self.before_step(owner)
            if self.world.now > marked + MARK_SECONDS:
                marked = self.world.now
                yield from self.mark(owner)
                with suppress(ReplicaFull):
                    yield Apply(None, owner.judge.state)
                self.trim(owner)
            elif self.pending:
                entries, self.pending = self.pending, []
                batch = yield from self.ship(owner, entries)
                self.cluster.shipped(owner, batch)
                yield from self.write_locally(owner, batch)
                for kind, _, _, identity in entries:
                    if kind == "store":
                        self.outbox.append(("confirm", identity))
                self.cluster.settled_durably(
                    [what for kind, _, _, what in entries if kind == "settle"], self
                )
            elif owner.beat_is_due():
                yield from self.beat(owner)
            elif self.successor and not self.outbox:
                yield from self.hand_over(owner)
            else:
                yield Sleep(0.01)

    def hand_over_unwritten(self, owner: LogOwner) -> Steps[None]:
        """Hand the log over, because the disk of this node is full, and raise Fenced.

        Do nothing if no standby has all batches. The owner knows the standbys by reports, which are
        late: the chosen standby may have restarted, or its disk may be full by now.
        """
        successors = self.cluster.successors(owner)
        if not successors:
            return
        successor = self.world.choice(successors)
        yield Sleep(self.world.choice((0.001, 0.1, 0.3)))
        if self.may_act():
            self.successor = successor
            yield from self.hand_over(owner)

    def before_step(self, owner: LogOwner) -> Steps[None]:
        """Do nothing. Subclasses write further records here, between two batches."""
        yield from ()

    def mark(self, owner: LogOwner) -> Steps[None]:
        """Append a mark. Subclasses handle a log that refuses records."""
        yield from owner.mark()

    def beat(self, owner: LogOwner) -> Steps[None]:
        """Append a beat. Subclasses handle a log that refuses records."""
        yield from owner.beat()

    def hand_over(self, owner: LogOwner) -> Steps[None]:
        """Hand the log over to the successor, and end this process. Raises Fenced."""
        self.is_frozen = True
        yield from owner.hand_over(self.successor, "successor")
        self.cluster.handed_over()
        raise Fenced("the log was handed over")

    def ship(self, owner: LogOwner, entries: list[Entry]) -> Steps[ReceivedBatch]:
        """Append a batch of these entries to the replicated log."""
        return (yield from owner.ship(self.encode(entries), entries[-1][1], CHUNK))

    def encode(self, entries: list[Entry]) -> bytes:
        """Return entries as the payload of a batch."""
        return encode_entries(entries)

    def write_locally(self, owner: LogOwner, batch: ReceivedBatch) -> Steps[None]:
        """Write a batch to the directory after the log has the batch.

        If the disk stays full, hand the log over to a node that has all batches, and raise Fenced.
        If there is no such node, try again.
        """
        state, since = owner.judge.state, self.world.now
        while True:
            try:
                yield Apply(batch, state)
                return
            except ReplicaFull:
                if self.world.now > since + self.world.timing.silence:
                    yield from self.hand_over_unwritten(owner)
                if owner.beat_is_due():
                    yield from self.beat(owner)
                yield Sleep(0.1)

    def trim(self, owner: LogOwner) -> None:
        """Trim the log up to a mark (a record with the whole state) that all nodes have read."""
        offset = owner.trimmable([node.synced for node in self.cluster.listed])
        if offset is not None and offset > self.world.log.low:
            self.world.log.trim(offset)
            self.cluster.trimmed(offset)

    # -- clients

    def may_act(self) -> bool:
        """True if this node is the owner and its lease is not over. Called before each action."""
        return self.owner is not None and not self.is_frozen and self.owner.may_act()

    def turn(self) -> None:
        """Run one turn of the event loop: add deliveries to the outbox, and schedule flushes."""
        while self.ready and len(self.unacknowledged) < 8 and not self.successor:
            position = self.ready.popleft()
            self.unacknowledged.add(position)
            self.outbox.append(("deliver", position))
        if not self.successor:
            self.outbox.append(("answer", 0))
        self.fail_point()
        for number in range(len(self.outbox)):
            self.local(number * 0.0005, self.flush)
        self.local(self.world.choice((0.02, 0.03, 0.05)), self.turn)

    def flush(self) -> None:
        """Send one reply. If the owner's lease is over, the reply waits."""
        if not self.outbox or not self.may_act():
            return
        assert self.owner is not None
        kind, what = self.outbox.popleft()
        self.cluster.acted(self.owner.epoch)
        if kind == "answer":
            return
        if kind == "confirm":
            self.cluster.confirmed(what)
        elif what in self.live:
            self.cluster.delivered(self, what, self.live[what])

    def publish(self, identity: int) -> None:
        """Take a message of a client; every 20th call declares a queue first."""
        if not self.is_open or self.successor or not self.may_act() or identity < self._newest:
            return  # An older message comes too late: it is lost.
        self._newest = identity
        if identity % 20 == 0 or not self.directory.queues and not self._declared():
            self.position += 1
            self.pending.append(("define", self.position, 0, 0))
        queue = self._declared() or max(self.directory.queues)
        self.position += 1
        self.pending.append(("store", self.position, queue, identity))
        self.live[self.position] = identity
        self.ready.append(self.position)

    def _declared(self) -> int:
        """Return the number of the newest queue whose declaration is not durable; 0 for none."""
        return max((entry[1] for entry in self.pending if entry[0] == "define"), default=0)

    def acknowledge(self, position: int) -> None:
        """Handle the acknowledgement of a delivered message."""
        if position in self.live and self.is_open and not self.successor:
            self.position += 1
            self.pending.append(("settle", self.position, 0, position))
            del self.live[position]
            self.unacknowledged.discard(position)


def needs_seed(error: Exception) -> bool:
    """True if the node ended because the log no longer has the records that the node lacks."""
    return isinstance(error, LogTrimmed)
