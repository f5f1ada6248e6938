"""A standby: a thread that follows the replicated log, and claims it when the owner is silent.

The owner counts as silent if it has appended no record for `cluster.silence` seconds.
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
from broker.replication.errors import ReplicationError
from broker.replication.follower import Follower
from broker.replication.formats import FORMATS, Formats
from broker.replication.owner import LogOwner
from broker.replication.records import DIGEST_SIZE
from broker.replication.report import NodeReport
from broker.replication.standby import Standby
from broker.store.opening import OpenedStore
from trellis import logs
from trellis.cluster.clock import boot_seconds, wall_ms
from trellis.cluster.reporting import Reporting

#: Milliseconds by which the clocks of two nodes may differ, and the unit of reported differences.
CLOCK_MOST: Final = 1_000
CLOCK_STEP: Final = 250


class FollowingStopped(Exception):
    """Raised when the standby stops, so that its thread ends."""


def _ignore_lost(line: str) -> None:
    """Ignore a text about a message that cannot be read."""


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
        formats: Formats = FORMATS,
        place: int = 0,
        report_lost: Callable[[str], None] = _ignore_lost,
    ) -> None:
        """Prepare to follow the log.

        `description` describes this node. `formats` are the batch formats that this node reads.
        `place` is a number that identifies the host and the data directory of this node; 0 stands
        for a random number. When this node becomes active, `report_lost` is called with a sentence
        about each stored message that cannot be read.
        """
        self._directory = directory
        self._log = log
        self._version = version
        self._clock = clock
        self._report_lost = report_lost
        self._stopped = threading.Event()
        #: The open store of the directory, once this node owns the log.
        self.opened: OpenedStore | None = None
        #: The reason why the last batch could not be written; empty unless the disk is full.
        self.blocked_reason = ""
        self._description = description
        #: Text of the owner's description that was logged last.
        self._owner = ""
        #: True if the clocks of this node and of the active node differ by too much.
        self._clock_differs = False
        self._reporting = Reporting(log, self.report, self._refuse_name)
        #: Number that stands for the host and the data directory of this node, in its reports.
        self.place = place or secrets.randbits(63) | 1
        #: The reason why this node cannot go on; "" if it can go on.
        self._refusal = ""
        self.standby = Standby(
            Follower(directory.state, formats),
            timing,
            clock,
            wall_ms,
            lambda: secrets.randbits(63),
            bytes.fromhex(description.settings) or bytes(DIGEST_SIZE),
        )
        self.standby.description = description.encode()
        self.standby.handover_nonce = secrets.randbits(63) | 1
        self.standby.salt = secrets.randbits(32) or 1
        self.standby.format = formats.oldest
        self._formats = formats

    def run(self) -> LogOwner:
        """Follow the log until this node owns it. Blocks, so call `run` in a thread.

        When the call returns, `opened` is the store of the data directory, which holds all batches
        of the log. Raises FollowingStopped after `stop`, ReplicationError or StoreError if the node
        cannot go on.
        """
        try:
            self._note_owner(self._directory.state.owner)
            self._reporting.start()
            owner = carry_out(self.standby.follow(), self._log, self._apply, self._sleep)
            self.opened = self._directory.take_over(self._report_lost)
            return owner
        finally:
            self._reporting.stop()
            self._directory.close()

    def stop(self) -> None:
        """Request that `run` ends soon, with FollowingStopped."""
        self._stopped.set()

    @property
    def survivor_bytes(self) -> int:
        """The memory of the live records that this standby keeps up to date, in bytes."""
        return self._directory.survivor_bytes

    def _apply(self, step: Apply) -> None:
        try:
            self._directory.apply(step)
        except ReplicaFull as error:
            if not self.blocked_reason:
                logs.error(
                    "cluster_blocked",
                    reason=str(error),
                    note="this node stops following the log until its disk has space",
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
                note="this node may refuse definitions when it takes over, because its settings in "
                "the sections limits and mqtt differ from those of the active node; compare the "
                "output of `trellis config --effective` on both nodes",
            )
        logs.info("cluster_active", node=owner.node, host=owner.host)

    def _note_clock(self) -> None:
        """Log a warning if the clocks of this node and of the active node differ by too much."""
        ahead = self.standby.clock_ahead
        differs = abs(ahead) > CLOCK_MOST
        if differs and not self._clock_differs:
            owner = NodeDescription.decode(self.standby.state.owner)
            logs.warning(
                "cluster_clock_differs",
                node=owner.node,
                ahead_ms=ahead,
                note="TTLs, delays and session expiry follow the wall clock of the active node, so "
                "they change when this node takes over; synchronize the clocks of the nodes (NTP)",
            )
        self._clock_differs = differs

    def _sleep(self, seconds: float) -> None:
        """Wait for some seconds, and meanwhile free the disk space of dead records.

        Raises FollowingStopped after `stop`, and ReplicationError if another node has this name.
        """
        self._note_clock()
        until = self._clock() + seconds
        while self._directory.compact() and self._clock() < until:
            pass
        if self._stopped.wait(max(0.0, until - self._clock())):
            if self._refusal:
                raise ReplicationError(self._refusal)
            raise FollowingStopped

    def _refuse_name(self, reason: str) -> None:
        """Make `run` raise ReplicationError with a reason: another node has this node's name."""
        self._refusal = reason
        self._stopped.set()

    def report(self) -> NodeReport:
        """Return this node's report, with the offset up to which its directory has all batches.

        The log is handed over only to a node whose state is `following`. A node whose disk is full
        is `blocked`: as the owner, it could not write to its disk either.
        """
        known = self.standby.state
        return NodeReport(
            self._directory.stored_state.last + 1,
            self._version,
            "blocked" if self.blocked_reason else "following",
            known.epoch,
            known.number,
            wall_ms(),
            self.standby.handover_nonce,
            self.standby.description,
            position=known.position,
            format=known.format,
            oldest=self._formats.oldest,
            newest=self._formats.newest,
            clock_ms=int(self.standby.clock_ahead / CLOCK_STEP) * CLOCK_STEP,
            place=self.place,
        )
