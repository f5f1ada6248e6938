"""Some rounds of each kind of fault on real node processes; `make test-ha` runs more rounds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cluster.rounds.kinds import KINDS
from tests.cluster.rounds.record import Figures, add, pauses, read, table
from tests.cluster.rounds.run import run

ROOT = Path(__file__).parent.parent.parent
#: Number of rounds of each kind.
ROUNDS = 3


@pytest.mark.long
@pytest.mark.xdist_group("rounds")
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_a_fault_violate_no_guarantee(kind: str) -> None:
    seed = int(os.environ.get("TRELLIS_CRASH_SEED") or random.randrange(1 << 30))
    print(f"TRELLIS_CRASH_SEED={seed}")
    figures = run(kind, ROUNDS, seed)
    assert figures.violations == 0, figures
    assert figures.rounds == ROUNDS
    assert figures.confirmed > 30


def test_documentation_shows_the_record() -> None:
    """The table in docs/high-availability.md must show the figures of record.json.

    `python -m tests.cluster.rounds --table --record FILE` prints this table.
    """
    page = (ROOT / "docs" / "high-availability.md").read_text()
    shown = page.partition("<!-- record of rounds -->\n\n")[2].partition("\n\n<!-- end")[0]
    assert shown == table(read(ROOT / "tests" / "cluster" / "rounds" / "record.json"))


def test_documentation_shows_the_record_of_pauses() -> None:
    """The second table in docs/high-availability.md must show the pauses of record.json, too."""
    page = (ROOT / "docs" / "high-availability.md").read_text()
    shown = page.partition("<!-- record of pauses -->\n\n")[2].partition("\n\n<!-- end")[0]
    assert shown == pauses(read(ROOT / "tests" / "cluster" / "rounds" / "record.json"))


def test_record_tells_short_pauses_of_kafka_from_long_ones(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    add(path, "kafka-leader", Figures(2, pauses=[(1.8, 1.79, 0, 0), (1.8, 1.8, 1, 3)]))
    add(path, "kafka-leader", Figures(1, pauses=[(1.8, 4.0, 1, 2)]))
    add(path, "kill-active", Figures(1))
    assert pauses(read(path)).splitlines()[2:] == [
        "| kafka-leader | below 1.8 s | 1 | 0 | 0 | 1.79 |",
        "| kafka-leader | 1.8 s or longer | 2 | 2 | 5 | 4.00 |",
    ]


def test_record_adds_up_the_figures_of_several_runs(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    gaps = [float(number) for number in range(1, 21)]
    add(path, "kill", Figures(20, 19, 1_000, gaps=gaps))
    add(path, "kill", Figures(1, 1, 5, lost=1, gaps=[0.5]))
    add(path, "stop", Figures(2, 0, 7, gaps=[1.0, 2.0]))
    record = read(path)
    assert record["kill"].violations == 1
    assert table(record).splitlines()[2:] == [
        "| kill | 21 | 20 | 1,005 | 1 | 0 | 0 | 0 | 0 | 0 | 19.00 |",
        "| stop | 2 | 0 | 7 | 0 | 0 | 0 | 0 | 0 | 0 | 2.00 |",
        "| all | 23 | 20 | 1,012 | 1 | 0 | 0 | 0 | 0 | 0 | 19.00 |",
    ]
