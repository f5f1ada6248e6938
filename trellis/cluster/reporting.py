"""A thread that reports the state of this node to the cluster again and again.

The thread also checks again and again whether the log can lose records (topic_watch.py).

The thread that follows the log sends no reports: Kafka may answer a report late, and the thread
would then read the log late.

Two nodes of the same name would replace the reports of each other. So the thread reads the stored
report before it stores a new one. If the stored report is from another host or another data
directory, the thread first reads the stored report again and again for a while: a report that
changes is from a running node, and a report that does not change is from a stopped node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from broker.replication.contract import LogUnreachable
from broker.replication.engine import ReplicatedLog
from broker.replication.report import NodeReport

#: Seconds between two checks whether the report has changed, and between two reports if it has not.
REPORT_SECONDS: Final = 1.0
REPEAT_SECONDS: Final = 5.0
#: Seconds for which the report of another host or data directory must stay unchanged before this
#: node replaces it. A running node reports more often.
UNCHANGED_SECONDS: Final = REPEAT_SECONDS + 2 * REPORT_SECONDS


class Reporting:
    """Reports the state of one node.

    `report` returns the node's present report. `on_conflict` is called with a text if another node
    reports under the same name.
    """

    def __init__(
        self,
        log: ReplicatedLog,
        report: Callable[[], NodeReport],
        on_conflict: Callable[[str], None],
    ) -> None:
        self._log = log
        self._report = report
        self._on_conflict = on_conflict
        self._reported = NodeReport(-1)
        #: The first report of another host or data directory under this node's name, and the time
        #: in ms at which this node found that report.
        self._conflicting: tuple[NodeReport, int] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        """Start the thread that reports."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reporting, without a wait for a report that is being sent."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.report()
            with suppress(LogUnreachable):
                self._log.check()
            self._stopped.wait(REPORT_SECONDS)

    def report(self) -> None:
        """Send the node's report if it has changed, or REPEAT_SECONDS after the last report."""
        report = self._report()
        age = report.wall - self._reported.wall
        if replace(report, wall=self._reported.wall) == self._reported and (
            0 <= age < 1000 * REPEAT_SECONDS
        ):
            return
        try:
            if self._may_replace(report):
                self._log.report(report)
                self._reported = report
        except LogUnreachable:
            return

    def _may_replace(self, report: NodeReport) -> bool:
        """True if this node may replace the stored report under its name.

        A node may replace its own report, and the report of a stopped node. If the report is from
        another running node, call `on_conflict`; this node may then replace the report only if this
        node has reported since its start.
        """
        last = self._log.own_report()
        if last is None or last.place in (0, report.place):
            return True
        if self._conflicting is None and self._reported.offset < 0:
            self._conflicting = last, report.wall
        if self._conflicting is None or last != self._conflicting[0]:
            self._on_conflict(
                f"another node reports as node '{report.server.node}' of this cluster (its host "
                f"is '{last.server.host}'): give each node a node.name of its own"
            )
            return self._reported.offset >= 0
        since = min(self._conflicting[1], last.wall)
        return report.wall - since > 1000 * UNCHANGED_SECONDS or report.wall < since
