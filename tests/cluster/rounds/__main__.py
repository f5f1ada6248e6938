"""Run rounds of faults: see the docstring of the package."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.cluster.rounds import record
from tests.cluster.rounds.kinds import KINDS
from tests.cluster.rounds.run import run


def main() -> int:
    """Run rounds of the chosen kinds of faults; return 1 if a guarantee was violated."""
    parser = argparse.ArgumentParser(description="Run rounds of faults on brokers of a cluster.")
    parser.add_argument("kind", nargs="*", help=f"kinds (default: all): {', '.join(KINDS)}")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each kind (%(default)s)")
    parser.add_argument("--record", type=Path, help="JSON file to which the figures are added")
    parser.add_argument(
        "--until", action="store_true", help="run only the rounds that the record lacks"
    )
    parser.add_argument("--seed", type=int, help="a number that repeats the choices of a run")
    parser.add_argument("--table", action="store_true", help="print the table of the record")
    given = parser.parse_args()
    if given.table:
        print(record.table(record.read(given.record)))
        print()
        print(record.pauses(record.read(given.record)))
        return 0
    for name in given.kind:
        if name not in KINDS:
            parser.error(f"unknown kind {name!r}; known are {', '.join(KINDS)}")
    whole: record.Record = {}
    for kind in given.kind or KINDS:
        done = record.read(given.record).get(kind) if given.record and given.until else None
        rounds = given.rounds - (done.rounds if done is not None else 0)
        if rounds <= 0:
            continue
        seed = random.randrange(1 << 30) if given.seed is None else given.seed
        print(f"{kind}: {rounds} rounds, --seed {seed}", flush=True)
        whole[kind] = run(kind, rounds, seed)
        print(record.table({kind: whole[kind]}).splitlines()[2], flush=True)
        if given.record is not None:
            record.add(given.record, kind, whole[kind])
    print(record.table(whole))
    print()
    print(record.pauses(whole))
    return 1 if any(figures.violations for figures in whole.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
