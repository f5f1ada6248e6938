"""Nodes of two versions: the newer one reads and writes batches of a further format.

Format 2 has a field that format 1 lacks. Nodes are upgraded and rolled back while they are down; a
node whose directory has seen format 2 keeps the newer version, as its operator must.
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
    """The format after the present one."""

    def __init__(self) -> None:
        super().__init__(NEW_NUMBER)


OLD = Formats(BatchFormat())
NEW = Formats(BatchFormat(), NewFormat())
#: The chance that a node starts with the other version.
CHANGED = 0.5


class VersionedDirectory(Directory):
    """A directory whose version fails at a batch of a format that it does not read."""

    formats = OLD

    def entries_of(self, payload: bytes) -> tuple[Entry, ...]:
        found = json.loads(payload)
        self.formats.check(found["format"], "a batch")
        if found["format"] == NEW_NUMBER:
            assert found["note"] == len(found["entries"])
        return decode_entries(json.dumps(found["entries"]).encode())


class VersionedNode(Node):
    """A node that starts with the older or the newer version."""

    directory_type = VersionedDirectory
    directory: VersionedDirectory

    def __init__(self, world: World, name: str, cluster: Cluster) -> None:
        super().__init__(world, name, cluster)
        #: The report that the owner reads: the formats of the version that started last.
        self.report = NodeReport(0)
        #: Number of times that this node has started with the older version after the newer one,
        #: and that it has raised the format.
        self.rolled_back = self.raised = 0
        #: When this node started last, and when it decided to raise the format.
        self.started = 0.0
        self.decided = float("inf")
        #: True if the node ended because it started with the older version just then.
        self.must_upgrade = False

    def start(self) -> None:
        """Start with a version; a directory that has seen the newer format needs the newer one."""
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
            # The operator went back to the older version between the decision and the claim: the
            # node says which version it needs.
            self.must_upgrade = True
            self.crash()
            self.cluster.ended(self, Fenced(str(error)))
        else:
            super().end(error)

    def _report(self) -> None:
        """Report the formats of this version, now and again while the node runs."""
        self.report = NodeReport(0, newest=self.formats.newest, wall=int(self.world.now * 1000))
        self.local(0.5, self._report)

    def turn(self) -> None:
        self._look()
        super().turn()

    def _look(self) -> None:
        """Let the writer raise the format if all nodes read a newer one."""
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
    """The owner writes the newest format of its version, without a claim."""

    def encode(self, entries: list[Entry]) -> bytes:
        written = {"format": self.formats.newest, "entries": entries, "note": len(entries)}
        return json.dumps(written).encode()


class AsksNoOtherNode(VersionedNode):
    """The owner raises the format to that of its version, whatever the other nodes read."""

    def reports(self) -> dict[str, NodeReport]:
        return {self.name: self.report}

    def listed(self) -> NodeList:
        return NodeList(frozenset({self.name}))
