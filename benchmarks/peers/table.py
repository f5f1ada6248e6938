"""Formats the results of a run as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from peers.results import Figures, PeerCell, Results, ratio
from peers.targets import lines as goals

#: The peer that the other peers are compared with.
OURS: Final = "trellis"
#: The key of the latency chart, which shows workloads of all families.
LATENCY: Final = "latency"
#: A peer has sustained a requested rate if it reached at least this share of the rate.
KEPT_UP: Final = 0.95
FAMILIES: Final = {
    "mqtt": "MQTT",
    "amqp": "AMQP 0-9-1",
    "crossing": "From one protocol to the other",
}


def figure(value: float) -> str:
    """Return a figure with three significant digits."""
    if value >= 99.5:
        return f"{value:,.0f}"
    if value >= 9.95:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.995 else f"{value:.3f}"


def times(value: float) -> str:
    """Return a ratio (peer / Trellis) as text; bold if Trellis is slower."""
    digits = (
        f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 1.05 else f"{value:.2f}"
    )
    return f"**{digits} ×, a loss**" if value < 0.995 else f"{digits} ×"


def rows(header: Sequence[str], lines: Sequence[Sequence[str]], align: str = "---:") -> str:
    """Return a Markdown table: the first column is left-aligned, the others as in `align`."""
    rule = ["---"] + [align] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def page(results: Results, charts: Mapping[str, str]) -> str:
    """Return the generated part of the document.

    `charts` has the path of each chart relative to the document, by family or LATENCY.
    """
    return "\n\n".join(part for part in _parts(results, charts) if part) + "\n"


def _parts(results: Results, charts: Mapping[str, str]) -> Iterator[str]:
    yield _opening(results)
    reached = goals(results, OURS)
    if reached:
        words = (
            "A target compares a median of Trellis with the median of one peer in this run. The "
            "figures are times: the lower figure is better. `RabbitMQ at least 3 ×` means that the "
            "figure of RabbitMQ is at least 3 times the figure of Trellis. `at most 5 × blind "
            "relay` means that the figure of Trellis is at most 5 times the figure of the blind "
            "relay. The blind relay and the blind writer only forward bytes, so their figures are "
            "lower bounds."
        )
        yield (
            f"### Targets\n\n{words}\n\n"
            f"{rows(['workload', 'figure', 'target', 'measured'], reached, '---')}"
        )
    for family, title in FAMILIES.items():
        names = [name for name, about in results.workloads.items() if about["family"] == family]
        peers = _measured(results, names)
        if not peers:
            continue
        yield f"### {title}"
        if family in charts:
            yield f"![Broker CPU per published message, {title}]({charts[family]})"
        yield (
            "Broker CPU, in microseconds per published message, and the ratio to the figure of "
            f"Trellis.\n\n{_cpu(results, names, peers)}"
        )
        yield (
            "Publications per second of wall-clock time, in thousands (bold: more than "
            f"Trellis).\n\n{_rates(results, names, peers)}"
        )
        latency = _latency(results, names, peers)
        if latency:
            words = (
                "p50 / p99 / p99.9 (bold: less than Trellis). If a broker did not sustain the rate "
                "of a workload, a percentage shows which part of the rate it reached."
            )
            yield f"Latency from sending to receiving, in microseconds: {words}\n\n{latency}"
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
        (
            f"Measured on {results.date} with `{' '.join(results.command)}`: medians of "
            f"{results.rounds} interleaved rounds."
        ),
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
        return "unknown, a single round does not show it."
    middle, wide = spreads[len(spreads) // 2], spreads[int(len(spreads) * 0.9)]
    return (
        "the difference between the highest and the lowest round is at most "
        f"{middle:.0%} of the median for half of all figures of CPU time, and at most {wide:.0%} "
        "for nine of ten."
    )


def _measured(results: Results, workloads: Sequence[str]) -> list[str]:
    """Return the peers that can run one of these workloads, brokers before lower bounds."""
    names = [
        name
        for name in results.peers
        if any(
            (cell := results.cells.get(name, {}).get(each)) and not cell.unable
            for each in workloads
        )
    ]
    return sorted(names, key=lambda name: results.peers[name].floor)


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
        cells = [results.cells.get(peer, {}).get(workload, PeerCell()) for peer in peers]
        lines.append(
            [title_of(results, workload)]
            + [
                _absent(cell)
                if (medians := cell.medians) is None
                else show(peer, workload, medians)
                for peer, cell in zip(peers, cells, strict=True)
            ]
        )
    return rows(["", *_titles(results, peers)], lines)


def title_of(results: Results, workload: str) -> str:
    """Return a workload's title, with the rate if it is paced."""
    about = results.workloads[workload]
    return (
        f"{about['title']}: {about['rate']:,.0f} a second" if about["rate"] else str(about["title"])
    )


