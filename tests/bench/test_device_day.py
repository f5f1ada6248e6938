"""Test of benchmarks/device_day.py: a short day of a few devices with a real broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_short_day_keeps_memory_flat_and_loses_nothing() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-P", "benchmarks/device_day.py", "--devices", "200"),
            *("--minutes", "1", "--trellis", f"{sys.executable} -m trellis"),
        ],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    *hours, total = done.stdout.splitlines()[1:]
    assert [int(line.split()[0]) for line in hours] == list(range(1, 25))
    confirmed, received = (int(hours[-1].split()[at].replace(",", "")) for at in (5, 6))
    assert received >= confirmed > 1_000, total
