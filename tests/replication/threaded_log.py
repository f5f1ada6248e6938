"""A replicated log in memory whose calls block, for threads of several nodes in one process."""

from __future__ import annotations

import threading
from math import inf

from broker.replication.contract import (
    CHUNK_SIZE,
    AppendRefused,
    LogSpan,
    LogUnreachable,
    OutcomeUnknown,
)
from broker.replication.memory import MemoryLog
from broker.replication.report import NodeReport


class ThreadedLog:
    """A `ReplicatedLog` that all nodes of a test share. After `stand_still`, all calls wait."""

    identity = "memory"
    #: The reason for which the log refuses batches (`ReplicatedLog.refusal`); "" for none.
    refusal = ""
    #: The largest payload of a chunk, in bytes (`ReplicatedLog.chunk_size`).
    chunk_size = CHUNK_SIZE

    def check(self, now: bool = False) -> None:
        """Do nothing: this log loses no records."""

    def __init__(self) -> None:
        self.records = MemoryLog()
        self.reported: dict[str, NodeReport] = {}
        #: The error of the next append, which then has no effect; None for an append that succeeds.
        self.failure: OutcomeUnknown | None = None
        #: The largest record that the log accepts, in bytes.
        self.accepted: float = inf
        #: Number of reads that found the log stopped.
        self.unanswered = 0
        self._lock = threading.Lock()
        self._moves = threading.Event()
        self._moves.set()

    def expect(self, identity: str) -> None:
        assert identity in ("", self.identity)

    def stand_still(self) -> None:
        """Make all calls wait until `move` is called."""
        self._moves.clear()

    def move(self) -> None:
        """Resume the waiting calls."""
        self._moves.set()

    def append(self, data: bytes) -> int:
        self._moves.wait()
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if len(data) > self.accepted:
                raise AppendRefused(f"cannot append {len(data)} bytes: too large", len(data))
            return self.records.append(data)

    def read(self, offset: int) -> LogSpan:
        if not self._moves.is_set():
            self.unanswered += 1
            raise LogUnreachable("the log is stopped")
        with self._lock:
            return self.records.read(offset)

    def bounds(self) -> tuple[int, int]:
        return self.records.low, self.records.tip

    def trim(self, offset: int) -> None:
        with self._lock:
            self.records.trim(offset)

    def report(self, report: NodeReport) -> None:
        self.reported["node"] = report

    def own_report(self) -> NodeReport | None:
        return self.reported.get("node")

    def reports(self) -> dict[str, NodeReport]:
        return dict(self.reported)

    def remove_report(self, node: str) -> None:
        self.reported.pop(node, None)

    def close(self) -> None:
        pass
