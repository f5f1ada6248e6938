"""The order of the measurements.

    for each batch
        write its patterns and topics to files; ask `naive` and `trie` for the expected answers
        for each round
            for each contender, beginning with a different contender in each round
                start it, do the cases of the batch, end it

If a contender answers a case wrongly, too slowly or not at all, this case is not repeated with this
contender. After a slow answer, larger sizes of the case are skipped too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trellis.bench.matching.answers import MatchAnswers
from trellis.bench.matching.cases import CaseBatch, MatchingCase
from trellis.bench.matching.contenders import (
    Contender,
    ContenderFailed,
    RunningContender,
    Slow,
    ours,
)
from trellis.bench.matching.results import CaseAbout, MatchingResults

#: Topics for which a contender's answers are compared with the answers of `trie`.
_TOPICS: Final = 200
#: Largest number of (topic, pattern) pairs that `naive` compares to check the answers of `trie`.
_TRIED: Final = 40_000
#: Seconds to wait for the expected answers; with a million subscriptions they take long.
_ORACLE_PATIENCE: Final = 600.0


@dataclass(frozen=True)
class RoundPlan:
    """The contenders (algorithms and peers), cases and rounds of a run.

    Each figure is measured for `seconds`. A contender that gives no answer for `patience` seconds
    is too slow.
    """

    contenders: Sequence[Contender]
    batches: Sequence[CaseBatch]
    rounds: int
    seconds: float
    patience: float

    @property
    def steps(self) -> int:
        """Number of requests in the run if no case is skipped."""
        return sum(
            (1 if batch.alone else self.rounds)
            * sum(1 for case in batch.cases for one in self.contenders if _takes_part(one, case))
            for batch in self.batches
        )


class Disagreement(Exception):
    """Raised if the algorithms `naive` and `trie` give different answers: one of them is wrong."""


def measure(
    plan: RoundPlan,
    results: MatchingResults,
    tell: Callable[[int, str], None],
    save: Callable[[], None],
) -> None:
    """Run a plan and add the contenders' figures to the results; call `save` after each batch.

    `tell` is called before each request with the request's number and a text that describes it.
    """
    bench = _Bench(plan, results, tell)
    for batch in plan.batches:
        with tempfile.TemporaryDirectory(prefix="trellis-matching-") as folder:
            bench.do(batch, Path(folder))
        save()


def _takes_part(contender: Contender, case: MatchingCase) -> bool:
    """True if a contender (an algorithm or a peer) takes part in a measurement."""
    return (
        contender.name in case.only
        if case.only
        else contender.name not in ("route-cache", "nats-cached")
    )


class _Bench:
    """The execution of a plan, with the results so far."""

    def __init__(
        self, plan: RoundPlan, results: MatchingResults, tell: Callable[[int, str], None]
    ) -> None:
        self._plan, self._results, self._tell = plan, results, tell
        self._oracles = {one.name: one for one in ours()}
        self._done = 0

    def do(self, batch: CaseBatch, folder: Path) -> None:
        requests = {case.key: self._request(case, folder) for case in batch.cases}
        for case in batch.cases:
            self._results.cases[case.key] = CaseAbout(
                case.part,
                case.workload.name,
                case.size,
                case.kind,
                case.variant,
                case.workload.text,
            )
        contenders = self._plan.contenders
        for number in range(1 if batch.alone else self._plan.rounds):
            turn = number % len(contenders)
            for contender in [*contenders[turn:], *contenders[:turn]]:
                mine = [case for case in batch.cases if _takes_part(contender, case)]
                for group in [[case] for case in mine] if batch.alone else [mine]:
                    self._cases(contender, group, requests, number)

    def _request(self, case: MatchingCase, folder: Path) -> dict[str, Any]:
        """Return the request of a case, with the paths of its files and the expected answers.

        Files that do not exist yet are written to `folder`.
        """
        request = {"kind": case.kind, "seconds": self._plan.seconds, **case.request}
        if case.kind == "cold":
            return request
        stem = f"{case.workload.name}-{case.size}"
        if not (folder / f"{stem}.patterns").exists():
            self._tell(self._done, f"{case.workload.name} {case.size:,}: generating")
            words = case.workload.words(case.size)
            for name in ("patterns", "topics", "further"):
                (folder / f"{stem}.{name}").write_text("\n".join(getattr(words, name)))
        request |= {
            name: str(folder / f"{stem}.{name}") for name in ("patterns", "topics", "further")
        }
        if case.checked:
            request["expected"] = self._expected(case, request)
        return request

    def _expected(self, case: MatchingCase, request: dict[str, Any]) -> list[MatchAnswers]:
        """Return two expected answers of a case: for its first few topics, and for `_TOPICS`
        topics.

        The matcher `trie` gives both answers. The matcher `naive`, which is slow, checks the
        answers for the first few topics. Raises Disagreement if the two matchers give different
        answers.
        """
        self._tell(self._done, f"{case.workload.name} {case.size:,}: expected answers")
        few = max(1, min(_TOPICS, _TRIED // case.size))
        expected = []
        for name, topics in (("naive", few), ("trie", few), ("trie", _TOPICS)):
            with RunningContender(self._oracles[name]) as process:
                answer = process.ask(
                    {**request, "kind": "answers", "topics_asked": topics}, _ORACLE_PATIENCE
                )
            expected.append(MatchAnswers(**answer))
        if expected[0] != expected[1]:
            raise Disagreement(
                f"{case.key}: the matchers naive and trie disagree: {expected[0]} and {expected[1]}"
            )
        return expected[1:]

    def _cases(
        self,
        contender: Contender,
        cases: Sequence[MatchingCase],
        requests: dict[str, dict[str, Any]],
        number: int,
    ) -> None:
        """Run a contender's cases in one process; after a failure, continue in a new process.

        `number` is the number of the round, from 0 on.
        """
        process: RunningContender | None = None
        try:
            for case in cases:
                self._done += 1
                cell = self._results.cell(contender.name, case.key)
                self._carry_slowness(contender, case)
                if cell.why:
                    continue
                self._tell(self._done, f"{case.key}: {contender.title}")
                request = requests[case.key]
                # The first round has compared all answers with the expected ones.
                if number and case.checked:
                    request = {**request, "expected": request["expected"][:1]}
                if process is None:
                    process = RunningContender(contender)
                try:
                    answer = process.ask(request, self._plan.patience)
                except (Slow, ContenderFailed) as error:
                    setattr(cell, "slow" if isinstance(error, Slow) else "failed", str(error))
                    process.close()
                    process = None
                    continue
                for word in ("wrong", "unable"):
                    if word in answer:
                        setattr(cell, word, str(answer.pop(word)))
                if not cell.why:
                    cell.rounds.append({name: float(value) for name, value in answer.items()})
        finally:
            if process is not None:
                process.close()

    def _carry_slowness(self, contender: Contender, case: MatchingCase) -> None:
        """Mark a case as slow if the contender was too slow in the same case at a smaller size."""
        for key, cell in self._results.cells[contender.name].items():
            about = self._results.cases[key]
            if (
                cell.slow
                and about.size < case.size
                and (about.part, about.workload, about.kind, about.variant)
                == (case.part, case.workload.name, case.kind, case.variant)
            ):
                self._results.cell(
                    contender.name, case.key
                ).slow = f"with only {about.size:,} subscriptions: {cell.slow}"
                return
