"""The record of rounds of faults: figures by kind of fault, added up over many runs.

The record is a JSON file, and can be shown as a table.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

#: The columns of the table: the field, and its title.
COLUMNS = {
    "rounds": "rounds",
    "takeovers": "takeovers",
    "confirmed": "confirmed messages",
    "lost": "lost messages",
    "order_broken": "messages out of order",
    "exactly": "QoS 2 messages",
    "twice": "received twice",
    "settled_back": "came back after settlement",
    "deposed_acts": "acts of a deposed owner",
    "gap_p95": "p95 of the longest time between two confirms, s",
}


@dataclass
class Figures:
    """The figures of all rounds of one kind of fault: numbers of messages and of violations."""

    rounds: int = 0
    takeovers: int = 0
    #: Numbers of confirmed persistent messages: all of them, and the ones that no consumer got.
    confirmed: int = 0
    lost: int = 0
    order_broken: int = 0
    #: Numbers of messages with a complete QoS 2 exchange: all of them, and the ones received twice.
    exactly: int = 0
    twice: int = 0
    settled_back: int = 0
    deposed_acts: int = 0
    #: The longest time between two confirms in each round, in seconds.
    gaps: list[float] = field(default_factory=list)
    #: For each round in which a Kafka node was killed: the time in seconds below which a pause must
    #: cause no takeover and close no connection; the longest time between two confirms in seconds;
    #: the number of takeovers; and the number of client connections that ended.
    pauses: list[tuple[float, float, int, int]] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Add the figures of further rounds of the same kind to these figures."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @property
    def gap_p95(self) -> float:
        """The 95th percentile of the gaps in seconds; 0 without rounds.

        The gap of a round is the longest time between two confirms.
        """
        gaps = sorted(self.gaps)
        return gaps[max(0, -(-95 * len(gaps) // 100) - 1)] if gaps else 0.0

    @property
    def violations(self) -> int:
        """Number of violations, added over all guarantees."""
        return self.lost + self.order_broken + self.twice + self.settled_back + self.deposed_acts


Record = dict[str, Figures]


def read(path: Path) -> Record:
    """Return the record in a file; an empty one if the file does not exist."""
    if not path.exists():
        return {}
    return {kind: Figures(**figures) for kind, figures in json.loads(path.read_text()).items()}


def add(path: Path, kind: str, figures: Figures) -> Record:
    """Add the figures of a run to the record in a file; return the whole record, by kind."""
    record = read(path)
    record.setdefault(kind, Figures()).add(figures)
    written = path.with_suffix(".new")
    rows = [f"{json.dumps(name)}: {json.dumps(asdict(one))}" for name, one in record.items()]
    written.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    os.replace(written, path)
    return record


def table(record: Record) -> str:
    """Return the record as a table in Markdown."""
    lines = [
        "| fault | " + " | ".join(COLUMNS.values()) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    total = Figures()
    for figures in record.values():
        total.add(figures)
    for kind, figures in [*record.items(), ("all", total)]:
        cells = [_cell(getattr(figures, name)) for name in COLUMNS]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pauses(record: Record) -> str:
    """Return a table in Markdown about the rounds in which a Kafka node was killed.

    The pause of a round is its longest time between two confirms. A short pause must cause no
    takeover and close no connection, so the table has separate rows for rounds with short pauses.
    """
    lines = [
        "| fault | pause | rounds | takeovers | connections closed | longest pause, s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind, figures in record.items():
        groups: dict[str, list[tuple[float, int, int]]] = {}
        for short, gap, takeovers, closed in sorted(figures.pauses):
            title = f"below {short:g} s" if gap < short else f"{short:g} s or longer"
            groups.setdefault(title, []).append((gap, takeovers, closed))
        for title, rounds in groups.items():
            gaps, takeovers_of, closed_of = zip(*rounds, strict=True)
            cells = (len(rounds), sum(takeovers_of), sum(closed_of), float(max(gaps)))
            lines.append(f"| {kind} | {title} | " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def _cell(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
