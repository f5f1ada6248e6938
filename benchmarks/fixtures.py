"""Measures how long a test waits for its broker (trellis/testing).

    python benchmarks/fixtures.py
        --runs N               number of new processes for each figure [15]

Two parts, each of which prints minimum, median and maximum:

1. New runs of pytest. A run has one file with two tests that request the fixture `trellis`. The
   figure is the time of the fixture in the first and in the second test. In the file `bare`, the
   tests import nothing; the file `pika` imports pika, and the file `celery` imports Celery. The
   process that starts brokers loads its code while pytest imports the file.
2. New processes that start brokers, and a broker that is requested at once, so nothing happens at
   the same time. The figures are the time until this broker serves, the CPU time of both processes
   until then, and the times of a second broker and of a first call of `declare`.

The program measures the Trellis that the interpreter imports: run it from an installed wheel, or
set PYTHONPATH to a checkout. Linux only.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trellis
from trellis.testing.running import RunningBroker
from trellis.testing.starting import Spawner

TESTS: Final = """
def test_first(trellis):
    pass

def test_second(trellis):
    pass
"""
#: The line of a fixture in the output of `pytest --durations`.
SETUP: Final = re.compile(r"([\d.]+)s setup +\S+::test_(\w+)")


def main() -> None:
    """Measure the fixtures and the process that starts brokers, and print a table."""
    parser = argparse.ArgumentParser(usage="python benchmarks/fixtures.py [--runs N]")
    parser.add_argument("--runs", type=int, default=15, metavar="N")
    runs: int = parser.parse_args().runs
    compiled = "yes" if trellis.compiled() else "no"
    print(f"Trellis {trellis.__version__}, compiled: {compiled}, Python {sys.version.split()[0]}")
    print(f"{'milliseconds':44} {'min':>6} {'median':>6} {'max':>6}")
    with tempfile.TemporaryDirectory() as directory:
        for package in ("", "pika", "celery"):
            if not package or find_spec(package) is not None:
                measure_fixture(Path(directory), package, runs)
        measure_spawner(Path(directory), runs)


def measure_fixture(directory: Path, package: str, runs: int) -> None:
    """Print the times of the fixture in runs of pytest whose test file imports a package."""
    name = package or "bare"
    (directory / "pytest.ini").write_text("[pytest]\n")
    file = directory / f"test_{name}.py"
    file.write_text((f"import {package}\n" if package else "") + TESTS)
    times: dict[str, list[float]] = {"first": [], "second": []}
    for _ in range(runs + 1):
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "pytest", "-p", "trellis.testing.plugin"),
                *("-p", "no:cacheprovider", "--durations=0", "--durations-min=0", "-vv", str(file)),
            ],
            cwd=directory,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        for seconds, test in SETUP.findall(done.stdout):
            times[test].append(1_000 * float(seconds))
    for test, values in times.items():
        # The first run writes the bytecode of the test file.
        show(f"pytest, {name}: {test} broker", values[1:])


def measure_spawner(directory: Path, runs: int) -> None:
    """Print the times of brokers that are requested from a process that was started just now."""
    columns: dict[str, list[float]] = {}

    def add(name: str, seconds: float) -> None:
        columns.setdefault(name, []).append(1_000 * seconds)

    for run in range(runs + 1):
        homes = [directory / f"{run}-{number}" for number in range(2)]
        for home in homes:
            home.mkdir()
        spawner = Spawner()
        began = time.perf_counter()
        spawner.start()
        first = RunningBroker(spawner, homes[0], {})
        add("first broker, nothing loaded before", time.perf_counter() - began)
        assert spawner._process is not None
        add("  CPU time of the process that starts it", cpu_seconds(spawner._process.pid))
        add("  CPU time of the broker", cpu_seconds(first._pid))
        began = time.perf_counter()
        second = RunningBroker(spawner, homes[1], {})
        add("second broker", time.perf_counter() - began)
        began = time.perf_counter()
        first.declare("q")
        add("first call of `declare`", time.perf_counter() - began)
        first.close()
        second.close()
        spawner.close()
    for name, values in columns.items():
        show(name, values[1:])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that the main thread of a process has used until now."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def show(name: str, values: Sequence[float]) -> None:
    """Print a row: minimum, median and maximum of some values in milliseconds."""
    median = statistics.median(values)
    print(f"{name:44} {min(values):6.0f} {median:6.0f} {max(values):6.0f}", flush=True)


if __name__ == "__main__":
    main()
