"""Tests of `trellis report`: kept reports, their differences, and the time of the next report."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_trellis import kept_reports
from tests.pipeline.written import START, Writer, row
from trellis.cli import main

#: The bindings of amq.topic at the two times.
FIRST = ("a.*", "b.*", "c.*")
SECOND = ("a.*", "b.*", "d.*")


class Reports:
    """A journal of two days, and the command that makes reports about it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys
        writer = Writer(path / "journal")
        for day, topics in enumerate((("a.x", "b.x", "lost.1"), ("a.x", "lost.1", "lost.2"))):
            writer.write(
                [
                    row(
                        3 * day + at,
                        topic,
                        published_at=START + timedelta(days=day, minutes=at),
                        routed=int(not topic.startswith("lost")),
                    )
                    for at, topic in enumerate(topics)
                ]
            )

    def bindings(self, *keys: str) -> None:
        """Write definitions with a binding for each key; the next report examines them."""
        rows = [
            {
                "source": "amq.topic",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": key,
            }
            for key in keys
        ]
        document = {"queues": [{"name": "q"}], "bindings": rows}
        (self.path / "definitions.json").write_text(json.dumps(document))

    def words(self, *others: str) -> list[str]:
        """Return the command line of `trellis report`, with further words at the end."""
        words = {
            "--journal": "journal",
            "--definitions": "definitions.json",
            "--keep": "kept",
        }
        named = [word for flag, name in words.items() for word in (flag, str(self.path / name))]
        return ["report", *named, *others]

    def run(self, *others: str, code: int = 0) -> str:
        """Make a report; return the printed text. `code` is the expected exit code."""
        self._capsys.readouterr()
        assert main(self.words(*others)) == code
        return self._capsys.readouterr().out

    def files(self) -> list[str]:
        """Return the names of the kept reports."""
        return sorted(path.name for path in (self.path / "kept").iterdir())


@pytest.fixture
def reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Reports:
    return Reports(tmp_path, capsys)


def test_a_report_shows_what_has_changed_since_the_report_before(reports: Reports) -> None:
    reports.bindings(*FIRST)
    text = reports.run("--until", "2026-03-02T12:00")
    assert text.splitlines()[0] == (
        "2026-03-01 12:00 to 2026-03-02 12:00 UTC: 3 messages of 3 topics, 1 unroutable"
    )
    assert "first report: 1 dead binding, 0 duplicate bindings, 0 subsumed bindings, 1 unr" in text
    reports.bindings(*SECOND)
    text = reports.run("--until", "2026-03-03T12:00", "--check", code=1)
    lines = text.splitlines()
    assert lines[0].endswith(
        "UTC: 3 messages of 3 topics, 2 unroutable; "
        "the number of messages changed by +0.0% since yesterday"
    )
    assert lines[-8:] == [
        "2 new dead bindings since yesterday",
        "  + 'b.*' from exchange 'amq.topic' to queue 'q' in vhost '/'",
        "  + 'd.*' from exchange 'amq.topic' to queue 'q' in vhost '/'",
        "1 new unroutable topic since yesterday",
        "  + 'lost.2' to exchange 'amq.topic' in vhost '/'",
        "1 resolved dead binding since yesterday",
        "  - 'c.*' from exchange 'amq.topic' to queue 'q' in vhost '/'",
        f"report written to {reports.path / 'kept' / 'report-20260303T120000Z.json'}",
    ]
    assert reports.files() == ["report-20260302T120000Z.json", "report-20260303T120000Z.json"]
    # A repeated report is compared with the report of the day before, not with its own first run.
    assert reports.run("--until", "2026-03-03T12:00").splitlines() == lines


def test_a_period_may_begin_before_all_times(reports: Reports) -> None:
    reports.bindings(*FIRST)
    report = json.loads(reports.run("--until", "0001-01-01T01:00", "--over", "1d", "--json", "-"))
    assert report["since"] == "0001-01-01T00:00:00+00:00"
    assert report["until"] == "0001-01-01T01:00:00+00:00"
    assert report["traffic"]["messages"] == 0


