"""Tests of the order of measurements: all peers take turns in each round.

A peer that gives a wrong answer gets no result.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from peers.brokers import chosen
from peers.command import length
from peers.load import figures as figures_of
from peers.peer import PeerBroker, Running, Tools
from peers.process import Failed
from peers.results import About, Figures, Results
from peers.rounds import PeerPlan, RoundProgress, WrongPeerAnswer, calibrate, duration, measure_all
from peers.workloads import CASES, Case

from tests.bench_peers.example_results import figures


class Made(PeerBroker):
    """A peer (a broker of the comparison) whose `launch` only records its name in `begun`."""

    protocols = frozenset({"mqtt"})
    begun: list[str]

    def launch(self, directory: Path, running: Running) -> None:
        assert directory.is_dir()
        self.begun.append(self.name)

    def missing(self) -> str:
        return ""


class First(Made):
    name, title = "first", "First"


class Second(Made):
    name, title = "second", "Second"


class FakeLoad:
    """A load tool that records each measurement in `measured`.

    `failures` maps the name of a workload to the exception that its measurement raises.
    """

    def __init__(self, failures: dict[str, Exception] | None = None) -> None:
        self.failures = failures or {}
        self.measured: list[tuple[str, float | None]] = []

    def measure(self, case: Case, broker: Running, rate: float | None) -> Figures:
        self.measured.append((case.name, rate))
        if case.name in self.failures:
            raise self.failures[case.name]
        return figures(1.0, rate=100.0 * len(self.measured))


class Run:
    """A measurement of two peers (brokers) with two workloads, in three rounds."""

    def __init__(self, directory: Path, *names: str, load: FakeLoad | None = None) -> None:
        self.begun: list[str] = []
        self.load = load or FakeLoad()
        self.lines: list[str] = []
        self.saved: list[int] = []
        peers = [First(Tools()), Second(Tools())]
        for peer in peers:
            peer.begun = self.begun
        self.plan = PeerPlan(
            peers, [CASES[name] for name in names or ("mqtt-qos0", "mqtt-qos1")], 3, directory
        )
        self.results = Results(
            "name", "date", [], {}, 0, {}, {peer.name: About(peer.title) for peer in peers}, {}
        )

    def measure(self) -> None:
        measure_all(
            self.plan,
            self.load,
            self.results,
            self.lines.append,
            lambda: self.saved.append(self.results.rounds),
        )


def test_every_round_has_every_peer_and_another_one_first(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.measure()
    assert run.begun == ["first", "second", "second", "first", "first", "second"]
    assert run.saved == [1, 2, 3]
    assert len(run.load.measured) == run.plan.steps == 12
    assert all(len(cell.rounds) == 3 for of in run.results.cells.values() for cell in of.values())
    assert list(tmp_path.iterdir()) == []


def test_unsupported_workloads_are_recorded_and_not_tried(tmp_path: Path) -> None:
    run = Run(tmp_path, "mqtt-qos0", "amqp-auto")
    run.measure()
    assert run.results.cell("first", "amqp-auto").unable == "it does not support AMQP"
    assert {name for name, _ in run.load.measured} == {"mqtt-qos0"}


@pytest.mark.parametrize(
    "failure", [WrongPeerAnswer("a message came twice\nand more"), Failed("a message came twice")]
)
def test_a_wrong_answer_is_noted_once_and_the_broker_started_afresh(
    tmp_path: Path, failure: Exception
) -> None:
    run = Run(tmp_path, load=FakeLoad({"mqtt-qos0": failure}))
    run.measure()
    cell = run.results.cell("first", "mqtt-qos0")
    assert (cell.wrong or cell.failed, cell.medians) == ("a message came twice", None)
    assert bool(cell.wrong) == isinstance(failure, WrongPeerAnswer)
    assert [name for name, _ in run.load.measured].count("mqtt-qos0") == 2
    assert run.begun[:4] == ["first", "first", "second", "second"]
    assert len(run.results.cell("first", "mqtt-qos1").rounds) == 3


def test_a_broker_that_does_not_start_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(self: PeerBroker, directory: Path, running: Running) -> None:
        raise Failed("first ended with exit code 1:\nport in use")

    monkeypatch.setattr(First, "launch", launch)
    run = Run(tmp_path)
    run.measure()
    assert run.results.cell("first", "mqtt-qos1").failed == "first ended with exit code 1:"
    assert len(run.results.cell("second", "mqtt-qos1").rounds) == 3


def test_a_paced_workload_runs_at_half_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Second, "name", "mosquitto")
    run = Run(tmp_path, "mqtt-qos0-half")
    calibrate(run.plan, run.load, run.lines.append)
    # half of 200, the median of 100, 200 and 300
    assert run.plan.rates == {"mqtt-qos0-half": 100.0}
    run.measure()
    assert run.load.measured == [("mqtt-qos0-half", None)] * 3 + [("mqtt-qos0-half", 100.0)] * 6


@pytest.mark.parametrize(
    "load", [FakeLoad(), FakeLoad({"mqtt-qos0-half": WrongPeerAnswer("lost")})]
)
def test_without_its_reference_a_paced_workload_is_left_out(
    tmp_path: Path, load: FakeLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    if load.failures:
        monkeypatch.setattr(Second, "name", "mosquitto")
    run = Run(tmp_path, "mqtt-qos0", "mqtt-qos0-half", load=load)
    calibrate(run.plan, run.load, run.lines.append)
    assert [case.name for case in run.plan.cases] == ["mqtt-qos0"]
    assert len(run.lines) == 1
    assert "mqtt-qos0-half" in run.lines[0]


def test_progress_tells_how_much_is_left() -> None:
    lines: list[str] = []
    times = iter([0.0, 0.0, 10.0, 20.0])
    progress = RoundProgress(4, lines.append, lambda: next(times))
    progress.step("a")
    progress.step("b")
    progress.skip()
    progress.step("c")
    assert lines == [
        "[1/4] a (0:00)",
        "[2/4] b (0:10, about 0:30 left)",
        "[3/3] c (0:20, about 0:10 left)",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(5.4, "0:05"), (65, "1:05"), (3600 * 2 + 65, "2 h 01 min")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_run_is_made_to_fit(tmp_path: Path) -> None:
    plan = PeerPlan(chosen(["mosquitto"], Tools()), [CASES["mqtt-qos0"]], 5, tmp_path)
    assert plan.steps == 5
    assert length(plan, 1) == pytest.approx((60 - plan.overhead) / 5 / 1.2, abs=0.1)
    with pytest.raises(ValueError, match="too short"):
        length(plan, 0.1)


ANSWER = {
    "error": None,
    "rounds": [
        {
            "messages": 1000,
            "seconds": 0.5,
            "broker": {"cpu": 0.004, "rss_after": 5_000_000, "rss_peak": 6_000_000},
            "latency": {"p50": 10.0, "p99": 20.0, "p999": 30.0},
        }
    ],
}


def test_the_load_tools_result_becomes_figures() -> None:
    assert figures_of(ANSWER) == Figures(1000, 2000.0, 4.0, 5_000_000, 6_000_000, 10.0, 20.0, 30.0)
    first = ANSWER["rounds"][0]  # type: ignore[index]  # it is a list
    untimed = {**ANSWER, "rounds": [{**first, "latency": None}]}
    assert figures_of(untimed).p99 is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            "wrong answer at subscriber 0: a message came again or late: expected 3, got 2",
            WrongPeerAnswer,
        ),
        ("no progress for 10 s: subscriber 0 waits for 3 of 400 messages", WrongPeerAnswer),
        ("subscriber 0: the broker closed the connection", Failed),
    ],
)
def test_a_wrong_answer_is_distinguished_from_a_missing_one(
    error: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="subscriber 0"):
        figures_of({**ANSWER, "error": error})
