"""The model of results/*.json: figures, medians and ratios of a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

#: The version of the file format; other versions are rejected.
FORMAT: Final = 1


@dataclass(frozen=True)
class Figures:
    """The figures of one peer in one workload, of one round or as medians over the rounds."""

    messages: int  # Number of published messages.
    rate: float  # publications per second of wall-clock time
    cpu: float  # the broker's CPU time per publication, in microseconds
    resident: float  # resident memory of the broker's processes after the workload, in bytes
    peak: float  # the largest resident memory during the workload, in bytes
    # Latencies from sending to receiving, in microseconds; None if not measured.
    p50: float | None = None
    p99: float | None = None
    p999: float | None = None


@dataclass
class PeerCell:
    """The figures of one peer in one workload, by round, or the reason why no figures exist."""

    rounds: list[Figures] = field(default_factory=list)
    unable: str = ""  # Why the workload was not run with the peer; "" if the workload was run.
    wrong: str = ""  # The fault in the peer's answer, after which no figure counts.
    failed: str = ""  # why there is no answer: the peer ended, hung or refused

    @property
    def medians(self) -> Figures | None:
        """Return the median of each figure over the rounds.

        None if the peer answered wrongly or failed, or if no round was run.
        """
        return None if self.wrong or self.failed or not self.rounds else medians(self.rounds)

    @property
    def spread(self) -> float:
        """Return the spread of the CPU time over the rounds: (highest - lowest) / median."""
        times = [each.cpu for each in self.rounds]
        middle = statistics.median(times) if times else 0
        return (max(times) - min(times)) / middle if middle else 0.0


@dataclass(frozen=True)
class About:
    """The description of a peer in the results."""

    title: str
    version: str = ""
    settings: tuple[str, ...] = ()
    floor: bool = False
    warning: str = ""
    missing: str = ""  # the missing package, without which the peer has no cells


@dataclass
class Results:
    """A run: its peers, its machine, and every round's figures by peer and workload."""

    name: str
    date: str
    command: list[str]
    machine: dict[str, str]
    rounds: int  # Number of completed rounds.
    load: dict[str, Any]  # The load tool's command, and its description of itself.
    peers: dict[str, About]
    workloads: dict[str, dict[str, Any]]  # workload -> the result of Case.about
    # peer -> workload -> the cell of figures
    cells: dict[str, dict[str, PeerCell]] = field(default_factory=dict)

    def cell(self, peer: str, workload: str) -> PeerCell:
        """Return the cell of a peer and a workload; create an empty cell if there is none."""
        return self.cells.setdefault(peer, {}).setdefault(workload, PeerCell())

    def median(self, peer: str, workload: str) -> Figures | None:
        """Return the medians of a peer in a workload; None if it has no valid figures."""
        return self.cells.get(peer, {}).get(workload, PeerCell()).medians

    def write(self, path: Path) -> None:
        """Replace the file atomically, so that the file has all complete rounds even if the run is
        interrupted.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"format": FORMAT, **_plain(self)}, indent=1) + "\n")
        partial.replace(path)


def read(path: Path) -> Results:
    """Read results from a file. Raises ValueError if the file has another format."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ValueError(
            f"{path} has no results of format {FORMAT}: name a file that this version of "
            "`peers run` has written"
        )
    document["peers"] = {
        name: About(**{**about, "settings": tuple(about["settings"])})
        for name, about in document["peers"].items()
    }
    document["cells"] = {
        peer: {
            workload: PeerCell(
                [_figures(each) for each in cell["rounds"]],
                cell["unable"],
                cell["wrong"],
                cell["failed"],
            )
            for workload, cell in of.items()
        }
        for peer, of in document["cells"].items()
    }
    return Results(**document)


def _plain(results: Results) -> dict[str, Any]:
    """Return the results as JSON objects; for readers of the file, cells also have medians."""
    plain = asdict(results)
    for peer, of in results.cells.items():
        for workload, cell in of.items():
            medians = cell.medians
            if medians is not None:
                plain["cells"][peer][workload]["medians"] = asdict(medians)
    return plain


def _figures(document: Mapping[str, Any]) -> Figures:
    return Figures(**{each.name: document[each.name] for each in fields(Figures)})


def medians(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure; a latency that a round did not measure becomes None."""

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
    """Return a peer's figure divided by that of Trellis; None if one of these figures is missing or
    0.
    """
    return theirs / ours if theirs and ours else None
