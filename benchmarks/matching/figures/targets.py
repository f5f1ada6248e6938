"""The performance targets of the matchers, compared with measured figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from trellis.bench.matching.results import MatchingResults


class TargetResult(NamedTuple):
    """A target in words, its bound and the measured value; `met` is None if a figure is missing."""

    what: str
    bound: str
    measured: str
    met: bool | None


_SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
_HOT: Final = {"tp": (0.35, 0.35, 0.5, 0.25), "iot": (0.9, 0.8, 0.65, 0.25)}


def size(count: int) -> str:
    """Return a number of patterns as a short text, such as 1k for 1,000."""
    return (
        f"{count // 1_000_000}M"
        if count >= 1_000_000
        else f"{count // 1_000}k"
        if count >= 1_000
        else str(count)
    )


def targets(results: MatchingResults) -> Iterator[TargetResult]:
    """Yield each target with its measured value. (`trie-py` is the uncompiled `trie`.)"""
    compiled = (
        ", compiled" in results.contenders["trie"].version
        if "trie" in results.contenders
        else False
    )
    pure = "trie-py" if "trie-py" in results.contenders else "" if compiled else "trie"
    for count in _SIZES[:3]:
        yield _ratio(results, "tp", count, pure, "go-ctrie", 0.85, "pure `trie`")
    for workload in ("tp", "iot"):
        for count in _SIZES:
            for peer, bound in (("rabbitmq", 0.25), ("emqx", 0.4)):
                yield _ratio(results, workload, count, pure, peer, bound, "pure `trie`")
    native = "trie" if compiled else ""
    for workload in ("tp", "iot"):
        for count in _SIZES:
            bound = 0.75 if (workload, count) in (("tp", 1_000), ("iot", 1_000_000)) else 1.0
            yield _ratio(results, workload, count, native, "nats", bound, "compiled `trie`")
    for workload, limits in _HOT.items():
        for count, bound in zip(_SIZES, limits, strict=True):
            yield _ratio(
                results,
                workload,
                count,
                "dfa" if compiled else "",
                "nats",
                bound,
                "hot compiled `dfa`",
            )
    yield from _others(results, native)


def _others(results: MatchingResults, native: str) -> Iterator[TargetResult]:
    ours, theirs = (
        results.median(name, "iot iot 1000000 memory", "octets") for name in ("shapes", "nats")
    )
    yield _result(
        "`shapes`, bytes per subscription, iot 1M, relative to NATS",
        0.4,
        ours / theirs if ours and theirs else None,
    )
    yield _result("`shapes`, bytes per subscription, iot 1M", 210, ours)
    for workload, words in (("zipf-1", "Zipf's law"), ("zipf-1.7", "Zipf's law, exponent 1.7")):
        key = next(
            (
                key
                for key, case in results.cases.items()
                if (case.workload, case.variant) == (workload, "no change")
            ),
            "",
        )
        ours, theirs = (
            results.median(name, key, "publish") for name in ("route-cache", "nats-cached")
        )
        yield _result(
            f"route cache, 50k topics by {words}, time relative to NATS with its cache",
            0.3,
            ours / theirs if ours and theirs else None,
        )
    load = results.median(native or "trie", "iot iot 1000000 workload", "load")
    yield _result("CPU time in s to load 1M iot patterns", 3.0, load / 1e3 if load else None)
    worst = [
        value
        for name in (native or "trie", "shapes", "auto", "dfa", "bitmap")
        for key, case in results.cases.items()
        if case.part == "attack"
        for value in [results.median(name, key, "lookup")]
        if value
    ]
    yield _result(
        "slowest lookup in ms of an attack, by trie, shapes, auto, dfa, bitmap",
        1.0,
        max(worst) / 1e6 if worst else None,
    )


def _ratio(
    results: MatchingResults,
    workload: str,
    count: int,
    name: str,
    peer: str,
    bound: float,
    title: str,
) -> TargetResult:
    key = f"{workload} {workload} {count} workload"
    ours, theirs = results.median(name, key, "lookup"), results.median(peer, key, "lookup")
    about = results.contenders.get(peer)
    library = about.title if about else peer
    if library.startswith("like "):
        library = f"the program {library}"
    what = f"{title}, {workload} {size(count)}, time relative to {library}"
    return _result(what, bound, ours / theirs if ours and theirs else None)


def _result(what: str, bound: float, measured: float | None) -> TargetResult:
    return TargetResult(
        what,
        f"≤ {bound:g}",
        "-" if measured is None else f"{measured:.3g}",
        None if measured is None else measured <= bound,
    )
