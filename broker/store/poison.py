"""Base class of the writers of segments: the writer stops once the disk's content is unknown."""

from __future__ import annotations

from broker.store.disk import Disk, Poisoned, WriteFailed


class PoisonableWriter:
    """A writer of segments, which is stopped after a failed sync, truncation or removal."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        #: The reason for which the writer is stopped; empty if it is not stopped.
        self.poisoned = ""

    def poison(self, reason: str) -> None:
        """Stop the writer: all later writes fail with this reason. Always raise Poisoned."""
        self.poisoned = reason
        self.check_poisoned()

    def check_poisoned(self) -> None:
        """Raise Poisoned if the writer is stopped."""
        if self.poisoned:
            raise Poisoned(
                f"{self.poisoned}. The store is stopped: repair the disk, then restart the broker"
            )

    def discard(self, path: str, reason: str, error: OSError) -> None:
        """Remove the file of a new segment that could not be written, and raise WriteFailed.

        `reason` is the text for the raised error, and `error` its cause. Raises Poisoned if the
        file cannot be removed.
        """
        try:
            self.disk.remove(path)
        except OSError as failure:
            self.poison(f"{reason}, and cannot remove the file: {failure.strerror or failure}")
        raise WriteFailed(reason, error.errno or 0) from error