def test_json_has_the_report_and_the_differences(reports: Reports) -> None:
    reports.bindings(*FIRST)
    report: dict[str, Any] = json.loads(reports.run("--until", "2026-03-02T12:00", "--json", "-"))
    assert (report["before"], report["new"]) == (None, {})
    assert report["traffic"] == {"messages": 3, "size": 0, "fanout": 2, "unroutable": 1}
    text = reports.run(
        "--until", "2026-03-02T18:00", "--over", "6h", "--json", "-", "--check", code=1
    )
    report = json.loads(text)
    assert report["before"] == "2026-03-02T12:00:00+00:00"
    assert [report["new"][kind] for kind in ("dead", "unroutable")] == [
        ["'b.*' from exchange 'amq.topic' to queue 'q' in vhost '/'"],
        ["'lost.2' to exchange 'amq.topic' in vhost '/'"],
    ]
    assert "no finding is new or resolved since 18:00 UTC" in reports.run(
        "--until", "2026-03-02T18:30", "--over", "7h", "--check"
    )


def test_old_reports_are_removed(reports: Reports) -> None:
    reports.bindings(*FIRST)
    for hour in range(4):
        reports.run("--until", f"2026-03-02T1{hour}:00", "--most", "2")
    assert reports.files() == ["report-20260302T120000Z.json", "report-20260302T130000Z.json"]


