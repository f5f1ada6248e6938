"""Runs all measurements in interleaved order.

    for each round
        for each peer, beginning with a different peer in each round
            start it
            for each workload that it supports: measure, record
            stop it
        write the results so far

A broker that gives a wrong answer, or none, is restarted for its next workload. The failed workload
is not measured again with this broker.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from peers.peer import PeerBroker, Running
from peers.process import Failed
from peers.results import Figures, Results
from peers.workloads import Case

#: Number of measurements of the reference peer from which a paced workload's rate is computed.
CALIBRATIONS = 3


class WrongPeerAnswer(Exception):
    """Raised if a broker loses, repeats, reorders or changes a message."""


class Load(Protocol):
    """A tool that puts load on a running broker and checks its answers."""

    def measure(self, case: Case, broker: Running, rate: float | None) -> Figures:
        """Run one round of the workload, and return its figures.

        `rate` is in publications per second; None is full speed. Raises WrongPeerAnswer, Failed.
        """
        ...


@dataclass
class PeerPlan:
    """The peers, workloads and rounds of a run."""

    peers: Sequence[PeerBroker]
    cases: Sequence[Case]
    rounds: int
    directory: Path  # The parent directory of temporary directories.
    #: The rates of paced workloads in publications per second; filled in by `calibrate`.
    rates: dict[str, float] = field(default_factory=dict)

    def able(self, peer: PeerBroker) -> list[Case]:
        """Return the workloads of the run that the peer supports."""
        return [each for each in self.cases if not peer.refusal(each)]

    @property
    def steps(self) -> int:
        """The number of measurements if none fails."""
        return self.rounds * sum(len(self.able(peer)) for peer in self.peers)

    @property
    def overhead(self) -> float:
        """The approximate seconds that the run takes in addition to the load."""
        return self.rounds * sum(
            peer.start_seconds + sum(map(peer.overhead, self.able(peer))) for peer in self.peers
        )


class RoundProgress:
    """Reports the progress of a run: calls `tell` with a line for every step."""

    def __init__(
        self, steps: int, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps, self._tell, self._clock = steps, tell, clock
        self._done = 0
        self._began = clock()

    def step(self, what: str) -> None:
        """Report that the measurement `what` begins, with the elapsed and the estimated remaining
        time.
        """
        spent = self._clock() - self._began
        left = (
            f", about {duration(spent / self._done * (self._steps - self._done))} left"
            if self._done
            else ""
        )
        self._tell(f"[{self._done + 1}/{self._steps}] {what} ({duration(spent)}{left})")
        self._done += 1

    def skip(self, steps: int = 1) -> None:
        """Subtract `steps` skipped measurements from the number of measurements to make."""
        self._steps -= steps


def duration(seconds: float) -> str:
    """Return a duration as text: minutes and seconds ("2:05"), or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def calibrate(plan: PeerPlan, load: Load, tell: Callable[[str], None]) -> None:
    """Find the rate of each paced workload: half of the rate that its reference peer reaches.

    Workloads whose reference peer is missing or fails are removed from the plan.
    """
    paced = [each for each in plan.cases if each.half]
    left_out = set()
    for reference in sorted({each.half for each in paced}):
        peer = next((each for each in plan.peers if each.name == reference), None)
        mine = [each for each in paced if each.half == reference]
        if peer is None:
            tell(
                f"{reference} is not measured, so half of its rate is unknown; workloads left out: "
                f"{', '.join(each.name for each in mine)}"
            )
            left_out |= {each.name for each in mine}
            continue
        try:
            _calibrate_with(peer, mine, plan, load, tell)
        except (Failed, WrongPeerAnswer) as error:
            tell(
                f"the rate of {peer.title} is unknown ({_first_line(error)}); workloads left out: "
                f"{', '.join(each.name for each in mine)}"
            )
            left_out |= {each.name for each in mine if each.name not in plan.rates}
    plan.cases = [each for each in plan.cases if each.name not in left_out]


def _calibrate_with(
    peer: PeerBroker,
    paced: Sequence[Case],
    plan: PeerPlan,
    load: Load,
    tell: Callable[[str], None],
) -> None:
    with tempfile.TemporaryDirectory(dir=plan.directory, prefix=f"{peer.name}-") as directory:
        broker = peer.start(Path(directory))
        try:
            for case in paced:
                rates = sorted(load.measure(case, broker, None).rate for _ in range(CALIBRATIONS))
                plan.rates[case.name] = rates[CALIBRATIONS // 2] / 2
                tell(
                    f"{case.name}: {plan.rates[case.name]:,.0f} messages per second, half of "
                    f"{peer.title}'s rate"
                )
        finally:
            broker.stop()


def measure_all(
    plan: PeerPlan,
    load: Load,
    results: Results,
    tell: Callable[[str], None],
    save: Callable[[], None],
) -> None:
    """Run the plan and record everything in `results`; call `save` after each round."""
    for peer in plan.peers:
        for case in plan.cases:
            results.cell(peer.name, case.name).unable = peer.refusal(case)
    progress = RoundProgress(plan.steps, tell)
    for number in range(plan.rounds):
        first = number % len(plan.peers)
        for peer in (*plan.peers[first:], *plan.peers[:first]):
            _Turn(
                peer,
                plan,
                load,
                results,
                progress,
                f"round {number + 1} of {plan.rounds}, {peer.title}",
            ).take(plan.rounds - number)
        results.rounds = number + 1
        save()


class _Turn:
    """The measurements of one peer in one round."""

    def __init__(
        self,
        peer: PeerBroker,
        plan: PeerPlan,
        load: Load,
        results: Results,
        progress: RoundProgress,
        where: str,
    ) -> None:
        self._peer, self._plan, self._load, self._results = peer, plan, load, results
        self._progress, self._where = progress, where
        self._broker: Running | None = None

    def take(self, rounds_left: int) -> None:
        with tempfile.TemporaryDirectory(
            dir=self._plan.directory, prefix=f"{self._peer.name}-", ignore_cleanup_errors=True
        ) as directory:
            try:
                for number, case in enumerate(self._plan.able(self._peer)):
                    cell = self._results.cell(self._peer.name, case.name)
                    if cell.wrong or cell.failed:
                        continue
                    self._progress.step(f"{self._where}: {case.title}")
                    try:
                        broker = self._started(Path(directory) / str(number))
                        cell.rounds.append(
                            self._load.measure(case, broker, self._plan.rates.get(case.name))
                        )
                        continue
                    except WrongPeerAnswer as error:
                        cell.wrong = _first_line(error)
                    except Failed as error:
                        cell.failed = _first_line(error)
                    self._progress.skip(rounds_left - 1)
                    self._stop()
            finally:
                self._stop()

    def _started(self, directory: Path) -> Running:
        """Return the running broker; if none runs, start one with its files in `directory`."""
        if self._broker is None:
            directory.mkdir()
            self._broker = self._peer.start(directory)
        return self._broker

    def _stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
            self._broker = None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
