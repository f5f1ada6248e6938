"""What does a run leave behind? The model of results/*.json, medians, and ratios."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

#: Of the file; one that says another number is refused.
FORMAT: Final = 1


@dataclass(frozen=True)
class Figures:
    """What one peer did in one workload, in one round; or medians of that."""

    messages: int  # published
    rate: float  # publications a second, by the clock on the wall
    cpu: float  # microseconds of the broker's processor time a publication
    resident: float  # octets of memory that the broker's processes hold after it
    peak: float  # and at most meanwhile
    p50: float | None = (
        None  # latency from sending to receiving, in microseconds; None where it is not measured
    )
    p99: float | None = None
    p999: float | None = None


@dataclass
class Cell:
    """One peer in one workload."""

    rounds: list[Figures] = field(default_factory=list)
    unable: str = ""  # why it was not tried
    wrong: str = ""  # what was wrong with its answer: then no figure of it counts
    failed: str = ""  # why there is no answer: it ended, hung, refused

    @property
    def medians(self) -> Figures | None:
        """Of each figure by itself; None where the peer has none that counts."""
        return None if self.wrong or self.failed or not self.rounds else medians(self.rounds)

    @property
    def spread(self) -> float:
        """How far the rounds' CPU is apart: (highest - lowest) / median."""
        found = [each.cpu for each in self.rounds]
        middle = statistics.median(found) if found else 0
        return (max(found) - min(found)) / middle if middle else 0.0


@dataclass(frozen=True)
class About:
    """A peer of the run."""

    title: str
    version: str = ""
    settings: tuple[str, ...] = ()
    floor: bool = False
    warning: str = ""
    missing: str = ""  # what was not installed: then it has no cells


@dataclass
class Results:
    """A run: who took part on which machine, and every round's figures by peer and workload."""

    name: str
    date: str
    command: list[str]
    machine: dict[str, str]
    rounds: int  # done
    load: dict[str, Any]  # the load tool's command and what it says of itself
    peers: dict[str, About]
    workloads: dict[str, dict[str, Any]]  # name -> title, family, deliveries, half
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)  # peer -> workload -> cell

    def cell(self, peer: str, workload: str) -> Cell:
        """The cell; an empty one is made where there is none yet."""
        return self.cells.setdefault(peer, {}).setdefault(workload, Cell())

    def median(self, peer: str, workload: str) -> Figures | None:
        return self.cells.get(peer, {}).get(workload, Cell()).medians

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that an interrupted run leaves its last whole round."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"format": FORMAT, **_plain(self)}, indent=1) + "\n")
        partial.replace(path)


def read(path: Path) -> Results:
    """The results in a file. Raises ValueError where it holds none that we know."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise ValueError(f"{path} holds no results of format {FORMAT}")
    found["peers"] = {
        name: About(**{**about, "settings": tuple(about["settings"])})
        for name, about in found["peers"].items()
    }
    found["cells"] = {
        peer: {
            workload: Cell(
                [_figures(each) for each in cell["rounds"]],
                cell["unable"],
                cell["wrong"],
                cell["failed"],
            )
            for workload, cell in of.items()
        }
        for peer, of in found["cells"].items()
    }
    return Results(**found)


def _plain(results: Results) -> dict[str, Any]:
    """For JSON: medians written beside the rounds, for whoever reads the file without us."""
    plain = asdict(results)
    for peer, of in results.cells.items():
        for workload, cell in of.items():
            found = cell.medians
            if found is not None:
                plain["cells"][peer][workload]["medians"] = asdict(found)
    return plain


def _figures(found: Mapping[str, Any]) -> Figures:
    return Figures(**{each.name: found[each.name] for each in fields(Figures)})


def medians(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure by itself. A latency that not every round measured has none."""

    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if len(known) == len(values) else None

    return Figures(
        messages=int(statistics.median(each.messages for each in rounds)),
        rate=statistics.median(each.rate for each in rounds),
        cpu=statistics.median(each.cpu for each in rounds),
        resident=statistics.median(each.resident for each in rounds),
        peak=statistics.median(each.peak for each in rounds),
        p50=middle([each.p50 for each in rounds]),
        p99=middle([each.p99 for each in rounds]),
        p999=middle([each.p999 for each in rounds]),
    )


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """How many times ours theirs is; None where one of them is missing or nothing."""
    return theirs / ours if theirs and ours else None
