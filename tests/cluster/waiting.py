"""Waiting for the work of other threads and processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.cluster.nodes import PATIENCE, NodeProcess

#: Seconds between two checks of a condition.
LOOK_SECONDS = 0.005


def wait_for(truth: Callable[[], object], explain: Callable[[], str] = str) -> None:
    """Wait until `truth()` is true because of the work of another thread or process.

    After PATIENCE seconds, the test fails, with the text of `explain()`.
    """
    end = time.monotonic() + PATIENCE
    while not truth():
        assert time.monotonic() < end, f"waited for {PATIENCE:g} s: {explain()}"
        threading.Event().wait(LOOK_SECONDS)


def wait_for_line(node: NodeProcess, text: str) -> None:
    """Wait until the log of a node has this text."""
    wait_for(lambda: text in node.log, lambda: f"{text!r} in the log:\n{node.log}")
