"""The report of a node: the offset at which the node would begin to read, and its state.

Each node has a consumer group in Kafka. The report of the node is the committed offset of this
group, with a text. The owner trims the log by the reports, and `trellis cluster status` shows them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from broker.replication.description import NodeDescription

#: Largest size of the text in bytes: Kafka's default limit is 4,096.
TEXT_MAX: Final = 4_000


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The report of one node of a cluster: the offset from which it would read, and its state."""

    #: The offset at which the node would begin to read after a crash: its directory has all records
    #: before this offset.
    offset: int
    #: Version of Trellis that the node runs.
    version: str = ""
    #: The state of the node: following, blocked (a standby whose disk is full), opening, active or
    #: seeding; "" if it is not known.
    state: str = ""
    #: Epoch and last batch that the node knows.
    epoch: int = 0
    batch: int = 0
    #: Wall clock of the node when it reported, in ms of Unix time.
    wall: int = 0
    #: Number by which the owner can hand the log over to this node; 0 if it cannot.
    nonce: int = 0
    #: Description of the node (`NodeDescription`), as text.
    description: str = ""
    #: True if an operator has removed the node from the cluster.
    forgotten: bool = False
    #: Position of the last change that the node knows. The node with the highest position has most
    #: of the log.
    position: int = 0
    #: The format of batches in force, and the oldest and the newest format that the node reads; 0
    #: if they are not known.
    format: int = 0
    oldest: int = 0
    newest: int = 0
    #: Milliseconds by which the clock of this node is ahead of the active node's clock.
    clock_ms: int = 0
    #: Number that stands for the host and the data directory: two nodes with the same name have
    #: different numbers.
    place: int = 0
    #: On the active node: names of the listed nodes that have no report, each in a line.
    unreported: str = ""

    def encode(self) -> str:
        """Return the report as text, without its offset. Kafka stores the text beside the offset.

        If the text would be longer than TEXT_MAX, it lacks the description.
        """
        fields = asdict(self)
        del fields["offset"]
        text = json.dumps(fields)
        return text if len(text) <= TEXT_MAX else json.dumps({**fields, "description": ""})

    @staticmethod
    def decode(offset: int, text: str) -> NodeReport:
        """Return the report from its offset and its text; missing fields have default values."""
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            return NodeReport(offset)
        known = NodeReport(offset)
        fields = {
            name: document[name]
            for name, value in asdict(known).items()
            if name != "offset" and type(document.get(name)) is type(value)
        }
        return NodeReport(offset, **fields)

    @property
    def server(self) -> NodeDescription:
        """The NodeDescription of the reporting node."""
        return NodeDescription.decode(self.description)
