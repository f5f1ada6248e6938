"""Tests of benchmarks/control.py, which finds the times at which the whole machine was slow.

Pauses of the event loop at these times are reported separately.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

CONTROL = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "control.py"))


@pytest.mark.parametrize(
    ("holds", "slow", "longest"),
    [
        ([], [(0.0, 1.0)], (0.0, 0.0)),
        ([(1.0, 1.1, 0.05), (5.0, 5.1, 0.02)], [], (0.05, 0.0)),
        ([(1.0, 1.1, 0.05), (5.0, 5.1, 0.02)], [(0.9, 1.05)], (0.02, 0.05)),
        ([(1.0, 1.1, 0.05), (1.2, 1.3, 0.06)], [(1.1, 1.2)], (0.06, 0.0)),
    ],
)
def test_holds_of_a_slow_machine_are_apart(
    holds: list[Any], slow: list[Any], longest: tuple[float, float]
) -> None:
    assert CONTROL["longest"](holds, slow) == longest
