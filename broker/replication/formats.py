"""Batch formats: the encodings of batches in the replicated log, and the change to a newer format.

A batch format has a number. The format in force is the format in which the owner of the log writes
batches, whatever version of Trellis the owner runs. The state of the log has the number of the
format in force.

A version of Trellis reads the formats from `oldest` to `newest`. These are at least its own format
and the format of the previous version, so nodes of both versions can run together. When each listed
node has reported that it reads a newer format, the owner puts this format in force. It appends a
claim in its own name that names the format (owner.py), so all nodes read the claim before the first
batch of the newer format. Until then, each node may go back to its earlier version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from broker.replication import payload
from broker.replication.errors import ReplicationError
from broker.replication.payload import Change, Payload
from broker.replication.records import ForeignRecord
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from broker.store.stream_contract import ShippedRows, StreamGarbage


class FormatUnread(ReplicationError):
    """Raised if this version cannot read the format of batches in a log or a data directory."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchFormat:
    """The encoding of batches in the replicated log. `number` is the first byte of each batch.

    This class is the first format (payload.py). A later format is a subclass with a higher number.
    """

    def __init__(self, number: int = payload.FORMAT) -> None:
        self.number = number

    def encode(
        self,
        changes: list[Change],
        parts: list[bytes],
        rows: Sequence[ShippedRows] = (),
        garbage: Sequence[StreamGarbage] = (),
    ) -> bytes:
        """Return the payload of a batch in this format.

        `parts` are the bytes of the batch's records, `rows` are its rows of streams, and `garbage`
        is the list of stream segments to remove.
        """
        return payload.encode(changes, parts, rows, garbage)

    def decode(self, data: bytes) -> Payload:
        """Return the content of a batch from its payload, which must have this format.

        Raises ForeignRecord if a newer version of Trellis wrote the payload, ReplicaDiverged if the
        payload is malformed.
        """
        return payload.decode(data)


class Formats:
    """The batch formats that one version of Trellis reads and writes, by number."""

    def __init__(self, *formats: BatchFormat) -> None:
        self._formats = {one.number: one for one in formats}
        self.oldest = min(self._formats)
        self.newest = max(self._formats)

    def of(self, number: int) -> BatchFormat:
        """Return the batch format with a number.

        The number 0 stands for the oldest format: a log before its first claim names no format.
        Raises FormatUnread if this version has no format of this number.
        """
        self.check(number, "the replicated log")
        return self._formats[number or self.oldest]

    def decode(self, data: bytes) -> Payload:
        """Return the content of a batch from its payload, whose first byte names the format.

        Raises ForeignRecord if the format is unknown or a newer version of Trellis wrote the
        payload, ReplicaDiverged if the payload is malformed.
        """
        payload_format = self._formats.get(data[0]) if data else None
        if payload_format is None:
            raise ForeignRecord(
                f"a batch has format {data[:1].hex() or 'none'}, and this version of Trellis reads "
                f"{self}: install the version that the active node runs"
            )
        return payload_format.decode(data)

    def check(self, number: int, source: str) -> None:
        """Raise FormatUnread unless this version reads batches of the format `number`.

        0, the number in a log without a claim, is accepted. `source` is the subject of the error
        text: the log or directory with this format, such as "the data directory 'x'".
        """
        if number > self.newest:
            raise FormatUnread(
                f"{source} has batches of format {number}, and this version of Trellis reads "
                f"{self}: install the version that the other nodes run (`trellis cluster status` "
                "shows it)"
            )
        if 0 < number < self.oldest:
            raise FormatUnread(
                f"{source} has batches of format {number}, because the cluster lists a node with "
                f"an older version; this version of Trellis reads {self}: first install a version "
                f"that reads format {number} and format {number + 1} on all nodes, and wait until "
                f"`trellis cluster status` shows format {number + 1}"
            )

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return f"format {self.newest}"
        return f"formats {self.oldest} to {self.newest}"


#: The formats of this version.
FORMATS: Final = Formats(BatchFormat())


#: Age of a report, in ms, above which the report does not prove which formats its node reads: the
#: node may have been stopped, and may start with another version.
REPORT_AGE_MAX: Final = 12_000


def common_format(
    in_force: int,
    newest: int,
    nodes: NodeList,
    reports: Mapping[str, NodeReport],
    owner: str,
    wall: int,
) -> int:
    """Return the number of the newest batch format that all nodes of the cluster read.

    The result is at least `in_force`, the format in which the owner writes now. The result is
    `in_force` if a node's last report is older than REPORT_AGE_MAX, or if the owner is not listed
    in `nodes`. `newest` is the newest format that the owner reads. `wall` is the owner's wall clock
    in ms.
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
    """Return the names of the nodes that may be unable to read the batch format `number`.

    These nodes have reported only older formats, or their last report is older than REPORT_AGE_MAX.
    `wall` is the present time of the wall clock in ms.
    """
    late = [
        name
        for name, report in reports.items()
        if not report.forgotten and (report.newest < number or not _is_new(report, wall))
    ]
    return sorted({*late, *nodes.unreported(reports)})


def _is_new(report: NodeReport, wall: int) -> bool:
    return abs(wall - report.wall) <= REPORT_AGE_MAX
