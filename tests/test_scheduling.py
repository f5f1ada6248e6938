"""Tests of tests/scheduling.py: the tests of a group run in one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
#: Four tests of each kind. pytest-xdist gives both workers tests of each kind, unless the tests are
#: a group. Each test, and each start of the fixture, notes its process.
MODULE: Final = """
import os
from pathlib import Path
import pytest

def note(name):
    with Path("processes").open("a") as file:
        print(name, os.getpid(), file=file)

@pytest.fixture(scope="module")
def shared():
    note("fixture")

@pytest.mark.parametrize("number", range(4))
def test_with_a_fixture_of_the_file(number, shared):
    note("shared")

@pytest.mark.xdist_group("some")
@pytest.mark.parametrize("number", range(4))
def test_with_a_mark(number):
    note("marked")

@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    note("alone")
"""


def test_the_tests_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    flags = ["-p", "xdist", "-p", "tests.scheduling", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "-n", "2", "--dist", "loadgroup"],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "processes").read_text().split("\n")[:-1]
    notes_of = {
        kind: [line for line in lines if line.startswith(kind)]
        for kind in ("fixture", "shared", "marked", "alone")
    }
    assert [len(notes) for notes in notes_of.values()] == [1, 4, 4, 4]
    assert len(set(notes_of["shared"])) == len(set(notes_of["marked"])) == 1
    assert "@" not in done.stdout, done.stdout
