"""Runs rounds of one kind of fault.

In each round, the cluster works, the fault happens, and the cluster must work again.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from broker.replication.owner import ABORT_MARGIN
from tests.cluster.rounds.kinds import KINDS
from tests.cluster.rounds.record import Figures
from tests.cluster.rounds.world import World

#: Shortest and longest time in seconds between the start of a round and its fault.
BEFORE = (0.1, 1.0)
#: Largest number of attempts for each wanted round: an attempt may fail to cause its fault.
TRIES = 3


def run(kind: str, rounds: int, seed: int) -> Figures:
    """Run `rounds` rounds of a kind of fault, and return their figures.

    Raises GaveUp if the cluster does not work again after a fault. In this case, the logs of the
    node processes stay in a temporary directory.
    """
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix=f"trellis-rounds-{kind}-"))
    figures = Figures()
    chosen = KINDS[kind]
    with _World(directory, chosen.log, seed, chosen.times) as world:
        tries = 0
        while figures.rounds < rounds and tries < TRIES * rounds:
            tries += 1
            world.wait_until_ready()
            began, sessions, closed = time.monotonic(), len(world.sessions), world.closed
            world.pause(chance.uniform(*BEFORE))
            world.wait_until_ready()  # On a busy machine, a standby may have taken over meanwhile.
            happened = chosen.fault(world, chance)
            world.wait_until_ready()
            if happened:
                figures.rounds += 1
                gap = round(_longest_gap(world, began), 2)
                figures.gaps.append(gap)
                if chosen.log == "kafka":
                    short = round(chosen.times[0] + ABORT_MARGIN, 2)
                    takeovers = len(world.sessions) - sessions
                    figures.pauses.append((short, gap, takeovers, world.closed - closed))
        world.finish()
        checker, exactly = world.checker, world.exactly
        if checker.lost() or exactly.missing:
            print(f"lost: {sorted(checker.lost())}, QoS 2: {sorted(exactly.missing)}, {directory}")
        figures.takeovers = len(world.sessions) - 1
        figures.confirmed = len(checker.confirmed)
        figures.lost = len(checker.lost()) + len(exactly.missing)
        figures.order_broken = checker.order_broken
        figures.exactly, figures.twice = len(exactly.complete), exactly.twice
        figures.settled_back = checker.settled_back
        figures.deposed_acts = checker.deposed_acts
    return figures


class _World(World):
    """The cluster under test (a World), for a `with` block that closes the cluster at its end.

    If messages were lost, the files of the cluster are kept.
    """

    def __enter__(self) -> _World:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
        if error is None and not self.checker.lost() and not self.exactly.missing:
            shutil.rmtree(self.directory, ignore_errors=True)


def _longest_gap(world: World, began: float) -> float:
    """Return the longest time in seconds between two confirms, from the time `began` on."""
    times = [at for at in list(world.checker.times) if at >= began]
    return max((later - at for at, later in pairwise(times)), default=0.0)
