"""Tests that a broker started with the default matcher imports no package it does not use."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker import command, environment

#: Seconds that a broker may take to stop.
_STOP = 20


def imported_by_serve(*flags: str) -> set[str]:
    """Return the modules that `trellis serve` imports until it is stopped."""
    executable, *rest = command(*flags)
    process = subprocess.Popen(
        [executable, "-X", "importtime", *rest],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=_STOP)
    finally:
        process.kill()
        process.wait()
    return {
        line.rpartition("|")[2].strip()
        for line in log.splitlines()
        if line.startswith("import time:")
    }


def test_the_default_start_does_not_import_optional_matcher_packages(tmp_path: Path) -> None:
    modules = imported_by_serve("--data-dir", str(tmp_path))
    assert "matching.registry" in modules
    optional = {"pyroaring", "cereggii", "numpy", "matching.bitmap", "matching.bitmap_fixed"}
    assert not optional & modules


def test_a_bitmap_matcher_imports_pyroaring() -> None:
    pytest.importorskip("pyroaring")
    program = (
        "import sys\n"
        "from matching import AMQP, create\n"
        "before = 'pyroaring' in sys.modules\n"
        "create('bitmap', AMQP)\n"
        "print(before, 'pyroaring' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.stdout == "False True\n"
