"""Print all steps of the simulation of a seed, or of the first of many seeds that fails.

`python -m tests.store.simulation SEED [COUNT] [--streams]`
"""

from __future__ import annotations

import sys
import time

from tests.store.simulation.schedule import Simulation


def main() -> int:
    """Run the simulation for each seed of the command line; return 1 if a seed fails, else 0."""
    numbers = [int(one) for one in sys.argv[1:] if one != "--streams"]
    first, count = numbers[0], numbers[1] if len(numbers) > 1 else 1
    began, bad = time.process_time(), 0
    for seed in range(first, first + count):
        simulation = Simulation(seed, loud=count == 1, streams="--streams" in sys.argv)
        complaints = simulation.run()
        if complaints:
            bad += 1
            print(f"seed {seed}: {dict(complaints)}")
    print(f"{count} seeds, {bad} of them bad, {time.process_time() - began:.1f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
