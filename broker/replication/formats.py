"""The formats of batches that a version of Trellis reads, and the rolling upgrade between them.

The state of the log names the format in which the owner writes batches. A version reads the formats
from `oldest` to `newest`: at least the format of the version before, and its own. The owner writes
the format in force, whatever its own version is. When each listed node has reported that it reads a
newer format, the owner raises the format by a claim in its own name (owner.py): all nodes read the
claim before the first batch of the newer format. Until then, each node may go back to its earlier
version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from broker.replication import payload
from broker.replication.payload import Change, Payload
from broker.replication.records import ForeignRecord, ReplicationError
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from broker.store.stream_contract import ShippedRows, StreamGarbage


class FormatUnread(ReplicationError):
    """This version of Trellis does not read the format of batches in force."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchFormat:
    """The first format of batches (payload.py). A later one is a subclass with a higher number."""

    def __init__(self, number: int = payload.FORMAT) -> None:
        self.number = number

    def encode(
        self,
        changes: list[Change],
        parts: list[bytes],
        rows: Sequence[ShippedRows] = (),
        garbage: Sequence[StreamGarbage] = (),
    ) -> bytes:
        """Return the payload of a batch."""
        return payload.encode(changes, parts, rows, garbage)

    def decode(self, data: bytes) -> Payload:
        """Return the content of a payload. Raises ForeignRecord, ReplicaDiverged."""
        return payload.decode(data)


class Formats:
    """The formats of batches in the replicated log that a version of Trellis reads and writes."""

    def __init__(self, *formats: BatchFormat) -> None:
        self._formats = {one.number: one for one in formats}
        self.oldest = min(self._formats)
        self.newest = max(self._formats)

    def of(self, number: int) -> BatchFormat:
        """Return a format; the oldest one for 0, the format of a log before its first claim.

        Raises FormatUnread.
        """
        self.check(number, "the replicated log")
        return self._formats[number or self.oldest]

    def decode(self, data: bytes) -> Payload:
        """Return the content of a payload. Raises ForeignRecord, ReplicaDiverged."""
        found = self._formats.get(data[0]) if data else None
        if found is None:
            raise ForeignRecord(
                f"a batch has format {data[:1].hex() or 'none'}, and this version of Trellis reads "
                f"{self}: install the version that the active node runs"
            )
        return found.decode(data)

    def check(self, number: int, source: str) -> None:
        """Raise FormatUnread unless this version reads a format; 0 is the format of an empty log.

        `source` has the format, such as "the data directory 'x'".
        """
        if number > self.newest:
            raise FormatUnread(
                f"{source} has batches of format {number}, and this version of Trellis reads "
                f"{self}: install the version that the other nodes run (`trellis cluster status` "
                "shows it)"
            )
        if 0 < number < self.oldest:
            raise FormatUnread(
                f"{source} has batches of format {number}, because a node with an older version is "
                f"listed, and this version of Trellis reads {self}: first install a version that "
                f"reads format {number} and format {number + 1} on all nodes, and wait until "
                f"`trellis cluster status` shows format {number + 1}"
            )

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return f"format {self.newest}"
        return f"formats {self.oldest} to {self.newest}"


#: The formats of this version.
FORMATS: Final = Formats(BatchFormat())


#: Milliseconds after which a report does not show any more which formats its node reads: the node
#: may be stopped, and start with another version.
REPORT_AGE_MAX: Final = 12_000


def common_format(
    in_force: int,
    newest: int,
    nodes: NodeList,
    reports: Mapping[str, NodeReport],
    owner: str,
    wall: int,
) -> int:
    """Return the newest format that all nodes read, and at least the one in force.

    `newest` is the newest format that the owner reads, `wall` the owner's wall clock in ms. The
    owner must be listed. A listed node that has not reported a moment ago keeps the format.
    """
    if owner not in nodes.listed:
        return in_force
    late = nodes_without(newest, nodes, reports, wall)
    known = [
        reports[name].newest if name in reports and _is_new(reports[name], wall) else 0
        for name in late
        if name != owner
    ]
    return max(in_force, min([newest, *known]))


def nodes_without(
    number: int, nodes: NodeList, reports: Mapping[str, NodeReport], wall: int
) -> list[str]:
    """Return the names of the nodes that have not reported a moment ago that they read a format."""
    late = [
        name
        for name, report in reports.items()
        if not report.forgotten and (report.newest < number or not _is_new(report, wall))
    ]
    return sorted({*late, *nodes.unreported(reports)})


def _is_new(report: NodeReport, wall: int) -> bool:
    return abs(wall - report.wall) <= REPORT_AGE_MAX
