"""Draws the charts of docs/matching.md: bars on a logarithmic scale, for times and for memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from peers.chart import Bar, Panel, chart

from figures.articles import ROWS
from figures.targets import size
from trellis.bench.matching.results import MatchingResults

_OURS, _PEER, _ARTICLE = "#e07b39", "#5b8db8", "#a78bba"
_MATCHES: Final = ("tp", "iot", "adv")


def charts(results: MatchingResults) -> Iterator[tuple[str, str, str]]:
    """Iterate over the name, title and SVG of each chart that has figures."""
    for name, title, unit, panels in _all(results):
        picture = chart(panels, title, unit)
        if picture:
            yield name, title, picture


def _all(results: MatchingResults) -> Iterator[tuple[str, str, str, list[Panel]]]:
    for workload in _MATCHES:
        keys = _keys(results, workload, "workload")
        yield (
            f"lookup-{workload}",
            f"Lookups: {workload}",
            "nanoseconds per lookup",
            _panels(results, keys, "lookup"),
        )
    memory = [key for workload in _MATCHES for key in _keys(results, workload, "memory")]
    yield "memory", "Memory", "bytes per subscription", _panels(results, memory, "octets")
    yield (
        "article",
        "Article 1: cold and with 1,000 subscriptions",
        "nanoseconds; violet: as printed in the article",
        _article(results),
    )
    for name, ratio in (
        ("threads-50", "50/50"),
        ("threads-90", "90/10"),
        ("threads-1-1", "1:1"),
        ("threads-1-3", "1:3"),
    ):
        keys = [
            key
            for key, case in results.cases.items()
            if case.part == "threads" and case.variant.startswith(f"{ratio} ")
        ]
        yield (
            name,
            f"Threads, {ratio}",
            "milliseconds until all workers have ended",
            _panels(results, keys, "ms"),
        )
    yield (
        "churn",
        "Publications while subscriptions change",
        "nanoseconds per publication",
        _panels(
            results, [key for key, case in results.cases.items() if case.part == "churn"], "publish"
        ),
    )
    yield (
        "attack",
        "Patterns made to be slow",
        "nanoseconds per lookup",
        _panels(results, _keys(results, "attack", "workload"), "lookup"),
    )


def _keys(results: MatchingResults, part: str, kind: str) -> list[str]:
    return [key for key, case in results.cases.items() if (case.part, case.kind) == (part, kind)]


def _panels(results: MatchingResults, keys: Sequence[str], figure: str) -> list[Panel]:
    panels = []
    for key in keys:
        case = results.cases[key]
        bars = [
            Bar(about.title, value, _OURS if about.ours else _PEER)
            for name, about in results.contenders.items()
            for value in [results.median(name, key, figure)]
            if value
        ]
        if bars:
            further = "" if case.part == "attack" else f" {case.variant or size(case.size)}"
            panels.append(Panel([case.workload + further], sorted(bars, key=lambda bar: bar.value)))
    return panels


def _article(results: MatchingResults) -> list[Panel]:
    panels = []
    for kind, title in (("cold", "cold"), ("workload", "hot")):
        keys = _keys(results, "article", kind)
        for place, figure in enumerate(("subscribe", "unsubscribe", "lookup")):
            bars = [bar for panel in _panels(results, keys, figure) for bar in panel.bars]
            if bars:
                bars += [
                    Bar(
                        f"“{row.name[:16]}”",
                        (row.cold if kind == "cold" else row.hot)[place],
                        _ARTICLE,
                    )
                    for row in ROWS
                ]
                panels.append(
                    Panel([f"{figure}, {title}"], sorted(bars, key=lambda bar: bar.value))
                )
    return panels
