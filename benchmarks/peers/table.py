"""How do results read as Markdown?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from peers.results import Cell, Figures, Results, ratio
from peers.targets import lines as goals

#: Whom the others are compared with.
OURS: Final = "trellis"
#: The chart that is of no family.
LATENCY: Final = "latency"
#: Who reaches this part of a rate has kept up with it.
KEPT_UP: Final = 0.95
FAMILIES: Final = {
    "mqtt": "MQTT",
    "amqp": "AMQP 0-9-1",
    "crossing": "From one protocol to the other",
}


def figure(value: float) -> str:
    """Three digits that count, as people write them."""
    if value >= 99.5:
        return f"{value:,.0f}"
    if value >= 9.95:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.995 else f"{value:.3f}"


def times(value: float) -> str:
    """A ratio; bold where it is our loss."""
    digits = (
        f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 1.05 else f"{value:.2f}"
    )
    return f"**{digits} ×, a loss**" if value < 0.995 else f"{digits} ×"


def rows(header: Sequence[str], lines: Sequence[Sequence[str]], align: str = "---:") -> str:
    """A Markdown table; the first column to the left, figures to the right."""
    rule = ["---"] + [align] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def page(results: Results, charts: Mapping[str, str]) -> str:
    """All that the report says; `charts` has for a family, and for LATENCY, the chart's path as
    seen from the document.
    """
    return "\n\n".join(part for part in _parts(results, charts) if part) + "\n"


def _parts(results: Results, charts: Mapping[str, str]) -> Iterator[str]:
    yield _opening(results)
    reached = goals(results, OURS)
    if reached:
        words = "Ours compared with theirs, medians of the same run."
        yield f"### Targets\n\n{words}\n\n{rows(['workload', 'figure', 'target', 'measured'], reached, '---')}"
    for family, title in FAMILIES.items():
        names = [name for name, about in results.workloads.items() if about["family"] == family]
        peers = _measured(results, names)
        if not peers:
            continue
        yield f"### {title}"
        if family in charts:
            yield f"![Broker CPU per published message, {title}]({charts[family]})"
        yield f"Broker CPU, in microseconds per published message, and how many times ours it is.\n\n{_cpu(results, names, peers)}"
        yield f"Publications per second, in thousands, by the clock on the wall (bold: more than ours).\n\n{_rates(results, names, peers)}"
        latency = _latency(results, names, peers)
        if latency:
            words = "p50 / p99 / p99.9 (bold: less than ours), and how much of the rate who did not keep up with it reached"
            yield f"Latency from sending to receiving, in microseconds: {words}.\n\n{latency}"
    if LATENCY in charts:
        yield f"### Latency\n\n![p99 of the latency]({charts[LATENCY]})"
    yield f"### Memory\n\n{_memory(results)}"
    yield _exceptions(results)
    yield f"### How\n\n{_peers(results)}"
    yield _settings(results)


def _opening(results: Results) -> str:
    warnings = [f"> **{about.warning}.**" for about in results.peers.values() if about.warning]
    machine = "; ".join(f"{name} {value}" for name, value in results.machine.items())
    lines = (
        f"Measured on {results.date} with `{' '.join(results.command)}`: medians of {results.rounds} interleaved rounds.",
        f"Machine: {machine}. Noise: {_noise(results)}",
    )
    return "\n\n".join((*warnings, "\n".join(lines)))


def _noise(results: Results) -> str:
    spreads = sorted(
        cell.spread
        for of in results.cells.values()
        for cell in of.values()
        if cell.medians and len(cell.rounds) > 1
    )
    if not spreads:
        return "unknown, one round says nothing about it."
    middle, wide = spreads[len(spreads) // 2], spreads[int(len(spreads) * 0.9)]
    return (
        f"between the highest and the lowest round lie {middle:.0%} of the median in half of all cells, "
        f"{wide:.0%} in nine of ten."
    )


def _measured(results: Results, workloads: Sequence[str]) -> list[str]:
    """The peers with something to say about one of these workloads, brokers before floors."""
    found = [
        name
        for name in results.peers
        if any(
            (cell := results.cells.get(name, {}).get(each)) and not cell.unable
            for each in workloads
        )
    ]
    return sorted(found, key=lambda name: results.peers[name].floor)


def _titles(results: Results, peers: Sequence[str]) -> list[str]:
    return [
        f"*{results.peers[name].title}*" if results.peers[name].floor else results.peers[name].title
        for name in peers
    ]


def _grid(
    results: Results,
    workloads: Sequence[str],
    peers: Sequence[str],
    show: Callable[[str, str, Figures], str],
) -> str:
    lines = []
    for workload in workloads:
        cells = [results.cells.get(peer, {}).get(workload, Cell()) for peer in peers]
        lines.append(
            [title_of(results, workload)]
            + [
                _absent(cell) if (found := cell.medians) is None else show(peer, workload, found)
                for peer, cell in zip(peers, cells, strict=True)
            ]
        )
    return rows(["", *_titles(results, peers)], lines)


def title_of(results: Results, workload: str) -> str:
    """With the rate, where it is paced."""
    about = results.workloads[workload]
    return (
        f"{about['title']}: {about['rate']:,.0f} a second" if about["rate"] else str(about["title"])
    )


def _better(value: float | None, ours: float | None, sign: int = 1) -> str:
    """A peer's figure; bold where it is better than ours, which is: less, or with sign -1 more."""
    if value is None:
        return "-"
    return (
        f"**{figure(value)}**"
        if ours is not None and value * sign < ours * sign * (1 - sign * 0.005)
        else figure(value)
    )


