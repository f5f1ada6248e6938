"""A cluster whose log loses its last records, and then gets other records at the same offsets.

Kafka loses committed records in an unclean election, or if a topic is restored from a backup. Then
confirmed messages are lost, and the simulation cannot demand them back. But each message that is
confirmed later must be in a batch that every reader of the log accepts as valid.

The history of one seed, again and again:

1.  One standby (the keeper) is paused. So the other standby and the owner are ahead of the keeper.
2.  The log loses all records that the keeper has not read. One of the other two nodes (the
    returner) crashes or is cut from the log; if the returner is the owner, it is cut or paused. The
    third node crashes.
3.  The keeper claims the log, and appends records. When the log is about as long as when the
    returner last read it, the keeper crashes, and the returner comes back.

A returner that compares only the length of the log notices nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from broker.replication.contract import (
    Fenced,
    LogReplaced,
    LogSpan,
    LogUnreachable,
    ReceivedBatch,
    Steps,
)
from broker.replication.errors import ReplicationError
from broker.replication.follower import Follower
from broker.replication.judge import Judge
from broker.replication.memory import MemoryLog
from broker.replication.owner import LogOwner
from broker.replication.records import (
    BatchChunk,
    ClusterState,
    LogRecord,
    decode,
)
from tests.replication.simulation.cluster import Cluster
from tests.replication.simulation.node import Node
from tests.replication.simulation.world import FOREVER
from tests.replication.simulation.wrong import BaseOwner, TrustingFollower

VOID = "an owner confirms a batch that is not valid"

#: Seconds of a history, and seconds between two losses.
SECONDS = 14.0
BETWEEN = 9.0


class WitnessedLog(MemoryLog):
    """A log in memory that can lose its last records.

    The log judges each record when the record is appended, and remembers which batches are void.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The state of the log after each record, from the first record on.
        self.states: list[ClusterState] = []
        #: The batches of which a record did not count: epoch, nonce and number of the batch.
        self.void: set[tuple[int, int, int]] = set()
        self.appended: Callable[[], None] = lambda: None

    def append(self, data: bytes) -> int:
        record = decode(data)
        judge = Judge(self.states[-1] if self.states else ClusterState("broker"))
        try:
            counts = judge.judge(self.tip, record)
        except ReplicationError:
            counts = False  # A reader stops here.
        if not counts and isinstance(record, BatchChunk):
            self.void.add((record.epoch, record.nonce, record.number))
        self.states.append(judge.state)
        offset = super().append(data)
        self.appended()
        return offset

    def read(self, offset: int, most: int = 500, tip: int | None = None) -> LogSpan:
        """Return records from `offset` on. Raises LogUnreachable if the log ends before them."""
        if offset > self.tip:
            raise LogUnreachable("the log ends before the requested offset")
        return super().read(offset, most, tip)

    def lose(self, tip: int) -> None:
        """Remove all records from the offset `tip` on."""
        del self._records[tip - self.low :]
        del self.states[tip:]