def test_every_makes_a_report_when_the_latest_is_old_enough(
    reports: Reports, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check when `--every` makes reports: a report that fails is attempted again after 60 s.

    A restarted command waits until the latest kept report is old enough. Ctrl-C ends the command.
    """
    reports.bindings(*FIRST)
    now = START + timedelta(days=1)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += timedelta(seconds=seconds)
        if len(slept) == 2:
            (reports.path / "definitions.json").unlink()
        if len(slept) == 3:
            reports.bindings(*SECOND)
        if len(slept) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(kept_reports, "_present_time", lambda: now)
    monkeypatch.setattr("pyspark_trellis.kept_reports.time.sleep", sleep)
    assert main(reports.words("--every", "1h")) == 130
    captured = capsys.readouterr()
    assert slept == [3600, 3600, 60, 3600, 3600]
    assert captured.err == (
        f"cannot make the report: cannot read the definitions in {reports.path}/definitions.json: "
        "No such file or directory; the next attempt is in 60 s\n"
    )
    assert captured.out.count("report written to") == 4
    assert "2 new dead bindings since" in captured.out
    # The latest report is an hour old: the next one is due at once.
    slept[:] = [0] * 4
    now = START + timedelta(days=3)
    assert main(reports.words("--every", "1h")) == 130
    assert reports.files()[-1] == "report-20260304T120000Z.json"


@pytest.mark.parametrize(("over", "messages"), [("1h", [1, 1, 2]), ("20m", [0, 0, 1])])
def test_a_late_report_begins_where_the_report_before_ended(
    tmp_path: Path,
    reports: Reports,
    monkeypatch: pytest.MonkeyPatch,
    over: str,
    messages: list[int],
) -> None:
    """Check that a report which is made 40 minutes late includes the time since the last report.

    Reports are made every hour. If each report is about one hour (`over`), the late report begins
    where the last one ended. One message is published in the middle of each hour; `messages` has
    the expected number in each report.
    """
    hours = range(4)
    rows = [row(at, "a.x", published_at=START + timedelta(hours=at, minutes=30)) for at in hours]
    Writer(tmp_path / "hourly").write(rows)
    reports.bindings(*FIRST)
    now = START + timedelta(minutes=65)
    late = iter([0, 40 * 60])

    def sleep(seconds: float) -> None:
        nonlocal now
        try:
            now += timedelta(seconds=seconds + next(late))
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(kept_reports, "_present_time", lambda: now)
    monkeypatch.setattr("pyspark_trellis.kept_reports.time.sleep", sleep)
    journal = ("--journal", str(tmp_path / "hourly"))
    assert main(reports.words(*journal, "--every", "1h", "--over", over)) == 130
    kept = [json.loads((reports.path / "kept" / name).read_bytes()) for name in reports.files()]
    assert [report["until"][11:16] for report in kept] == ["13:05", "14:05", "15:45"]
    assert [report["traffic"]["messages"] for report in kept] == messages


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--every", "1d", "--until", "1h"],
            "--until is the end of a single report, and --every makes many",
        ),
        (
            ["--every", "1d", "--check"],
            "--check needs the exit code of a single report, and --every makes many",
        ),
        (["--every", "day"], "'day' is not an age: give an age such as 15m, 2h or 7d"),
        (["--every", "0s"], "--every and --over must be longer than 0 s"),
        (["--every", "99999999d"], "--every and --over must be at most 36500d"),
        (["--over", "99999999d"], "--every and --over must be at most 36500d"),
        (["--until", "99999999d"], "--until must be a time in the years 1 to 9999"),
        (["--until", "9999-12-31T23:59:59-12:00"], "--until must be a time in the years 1 to 9999"),
        (["--definitions", "none.json"], "none.json: No such file or directory"),
        ([], "cannot read the earlier report {path}/kept/report-20260301T000000Z.json ('format')"),
    ],
)
def test_an_error_is_one_line(
    words: list[str], line: str, reports: Reports, capsys: pytest.CaptureFixture[str]
) -> None:
    reports.bindings(*FIRST)
    (reports.path / "kept").mkdir()
    if not words:
        (reports.path / "kept" / "report-20260301T000000Z.json").write_text("{}")
    assert main(reports.words(*words)) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert line.format(path=reports.path) in captured.err


@pytest.mark.parametrize("place", ["streams/%2F/journal", "journal"])
def test_a_binding_of_another_virtual_host_is_not_dead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Check that `audit` calls a binding dead only in the virtual host of the journal.

    The definitions have bindings of two virtual hosts. The path of the journal names the virtual
    host `/`, as in a broker's directory, or no virtual host, which also means `/`.
    """
    Writer(tmp_path / place).write([row(0, "a.x", published_at=START)])
    bindings = [
        {
            "vhost": vhost,
            "source": "amq.topic",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": key,
        }
        for vhost in ("/", "eu/1")
        for key in ("a.*", "b.*")
    ]
    vhosts = sorted({each["vhost"] for each in bindings})
    document = {
        "vhosts": [{"name": vhost} for vhost in vhosts],
        "queues": [{"vhost": vhost, "name": "q"} for vhost in vhosts],
        "bindings": bindings,
    }
    (tmp_path / "definitions.json").write_text(json.dumps(document))
    words = (
        *("--journal", str(tmp_path / place), "--definitions", str(tmp_path / "definitions.json")),
        *("--topology", "none", "--json", "-"),
    )
    assert main(["ask", "audit", *words]) == 0
    audit = json.loads(capsys.readouterr().out)
    dead = [(each["vhost"], each["key"]) for each in audit["dead"]]
    assert dead == [("/", "b.*")]
    times = ("--until", "2026-03-02T00:00", "--over", "1d", "--keep", str(tmp_path / "kept"))
    assert main(["report", *words, *times]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"]["dead"] == [
        "'b.*' from exchange 'amq.topic' to queue 'q' in vhost '/'"
    ]
    for answer in (audit, report):
        notes = [line for line in answer["said_by"] if line.startswith("this journal has no")]
        assert [line.split(":")[0] for line in notes] == (
            ["this journal has no messages of vhost 'eu/1'"] if place.startswith("streams") else []
        )
