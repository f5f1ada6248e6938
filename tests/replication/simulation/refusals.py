"""Simulated clusters over a log that refuses records above a size, which changes again and again.

The owner claims the log again after each refused record, and appends its batch in smaller chunks.
The log may have a refused record nevertheless, or get the record later: the answer to an earlier
and successful attempt to append the record may have been lost.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Any

from broker.replication.contract import AppendRefused, ReceivedBatch, Sleep, Steps
from broker.replication.owner import LogOwner
from broker.replication.records import CLAIM, DIGEST_SIZE, Claim
from tests.replication.simulation.cluster import Cluster
from tests.replication.simulation.directory import Entry
from tests.replication.simulation.node import CHUNK, Node
from tests.replication.simulation.real import RealNode
from tests.replication.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

#: The largest record that the log accepts, in bytes. In order: the log accepts all records; it
#: refuses most chunks; claims and marks, too; all chunks; all records.
LIMITS = (inf, inf, inf, 150, 120, 80, 30)
#: The fraction of refused records that reach the log nevertheless, by an earlier attempt.
EARLIER = 0.2
#: The smallest chunk that an owner tries, in bytes.
CHUNK_SMALLEST = 8


class RefusingCluster(Cluster):
    """A cluster over a log that refuses records of more than `limit` bytes."""

    def __init__(self, seed: int, node_type: type[RefusedNode] | None = None) -> None:
        #: The largest record that the log accepts, in bytes.
        self.limit: float = inf
        #: Number of refused records; number of refused records that the log has or gets
        #: nevertheless; number of claims by which an owner claimed the log again.
        self.refused = self.appended_earlier = self.claimed_again = 0
        super().__init__(seed, node_type or RefusedNode, switches=seed % 3 == 0)

    def run(self) -> Counter[str]:
        self.world.after(1.0, self._change_limit)
        return super().run()

    def _change_limit(self) -> None:
        chance = self.world.random
        self.limit = inf if self._healthy else chance.choice(LIMITS)
        self.world.say(f"the log refuses records of more than {self.limit} bytes")
        if not self._healthy:
            self.world.after(chance.uniform(0.2, 1.5), self._change_limit)


class RefusedNode(Node):
    """A node whose records the log may refuse.

    It reacts to a refusal as the real owner does (trellis/cluster/ownership.py).
    """

    cluster: RefusingCluster

    def _append(self, data: bytes, answer: Callable[..., None]) -> None:
        cluster, world = self.cluster, self.world
        if len(data) <= cluster.limit:
            super()._append(data, answer)
            return
        cluster.refused += 1
        if world.random.random() < EARLIER:
            cluster.appended_earlier += 1
            super()._append(data, _ignore)
        refused = AppendRefused("the record is too large", len(data))
        world.after(world.delay(), lambda: answer(0.0, None, refused))

    def before_step(self, owner: LogOwner) -> Steps[None]:
        while owner.in_doubt:
            try:
                yield from self.claim_again(owner)
                self.cluster.claimed_again += 1
                self.world.say(f"{self.name} owns epoch {owner.epoch} by its own claim")
            except AppendRefused:
                yield Sleep(0.1)

    def claim_again(self, owner: LogOwner) -> Steps[None]:
        """Claim the log again after a refused record."""
        yield from owner.claim_again(self.world.random.getrandbits(60))

    def mark(self, owner: LogOwner) -> Steps[None]:
        try:
            yield from super().mark(owner)
        except AppendRefused:
            yield from self.before_step(owner)

    def beat(self, owner: LogOwner) -> Steps[None]:
        try:
            yield from super().beat(owner)
        except AppendRefused:
            yield from self.before_step(owner)

    def ship(self, owner: LogOwner, entries: list[Entry]) -> Steps[ReceivedBatch]:
        size = CHUNK
        while True:
            try:
                return (yield from owner.ship(self.encode(entries), entries[-1][1], size))
            except AppendRefused:
                size = max(CHUNK_SMALLEST, size // 2)
                yield from self.before_step(owner)


class RefusedRealNode(RefusedNode, RealNode):
    """A node with a real data directory, whose records the log may refuse."""

    def __init__(self, world: World, name: str, cluster: RefusingCluster) -> None:
        super().__init__(world, name, cluster)


class ShipsAgainAtOnce(RefusedNode):
    """Wrong on purpose: an owner that appends a refused batch again without another claim."""

    def claim_again(self, owner: LogOwner) -> Steps[None]:
        owner.in_doubt = False
        yield from ()


class ClaimsBlindly(RefusedNode):
    """Wrong on purpose: an owner whose new claim is in force although the refused record is valid.

    The claim is accepted because its `seen` is too high: an offset that the owner has not read.
    """

    def claim_again(self, owner: LogOwner) -> Steps[None]:
        state, epoch = owner.judge.state, owner.epoch + 1
        nonce, wall = self.world.random.getrandbits(60), int(self.world.now * 1000)
        seen, digest = owner.next + 1_000, bytes(DIGEST_SIZE)
        yield from owner._append(Claim(CLAIM, epoch, nonce, wall, seen, state, digest))
        owner._claim = (epoch, nonce)
        owner.in_doubt = False


def _ignore(*answer: Any) -> None:
    """Ignore the answer of the log to an earlier attempt."""
