"""A standby: a thread that follows the replicated log, and claims it when the owner is silent.

The owner is silent after `cluster.silence` seconds without a record of it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Final

from broker.replication.contract import Apply, ReplicaFull, Timing
from broker.replication.description import NodeDescription
from broker.replication.directory import ReplicaDirectory
from broker.replication.engine import ReplicatedLog, carry_out
from broker.replication.follower import Follower
from broker.replication.owner import LogOwner
from broker.replication.records import DIGEST_SIZE
from broker.replication.report import NodeReport
from broker.replication.standby import Standby
from trellis import logs
from trellis.cluster.clock import boot_seconds, wall_ms
from trellis.cluster.reporting import Reporting

#: The format of the segment log (docs/storage.md).
LOG_FORMAT: Final = 1


class FollowingStopped(Exception):
    """Raised in the thread of a standby when the broker stops."""


class Following:
    """A standby node, from its start until it claims the log."""

    def __init__(
        self,
        directory: ReplicaDirectory,
        log: ReplicatedLog,
        timing: Timing,
        description: NodeDescription,
        version: str,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """Prepare to follow the log; `description` describes this node."""
        self._directory = directory
        self._log = log
        self._version = version
        self._clock = clock
        self._stopped = threading.Event()
        #: The reason why the last batch could not be written; empty unless the disk is full.
        self.blocked_reason = ""
        self._description = description
        #: Text of the owner's description that was logged last.
        self._owner = ""
        self._reporting = Reporting(log, self.report)
        self.standby = Standby(
            Follower(directory.state),
            timing,
            clock,
            wall_ms,
            lambda: secrets.randbits(63),
            bytes.fromhex(description.settings) or bytes(DIGEST_SIZE),
        )
        self.standby.description = description.encode()
        self.standby.handover_nonce = secrets.randbits(63) | 1
        self.standby.salt = secrets.randbits(32) or 1
        self.standby.format = LOG_FORMAT

    def run(self) -> LogOwner:
        """Follow the log until this node owns it. Blocks, so a thread calls it.

        When the call returns, the data directory is closed, and holds all batches of the log.
        Raises FollowingStopped after `stop`, ReplicationError or StoreError if the node cannot go
        on.
        """
        try:
            self._note_owner(self._directory.state.owner)
            self._reporting.start()
            owner = carry_out(self.standby.follow(), self._log, self._apply, self._sleep)
            self._directory.finish()
            return owner
        finally:
            self._reporting.stop()
            self._directory.close()

    def stop(self) -> None:
        """Request that `run` ends soon, with FollowingStopped."""
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
        self._note_owner(step.state.owner)

    def _note_owner(self, text: str) -> None:
        """Log which node owns the log, if that has changed.

        Also log a warning if the owner has other settings than this node. `text` is the owner's
        description.
        """
        if text == self._owner:
            return
        self._owner = text
        owner, here = NodeDescription.decode(text), self._description
        if owner.node == here.node:
            return
        if owner.settings and here.settings and owner.settings != here.settings:
            logs.warning(
                "cluster_settings_differ",
                node=owner.node,
                note="the sections limits and mqtt of that node and of this one differ, so this "
                "node may refuse definitions when it takes over; compare `trellis config` of both",
            )
        logs.info("cluster_active", node=owner.node, host=owner.host)

    def _sleep(self, seconds: float) -> None:
        """Wait for some seconds, and meanwhile free disk space of dead records.

        Raises FollowingStopped.
        """
        until = self._clock() + seconds
        while self._directory.compact() and self._clock() < until:
            pass
        if self._stopped.wait(max(0.0, until - self._clock())):
            raise FollowingStopped

    def report(self, state: str = "following") -> NodeReport:
        """Return this node's report, with the offset up to which its directory has all batches."""
        known = self.standby.state
        return NodeReport(
            self._directory.stored_state.last + 1,
            self._version,
            state,
            known.epoch,
            known.number,
            wall_ms(),
            self.standby.handover_nonce,
            self.standby.description,
        )
