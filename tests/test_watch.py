"""A test run always ends: a worker that dies, hangs or is silent ends it, with its name, its test's name, and exit code 1."""

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

#: Seconds within which a run ends that would else wait for ever.
BOUND: Final = 100
PLUGINS: Final = ("-p", "xdist", "-p", "tests.watch", "-p", "no:cacheprovider")
ROOT: Final = Path(__file__).parent.parent

#: Tests in groups of one, which is how a worker that is replaced would wait for ever.
OTHERS: Final = """
import faulthandler, os, signal, threading
from pathlib import Path

def test_before(): pass
def test_after(): pass
def test_last(): pass
"""


class Run:
    """A small test run of its own, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def ends(self, body: str, *flags: str, limit: int = 60) -> str:
        """Run the tests of `body` beside OTHERS on two workers; return the output of a run that failed."""
        (self.directory / "test_small.py").write_text(OTHERS + body)
        (self.directory / "pytest.ini").write_text(
            f"[pytest]\nfaulthandler_timeout = {limit}\nfaulthandler_exit_on_timeout = true\naddopts = --max-worker-restart=0\n"
        )
        with (self.directory / "output").open("w+") as output:
            # A file: a process that is left over would keep a pipe open.
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
                code = process.wait(BOUND)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            said = output.read()
        assert code == 1, said
        return said


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
    said = run.ends(f"def test_that_ends_its_process(): {death}")
    assert re.search(
        rf"worker gw\d died \(exit code {code}\) while running test_small.py::test_that_ends_its_process",
        said,
    ), said


def test_a_test_that_hangs_ends_the_run_with_its_stack_and_its_name(run: Run) -> None:
    said = run.ends("def test_that_hangs(): threading.Event().wait()", limit=3)
    assert re.search(
        r"worker gw\d died \(exit code 1\) while running test_small.py::test_that_hangs", said
    ), said
    assert re.search(r'test_small.py", line \d+ in test_that_hangs', said), said


@pytest.mark.long
def test_a_dead_worker_is_seen_though_its_child_keeps_the_pipe_open(run: Run) -> None:
    said = run.ends("""
def test_that_leaves_a_child():
    child = os.fork()
    if child == 0:
        signal.pause()
    Path("left.pid").write_text(str(child))
    os._exit(3)
""")
    assert re.search(
        r"worker gw\d died \(exit code 3\) while running test_small.py::test_that_leaves_a_child",
        said,
    ), said


@pytest.mark.long
def test_silence_ends_the_run_where_the_fault_handler_is_off(run: Run) -> None:
    (run.directory / "conftest.py").write_text("import tests.watch\ntests.watch.MARGIN = 1\n")
    said = run.ends(
        """
def test_that_is_silent():
    faulthandler.cancel_dump_traceback_later()
    threading.Event().wait()
""",
        limit=3,
    )
    assert re.search(
        r"no worker said anything for 4 s: .*worker gw\d runs test_small.py::test_that_is_silent",
        said,
    ), said


def test_a_collection_that_hangs_ends_the_run(run: Run) -> None:
    said = run.ends("threading.Event().wait()", limit=3)
    assert re.search(r"worker gw\d died \(exit code 1\) while running collection", said), said


def test_a_worker_that_dies_after_its_last_test_ends_the_run(run: Run) -> None:
    (run.directory / "conftest.py").write_text(
        "import os\ndef pytest_sessionfinish(session):\n    hasattr(session.config, 'workerinput') and os._exit(4)\n"
    )
    said = run.ends("")
    assert re.search(
        r"worker gw\d died \(exit code 4\) while running the end of its session", said
    ), said


def test_a_process_that_does_not_end_after_its_tests_is_ended(run: Run) -> None:
    said = run.ends(
        "def test_that_leaves_a_thread(): threading.Thread(target=threading.Event().wait).start()",
        "-n",
        "0",
        limit=3,
    )
    assert "4 passed" in said and "Timeout (0:00:03)!" in said, said
