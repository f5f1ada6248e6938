"""Tests of medians, ratios and results files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peers.results import PeerCell, Results, medians, ratio, read

from tests.bench_peers.example_results import figures, results


def test_each_figure_has_a_median_of_its_own() -> None:
    median = medians([figures(1.0, 30.0), figures(9.0, 10.0), figures(2.0, 20.0)])
    assert (median.cpu, median.rate) == (2.0, 20.0)


def test_the_median_of_two_rounds_is_between_them() -> None:
    assert medians([figures(1.0), figures(2.0)]).cpu == 1.5


def test_a_latency_that_one_round_lacks_has_no_median() -> None:
    assert medians([figures(1.0, p99=5.0), figures(1.0)]).p99 is None
    assert medians([figures(1.0, p99=5.0), figures(1.0, p99=7.0)]).p99 == 6.0


@pytest.mark.parametrize(
    "cell",
    [
        PeerCell(),
        PeerCell([figures(1.0)], wrong="lost a message"),
        PeerCell([figures(1.0)], failed="ended"),
        PeerCell(unable="it does not support AMQP"),
    ],
)
def test_wrong_or_missing_measurements_have_no_medians(cell: PeerCell) -> None:
    assert cell.medians is None


def test_the_spread_is_relative_to_the_median() -> None:
    assert PeerCell([figures(8.0), figures(10.0), figures(13.0)]).spread == 0.5
    assert PeerCell().spread == 0


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [(10.0, 4.0, 2.5), (None, 4.0, None), (10.0, None, None), (10.0, 0.0, None)],
)
def test_a_ratio_needs_both_figures(
    theirs: float | None, ours: float | None, expected: float | None
) -> None:
    assert ratio(theirs, ours) == expected


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    example, path = results(), tmp_path / "folder" / "results.json"
    example.write(path)
    assert read(path) == example
    assert json.loads(path.read_text())["cells"]["trellis"]["mqtt-qos0"]["medians"]["cpu"] == 0.2
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 2}'])
def test_a_file_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="format 1"):
        read(path)


def test_a_cell_is_made_when_it_is_asked_for() -> None:
    example: Results = results()
    example.cell("mosquitto", "new").failed = "hung"
    assert example.cells["mosquitto"]["new"].failed == "hung"
    assert example.median("unknown", "mqtt-qos0") is None
