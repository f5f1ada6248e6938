"""Results of `trellis bench matching` as tables.

(Pages and charts: benchmarks/matching/report.py.)
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from trellis.bench.matching.results import MatchingResults, ResultCell
from trellis.bench.report import environment as of_bench

Row = dict[str, str | int | float | bool | None]


def environment(command: Sequence[str]) -> dict[str, Any]:
    """Return time, command and machine of this run; `load` is the present load average."""
    facts = of_bench(command, {})
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(command),
        "trellis": facts.trellis,
        "python": facts.python,
        "cpu": facts.cpu,
        "cpus": facts.cpus,
        "kernel": facts.kernel,
        "machine": facts.machine,
        "load": facts.load,
    }


def _command(command: Sequence[str]) -> str:
    """Return the command without paths of this machine."""
    words, skipped = ["trellis"], False
    for word in command[1:]:
        option, equals, _ = word.partition("=")
        if skipped or option in ("--json", "--peers"):
            skipped = not skipped and not equals
            continue
        words.append(word)
    return shlex.join(words)


def heading(results: MatchingResults) -> str:
    """Return a line about the environment and the method, to print above the tables."""
    facts = results.environment
    return (
        f"{facts['python']}, {facts['kernel']}, {facts['cpus']} x {facts['cpu']}, "
        f"load average {facts['load']:g}; medians of {results.rounds} rounds; times in ns of CPU "
        f"time, which include {results.loop_ns:.0f} ns for the measuring loop"
    )


def tables(results: MatchingResults) -> Iterator[tuple[str, list[Row]]]:
    """Yield the title and the rows of each table.

    The first tables are one for each case of the kind "workload" or "cold", with the times of
    lookups. Then come the tables of threads, of churn, and of splitting a topic into words.
    """
    timed = [key for key, case in results.cases.items() if case.kind in ("workload", "cold")]
    for key in timed:
        case = results.cases[key]
        title = f"{case.workload} {case.size:,}" + (" cold" if case.kind == "cold" else "")
        memory = next(
            (
                other
                for other, about in results.cases.items()
                if about.kind == "memory"
                and (about.workload, about.size) == (case.workload, case.size)
                and case.kind != "cold"
            ),
            None,
        )
        rows = [_row(results, name, key, memory) for name, of in results.cells.items() if key in of]
        yield title, sorted(rows, key=_by_lookup)
    for part, figure, unit in (("threads", "ms", "ms"), ("churn", "publish", "ns per publication")):
        for workload in dict.fromkeys(
            case.workload for case in results.cases.values() if case.part == part
        ):
            keys = [
                key
                for key, case in results.cases.items()
                if (case.part, case.workload) == (part, workload)
            ]
            yield f"{part}, {workload}, {unit}", _wide(results, keys, figure)
    for key in (key for key, case in results.cases.items() if case.kind == "splitting"):
        for of in results.cells.values():
            medians = of.get(key, ResultCell()).medians
            if medians:
                yield (
                    "splitting, ns",
                    [{"each time": _digits(medians["each"]), "once": _digits(medians["once"])}],
                )


def exceptions(results: MatchingResults) -> list[str]:
    """Return a line for each wrong answer and each contender that failed in a case."""
    return [
        f"{name}, {key}: {cell.why}: {cell.wrong or cell.failed}"
        for name, of in results.cells.items()
        for key, cell in of.items()
        if cell.wrong or cell.failed
    ]


def _row(results: MatchingResults, name: str, key: str, memory: str | None) -> Row:
    cell = results.cells[name][key]
    row: Row = {"": results.contenders[name].title}
    if cell.why:
        row["note"] = f"{cell.why}: {cell.wrong or cell.slow or cell.unable or cell.failed}"[:90]
        return row
    medians = cell.medians
    for figure in ("lookup", "first", "any", "subscribe", "unsubscribe", "load"):
        if figure in medians:
            row[f"{figure} ns"] = _digits(medians[figure])
        if figure == "lookup":
            row["+-%"] = round(50 * cell.spread("lookup"))
    size = memory and results.median(name, memory, "octets")
    if size:
        row["B/sub"] = round(size)
    return row


def _wide(results: MatchingResults, keys: Sequence[str], figure: str) -> list[Row]:
    rows: list[Row] = []
    for name, about in results.contenders.items():
        medians = {results.cases[key].variant: results.median(name, key, figure) for key in keys}
        if any(value is not None for value in medians.values()):
            rows.append(
                {
                    "": about.title,
                    **{variant: value and _digits(value) for variant, value in medians.items()},
                }
            )
    return rows


def _by_lookup(row: Row) -> float:
    value = row.get("lookup ns")
    return float("inf") if value is None else float(value)


def _digits(value: float) -> float:
    """Round a figure for a table.

    Figures below 100 keep three significant digits, others become whole numbers.
    """
    return round(value) if value >= 100 else float(f"{value:.3g}")
