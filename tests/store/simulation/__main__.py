"""Tells the story of a seed, or finds the first of many that goes wrong: `python -m tests.store.simulation SEED [COUNT]`."""

from __future__ import annotations

import sys
import time

from tests.store.simulation.schedule import Simulation


def main() -> int:
    """The exit code is 1 when something was wrong."""
    first = int(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    began, bad = time.process_time(), 0
    for seed in range(first, first + count):
        simulation = Simulation(seed, loud=count == 1)
        complaints = simulation.run()
        if complaints:
            bad += 1
            print(f"seed {seed}: {dict(complaints)}")
    print(f"{count} seeds, {bad} of them bad, {time.process_time() - began:.1f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
