"""A pytest plugin that imports the test modules once, and forks the workers of pytest-xdist.

Without this plugin, each worker is a new Python, which needs several seconds of CPU time to import
the test modules, their libraries and the product.

controller    before pytest-xdist sets up its nodes, imports the test modules, prepares Hypothesis,
              and forks a process for each node. execnet gets the pipes of this process, not the
              pipes of a new Python
worker        reads execnet's first line, as a new Python does, and runs pytest as always. The
              modules that pytest collects are loaded already

The controller must have no thread before it forks, so the import of a module must not start one. A
module must not keep its process id when it is imported, because all workers would have the same.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import pytest

from trellis.parent_process import end_with_parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Import the test modules and fork the workers, if the run has all tests and is on Linux."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    here = all(spec.popen and not spec.python for spec in specs)
    if not whole or not here or sys.platform != "linux":
        return
    # Only the controller of several workers needs this module.
    from execnet import gateway_base, gateway_io

    gc.disable()
    # The thread of tests/watch.py, which ends a silent run, starts with the first worker.
    limits = config.pluginmanager.get_plugin("run limits")
    with limits.limited() if limits else nullcontext():
        _import_modules(config)
        _prepare_hypothesis()
    if threading.active_count() > 1:
        raise pytest.UsageError(f"cannot fork workers: {threading.enumerate()} run already")
    gc.collect()
    gc.freeze()
    gc.enable()
    forks: dict[str, Fork] = {}
    for spec in specs:
        forks[spec.id] = Fork(forks.values())

    class ForkIO(gateway_io.Popen2IOMaster):
        """The pipes of a forked worker."""

        def __init__(self, fork: Fork, execmodel: Any) -> None:
            self.popen: Any = fork
            gateway_base.Popen2IO.__init__(self, fork.stdin, fork.stdout, execmodel)

    def create_io(spec: Any, execmodel: Any) -> ForkIO:
        return ForkIO(forks.pop(spec.id), execmodel)

    gateway_io.create_io = create_io


def _import_modules(config: pytest.Config) -> None:
    root = config.rootpath
    paths = sorted(path for each in config.args for path in (root / each).glob("**/*.py"))
    # The conftest.py of a package names the helper modules whose assertions pytest rewrites.
    chosen = [path for path in paths if path.name == "conftest.py"]
    chosen += [path for path in paths if path.name.startswith("test_")]
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in chosen]
    stored = (chosen[-1].parent / "__pycache__").glob(f"{chosen[-1].stem}.*")
    if sys.dont_write_bytecode or any(stored):
        _import(names)
        return
    # A fresh clone has no bytecode, and compiling the modules takes twice as long as importing
    # them. So another process compiles modules at the same time, and begins with the last one: when
    # this process comes to the later modules, their bytecode is stored already.
    compiler = os.fork()
    if compiler == 0:
        try:
            end_with_parent()
            _import(reversed(names))
        finally:
            os._exit(0)
    _import(names)
    os.kill(compiler, signal.SIGKILL)
    os.waitpid(compiler, 0)


def _import(names: Iterable[str]) -> None:
    for name in names:
        # pytest imports a failed module again, and reports the failure or skips the module.
        with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):
            importlib.import_module(name)


def _prepare_hypothesis() -> None:
    """Let Hypothesis read the constants in the modules and the characters of UTF-8.

    Hypothesis draws values from them. Without this function, each worker would need a second of
    CPU time for the constants and, in a fresh clone, another second for the characters.
    """
    if "hypothesis" in sys.modules:
        providers = importlib.import_module("hypothesis.internal.conjecture.providers")
        # The name is not public: without it, each worker reads the constants.
        getattr(providers, "_get_local_constants", int)()
        importlib.import_module("hypothesis.strategies").text().validate()


class Fork:
    """A forked worker, with the methods of subprocess.Popen that execnet and watch.py use."""

    def __init__(self, others: Iterable[Fork]) -> None:
        worker_input, controller_end = os.pipe()
        self.stdin = os.fdopen(controller_end, "wb")
        controller_end, worker_output = os.pipe()
        self.stdout = os.fdopen(controller_end, "rb")
        self.pid = os.fork()
        if self.pid == 0:
            # A worker ends when its input ends, so no other worker may keep the other end open.
            for one in (self, *others):
                one.stdin.close()
                one.stdout.close()
            _run(worker_input, worker_output)
        os.close(worker_input)
        os.close(worker_output)
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(self.pid)
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        if not ended.poll(None if timeout is None else timeout * 1_000):
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self.returncode

    def kill(self) -> None:
        """Kill the worker, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


def _run(stdin: int, stdout: int) -> NoReturn:
    """Serve execnet in this process, as `python -u -c` would, and exit."""
    code = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)
        sys.argv = ["-c"]
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
        code = 0
    except BaseException:  # noqa: BLE001 - the process must end here, not in the controller's code
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        finally:
            os._exit(code)
