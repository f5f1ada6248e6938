"""A replicated log in memory, the reference model of the contract for simulations and tests."""

from __future__ import annotations

from collections.abc import Iterable

from broker.replication.contract import LogSpan, LogTrimmed


class MemoryLog:
    """Records with consecutive offsets; trimming moves the first offset."""

    def __init__(self) -> None:
        self.low = 0
        self._records: list[bytes] = []
        #: The offset and version that each node reported, by the name of the node.
        self.reports: dict[str, tuple[int, str]] = {}

    @property
    def tip(self) -> int:
        """The offset that the next record will have."""
        return self.low + len(self._records)

    def append(self, data: bytes) -> int:
        """Append a record, and return its offset."""
        self._records.append(data)
        return self.tip - 1

    def read(self, offset: int, most: int = 500, tip: int | None = None) -> LogSpan:
        """Return the records from an offset on, at most `most`.

        `tip` is an older tip, for a reader that does not see the newest records. Raises LogTrimmed
        if the offset was removed.
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

    def __init__(self, log: MemoryLog, node: str) -> None:
        self._log = log
        self._node = node

    def append(self, data: bytes) -> int:
        """Append a record, and return its offset."""
        return self._log.append(data)

    def read(self, offset: int) -> LogSpan:
        """Return records from an offset on, and the tip. Raises LogTrimmed."""
        return self._log.read(offset)

    def trim(self, offset: int) -> None:
        """Remove the records before an offset."""
        self._log.trim(offset)

    def commit_synced(self, offset: int, version: str) -> None:
        """Report the offset from which this node would read after a restart, and its version."""
        self._log.reports[self._node] = (offset, version)

    def synced(self, names: Iterable[str]) -> dict[str, tuple[int, str] | None]:
        """Return the offset and version that each named node reported; None without a report."""
        return {name: self._log.reports.get(name) for name in names}

    def close(self) -> None:
        """Do nothing: a log in memory has no connections."""