class LossyCluster(Cluster):
    """A simulated cluster whose log loses records; see the text of this module."""

    def __init__(self, seed: int, node_type: type[Node] = Node) -> None:
        super().__init__(seed, node_type)
        self.log = WitnessedLog()
        self.world.log = self.log
        #: Number of losses, and number of nodes that found another record at their last offset.
        self.losses = self.noticed = 0
        #: Number of returners that came back to a log of exactly the length that they knew.
        self.returned = 0

    def shipped(self, owner: LogOwner, batch: ReceivedBatch) -> None:
        """Check that a shipped batch is valid, because its owner will confirm the messages in
        it.
        """
        state = owner.judge.state
        if (state.epoch, state.nonce, batch.number) in self.log.void:
            self.complain(VOID)

    def complain(self, text: str) -> None:
        """Count a violation only if an owner will confirm a batch that is not valid.

        The other guarantees do not hold after a loss: the log has lost messages and settlements.
        """
        if text == VOID:
            super().complain(text)

    def ended(self, node: Node, error: Exception) -> None:
        """Restart a node that was fenced; let an operator seed a node with another error."""
        if not isinstance(error, ReplicationError):
            raise error
        fenced_late = isinstance(error, Fenced) and "another record" in str(error)
        self.noticed += isinstance(error, LogReplaced) or fenced_late
        if isinstance(error, Fenced):
            self.world.after(self.world.random.uniform(0.2, 2), lambda: self._restart(node))
        else:
            node.is_struck = True
            self.world.after(0.2, lambda: self._seed(node))

    def sources(self, node: Node) -> list[Node]:
        """Return the nodes whose directories agree with the log: an operator seeds from these."""
        return [other for other in super().sources(node) if self._agrees(other)]

    def _agrees(self, node: Node) -> bool:
        state, states = node.directory.state, self.log.states
        if not 0 <= state.last < len(states):
            return False
        known = states[state.last]
        return (known.epoch, known.nonce, known.last) == (state.epoch, state.nonce, state.last)

    # -- the loss

    def _fault(self) -> None:
        """Begin a loss as soon as all nodes run."""
        owners = [node for node in self.nodes if node.is_open and node.may_act()]
        standbys = [node for node in self.nodes if node.running and node.owner is None]
        if len(owners) != 1 or len(standbys) != 2 or not all(map(self._agrees, self.nodes)):
            self.world.after(0.3, self._fault)
            return
        chance = self.world.random
        chance.shuffle(standbys)
        keeper, other = standbys
        lag = chance.choice((0.1, 0.3, 0.5, 0.9))
        keeper.paused_until = self.world.now + lag
        self.world.say(f"{keeper.name} is paused, and keeps its part of the log")
        self.world.after(lag - 0.001, lambda: self._lose(owners[0], keeper, other))
        self.world.after(BETWEEN, self._fault)

    def _lose(self, owner: Node, keeper: Node, other: Node) -> None:
        """Remove the records that the keeper has not read; crash, cut or pause the other nodes.

        The returner (`owner` or `other`, at random) comes back when the keeper has filled up the
        log. Do nothing if the nodes have changed their roles, or if no record can be lost.
        """
        if (
            keeper.standby is None
            or keeper.owner is not None
            or not (owner.owner and other.standby)
        ):
            return
        chance, life = self.world.random, keeper.life
        kind = chance.choice(("crashed", "cut", "owner", "paused owner"))
        if kind in ("owner", "paused owner"):
            returner, known = owner, owner.owner.next
        elif kind == "cut":
            returner, known = other, other.standby.follower.next
        else:
            returner, known = other, other.directory.state.last + 1
        tip = keeper.standby.follower.next
        if not self.log.low < tip < known:
            return
        self.losses += 1
        self.log.lose(tip)
        self.world.say(f"the log lost the records from {tip} on; {returner.name}: {kind}")
        for node in (owner, other):
            if node is not returner or kind == "crashed":
                node.crash()
        if kind == "paused owner":
            returner.paused_until = FOREVER
        elif kind != "crashed":
            returner.cut_until = FOREVER
        # The tip of the log at which the returner comes back: often exactly the tip that it knew.
        wanted = known + chance.choice((0, 0, 0, 0, -1, 1, 2))

        def appended() -> None:
            if self.log.tip < wanted:
                return
            self.log.appended = lambda: None
            self.returned += wanted == known
            self.world.say(f"the log ends at {self.log.tip}: {returner.name} comes back")
            if keeper.life == life:
                keeper.crash()
            returner.cut_until = 0.0
            if kind == "paused owner":
                returner.go_on()
            elif kind == "crashed":
                self._restart(returner)
            for node in (owner, other, keeper):
                if node is not returner:
                    self.world.after(chance.uniform(4, 6), partial(self._restart, node))

        self.log.appended = appended

    def run(self) -> Counter[str]:
        """Run the simulation, and return the violations."""
        for node in self.nodes:
            self.world.after(self.world.random.random() * 0.2, node.start)
        self.world.after(2.5, self._fault)
        self.world.after(0.5, self._checkpoints)
        self.world.after(0.5, self._publish)
        self.world.run(SECONDS)
        return self.complaints


class LastRecordUncompared(Node):
    """A wrong node: it does not compare the last record that it has read with the log."""

    follower_type = TrustingFollower


class SlowAppendUncompared(Node):
    """A wrong node: an owner never compares its last record with the log.

    The owner knows only from the offset of a new record that the log still has its records. A right
    owner also compares its last record if the answer to an append comes late.
    """

    def own(self, owner: LogOwner) -> None:
        class Wrong(BaseOwner):
            def _verify(self) -> Steps[None]:
                yield from ()

        super().own(Wrong.of(owner))


class PauseUncompared(Node):
    """A wrong node: after a pause and a fast append, an owner does not compare its last record.

    The owner measures the time since it sent the new record. A right owner measures the time since
    it sent the record before.
    """

    def own(self, owner: LogOwner) -> None:
        class Wrong(BaseOwner):
            def _append(self, record: LogRecord) -> Steps[int]:
                self.sent = max(self.sent, self._clock())
                return (yield from super()._append(record))

        super().own(Wrong.of(owner))


class _TrustingLater(Follower):
    def doubt(self) -> None:
        """Do nothing. A correct follower compares its last record with the log again."""


class ComparedOnlyAtStart(Node):
    """A wrong node: it compares its last record with the log only when it starts."""

    follower_type = _TrustingLater
