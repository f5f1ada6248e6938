"""Notices that the owner of the replicated log cannot write its disk.

In this state the log has the last batch, and the disk does not. The broker confirms a batch only
after the log and the disk have it. So the owner hands the log over to a standby that has the batch
(trellis/switching.py). Without such a standby, the owner stays active, and the publishers wait
until the disk has space.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trellis import logs

#: Seconds between two requests to hand the log over. Nodes report at most once a second.
REPEAT_SECONDS: Final = 1.0


class DiskWatch:
    """Measures for how long the disk has lacked the last batch that was appended to the log.

    The writer's thread calls `shipped` and `written`, and the thread of the beats calls `look`. The
    event loop calls `answer` and `refuse`.
    """

    def __init__(
        self, silence: float, clock: Callable[[], float], end: Callable[[str], None]
    ) -> None:
        """Create the watch; `silence` is in seconds. `end` ends the process, for a reason."""
        self._silence = silence
        self._clock = clock
        self._end = end
        #: Makes the event loop try to hand the log over. None until the broker is restored.
        self.request: Callable[[], None] | None = None
        #: The time at which the log acknowledged a batch that is not yet written to the disk; None
        #: if there is no such batch.
        self._since: float | None = None
        #: The time of the last request, and True if the event loop has answered that request.
        self._requested: float | None = None
        self._answered = False
        #: The value of `_since` for which a refused handover was logged; None before the first.
        self._refused: float | None = None

    def shipped(self) -> None:
        """Record that the log has acknowledged a batch, which is to be written to the disk now."""
        self._since = self._clock()

    def written(self) -> None:
        """Record that the disk has the batch."""
        self._since = self._requested = None

    @property
    def is_stuck(self) -> bool:
        """True if the last batch could not be written to the disk for `silence` seconds."""
        since = self._since
        return since is not None and self._clock() > since + self._silence

    @property
    def problem(self) -> str:
        """The problem as a text, for the log and for errors."""
        return f"a batch could not be written to the data directory for {self._silence:g} s"

    def answer(self) -> None:
        """Record that the event loop has begun to carry out the requested handover."""
        self._answered = True

    def refuse(self, reason: str) -> None:
        """Log why the log could not be handed over, once for each batch that is stuck."""
        if self.is_stuck and self._refused != self._since:
            self._refused = self._since
            logs.error(
                "cluster_disk_blocked",
                problem=self.problem,
                reason=reason,
                note="this node stays active, and publishers wait until the disk has space or a "
                "standby can take over",
            )

    def look(self) -> None:
        """Ask the event loop to hand the log over to a standby if the disk is stuck.

        End the process if the event loop does not begin the handover within `silence` seconds. The
        beats end with the process, so a standby then takes over.
        """
        if not self.is_stuck:
            return
        now, requested = self._clock(), self._requested
        if requested is None or self._answered and now >= requested + REPEAT_SECONDS:
            self._requested, self._answered = now, False
            if self.request is None:
                self._end(f"{self.problem}, while the broker is restored")
            else:
                self.request()
        elif not self._answered and now > requested + self._silence:
            self._end(f"{self.problem}, and the event loop does not answer")
