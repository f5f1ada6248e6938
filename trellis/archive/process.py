"""Starts the archive's worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trellis import logs
from trellis.archive import contract
from trellis.worker_process import WorkerProcess

#: The program of the worker. The environment of the broker, which the worker gets, may have the
#: credentials of an object store.
PROGRAM: Final = "trellis.archive"


def start_worker(
    opening: contract.Open, received: Callable[[contract.FromWorker], None]
) -> WorkerProcess:
    """Start the worker. `received` is called with each of its messages; the first one is Ready."""
    return WorkerProcess(
        PROGRAM,
        lambda: contract.line(opening),
        lambda text: received(contract.from_worker.decode(text)),
        _log_lost,
    )


def _log_lost(reason: str, delay: float) -> None:
    logs.warning(
        "archive_worker_lost",
        reason=reason,
        note=f"uploads and fetches wait; next start in {delay:g} s",
    )
