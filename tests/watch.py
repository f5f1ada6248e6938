"""Ends a test run whose worker process died, hangs or is silent, with the names of the worker and of its test.

    every process   the fault handler bounds each test (pytest's own option), collection and the end of the process
    worker          writes each test's name into a file of its own before the test starts
    controller      a worker died, or no worker said anything for too long --> names, exit code 1

pytest-xdist alone waits for ever when a replaced worker gets a single test, or when a process that a dead worker
started keeps the worker's pipe open.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

#: Seconds beyond the limit of one test after which silence of all workers ends the run.
MARGIN: int = 60
#: Seconds between a worker's exit and the end of its pipe, and for a run that is to end to do so by itself.
GRACE: Final = 5
LAST_GRACE: Final = 90


class Node(Protocol):
    """A worker as pytest-xdist's controller knows it."""

    gateway: Any
    workerinput: dict[str, object]

    def notify_inproc(self, eventname: str, **kwargs: object) -> None:
        """Give the controller's loop an event."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the watch that fits this process."""
    limit = (
        float(config.getini("faulthandler_timeout") or 0)
        if config.pluginmanager.hasplugin("faulthandler")
        else 0.0
    )
    if limit and not config.getoption("usepdb"):
        workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
        config.pluginmanager.register(Bounds(limit, workerinput is None), "bounds")
        if workerinput is not None:
            config.pluginmanager.register(Worker(Path(workerinput["running"])), "running test")
        elif config.getoption("numprocesses", None):
            config.pluginmanager.register(Controller(limit + MARGIN), "watch")


class Bounds:
    """Bounds collection and the end of this process, as pytest bounds each test.

    A worker's process waits for the controller when its session is over, so its end is not bounded (`to_the_end`).
    """

    def __init__(self, limit: float, to_the_end: bool) -> None:
        self._limit = limit
        self._to_the_end = to_the_end

    def _begin(self) -> None:
        faulthandler.dump_traceback_later(self._limit, exit=True, file=sys.__stderr__ or sys.stderr)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Any:
        """Bound the collection of each module."""
        self._begin()
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Bound all that is left to do: threads that were not joined, and exit handlers."""
        self._begin()

    def pytest_unconfigure(self) -> None:
        """End the bound of a worker's session."""
        if not self._to_the_end:
            faulthandler.cancel_dump_traceback_later()


class Worker:
    """Says in a file which test this worker runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("collection")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write the test's name."""
        self._path.write_text(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write that all tests are done."""
        self._path.write_text("the end of its session")


class Controller:
    """Ends the run when a worker died, or when all are silent for `limit` seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._directory = Path(tempfile.mkdtemp(prefix="running-tests-"))
        self._nodes: dict[str, Node] = {}
        self._heard = time.monotonic()
        self._ended = threading.Event()
        #: The reason found by the watching thread, which the main thread reports.
        self._reason = ""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    # -- hooks, in the main thread

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Node) -> None:
        """Tell a worker where to write the name of its test."""
        self._hear()
        node.workerinput["running"] = str(self._directory / node.gateway.id)
        self._nodes[node.gateway.id] = node

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Node, error: object | None) -> None:
        """End the run if the worker died."""
        self._hear()
        self._nodes.pop(node.gateway.id, None)
        if self._reason:
            pytest.exit(self._reason, 1)
        if error and error != "keyboard-interrupt":
            pytest.exit(
                f"{self._name(node)} died{self._code(node, GRACE)} while running {self._running(node)}",
                1,
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self) -> None:
        """Hear a worker."""
        self._hear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Hear a worker."""
        self._hear()

    def pytest_runtest_logstart(self) -> None:
        """Hear a worker."""
        self._hear()

    def pytest_runtest_logreport(self) -> None:
        """Hear a worker."""
        self._hear()

    def pytest_unconfigure(self) -> None:
        """Stop watching."""
        self._ended.set()
        for path in self._directory.iterdir():
            path.unlink()
        self._directory.rmdir()

    def _hear(self) -> None:
        self._heard = time.monotonic()

    # -- the watching thread

    def _watch(self) -> None:
        gone: dict[str, float] = {}
        while not self._ended.wait(0.5):
            now = time.monotonic()
            for name, node in list(self._nodes.items()):
                if (
                    self._code(node)
                    and now - gone.setdefault(name, now) > GRACE
                    and node.gateway.id in self._nodes
                ):
                    self._end(
                        node,
                        f"{self._name(node)} died{self._code(node)} while running {self._running(node)} "
                        "(a process that it started keeps its pipe open)",
                    )
                    return
            nodes = list(self._nodes.values())
            if now - self._heard > self._limit and nodes:
                each = ", ".join(
                    f"{self._name(node)} runs {self._running(node)}{self._code(node)}"
                    for node in nodes
                )
                self._end(nodes[0], f"no worker said anything for {self._limit:.0f} s: {each}")
                return

    def _end(self, node: Node, reason: str) -> None:
        """Let the main thread end the run; end the process if that does not help."""
        self._reason = reason
        node.notify_inproc("errordown", node=node, error=reason)
        if not self._ended.wait(LAST_GRACE):
            os.write(2, f"\n{reason}\n".encode())
            os._exit(1)

    # -- words

    def _name(self, node: Node) -> str:
        return f"worker {node.gateway.id}"

    def _running(self, node: Node) -> str:
        try:
            return (self._directory / str(node.gateway.id)).read_text()
        except OSError:
            return "nothing yet"

    def _code(self, node: Node, patience: float = 0) -> str:
        """Return ` (exit code N)` if the worker's process has ended."""
        process: subprocess.Popen[bytes] | None = getattr(
            getattr(node.gateway, "_io", None), "popen", None
        )
        try:
            return "" if process is None else f" (exit code {process.wait(patience)})"
        except subprocess.TimeoutExpired:
            return ""
