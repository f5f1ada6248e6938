"""A replicated log in memory, the reference model of the contract for simulations and tests."""

from __future__ import annotations

from broker.replication.contract import CHUNK_SIZE, LogSpan, LogTrimmed
from broker.replication.report import NodeReport


class MemoryLog:
    """The records of a log in memory, with consecutive offsets; trimming moves the first offset."""

    def __init__(self) -> None:
        self.low = 0
        self._records: list[bytes] = []
        #: The report of each node.
        self.reports: dict[str, NodeReport] = {}

    @property
    def tip(self) -> int:
        """The offset that the next record will have."""
        return self.low + len(self._records)

    def append(self, data: bytes) -> int:
        """Append a record to the log in memory, and return its offset."""
        self._records.append(data)
        return self.tip - 1

    def read(self, offset: int, most: int = 500, tip: int | None = None) -> LogSpan:
        """Return the records from an offset on, at most `most`.

        If `tip` is given, the log seems to end before this offset, as for a reader that does not
        see the newest records. Raises LogTrimmed if the offset was removed.
        """
        seen = self.tip if tip is None else min(tip, self.tip)
        if offset < self.low:
            raise LogTrimmed(self.low, offset)
        records = self._records[offset - self.low : max(offset, seen) - self.low][:most]
        return LogSpan(list(enumerate(records, offset)), max(seen, offset))

    def trim(self, offset: int) -> None:
        """Remove all records before an offset."""
        if offset > self.low:
            del self._records[: offset - self.low]
            self.low = offset


class MemoryNodeLog:
    """A `ReplicatedLog` of one node, on a MemoryLog that several nodes share."""

    #: All logs in memory have the same identity.
    identity = "memory"
    #: The largest payload of a chunk, in bytes.
    chunk_size = CHUNK_SIZE

    def __init__(self, log: MemoryLog, node: str) -> None:
        self._log = log
        self._node = node

    def expect(self, identity: str) -> None:
        """Do nothing: a log in memory accepts every identity."""

    @property
    def refusal(self) -> str:
        """Return "": a log in memory loses no records."""
        return ""

    def check(self, now: bool = False) -> None:
        """Do nothing: `refusal` and `chunk_size` of a log in memory never change."""

    def append(self, data: bytes) -> int:
        """Append a record, and return its offset."""
        return self._log.append(data)

    def read(self, offset: int) -> LogSpan:
        """Return the records from an offset on. Raises LogTrimmed if the offset was removed."""
        return self._log.read(offset)

    def bounds(self) -> tuple[int, int]:
        """Return the offset of the log's first record, and the offset after its last record."""
        return self._log.low, self._log.tip

    def trim(self, offset: int) -> None:
        """Remove the records before an offset."""
        self._log.trim(offset)

    def report(self, report: NodeReport) -> None:
        """Replace the report of this node."""
        self._log.reports[self._node] = report

    def own_report(self) -> NodeReport | None:
        """Return the report of this node; None if it has not reported."""
        return self._log.reports.get(self._node)

    def reports(self) -> dict[str, NodeReport]:
        """Return the reports of all nodes."""
        return dict(self._log.reports)

    def remove_report(self, node: str) -> None:
        """Remove the report of a node."""
        self._log.reports.pop(node, None)

    def close(self) -> None:
        """Do nothing: a log in memory has no connections."""
