"""A thread that reports the state of this node to the cluster again and again.

The thread that follows the log sends no reports: Kafka may answer a report late, and the thread
would then read the log late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from broker.replication.contract import LogUnreachable
from broker.replication.engine import ReplicatedLog
from broker.replication.report import NodeReport

#: Seconds between two checks whether the report has changed, and between two reports if it has not.
REPORT_SECONDS: Final = 1.0
REPEAT_SECONDS: Final = 5.0


class Reporting:
    """Reports the state of one node. `report` returns the node's present report."""

    def __init__(self, log: ReplicatedLog, report: Callable[[], NodeReport]) -> None:
        self._log = log
        self._report = report
        self._reported = NodeReport(-1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        """Start the thread that reports."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reporting. A report that is being sent is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.report()
            self._stopped.wait(REPORT_SECONDS)

    def report(self) -> None:
        """Send the node's report if it differs from the last one, or if the last one is old."""
        report = self._report()
        age = report.wall - self._reported.wall
        if replace(report, wall=self._reported.wall) == self._reported and (
            0 <= age < 1000 * REPEAT_SECONDS
        ):
            return
        try:
            self._log.report(report)
        except LogUnreachable:
            return
        self._reported = report
