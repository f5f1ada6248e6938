"""A standby: a thread that follows the replicated log, and claims it when its owner is silent."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Final

from broker.replication.contract import Apply, LogUnreachable, ReplicaFull, Timing
from broker.replication.directory import ReplicaDirectory
from broker.replication.engine import ReplicatedLog, carry_out
from broker.replication.follower import Follower
from broker.replication.owner import LogOwner
from broker.replication.standby import Standby
from trellis import logs
from trellis.cluster.clock import boot_seconds, wall_ms

#: Minimum number of seconds between two reports of the offset from which this node would read.
REPORT_SECONDS: Final = 1.0
#: The format of the segment log (docs/storage.md).
LOG_FORMAT: Final = 1


class FollowingStopped(Exception):
    """Raised in the thread of a standby when the broker stops."""


class Following:
    """A standby from its start up to its claim."""

    def __init__(
        self,
        directory: ReplicaDirectory,
        log: ReplicatedLog,
        timing: Timing,
        digest: bytes,
        version: str,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """`digest` is the digest of the settings that must be the same on all nodes."""
        self._directory = directory
        self._log = log
        self._version = version
        self._clock = clock
        self._stopped = threading.Event()
        #: The reason why the last batch could not be written; empty unless the disk is full.
        self.blocked_reason = ""
        self._reported = -1
        self._report_at = 0.0
        self.standby = Standby(
            Follower(directory.state),
            timing,
            clock,
            wall_ms,
            lambda: secrets.randbits(63),
            digest,
        )
        self.standby.salt = secrets.randbits(32) or 1
        self.standby.format = LOG_FORMAT

    def run(self) -> LogOwner:
        """Follow the log until this node owns it. Blocks, so a thread calls it.

        When the call returns, the data directory is closed, and holds all batches of the log.
        Raises FollowingStopped after `stop`, ReplicationError or StoreError if the node cannot go
        on.
        """
        try:
            owner = carry_out(self.standby.follow(), self._log, self._apply, self._sleep)
            self._directory.finish()
            return owner
        finally:
            self._directory.close()

    def stop(self) -> None:
        """Make `run` end soon."""
        self._stopped.set()

    def _apply(self, step: Apply) -> None:
        try:
            self._directory.apply(step)
        except ReplicaFull as error:
            if not self.blocked_reason:
                logs.error(
                    "cluster_blocked",
                    reason=str(error),
                    note="this node follows no further until there is space",
                )
            self.blocked_reason = str(error)
            raise
        self.blocked_reason = ""
        self._report()

    def _sleep(self, seconds: float) -> None:
        """Wait. Use the time to free disk space, if there is any to free."""
        until = self._clock() + seconds
        while self._directory.compact() and self._clock() < until:
            pass
        if self._stopped.wait(max(0.0, until - self._clock())):
            raise FollowingStopped

    def _report(self) -> None:
        """Report, at intervals, up to which offset the data directory has all batches durably."""
        offset = self._directory.stored_state.last + 1
        if offset == self._reported or self._clock() < self._report_at:
            return
        self._report_at = self._clock() + REPORT_SECONDS
        try:
            self._log.commit_synced(offset, self._version)
        except LogUnreachable:
            return
        self._reported = offset