def _better(value: float | None, ours: float | None, sign: int = 1) -> str:
    """Return a peer's figure as text, bold if it is better than the figure of Trellis.

    With `sign` 1 the lower figure is better, with -1 the higher figure.
    """
    if value is None:
        return "-"
    return (
        f"**{figure(value)}**"
        if ours is not None and value * sign < ours * sign * (1 - sign * 0.005)
        else figure(value)
    )


def _absent(cell: PeerCell) -> str:
    """Return the text for a table cell without figures: "wrong", "failed" or "-"."""
    if cell.wrong:
        return "wrong"
    return "failed" if cell.failed else "-"


def _cpu(results: Results, workloads: Sequence[str], peers: Sequence[str]) -> str:
    def show(peer: str, workload: str, medians: Figures) -> str:
        ours = results.median(OURS, workload)
        factor = ratio(medians.cpu, ours.cpu if ours else None)
        if peer == OURS or factor is None:
            return figure(medians.cpu)
        # The ratio to a lower bound is never bold: Trellis is always slower than a lower bound.
        return (
            f"{figure(medians.cpu)} · "
            f"{f'{factor:.2f} ×' if results.peers[peer].floor else times(factor)}"
        )

    return _grid(results, workloads, peers, show)


def _rates(results: Results, workloads: Sequence[str], peers: Sequence[str]) -> str:
    def show(peer: str, workload: str, medians: Figures) -> str:
        ours = (
            None
            if results.workloads[workload]["rate"] or results.peers[peer].floor
            else results.median(OURS, workload)
        )
        return _better(medians.rate / 1000, ours.rate / 1000 if ours else None, -1)

    return _grid(results, workloads, peers, show)


def _latency(results: Results, workloads: Sequence[str], peers: Sequence[str]) -> str:
    timed = [
        name
        for name in workloads
        if any(
            (medians := results.median(peer, name)) and medians.p50 is not None for peer in peers
        )
    ]

    def show(peer: str, workload: str, medians: Figures) -> str:
        ours = None if results.peers[peer].floor else results.median(OURS, workload)
        names = ("p50", "p99", "p999")
        shown = " / ".join(
            _better(getattr(medians, name), getattr(ours, name) if ours else None) for name in names
        )
        share = ratio(medians.rate, results.workloads[workload]["rate"])
        return shown if share is None or share > KEPT_UP else f"{shown}, {share:.0%}"

    return _grid(results, timed, peers, show) if timed else ""


def _memory(results: Results) -> str:
    lines = []
    for name in _measured(results, list(results.workloads)):
        medians = {
            each: median for each in results.workloads if (median := results.median(name, each))
        }
        if medians:
            peak = max(medians, key=lambda each: medians[each].peak)
            least, most = (
                choose(each.resident for each in medians.values()) / 1e6 for choose in (min, max)
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
                    figure(medians[peak].peak / 1e6),
                    where,
                ]
            )
    table = rows(["", "least", "most", "peak", "peak in"], lines)
    words = (
        "Resident memory of all processes of a broker, in MB: the least and the most memory after "
        "a workload, and the peak during a workload. The last column names the workload with the "
        "peak. In a round, all workloads run on the same process of the broker, one after the "
        "other."
    )
    return f"{words}\n\n{table}"


def _exceptions(results: Results) -> str:
    """Return a section that lists the missing measurements; "" if none are missing.

    The section has one line for each peer and reason, with the workloads.
    """
    lines = [
        f"- {about.title}: not measured, because {about.missing}"
        for about in results.peers.values()
        if about.missing
    ]
    for kind, before in (
        ("wrong", " answered wrongly:"),
        ("failed", " gave no answer:"),
        ("unable", ": not measured, because"),
    ):
        for peer, of in results.cells.items():
            reasons: dict[str, list[str]] = {}
            for workload, cell in of.items():
                if getattr(cell, kind):
                    reasons.setdefault(getattr(cell, kind), []).append(f"`{workload}`")
            lines += [
                f"- {results.peers[peer].title}{before} {why}{_where(why, which)}"
                for why, which in reasons.items()
            ]
    return "### Not measured\n\n" + "\n".join(lines) if lines else ""


def _where(why: str, workloads: Sequence[str]) -> str:
    """Return the workloads to which a reason applies, as text in parentheses.

    Return "" if the broker lacks a protocol, because a reader can tell which workloads need it.
    """
    return "" if why.startswith("it does not support ") else f" ({', '.join(workloads)})"


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
