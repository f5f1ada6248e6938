"""Tests of `trellis pipeline ...`: answers on standard output, errors in one line with exit
code 2.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_trellis import history as hist
from pyspark_trellis import session
from pyspark_trellis.advise import MATCHERS
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.running import Question, answered
from tests.pipeline.traffic import definitions, numbered, rows, snapshot, subscriptions
from tests.pipeline.written import START, Writer, journal
from trellis.cli import main, parser


class SessionKeeper:
    """The Spark session of the tests, given to a command; its `stop` does nothing."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use the Spark session of the tests, because starting one takes five seconds."""
    monkeypatch.setattr(session, "start", lambda *_, **__: SessionKeeper(spark))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("commands")
    rng = random.Random(3)
    old = definitions(rng, 25)
    journal(path / "journal", rows(rng, 200, old), 50, 100)
    (path / "old.json").write_text(json.dumps(old))
    (path / "new.json").write_text(json.dumps(old | {"bindings": old["bindings"][:6]}))
    return path


def test_whatif_audit_and_advise_answer(
    shared: None, place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    history = ["--journal", str(place / "journal"), "--definitions", str(place / "old.json")]
    assert main(["pipeline", "audit", *history]) == 0
    output = capsys.readouterr().out
    assert output.startswith("200 messages of ")
    assert "dead: no published topic matched" in output
    assert "nearest" in output
    assert main(["pipeline", "advise", *history, "--output", str(tmp_path / "p.json")]) == 0
    assert "route cache: 1,024 entries" in capsys.readouterr().out
    assert {
        each["exchange"] for each in json.loads((tmp_path / "p.json").read_text())["exchanges"]
    } == {"t", "u", "amq.topic"}
    words = ["pipeline", "whatif", "--journal", str(place / "journal"), "--definitions"]
    assert main([*words, str(place / "old.json"), "--current", str(place / "old.json")]) == 0
    assert "no topic or queue would lose all its messages" in capsys.readouterr().out
    assert (
        main([*words, str(place / "new.json"), "--current", str(place / "old.json"), "--json", "-"])
        == 1
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["breaks"]
    assert answer["lost"][0]["messages"] >= answer["lost"][-1]["messages"]


@pytest.mark.parametrize("seed", range(3))
def test_ask_and_pipeline_have_equal_answers(shared: None, seed: int, tmp_path: Path) -> None:
    """`trellis ask` and `trellis pipeline` give the same JSON and exit codes."""
    rng = random.Random(seed)
    old, new, heard = definitions(rng, 25), definitions(rng, 15), subscriptions(rng, 8)
    some = rows(rng, 300, old, heard=heard)
    for at, each in enumerate(some):
        each["vhost"] = "/" if at % 7 else "other"
    journal(tmp_path / "journal", some, 30, 100)
    journal(tmp_path / "%24topology", numbered(snapshot(old, heard, START)))
    for name, document in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    proposed = ["--definitions", str(tmp_path / "new.json")]
    history = ["--journal", str(tmp_path / "journal")]
    for job in (
        ["whatif", *proposed],
        ["whatif", *proposed, "--topology", "none"],
        ["whatif", *proposed, "--current", str(tmp_path / "old.json")],
        ["audit"],
        ["audit", *proposed, "--check"],
        ["audit", "--as-of", "2026-03-01T12:00:00Z", "--starting", "50", "--ending", "250"],
        ["audit", "--pattern", "a.#"],
    ):
        assert_equal_answers([*job, *history], tmp_path)
    since, until = ("--since", "2026-03-01T12:01:40Z"), ("--until", "2026-03-01T12:03:40Z")
    for job, messages in (
        (["audit", *since, *until], 120),
        (["whatif", *proposed, *since], 200),
        (["whatif", *proposed, *until], 220),
    ):
        assert_equal_answers([*job, *history], tmp_path)
        answer = json.loads((tmp_path / "pipeline.json").read_text())
        assert answer["span"][0] == messages
    advice = [*proposed, *history, "--output", str(tmp_path / "profile.json")]
    assert_equal_answers(["advise", *advice], tmp_path, unmeasured)


def unmeasured(advice: dict[str, Any]) -> None:
    """Remove the parts of an answer of `advise` that depend on measured times."""
    for exchange in advice["exchanges"]:
        assert set(exchange.pop("measured")) <= set(MATCHERS)
        del exchange["matcher"]


def assert_equal_answers(
    words: list[str], path: Path, prepare: Callable[[dict[str, Any]], None] = lambda answer: None
) -> None:
    """Run a job with `trellis ask` and `trellis pipeline`; compare JSON and exit codes.

    `prepare` removes the parts of an answer that need not be equal.
    """
    answers = []
    for command in ("ask", "pipeline"):
        file = path / f"{command}.json"
        code = main([command, *words, "--json", str(file)])
        answer = json.loads(file.read_text())
        prepare(answer)
        answers.append((code, answer))
    assert answers[0] == answers[1], words


def test_lake_and_traffic_go_on_where_they_were(
    shared: None, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "traffic")
    for expected in (
        f"wrote 200 new rows to {target}\n",
        f"wrote nothing to {target}: the journal has no new rows\n",
    ):
        assert (
            main(
                [
                    "pipeline",
                    "traffic",
                    "--journal",
                    str(place / "journal"),
                    "--target",
                    target,
                    "--once",
                ]
            )
            == 0
        )
        assert capsys.readouterr().out == expected
    for name, more in (("audit", "old.json"), ("whatif", "new.json")):
        words = [name, "--traffic", target, "--definitions", str(place / more)]
        assert main(["pipeline", *words]) == (name == "whatif")
        assert capsys.readouterr().out.startswith("200 messages of ")
        assert_equal_answers(words, tmp_path)
    capsys.readouterr()
    assert main(["ask", "traffic", "--traffic", target, "--by", "day", "--json", "-"]) == 0
    days = json.loads(capsys.readouterr().out)["rows"]
    assert sum(row["messages"] for row in days) == 200


def test_lake_traffic_and_report_say_in_json_what_they_have_written(
    shared: None, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = ["--journal", str(place / "journal")]

    def answer(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["pipeline", *words]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    lake = str(tmp_path / "lake")
    for count, batches in ((200, 4), (0, 0)):
        assert answer("lake", *journal, "--target", lake, "--max-rows", "50", "--json") == {
            "job": "lake",
            "target": lake,
            "checkpoint": f"{lake}.checkpoint",
            "rows": count,
            "batches": batches,
        }
    traffic, file = str(tmp_path / "traffic"), tmp_path / "traffic.json"
    words = ["--target", traffic, "--checkpoint", str(tmp_path / "c"), "--json", str(file)]
    assert main(["pipeline", "traffic", *journal, *words]) == 0
    assert capsys.readouterr().out == f"wrote 200 new rows to {traffic}\n"
    document = json.loads(file.read_text())
    assert (document["job"], document["rows"], document["batches"]) == ("traffic", 200, 1)
    assert (document["target"], document["checkpoint"]) == (traffic, str(tmp_path / "c"))
    page = tmp_path / "report.html"
    words = ["--definitions", str(place / "old.json"), "--output", str(page)]
    document = answer("report", *journal, *words, "--json")
    assert document.pop("said_by")
    assert document == {"job": "report", "output": str(page), "bytes": page.stat().st_size}


def test_a_job_that_ctrl_c_ends_says_in_json_what_it_has_written(
    shared: None,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def press_ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    class Terminal(io.StringIO):
        """A terminal on which the user presses Ctrl-C after the job's first batch."""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            if ", batch 0, " in text:
                press_ctrl_c()
            return super().write(text)

    lake = str(tmp_path / "lake")
    words = ["pipeline", "lake", "--target", lake, "--follow", "--json", "--journal"]
    named = {"job": "lake", "target": lake, "checkpoint": f"{lake}.checkpoint"}
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_trellis.commands.time.sleep", press_ctrl_c)
        assert main([*words, str(tmp_path / "absent"), "--wait"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {**named, "rows": 0, "batches": 0}
    assert printed.err.endswith("stopped: the journal has no message yet\n")
    # The job writes its progress line after each batch.
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    assert main([*words, str(place / "journal")]) == 0
    assert json.loads(capsys.readouterr().out) == {**named, "rows": 200, "batches": 1}
    last_line = terminal.getvalue().rpartition("\x1b[K")[2]
    assert last_line.startswith("stopped; to continue, run `trellis pipeline lake` again")


def test_a_target_and_its_checkpoint_belong_to_one_job(
    shared: None, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command refuses a target or a checkpoint that belongs to another job.

    Without this check, Spark would write nothing, or write into the other job's table.
    """
    lake = str(tmp_path / "lake")

    def error_of(job: str, target: str, checkpoint: str) -> str:
        assert (
            main(
                [
                    "pipeline",
                    job,
                    "--journal",
                    str(place / "journal"),
                    "--target",
                    target,
                    "--checkpoint",
                    checkpoint,
                ]
            )
            == 2
        )
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    assert main(["pipeline", "lake", "--journal", str(place / "journal"), "--target", lake]) == 0
    assert "is not a checkpoint of the job `traffic`" in error_of(
        "traffic", str(tmp_path / "traffic"), f"{lake}.checkpoint"
    )
    assert "was not written with the checkpoint" in error_of("lake", lake, str(tmp_path / "new"))
    assert "was used with another --target" in error_of(
        "lake", str(tmp_path / "other"), f"{lake}.checkpoint"
    )
    (tmp_path / "file").touch()
    # The error has the text of Hadoop or, under Spark Connect, of Python.
    line = error_of("lake", str(tmp_path / "file" / "lake"), str(tmp_path / "new"))
    assert f"cannot write {tmp_path}/file/lake or {tmp_path}/new: " in line
    assert "Parent path is not a dir" in line or "Not a directory" in line
    line = error_of("lake", "nofs://x/y", str(tmp_path / "new"))
    assert line.partition("/new: ")[2].count('No FileSystem for scheme "nofs"') == 1


@pytest.mark.parametrize("source", ["journal", "traffic"])
def test_a_job_runs_again_when_more_was_published(
    shared: None, tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that runs again counts each message once.

    With --follow, the job runs until Ctrl-C, and ends with exit code 0.
    """
    some = rows(random.Random(4), 90, definitions(random.Random(3), 5))
    writer = Writer(tmp_path / "journal")
    target = str(tmp_path / "traffic")

    def publish(until: int) -> None:
        writer.write(some[until - 30 : until])
        if source == "traffic":
            assert (
                main(
                    [
                        "pipeline",
                        "traffic",
                        "--journal",
                        str(tmp_path / "journal"),
                        "--target",
                        target,
                    ]
                )
                == 0
            )

    publish(30)
    (tmp_path / "now.json").write_text(json.dumps(definitions(random.Random(3), 5)))
    place = str(tmp_path / "journal") if source == "journal" else target
    arguments = parser().parse(
        [
            "pipeline",
            "audit",
            f"--{source}",
            place,
            "--definitions",
            str(tmp_path / "now.json"),
            "--follow",
            "--every",
            "1",
        ]
    )
    answers: list[tuple[int, dict[str, int]]] = []

    def answer(question: Question) -> int:
        with question.watched() as history:
            answers.append(
                (
                    hist.span(history).messages,
                    {
                        row["topic"]: row["messages"]
                        for row in history.groupBy("topic")
                        .agg(F.sum("messages").alias("messages"))
                        .collect()
                    },
                )
            )
        if len(answers) == 3:
            raise KeyboardInterrupt
        publish(30 * (len(answers) + 1))
        return 1

    assert answered(arguments, answer) == 0
    assert answers == [
        (count, Counter(each["topic"] for each in some[:count])) for count in (30, 60, 90)
    ]
    captured = capsys.readouterr()
    assert captured.out.count("--- 2") == 2
    assert captured.err == "stopped\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["whatif", "--journal", "{place}/nowhere", "--definitions", "{place}/old.json"],
            "cannot read the journal {place}/nowhere: No such file",
        ),
        (
            ["audit", "--journal", "{place}/journal", "--definitions", "{place}/none.json"],
            "{place}/none.json: No such file or directory",
        ),
        (
            ["audit", "--definitions", "{place}/old.json", "--url", "http://127.0.0.1:1"],
            "http://127.0.0.1:1",
        ),
        (
            ["audit", "--traffic", "{place}/journal", "--definitions", "{place}/old.json"],
            "{place}/journal cannot be read as",
        ),
        (
            ["lake", "--journal", "{place}/journal", "--target", "x", "--starting", "4711"],
            "startingOffsets=4711 is after the end of",
        ),
        (
            ["lake", "--journal", "{place}/journal"],
            "the following arguments are required: --target",
        ),
        (
            ["lake", "--journal", "{place}/journal", "--target", "x", "--every", "0"],
            'must be a whole number of at least 1, got "0"',
        ),
        (
            [
                "audit",
                "--journal",
                "{place}/journal",
                "--definitions",
                "{place}/old.json",
                "--conf",
                "x",
            ],
            "--conf x: the value must have the form spark.SOMETHING=VALUE",
        ),
        (["bake"], 'unknown action "bake"; the nearest is'),
        (
            [
                "audit",
                "--journal",
                "http://127.0.0.1:1",
                "--stream",
                "s",
                "--definitions",
                "{place}/old.json",
            ],
            "trellis: http://127.0.0.1:1 does not answer: [Errno 111] Connection refused",
        ),
        (
            [
                "audit",
                "--journal",
                "{place}/journal",
                "--definitions",
                "{place}/old.json",
                "--ending",
                "4711",
            ],
            "endingOffsets=4711 is after the end of",
        ),
        (
            [
                "report",
                "--journal",
                "{place}/journal",
                "--definitions",
                "{place}/old.json",
                "--output",
                "{place}/none/r.html",
            ],
            "cannot write {place}/none/r.html: the directory {place}/none does not exist; create",
        ),
        (
            ["audit", "--journal", "{place}/journal", "--follow", "--ending", "7"],
            "--ending cannot be combined with --follow, which reads without end: leave",
        ),
        (
            ["audit", "--journal", "{place}/journal"],
            "the bindings are unknown (there is no directory %24topology beside the journal): set",
        ),
        ([], "`trellis pipeline` needs a job: lake, traffic"),
    ],
)
def test_an_error_is_one_line(
    shared: None,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    line: str,
) -> None:
    # The variable chooses the Spark of the tests. A command that reads the settings refuses it.
    monkeypatch.delenv("TRELLIS_SPARK", raising=False)
    # A broker that does not answer is a failure, and no wrong argument.
    code = 1 if "http://127.0.0.1:1" in arguments else 2
    assert main(["pipeline", *[word.format(place=place) for word in arguments]]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert line.format(place=place) in lines[0]


def test_the_error_of_a_java_that_does_not_start_is_shown(place: Path, tmp_path: Path) -> None:
    """If Java does not start, the command prints Java's error as one line.

    The command leaves out the warnings that Java prints at every start.
    """
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "trellis",
            "pipeline",
            "audit",
            "--journal",
            str(place / "journal"),
            "--definitions",
            str(place / "old.json"),
            "--conf",
            "spark.driver.memory=1k",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith("trellis: Spark did not start on local[*]: ")
    assert "Too small maximum heap" in ran.stderr


def test_error_without_the_packages_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_trellis.commands", None)
    assert main(["pipeline", "audit", "--journal", "x", "--definitions", "y"]) == 2
    assert "pip install 'trellis-broker[pipeline]'" in capsys.readouterr().err


def test_versions_that_were_not_tried_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        session,
        "version",
        lambda package: (
            "3.0.1" if package == "pandas" else "4.3.0" if package == "pyspark" else "26.0"
        ),
    )
    with pytest.raises(
        PipelineError, match=r"pandas has version 3\.0\.1, but must have >=2\.2,<3: pip install"
    ):
        session.check_versions()


def test_all_code_that_workers_need_is_in_the_zip(tmp_path: Path) -> None:
    archive = session.ship(tmp_path / "code.zip")
    shutil.copy(archive, tmp_path / "copy.zip")
    script = "import pyspark_trellis, matching; print(pyspark_trellis.__file__, matching.__file__)"
    ran = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path / 'copy.zip')!r}); {script}",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [
        f"{tmp_path}/copy.zip/{name}/__init__.py" for name in ("pyspark_trellis", "matching")
    ]
