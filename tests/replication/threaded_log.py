"""A replicated log in memory whose calls block, for threads of several nodes in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from broker.replication.contract import LogSpan, LogUnreachable, OutcomeUnknown
from broker.replication.memory import MemoryLog


class ThreadedLog:
    """A `ReplicatedLog` that all nodes of a test share. After `stand_still`, all calls wait."""

    def __init__(self) -> None:
        self.records = MemoryLog()
        self.reported: dict[str, tuple[int, str]] = {}
        #: The error of the next append, which then has no effect; None for an append that succeeds.
        self.failure: OutcomeUnknown | None = None
        #: Number of reads that found the log stopped.
        self.unanswered = 0
        self._lock = threading.Lock()
        self._moves = threading.Event()
        self._moves.set()

    def stand_still(self) -> None:
        """Make all calls wait until `move`."""
        self._moves.clear()

    def move(self) -> None:
        """Resume the waiting calls."""
        self._moves.set()

    def append(self, data: bytes) -> int:
        self._moves.wait()
        with self._lock:
            if self.failure is not None:
                raise self.failure
            return self.records.append(data)

    def read(self, offset: int) -> LogSpan:
        if not self._moves.is_set():
            self.unanswered += 1
            raise LogUnreachable("the log stands still")
        with self._lock:
            return self.records.read(offset)

    def trim(self, offset: int) -> None:
        with self._lock:
            self.records.trim(offset)

    def commit_synced(self, offset: int, version: str) -> None:
        self.reported["node"] = offset, version

    def synced(self, names: Iterable[str]) -> dict[str, tuple[int, str] | None]:
        return {name: self.reported.get(name) for name in names}

    def close(self) -> None:
        pass
