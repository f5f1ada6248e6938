"""The parts of `trellis bench matching` and their cases.

For each number of subscriptions, the timed cases make one batch, and the memory cases another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trellis.bench.matching.step import CACHED
from trellis.bench.matching.workloads import (
    ARTICLE,
    ATTACKS,
    GROWING,
    ONE_FILTER,
    THREADS,
    ZIPF,
    MatchingWorkload,
)

#: Numbers of subscriptions in a quick run.
QUICK: Final = (1_000,)
#: Numbers of subscriptions in a full run.
FULL: Final = (1_000, 10_000, 100_000, 1_000_000)
#: Number of subscriptions in the articles that docs/matching.md lists.
_ARTICLE: Final = 1_000
_ARTICLE_WORKERS: Final = (2, 4, 8, 16)
_PAIRS: Final = (1, 2, 4, 8)
#: Numbers of publications between two changes of a subscription; 0: no subscription changes.
_EVERY: Final = (0, 1_000, 100, 10)


@dataclass(frozen=True)
class MatchingCase:
    """One measurement: a request and its workload.

    `only` names the contenders (algorithms and peers) that take part. If `only` is empty, all
    contenders take part except contenders with a cache of answers.
    """

    part: str
    workload: MatchingWorkload
    size: int
    kind: str
    variant: str = ""
    request: dict[str, Any] = field(default_factory=dict, hash=False)
    only: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the case in results: part, workload, size, kind and variant."""
        return " ".join(
            word
            for word in (self.part, self.workload.name, str(self.size), self.kind, self.variant)
            if word
        )

    @property
    def checked(self) -> bool:
        """True if the request must contain the expected answers.

        The contender (an algorithm or a peer) then compares its own answers with the expected ones.
        """
        return self.kind in ("workload", "churn")


@dataclass(frozen=True)
class CaseBatch:
    """Cases that a contender (an algorithm or a peer) does in one process per round.

    If `alone`, each case runs in a process of its own, and in one round only.
    """

    cases: list[MatchingCase]
    alone: bool = False


@dataclass(frozen=True)
class CasePart:
    """A part of the bench, which a user chooses by its name.

    `make` yields the cases of the part for the given numbers of subscriptions.
    """

    name: str
    text: str
    make: Callable[[Sequence[int]], Iterator[MatchingCase]]


def _growing(workload: MatchingWorkload) -> CasePart:
    def make(sizes: Sequence[int]) -> Iterator[MatchingCase]:
        for size in sizes:
            yield MatchingCase(workload.name, workload, size, "workload")
            yield MatchingCase(workload.name, workload, size, "memory")

    return CasePart(workload.name, workload.text, make)


def _article(sizes: Sequence[int]) -> Iterator[MatchingCase]:
    yield MatchingCase(
        "article",
        ARTICLE,
        1,
        "cold",
        request={"pattern": "foo.*.baz.qux.quux", "topic": "foo.bar.baz.qux.quux"},
    )
    yield MatchingCase("article", ARTICLE, _ARTICLE, "workload")
    yield MatchingCase("article", ARTICLE, _ARTICLE, "memory")


def _threads(sizes: Sequence[int]) -> Iterator[MatchingCase]:
    def case(variant: str, readers: int, writers: int, mixed: int) -> MatchingCase:
        return MatchingCase(
            "threads",
            THREADS,
            _ARTICLE,
            "threads",
            variant,
            {"readers": readers, "writers": writers, "mixed": mixed},
        )

    for workers in _ARTICLE_WORKERS:
        yield case(f"50/50 {workers}", workers // 2, workers // 2, 0)
    for workers in _ARTICLE_WORKERS:
        yield case(f"90/10 {workers}", 0, 0, workers)
    for pairs in _PAIRS:
        yield case(f"1:1 {pairs}", pairs, pairs, 0)
    for pairs in _PAIRS:
        yield case(f"1:3 {pairs}", 3 * pairs, pairs, 0)


def _churn(sizes: Sequence[int]) -> Iterator[MatchingCase]:
    for workload in ZIPF:
        for every in _EVERY:
            variant = f"a change in {every:,}" if every else "no change"
            only = ("trie", CACHED, "nats", "nats-cached")
            yield MatchingCase(
                "churn", workload, min(10_000, max(sizes)), "churn", variant, {"every": every}, only
            )


def _attacks(sizes: Sequence[int]) -> Iterator[MatchingCase]:
    for workload in ATTACKS:
        yield MatchingCase("attack", workload, workload.size, "workload")


def _one_filter(sizes: Sequence[int]) -> Iterator[MatchingCase]:
    for kind in ("workload", "memory"):
        yield MatchingCase("one-filter", ONE_FILTER, min(ONE_FILTER.size, 20 * max(sizes)), kind)


def _splitting(sizes: Sequence[int]) -> Iterator[MatchingCase]:
    yield MatchingCase("splitting", GROWING[0], _ARTICLE, "splitting", only=("naive",))


PARTS: Final = {
    part.name: part
    for part in (
        *map(_growing, GROWING),
        CasePart(
            "article",
            "article 1's table: subscribe, unsubscribe and lookup, cold and at 1,000 subscriptions",
            _article,
        ),
        CasePart(
            "threads",
            "articles 1 and 2: 2 to 16 workers; a half or a tenth of their operations subscribe, "
            "or they insert and look up in the ratio 1:1 or 1:3",
            _threads,
        ),
        CasePart(
            "churn",
            "publications while subscriptions change, with and without a cache of answers",
            _churn,
        ),
        CasePart("attack", "patterns designed to be slow", _attacks),
        CasePart("one-filter", ONE_FILTER.text, _one_filter),
        CasePart("splitting", "article 5: split a topic once, or for each comparison", _splitting),
    )
}


def batches(names: Sequence[str], sizes: Sequence[int]) -> list[CaseBatch]:
    """Return the cases of the named parts as batches, one or two for each number of subscriptions.

    The first batch has the timed cases. The second batch has the cases that measure memory, which
    run alone.
    """
    cases = [case for name in names for case in PARTS[name].make(sizes)]
    case_batches: list[CaseBatch] = []
    for size in sorted({case.size for case in cases}):
        timed = [case for case in cases if case.size == size and case.kind != "memory"]
        alone = [case for case in cases if case.size == size and case.kind == "memory"]
        case_batches += [CaseBatch(timed)] if timed else []
        case_batches += [CaseBatch(alone, alone=True)] if alone else []
    return case_batches
