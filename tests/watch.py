"""A pytest plugin that ends a test run whose worker process died, hangs or is silent.

The last line of such a run names the worker and the test that it ran.

    every process   limits the time of the collection and of the end of the process (RunLimits);
                    pytest's own option faulthandler_timeout limits each test
    worker          writes each test's name to a file of its own before the test starts
    controller      ends the run with exit code 1 if a worker died, or if no worker reported
                    anything for too long

Without this plugin, pytest-xdist waits forever when a replaced worker gets a single test, or when a
process that a dead worker started keeps the worker's pipe open.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

#: Seconds that the controller waits for a report beyond the time limit of one test.
MARGIN: int = 60
#: Seconds that may pass between the exit of a worker and the end of its pipe.
GRACE: Final = 5
#: Seconds that pytest has to end the run, before the watching thread ends the process.
LAST_GRACE: Final = 90


class Node(Protocol):
    """A worker as pytest-xdist's controller knows it."""

    gateway: Any
    workerinput: dict[str, object]

    def notify_inproc(self, eventname: str, **kwargs: object) -> None:
        """Put an event into the queue of the controller's main loop."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins for this process: RunLimits, and Worker or Controller."""
    limit = (
        float(config.getini("faulthandler_timeout") or 0)
        if config.pluginmanager.hasplugin("faulthandler")
        else 0.0
    )
    if limit and not config.getoption("usepdb"):
        workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
        config.pluginmanager.register(RunLimits(limit, workerinput is None), "run limits")
        if workerinput is not None:
            config.pluginmanager.register(Worker(Path(workerinput["running"])), "running test")
        elif config.getoption("numprocesses", None):
            config.pluginmanager.register(Controller(limit + MARGIN), "watch")


class RunLimits:
    """Time limits of this process: for the collection of a module, and for the end of the run.

    If `limits_exit` is False, as in a worker process, there is no limit after the test session: a
    worker may have to wait for the controller for any time.
    """

    def __init__(self, limit: float, limits_exit: bool) -> None:
        self._limit = limit
        self._limits_exit = limits_exit

    def _start_timer(self) -> None:
        faulthandler.dump_traceback_later(self._limit, exit=True, file=sys.__stderr__ or sys.stderr)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the time of the code in the `with` statement."""
        self._start_timer()
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Any:
        """Limit the time that pytest may take to collect one module."""
        with self.limited():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Limit the time for threads that are still running and for exit handlers."""
        self._start_timer()

    def pytest_unconfigure(self) -> None:
        """Cancel the time limit if this process is a worker, which may have to wait at its end."""
        if not self._limits_exit:
            faulthandler.cancel_dump_traceback_later()


class Worker:
    """A plugin of a worker process that writes the name of its present test to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("collection")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write the name of the test that starts."""
        self._path.write_text(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write that all tests are finished."""
        self._path.write_text("the end of its session")


class Controller:
    """A plugin of the controller that ends the run when workers die or are silent.

    Workers are silent if none of them reports anything for `limit` seconds.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._directory = Path(tempfile.mkdtemp(prefix="running-tests-"))
        self._nodes: dict[str, Node] = {}
        self._last_report = time.monotonic()
        self._ended = threading.Event()
        #: The reason found by the watching thread, which the main thread reports.
        self._reason = ""
        self._watching = threading.Thread(target=self._watch, name="watch", daemon=True)

    # -- hooks, in the main thread

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Node) -> None:
        """Give a worker the path of the file for the name of its test."""
        self._note_report()
        node.workerinput["running"] = str(self._directory / node.gateway.id)
        self._nodes[node.gateway.id] = node
        # Not before the first node: tests/prefork.py forks the workers before any thread starts.
        if not self._watching.is_alive():
            self._watching.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Node, error: object | None) -> None:
        """End the run if the worker died."""
        self._note_report()
        self._nodes.pop(node.gateway.id, None)
        if self._reason:
            pytest.exit(self._reason, 1)
        if error and error != "keyboard-interrupt":
            pytest.exit(
                f"{self._name(node)} died{self._code(node, GRACE)}"
                f" while running {self._running(node)}",
                1,
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self) -> None:
        """Remember the time at which a worker got ready."""
        self._note_report()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Remember the time at which a worker has collected its tests."""
        self._note_report()

    def pytest_runtest_logstart(self) -> None:
        """Remember the time at which a worker starts a test."""
        self._note_report()

    def pytest_runtest_logreport(self) -> None:
        """Remember the time at which a worker reports a result."""
        self._note_report()

    def pytest_unconfigure(self) -> None:
        """Stop the watching thread, and remove the files with the names of tests."""
        self._ended.set()
        for path in self._directory.iterdir():
            path.unlink()
        self._directory.rmdir()

    def _note_report(self) -> None:
        self._last_report = time.monotonic()

    # -- the watching thread

    def _watch(self) -> None:
        exited: dict[str, float] = {}
        while not self._ended.wait(0.5):
            now = time.monotonic()
            for name, node in list(self._nodes.items()):
                if (
                    self._code(node)
                    and now - exited.setdefault(name, now) > GRACE
                    and node.gateway.id in self._nodes
                ):
                    self._end(
                        node,
                        f"{self._name(node)} died{self._code(node)}"
                        f" while running {self._running(node)}"
                        " (a process that the worker started keeps the worker's pipe open)",
                    )
                    return
            nodes = list(self._nodes.values())
            if now - self._last_report > self._limit and nodes:
                each = ", ".join(
                    f"{self._name(node)} runs {self._running(node)}{self._code(node)}"
                    for node in nodes
                )
                self._end(nodes[0], f"no worker reported anything for {self._limit:.0f} s: {each}")
                return

    def _end(self, node: Node, reason: str) -> None:
        """Make the main thread end the run.

        If the run has not ended after LAST_GRACE seconds, end the process.
        """
        self._reason = reason
        node.notify_inproc("errordown", node=node, error=reason)
        if not self._ended.wait(LAST_GRACE):
            os.write(2, f"\n{reason}\n".encode())
            os._exit(1)

    # -- parts of the messages

    def _name(self, node: Node) -> str:
        return f"worker {node.gateway.id}"

    def _running(self, node: Node) -> str:
        try:
            return (self._directory / str(node.gateway.id)).read_text()
        except OSError:
            return "nothing yet"

    def _code(self, node: Node, patience: float = 0) -> str:
        """Return ` (exit code N)` if the worker ends within `patience` seconds, else ""."""
        process: subprocess.Popen[bytes] | None = getattr(
            getattr(node.gateway, "_io", None), "popen", None
        )
        try:
            return "" if process is None else f" (exit code {process.wait(patience)})"
        except subprocess.TimeoutExpired:
            return ""
