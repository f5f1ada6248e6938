"""In which order is everything measured?

    for each batch
        write its words to files; ask `naive` and `trie` what is to be found
        for each round
            for each contender, beginning with another one each time: start it, do the batch's cases, end it

Who is wrong, too slow, unable or ends is not asked that again, nor, if slow, the same in a larger
size.
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

#: What is found is compared over so many topics with `trie`, and with `naive` over as many as this
#: many patterns let it try.
_TOPICS: Final = 200
_TRIED: Final = 40_000
#: Seconds for what the contender does besides measuring: a million subscriptions in the slowest
#: language.
_ORACLE_PATIENCE: Final = 600.0


@dataclass(frozen=True)
class RoundPlan:
    """Who measures what, how often, how long each figure takes and how long an answer may, in
    seconds.
    """

    contenders: Sequence[Contender]
    batches: Sequence[CaseBatch]
    rounds: int
    seconds: float
    patience: float

    @property
    def steps(self) -> int:
        """How many requests at most."""
        return sum(
            (1 if batch.alone else self.rounds)
            * sum(1 for case in batch.cases for one in self.contenders if _asked(one, case))
            for batch in self.batches
        )


class Disagreement(Exception):
    """The two oracles find different things."""


def measure(
    plan: RoundPlan,
    results: MatchingResults,
    tell: Callable[[int, str], None],
    save: Callable[[], None],
) -> None:
    """Do the plan; results grow with every answer.

    `tell` hears how many requests are done, and which is next.
    """
    bench = _Bench(plan, results, tell)
    for batch in plan.batches:
        with tempfile.TemporaryDirectory(prefix="trellis-matching-") as folder:
            bench.do(batch, Path(folder))
        save()


def _asked(contender: Contender, case: MatchingCase) -> bool:
    """Whether the case is the contender's."""
    return (
        contender.name in case.only
        if case.only
        else contender.name not in ("route-cache", "nats-cached")
    )


class _Bench:
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
                mine = [case for case in batch.cases if _asked(contender, case)]
                for group in [[case] for case in mine] if batch.alone else [mine]:
                    self._cases(contender, group, requests, number)

    def _request(self, case: MatchingCase, folder: Path) -> dict[str, Any]:
        """The request, with its words in files and what is to be found."""
        request = {"kind": case.kind, "seconds": self._plan.seconds, **case.request}
        if case.kind == "cold":
            return request
        stem = f"{case.workload.name}-{case.size}"
        if not (folder / f"{stem}.patterns").exists():
            self._tell(self._done, f"{case.workload.name} {case.size:,}: making")
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
        """What is to be found, by `naive` on a few topics, by `trie` on more.

        Raises Disagreement.
        """
        self._tell(self._done, f"{case.workload.name} {case.size:,}: what is to be found")
        few = max(1, min(_TOPICS, _TRIED // case.size))
        found = []
        for name, topics in (("naive", few), ("trie", few), ("trie", _TOPICS)):
            with RunningContender(self._oracles[name]) as process:
                answer = process.ask(
                    {**request, "kind": "answers", "topics_asked": topics}, _ORACLE_PATIENCE
                )
            found.append(MatchAnswers(**answer))
        if found[0] != found[1]:
            raise Disagreement(f"{case.key}: naive finds {found[0]}, trie {found[1]}")
        return found[1:]

    def _cases(
        self,
        contender: Contender,
        cases: Sequence[MatchingCase],
        requests: dict[str, dict[str, Any]],
        number: int,
    ) -> None:
        """All of these in one process, as long as it lives."""
        process: RunningContender | None = None
        try:
            for case in cases:
                self._done += 1
                cell = self._results.cell(contender.name, case.key)
                self._inherit(contender, case)
                if cell.why:
                    continue
                self._tell(self._done, f"{case.key}: {contender.title}")
                request = requests[case.key]
                if number and case.checked:  # all of it was checked in the first round
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

    def _inherit(self, contender: Contender, case: MatchingCase) -> None:
        """Who was too slow for less is too slow for more."""
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
                ).slow = f"at {about.size:,} already: {cell.slow}"
                return