def _absent(cell: Cell) -> str:
    """What stands where no figure can."""
    if cell.wrong:
        return "wrong"
    return "failed" if cell.failed else "-"


def _cpu(results: Results, workloads: Sequence[str], peers: Sequence[str]) -> str:
    def show(peer: str, workload: str, found: Figures) -> str:
        ours = results.median(OURS, workload)
        factor = ratio(found.cpu, ours.cpu if ours else None)
        if peer == OURS or factor is None:
            return figure(found.cpu)
        # Nobody is expected to be below the floor, and above it is no loss.
        return f"{figure(found.cpu)} · {f'{factor:.2f} ×' if results.peers[peer].floor else times(factor)}"

    return _grid(results, workloads, peers, show)


def _rates(results: Results, workloads: Sequence[str], peers: Sequence[str]) -> str:
    def show(peer: str, workload: str, found: Figures) -> str:
        ours = (
            None
            if results.workloads[workload]["rate"] or results.peers[peer].floor
            else results.median(OURS, workload)
        )
        return _better(found.rate / 1000, ours.rate / 1000 if ours else None, -1)

    return _grid(results, workloads, peers, show)


def _latency(results: Results, workloads: Sequence[str], peers: Sequence[str]) -> str:
    timed = [
        name
        for name in workloads
        if any((found := results.median(peer, name)) and found.p50 is not None for peer in peers)
    ]

    def show(peer: str, workload: str, found: Figures) -> str:
        ours = None if results.peers[peer].floor else results.median(OURS, workload)
        names = ("p50", "p99", "p999")
        shown = " / ".join(
            _better(getattr(found, name), getattr(ours, name) if ours else None) for name in names
        )
        share = ratio(found.rate, results.workloads[workload]["rate"])
        return shown if share is None or share > KEPT_UP else f"{shown}, {share:.0%}"

    return _grid(results, timed, peers, show) if timed else ""


def _memory(results: Results) -> str:
    lines = []
    for name in _measured(results, list(results.workloads)):
        found = {
            each: median for each in results.workloads if (median := results.median(name, each))
        }
        if found:
            peak = max(found, key=lambda each: found[each].peak)
            least, most = (
                choose(each.resident for each in found.values()) / 1e6 for choose in (min, max)
            )
            about = results.workloads[peak]
            where = (
                f"{FAMILIES[about['family']]}: {about['title']}"
                if about["family"] != "crossing"
                else str(about["title"])
            )
            lines.append(
                [
                    results.peers[name].title,
                    figure(least),
                    figure(most),
                    figure(found[peak].peak / 1e6),
                    where,
                ]
            )
    table = rows(["", "least", "most", "peak", "peak in"], lines)
    words = "Resident memory of all processes of a broker, in MB: after the workloads (which follow each other in a round), and at most."
    return f"{words}\n\n{table}"


def _exceptions(results: Results) -> str:
    """What was not measured, and why: one line each, the same reasons together."""
    lines = [
        f"- {about.title}: not here, {about.missing}"
        for about in results.peers.values()
        if about.missing
    ]
    for kind, before in (("wrong", "wrong answer"), ("failed", "no answer"), ("unable", "cannot")):
        for peer, of in results.cells.items():
            reasons: dict[str, list[str]] = {}
            for workload, cell in of.items():
                if getattr(cell, kind):
                    reasons.setdefault(getattr(cell, kind), []).append(f"`{workload}`")
            lines += [
                f"- {results.peers[peer].title}, {before}: {why}{_where(why, which)}"
                for why, which in reasons.items()
            ]
    return "### Not measured\n\n" + "\n".join(lines) if lines else ""


def _where(why: str, workloads: Sequence[str]) -> str:
    """Which workloads a reason is about; who does not speak a protocol does none of it."""
    return "" if why.startswith("speaks no ") else f" ({', '.join(workloads)})"


def _peers(results: Results) -> str:
    return rows(
        ["", "version"],
        [[about.title, about.version] for about in results.peers.values() if about.version],
        "---",
    )


def _settings(results: Results) -> str:
    lines = [
        f"- {about.title}: {'; '.join(about.settings)}"
        for about in results.peers.values()
        if about.version and about.settings
    ]
    return "Settings that differ from the defaults:\n\n" + "\n".join(lines) if lines else ""
