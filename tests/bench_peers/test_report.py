"""Tests of tables and charts: they show all results, also results in which Trellis is worse than a
peer.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from peers.brokers import NAMES
from peers.chart import OVERVIEW, chart, cpu, latency, overview
from peers.command import main
from peers.peer import ROOT
from peers.report import BEGIN, END, between, report
from peers.results import PeerCell, Results
from peers.table import figure, page, times
from peers.targets import GOALS
from peers.workloads import CASES

from tests.bench_peers.example_results import figures, results


def row(text: str, title: str, number: int = 0) -> list[str]:
    """Return the cells after the title of a table row in `text`.

    Of the rows with this title, `number` selects one: 0 is the first.
    """
    lines = [line for line in text.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in lines[number].strip("|").split("|")][1:]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0421, "0.042"),
        (0.9996, "1.00"),
        (5.678, "5.68"),
        (9.96, "10.0"),
        (35.97, "36.0"),
        (99.6, "100"),
        (12345.6, "12,346"),
    ],
)
def test_three_digits_count(value: float, shown: str) -> None:
    assert figure(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (63.2, "63 ×"),
        (9.96, "10 ×"),
        (1.94, "1.9 ×"),
        (1.0, "1.00 ×"),
        (0.996, "1.00 ×"),
        (0.8, "**0.80 ×, a loss**"),
    ],
)
def test_a_ratio_below_one_is_a_loss(value: float, shown: str) -> None:
    assert times(value) == shown


def test_the_table_compares_every_peer_with_trellis() -> None:
    text = page(results(), {})
    assert "|  | Trellis | mosquitto | *blind relay* |" in text
    assert row(text, "QoS 0") == ["0.200", "5.00 · 25 ×", "0.050 · 0.25 ×"]


def test_losses_are_shown_as_losses() -> None:
    text = page(results(), {})
    assert row(text, "QoS 1")[1] == "2.00 · **0.50 ×, a loss**"
    assert row(text, "QoS 0", 1)[1] == "**2.00**"  # in thousands of messages a second
    assert row(text, "QoS 1", 2)[1] == "11.0 / **20.0** / 91.0"


def test_targets_are_shown_as_met_or_missed() -> None:
    text = page(results(), {})
    assert "| `mqtt-qos0` | CPU a message | mosquitto at least 30 × | **25.0 ×, missed** |" in text
    assert "| `mqtt-qos0` | CPU a message | at most 5 × blind relay | 4.00 × |" in text
    assert "| `mqtt-qos1` | CPU a message | mosquitto at least 15 × | **0.5 ×, missed** |" in text
    changed = results()
    changed.cells["mosquitto"]["mqtt-qos0"].rounds = [figures(6.0)]
    changed.cells["relay"]["mqtt-qos0"].rounds = [figures(0.01)]
    text = page(changed, {})
    assert "mosquitto at least 30 × | 30.0 × |" in text
    assert "at most 5 × blind relay | **20.00 ×, missed** |" in text
    changed.cells = {}
    assert "### Targets" not in page(changed, {})


def test_every_target_names_a_workload_and_a_peer() -> None:
    assert {goal.workload for goal in GOALS} <= set(CASES)
    assert {goal.peer for goal in GOALS} <= set(NAMES)


def test_a_broker_that_does_not_sustain_a_rate_is_shown() -> None:
    changed = results()
    changed.workloads["mqtt-qos1"]["rate"] = 2_500.0
    assert row(page(changed, {}), "QoS 1: 2,500 a second", 2)[0] == "10.0 / 30.0 / 90.0, 40%"
    changed.workloads["mqtt-qos1"]["rate"] = 1_001.0
    assert row(page(changed, {}), "QoS 1: 1,001 a second", 2)[0] == "10.0 / 30.0 / 90.0"


def test_a_wrong_answer_has_no_figure_and_is_reported() -> None:
    text = page(results(), {})
    assert row(text, "QoS 1")[2] == "wrong"
    assert row(text, "no acknowledgements") == ["0.250", "failed"]
    assert (
        "- blind relay answered wrongly: subscriber 0: message 7 came twice (`mqtt-qos1`)" in text
    )
    assert "- mosquitto: not measured, because it does not support AMQP\n" in text
    assert "- NATS: not measured, because the current nats-server is not installed" in text


def test_a_warning_stands_first() -> None:
    changed = results()
    changed.peers["trellis"] = changed.peers["trellis"].__class__(
        "Trellis", "1.0", warning="Trellis is NOT COMPILED"
    )
    assert page(changed, {}).startswith("> **Trellis is NOT COMPILED.**")


def test_the_report_states_machine_versions_command_and_noise() -> None:
    text = page(results(), {})
    log_end = (
        "2026-01-02",
        "`python benchmarks/peers run`",
        "processor one",
        "| mosquitto | 2.0 |",
        "- Trellis: its defaults",
        "Noise: ",
    )
    assert [words for words in log_end if words not in text] == []


def test_a_chart_is_svg_with_the_shortest_bar_first() -> None:
    example = results()
    [first, second] = cpu(example, "mqtt")
    assert [bar.title for bar in first.bars] == ["blind relay", "Trellis", "mosquitto"]
    assert [bar.title for bar in second.bars] == ["mosquitto", "Trellis"]
    picture = ElementTree.fromstring(chart([first, second], "a < b", "microseconds"))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "QoS 0", "mosquitto", "0.200", "5.00"} <= set(texts)


def test_bars_stay_inside_of_the_picture() -> None:
    picture = ElementTree.fromstring(chart(cpu(results(), "mqtt"), "title", "microseconds"))
    width = float(picture.attrib["width"])
    for bar in picture.iter("{http://www.w3.org/2000/svg}rect"):
        assert (
            0
            <= float(bar.attrib["x"])
            < float(bar.attrib["x"]) + float(bar.attrib["width"])
            <= width
        )


def test_the_chart_of_latencies_has_only_timed_workloads() -> None:
    assert [panel.title for panel in latency(results())] == [["MQTT QoS 1"]]


def test_report_without_measurements_has_no_chart() -> None:
    assert chart([], "title", "microseconds") == ""


def test_a_report_replaces_the_text_between_the_marks(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{BEGIN}\nobsolete\n{END}\nafter\n")
    written = report(results(), document, tmp_path / "performance")
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "obsolete" not in text
    assert {path.name for path in written} == {
        "performance.md",
        "mqtt.svg",
        "amqp.svg",
        "latency.svg",
        "overview.svg",
    }
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / link).is_file()
    report(results(), document, tmp_path / "performance")
    assert document.read_text() == text


def test_the_overview_compares_peers_on_a_linear_scale() -> None:
    example = results()
    example.cells["mosquitto"]["mqtt-qos1"] = PeerCell([figures(40.0)] * 3)
    picture = ElementTree.fromstring(overview(example))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {OVERVIEW["mqtt-qos1"], "Trellis", "4.00 us", "mosquitto", "40.0 us, 10 ×"} <= set(texts)
    assert OVERVIEW["amqp-ack"] not in texts
    ours, theirs = (
        float(bar.attrib["width"]) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")
    )
    assert theirs == pytest.approx(10 * ours, abs=1)


def test_results_without_the_workloads_of_the_overview_have_none() -> None:
    example = results()
    del example.workloads["mqtt-qos1"]
    assert overview(example) == ""


def test_the_charts_of_the_page_are_those_of_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    command = re.search(
        r"`python benchmarks/peers (charts benchmarks/results/(.+)-peers\.json)`", text
    )
    assert command is not None
    assert f"Measured on {command[2]} with `python benchmarks/peers run" in text
    name, recorded = command[1].split()
    assert main([name, str(ROOT / recorded), "--charts", str(tmp_path)]) == 0
    drawn = [Path(line) for line in capsys.readouterr().out.splitlines()]
    pictures = ROOT / "docs" / "performance"
    assert {path.name for path in drawn} == {path.name for path in pictures.iterdir()}
    for path in drawn:
        assert path.read_text() == (pictures / path.name).read_text(), path.name


@pytest.mark.parametrize(
    "text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{END}", f"{BEGIN}{BEGIN}{END}"]
)
def test_a_document_without_its_marks_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        between(text, "new", "performance.md")


def test_the_command_writes_a_document_where_there_is_none(tmp_path: Path) -> None:
    example: Results = results()
    example.write(tmp_path / "results.json")
    assert main(["report", str(tmp_path / "results.json"), "--into", str(tmp_path / "new.md")]) == 0
    assert "25 ×" in (tmp_path / "new.md").read_text()
    assert (tmp_path / "new" / "mqtt.svg").is_file()
