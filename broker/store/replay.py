"""The report of a recovery of the log, and the receiver of the records that the recovery reads."""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from broker.store.files import (
    LogFile,
)
from broker.store.findings import MISSING, Finding


class Recovery:
    """A report on one recovery of the log: the progress while it runs, then the result."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes_read: i64 = 0
        self.bytes_total: i64 = 0
        self.records: i64 = 0
        self.messages: i64 = 0
        #: The last position in the log, and the first position that was certainly never used.
        self.last: i64 = 0
        self.next: i64 = 1
        #: Names of removed files: replaced by a checkpoint, or without a record.
        self.removed: list[str] = []
        self.findings: list[Finding] = []

    def findings_of(self, kind: str) -> list[Finding]:
        """Return the findings of one kind, such as CUT or MISSING."""
        return [finding for finding in self.findings if finding.kind == kind]

    @property
    def lost_bytes(self) -> int:
        """Size of the data that could not be read, including the cut tail, in bytes."""
        return sum(finding.size for finding in self.findings)


@mypyc_attr(allow_interpreted_subclasses=True)
class Replay:
    """A receiver of the records of the log, in their order."""

    def record(self, kind: i64, position: i64, data: bytes, start: i64, end: i64) -> None:
        """Process the next record of the log, whose payload is `data[start:end]`."""
        raise NotImplementedError

    def file(self, files: list[LogFile]) -> None:
        """Prepare for the records of the next file, which is the last file in `files`."""

    def batch(self) -> None:
        """Process the beginning of a batch.

        When this batch was written, all earlier records were durable, and so were the definitions
        of earlier batches in the catalog.
        """


def ignore_progress(recovery: Recovery) -> None:
    """Ignore the progress of a recovery."""


def missing_end(recovery: Recovery, log_position: i64) -> Finding | None:
    """Return a finding if the log has lost its end; None if the log is complete.

    The log has lost its end if it ends before `log_position`, up to which it was once written.
    """
    if log_position < recovery.next:
        return None
    return Finding(
        MISSING,
        "log",
        0,
        0,
        f"the log ends at position {recovery.last}, but the broker has written it up to position "
        f"{log_position}: the records in between are lost",
    )
