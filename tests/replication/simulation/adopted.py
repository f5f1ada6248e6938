"""A cluster whose log begins with an adoption: one node has data, the other nodes are empty.

`trellis cluster adopt` begins a log with a claim whose epoch is far above 1. The claim means that
all earlier data is in one directory only. An empty node that reads this claim must stop, and be
seeded.
"""

from __future__ import annotations

from broker.replication.adoption import EPOCHS_SKIPPED, state_after
from broker.replication.judge import LogGap
from broker.replication.records import CLAIM, DIGEST_SIZE, Claim, ClusterState
from tests.replication.simulation.cluster import Cluster
from tests.replication.simulation.directory import Entry
from tests.replication.simulation.node import Node

#: The data of the adopted directory: a queue, and three messages that were confirmed.
ENTRIES: list[Entry] = [("define", 1, 0, 0), *(("store", n + 1, 1, n) for n in (1, 2, 3))]
SALT = 77


class AdoptedCluster(Cluster):
    """A simulated cluster that begins with the data of its first node (see this module's text)."""

    def __init__(self, seed: int, node_type: type[Node] = Node) -> None:
        super().__init__(seed, node_type)
        #: Number of nodes that stopped because their directories were empty.
        self.stopped = 0
        begun = ClusterState("broker", salt=SALT, format=1, position=ENTRIES[-1][1])
        claim = Claim(CLAIM, EPOCHS_SKIPPED, 5, 0, -1, begun, bytes(DIGEST_SIZE))
        self.world.log.append(claim.encode())
        directory = self.nodes[0].directory
        directory.log, directory.queues, directory.salt = list(ENTRIES), {1}, SALT
        directory.state, directory.synced = state_after(claim, 0), len(ENTRIES)
        messages = [identity for kind, _, _, identity in ENTRIES if kind == "store"]
        self._confirmed.update(messages)
        self._identity = max(messages)

    def ended(self, node: Node, error: Exception) -> None:
        """Let an operator seed a node that stopped because it has no data of the log."""
        if isinstance(error, LogGap) and node.directory.state.epoch == 0:
            self.stopped += 1
            self.world.after(0.2, lambda: self._seed(node))
        else:
            super().ended(node, error)

    def sources(self, node: Node) -> list[Node]:
        """Return the running nodes that have data."""
        return [other for other in super().sources(node) if other.directory.state.epoch]
