"""Tests of tests/prefork.py: the workers of a test run are forks that have the test modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PLUGINS: Final = ("xdist", "tests.watch", "tests.prefork", "no:cacheprovider")
#: A test module that notes the process that imports it, and the processes of its tests. Each test
#: waits until both tests have begun, so that they need two workers.
BOTH: Final = """
import os, time
from pathlib import Path
import pytest

def note(name):
    with Path("processes").open("a") as file:
        print(name, os.getpid(), file=file)

note("import")

@pytest.mark.parametrize("number", [1, 2])
def test_in_a_worker(number):
    note("test")
    while Path("processes").read_text().count("test") < 2:
        time.sleep(0.01)
"""
DEATH: Final = """
import os

def test_that_ends_its_process():
    os._exit(3)
"""
THREAD: Final = """
import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def run(
    directory: Path, limit: int = 60, stored: bool = True, **modules: str
) -> subprocess.CompletedProcess[str]:
    """Run all tests of a directory on two workers; `limit` is the time limit of tests/watch.py.

    If `stored` is True, Python stores the bytecode of the modules.
    """
    package = directory / "small"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in modules.items():
        (package / f"test_{name}.py").write_text(text)
    (directory / "pytest.ini").write_text(
        f"[pytest]\ntestpaths = small\nfaulthandler_timeout = {limit}\n"
        "addopts = --max-worker-restart=0\n"
    )
    flags = [word for name in PLUGINS for word in ("-p", name)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "-n", "2"],
        cwd=directory,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
            "PYTHONDONTWRITEBYTECODE": "" if stored else "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_module_is_imported_once_for_all_workers(tmp_path: Path) -> None:
    done = run(tmp_path, stored=False, both=BOTH)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "processes").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["import", "test", "test"]
    assert len(set(lines)) == 3
    assert len({line.split()[1] for line in lines}) == 3


def test_without_bytecode_another_process_helps_to_compile_the_modules(tmp_path: Path) -> None:
    done = run(tmp_path, both=BOTH)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "processes").read_text().splitlines()
    processes = {
        kind: {line for line in lines if line.startswith(kind)} for kind in ("import", "test")
    }
    assert len(processes["test"]) == 2
    assert 1 <= len(processes["import"]) <= 2
    assert list((tmp_path / "small" / "__pycache__").glob("test_both.*"))


@pytest.mark.long
def test_a_module_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    done = run(tmp_path, wrong="raise ValueError('not today')")
    assert done.returncode == 1
    assert "ValueError: not today" in done.stdout


def test_an_import_that_hangs_ends_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, limit=1, hangs="import threading\n\nthreading.Event().wait()\n")
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert re.search(r'small/test_hangs\.py", line 3 in <module>', done.stderr), done.stderr


def test_a_forked_worker_that_dies_ends_the_run_with_its_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, death=DEATH)
    assert done.returncode == 1
    assert re.search(
        r"worker gw\d died \(exit code 3\) while running"
        r" small/test_death.py::test_that_ends_its_process",
        done.stdout + done.stderr,
    ), done.stdout + done.stderr


def test_a_thread_that_an_import_starts_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, thread=THREAD)
    assert done.returncode == 4
    assert "cannot fork workers" in done.stderr
