"""Results of a run: the figures of every round by contender and case, and the environment."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

#: Version of the JSON format. Increase it when a field is removed or changes its meaning.
FORMAT: Final = 1


@dataclass
class ResultCell:
    """The results of one contender (an algorithm or a peer) in one case: its figures in each round.

    If one of `wrong`, `slow`, `unable` and `failed` has a text, the cell has no valid figures, and
    the text is the reason.
    """

    rounds: list[dict[str, float]] = field(default_factory=list)
    wrong: str = ""
    slow: str = ""
    unable: str = ""
    failed: str = ""

    @property
    def why(self) -> str:
        """Name of the field with the reason why there are no figures; "" if there are figures."""
        return next(
            (word for word in ("wrong", "slow", "unable", "failed") if getattr(self, word)), ""
        )

    @property
    def medians(self) -> dict[str, float]:
        """The median of each figure over the rounds, by the name of the figure.

        The dict is empty if the cell has no valid figures (see `why`).
        """
        if self.why or not self.rounds:
            return {}
        return {
            name: statistics.median(each[name] for each in self.rounds) for name in self.rounds[0]
        }

    def spread(self, name: str) -> float:
        """Return the spread of a figure over the rounds: (highest - lowest) / median."""
        figures = [each[name] for each in self.rounds]
        middle = statistics.median(figures)
        return (max(figures) - min(figures)) / middle if middle else 0.0


@dataclass
class MatchingAbout:
    """The description of a contender (an algorithm or a peer) in the results."""

    title: str
    ours: bool
    idea: str = ""
    origin: str = ""
    version: str = ""
    missing: str = ""


@dataclass
class CaseAbout:
    """The description of a case, one measurement, in the results."""

    part: str
    workload: str
    size: int
    kind: str
    variant: str
    text: str


@dataclass
class MatchingResults:
    """The results of a run: a ResultCell for each contender and case.

    `loop_ns` is the overhead of the measuring loop in ns per call.
    """

    environment: dict[str, Any]
    rounds: int
    seconds: float
    loop_ns: float
    contenders: dict[str, MatchingAbout]
    cases: dict[str, CaseAbout] = field(default_factory=dict)
    cells: dict[str, dict[str, ResultCell]] = field(default_factory=dict)

    def cell(self, contender: str, case: str) -> ResultCell:
        """Return the results of a contender in a case. Create an empty ResultCell if needed."""
        return self.cells.setdefault(contender, {}).setdefault(case, ResultCell())

    def median(self, contender: str, case: str, figure: str) -> float | None:
        """Return the median of a contender's figure in a case, None if it was not measured."""
        return self.cells.get(contender, {}).get(case, ResultCell()).medians.get(figure)

    def text(self) -> str:
        """Return the results as JSON, with the medians beside the rounds."""
        plain = asdict(self)
        for contender, of in self.cells.items():
            for case, cell in of.items():
                plain["cells"][contender][case]["medians"] = cell.medians
        return json.dumps({"format": FORMAT, **plain}, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Replace the file atomically with these results."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self.text())
        partial.replace(path)


def read(path: Path) -> MatchingResults:
    """Return the results in a file. Raises ValueError if its format is unknown."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ValueError(f"{path} has no results of format {FORMAT}; measure again with --json")
    document["contenders"] = {
        name: MatchingAbout(**about) for name, about in document["contenders"].items()
    }
    document["cases"] = {key: CaseAbout(**about) for key, about in document["cases"].items()}
    document["cells"] = {
        name: {key: _cell(cell) for key, cell in of.items()}
        for name, of in document["cells"].items()
    }
    return MatchingResults(**document)


def merged(runs: Sequence[MatchingResults]) -> MatchingResults:
    """Merge the results of several runs on one machine into `runs[0]`, and return `runs[0]`.

    If several runs measured a contender in a case, the result has the figures of the last of these
    runs. The environment of the result has the commands of all runs, and the load average before
    each run.
    """
    first, *others = runs
    for several, one in (("commands", "command"), ("loads", "load")):
        first.environment[several] = [
            each for run in runs for each in run.environment.get(several, [run.environment[one]])
        ]
    for run in others:
        first.contenders |= run.contenders
        first.cases |= run.cases
        for name, of in run.cells.items():
            first.cells.setdefault(name, {}).update(of)
    return first


def _cell(document: dict[str, Any]) -> ResultCell:
    return ResultCell(**{name: value for name, value in document.items() if name != "medians"})
