"""Simulated nodes of two versions of Trellis, which encode batches in two formats.

The older version reads and writes batches in format 1, the newer one in formats 1 and 2. Format 2
has a field that format 1 lacks. A node changes its version, up or down, only while it is down. Once
the directory of a node has the claim for format 2, the node keeps the newer version.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from broker.replication import payload
from broker.replication.contract import Fenced, Steps
from broker.replication.formats import BatchFormat, Formats, FormatUnread, common_format
from broker.replication.owner import LogOwner
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from tests.replication.simulation.directory import Directory, Entry, decode_entries
from tests.replication.simulation.node import Node
from tests.replication.simulation.world import World

if TYPE_CHECKING:
    from tests.replication.simulation.cluster import Cluster


NEW_NUMBER = payload.FORMAT + 1


class NewFormat(BatchFormat):
    """Batch format 2. The simulation encodes it in VersionedNode, so only its number is used."""

    def __init__(self) -> None:
        super().__init__(NEW_NUMBER)


OLD = Formats(BatchFormat())
NEW = Formats(BatchFormat(), NewFormat())
#: The chance that a node starts with the other version.
CHANGED = 0.5


class VersionedDirectory(Directory):
    """A directory that raises FormatUnread for a batch in a format that its version cannot read."""

    formats = OLD

    def entries_of(self, payload: bytes) -> tuple[Entry, ...]:
        document = json.loads(payload)
        self.formats.check(document["format"], "a batch")
        if document["format"] == NEW_NUMBER:
            assert document["note"] == len(document["entries"])
        return decode_entries(json.dumps(document["entries"]).encode())


class VersionedNode(Node):
    """A node that starts with the older or the newer version of Trellis, at random."""

    directory_type = VersionedDirectory
    directory: VersionedDirectory

    def __init__(self, world: World, name: str, cluster: Cluster) -> None:
        super().__init__(world, name, cluster)
        #: The report that the owner reads: the formats of the version that started last.
        self.report = NodeReport(0)
        #: Number of starts of this node with the older version after the newer one, and number of
        #: times that this node has raised the format.
        self.rolled_back = self.raised = 0
        #: When this node started last, and when it decided to raise the format.
        self.started = 0.0
        self.decided = float("inf")
        #: True if the node has ended because the older version was started too late: the newer
        #: version must be started next.
        self.must_upgrade = False

    def start(self) -> None:
        """Start with a random version of Trellis; with the newer one if the directory needs it.

        A directory whose state names format 2 needs the newer version.
        """
        before, chance = self.formats, self.world.random
        seen = self.directory.state.format == NEW_NUMBER
        if seen or self.must_upgrade or not self.world.faulty:
            self.formats = NEW
        elif chance.random() < CHANGED:
            self.formats = OLD if before is NEW else NEW
            self.rolled_back += before is NEW
        self.started = self.world.now
        self.directory.formats = self.formats
        super().start()
        assert self.standby is not None
        self.standby.format = OLD.oldest
        self._report()

    def end(self, error: Exception) -> None:
        decided = min(node.decided for node in self._nodes())
        if isinstance(error, FormatUnread) and self.started >= decided:
            # The operator went back to the older version after the decision to raise the format,
            # and before the claim. The node's error names the version that it needs, so its next
            # start uses the newer version.
            self.must_upgrade = True
            self.crash()
            self.cluster.ended(self, Fenced(str(error)))
        else:
            super().end(error)

    def _report(self) -> None:
        """Report the newest format that this version reads, every 0.5 s while the node runs."""
        self.report = NodeReport(0, newest=self.formats.newest, wall=int(self.world.now * 1000))
        self.local(0.5, self._report)

    def turn(self) -> None:
        self._look()
        super().turn()

    def _look(self) -> None:
        """If this node is the owner and all nodes read a newer batch format, request a claim.

        The claim puts the newest format that all nodes read in force.
        """
        owner = self.owner
        if owner is not None and not self.wanted:
            in_force, wall = owner.judge.state.format, int(self.world.now * 1000)
            newest, reports, nodes = self.formats.newest, self.reports(), self.listed()
            wanted = common_format(in_force, newest, nodes, reports, self.name, wall)
            if wanted > in_force:
                self.wanted, self.decided = wanted, self.world.now

    def reports(self) -> dict[str, NodeReport]:
        return {node.name: node.report for node in self._nodes()}

    def listed(self) -> NodeList:
        return NodeList(frozenset(node.name for node in self._nodes()))

    def _nodes(self) -> list[VersionedNode]:
        return [node for node in self.cluster.nodes if isinstance(node, VersionedNode)]

    def before_step(self, owner: LogOwner) -> Steps[None]:
        if self.wanted:
            number, self.wanted = self.wanted, 0
            self.raised += 1
            self.world.say(f"{self.name} raises the format to {number}")
            yield from owner.raise_format(number, self.world.random.getrandbits(60))

    def encode(self, entries: list[Entry]) -> bytes:
        assert self.owner is not None
        number = self.formats.of(self.owner.judge.state.format).number
        written = {"format": number, "entries": entries}
        return json.dumps({**written, "note": len(entries)} if number > 1 else written).encode()


class WritesItsNewest(VersionedNode):
    """Wrong on purpose: an owner that writes the newest format of its version at once.

    The right owner first appends a claim that names the format.
    """

    def encode(self, entries: list[Entry]) -> bytes:
        written = {"format": self.formats.newest, "entries": entries, "note": len(entries)}
        return json.dumps(written).encode()


class AsksNoOtherNode(VersionedNode):
    """Wrong on purpose: an owner that puts the newest format of its version in force too early.

    The owner ignores that other nodes may be unable to read the format.
    """

    def reports(self) -> dict[str, NodeReport]:
        return {self.name: self.report}

    def listed(self) -> NodeList:
        return NodeList(frozenset({self.name}))
