"""Tests of tests/watch.py: a worker that dies, hangs or is silent ends the test run.

The run ends with exit code 1, the name of the worker and the name of its test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

#: Seconds within which each started test run must end.
RUN_TIMEOUT: Final = 100
PLUGINS: Final = ("-p", "xdist", "-p", "tests.watch", "-p", "no:cacheprovider")
ROOT: Final = Path(__file__).parent.parent

#: Tests that pass, each in a group of its own. So a replaced worker may get a single test, and then
#: pytest-xdist would wait forever without tests/watch.py.
OTHERS: Final = """
import faulthandler, os, signal, threading
from pathlib import Path

def test_before(): pass
def test_after(): pass
def test_last(): pass
"""


class Run:
    """A small test run in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def output_of_failure(self, body: str, *flags: str, limit: int = 60) -> str:
        """Run the tests of `body` and OTHERS on two workers; return the output.

        The run must end with exit code 1.
        """
        (self.directory / "test_small.py").write_text(OTHERS + body)
        (self.directory / "pytest.ini").write_text(
            f"[pytest]\nfaulthandler_timeout = {limit}\nfaulthandler_exit_on_timeout = true\n"
            "addopts = --max-worker-restart=0\n"
        )
        with (self.directory / "output").open("w+") as output:
            # A file, not a pipe: a process that outlives the run would keep the pipe open.
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    *PLUGINS,
                    "-n",
                    "2",
                    "--dist",
                    "loadgroup",
                    *flags,
                ],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                    "PYTEST_ADDOPTS": "",
                },
            )
            try:
                code = process.wait(RUN_TIMEOUT)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            text = output.read()
        assert code == 1, text
        return text


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield Run(tmp_path)
    for left in tmp_path.glob("*.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(left.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("death", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)]
)
def test_a_worker_that_dies_ends_the_run_with_its_name_and_its_test(
    run: Run, death: str, code: int
) -> None:
    output = run.output_of_failure(f"def test_that_ends_its_process(): {death}")
    assert re.search(
        rf"worker gw\d died \(exit code {code}\) while running"
        r" test_small.py::test_that_ends_its_process",
        output,
    ), output


def test_a_test_that_hangs_ends_the_run_with_its_stack_and_its_name(run: Run) -> None:
    output = run.output_of_failure("def test_that_hangs(): threading.Event().wait()", limit=3)
    assert re.search(
        r"worker gw\d died \(exit code 1\) while running test_small.py::test_that_hangs", output
    ), output
    assert re.search(r'test_small.py", line \d+ in test_that_hangs', output), output


@pytest.mark.long
def test_a_dead_worker_is_seen_though_its_child_keeps_the_pipe_open(run: Run) -> None:
    output = run.output_of_failure("""
def test_that_leaves_a_child():
    child = os.fork()
    if child == 0:
        signal.pause()
    Path("left.pid").write_text(str(child))
    os._exit(3)
""")
    assert re.search(
        r"worker gw\d died \(exit code 3\) while running test_small.py::test_that_leaves_a_child",
        output,
    ), output


@pytest.mark.long
def test_silence_ends_the_run_where_the_fault_handler_is_off(run: Run) -> None:
    (run.directory / "conftest.py").write_text("import tests.watch\ntests.watch.MARGIN = 1\n")
    output = run.output_of_failure(
        """
def test_that_is_silent():
    faulthandler.cancel_dump_traceback_later()
    threading.Event().wait()
""",
        limit=3,
    )
    assert re.search(
        r"no worker reported anything for 4 s: .*worker gw\d runs"
        r" test_small.py::test_that_is_silent",
        output,
    ), output


def test_a_collection_that_hangs_ends_the_run(run: Run) -> None:
    output = run.output_of_failure("threading.Event().wait()", limit=3)
    assert re.search(r"worker gw\d died \(exit code 1\) while running collection", output), output


def test_a_worker_that_dies_after_its_last_test_ends_the_run(run: Run) -> None:
    (run.directory / "conftest.py").write_text(
        "import os\ndef pytest_sessionfinish(session):\n"
        "    hasattr(session.config, 'workerinput') and os._exit(4)\n"
    )
    output = run.output_of_failure("")
    assert re.search(
        r"worker gw\d died \(exit code 4\) while running the end of its session", output
    ), output


def test_a_process_that_does_not_end_after_its_tests_is_ended(run: Run) -> None:
    output = run.output_of_failure(
        "def test_that_leaves_a_thread(): threading.Thread(target=threading.Event().wait).start()",
        "-n",
        "0",
        limit=3,
    )
    assert "4 passed" in output and "Timeout (0:00:03)!" in output, output
