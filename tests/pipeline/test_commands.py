"""`trellis pipeline ...`: answers on standard output, what is wrong in one line with exit code 2."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_trellis import session
from pyspark_trellis.errors import PipelineError
from tests.pipeline.traffic import definitions, rows
from tests.pipeline.written import journal
from trellis.cli import main


class Kept:
    """The tests' session, which a command must not end."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the session that is there: a start takes five seconds."""
    monkeypatch.setattr(session, "start", lambda *_, **__: Kept(spark))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("commands")
    rng = random.Random(3)
    old = definitions(rng, 25)
    journal(path / "journal", rows(rng, 200, old), 50, 100)
    (path / "old.json").write_text(json.dumps(old))
    (path / "new.json").write_text(json.dumps(old | {"bindings": old["bindings"][:6]}))
    return path


def test_whatif_audit_and_advise_answer(shared: None, place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    history = ["--journal", str(place / "journal"), "--definitions", str(place / "old.json")]
    assert main(["pipeline", "audit", *history]) == 0
    said = capsys.readouterr().out
    assert said.startswith("200 messages of ")
    assert "dead: nothing matched" in said
    assert "nearest" in said
    assert main(["pipeline", "advise", *history, "--output", str(tmp_path / "p.json")]) == 0
    assert "route cache: 1,024 entries" in capsys.readouterr().out
    assert {each["exchange"] for each in json.loads((tmp_path / "p.json").read_text())["exchanges"]} == {"t", "u", "amq.topic"}
    asked = ["pipeline", "whatif", "--journal", str(place / "journal"), "--definitions"]
    assert main([*asked, str(place / "old.json"), "--current", str(place / "old.json")]) == 0
    assert "nothing would be lost" in capsys.readouterr().out
    assert main([*asked, str(place / "new.json"), "--current", str(place / "old.json"), "--json", "-"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["breaks"]
    assert answer["lost"][0]["messages"] >= answer["lost"][-1]["messages"]


def test_lake_and_traffic_go_on_where_they_were(shared: None, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "traffic")
    for _ in range(2):
        assert main(["pipeline", "traffic", "--journal", str(place / "journal"), "--target", target, "--once"]) == 0
    assert main(["pipeline", "audit", "--traffic", target, "--definitions", str(place / "old.json")]) == 0
    assert capsys.readouterr().out.startswith("200 messages of ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["whatif", "--journal", "{place}/nowhere", "--definitions", "{place}/old.json"],
            "there is no journal in {place}/nowhere: No such file",
        ),
        (["audit", "--journal", "{place}/journal", "--definitions", "{place}/none.json"], "{place}/none.json: No such file or directory"),
        (["audit", "--definitions", "{place}/old.json"], "say what was published: --journal PLACE, or --traffic DIR"),
        (["audit", "--traffic", "{place}/journal", "--definitions", "{place}/old.json"], "{place}/journal cannot be read as"),
        (["lake", "--journal", "{place}/journal", "--target", "x", "--starting", "4711"], "startingOffsets=4711 lies behind the end of"),
        (["lake", "--journal", "{place}/journal"], "the following arguments are required: --target"),
        (["lake", "--journal", "{place}/journal", "--target", "x", "--every", "0"], 'must be a whole number of at least 1, got "0"'),
        (
            ["audit", "--journal", "{place}/journal", "--definitions", "{place}/old.json", "--conf", "x"],
            "--conf x: should be spark.SOMETHING=VALUE",
        ),
        (["bake"], "invalid choice: 'bake'"),
        ([], "name a job: lake, traffic"),
    ],
)
def test_what_is_wrong_is_one_line(shared: None, place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    assert main(["pipeline", *[word.format(place=place) for word in arguments]]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert line.format(place=place) in said[0]


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_trellis.commands", None)
    assert main(["pipeline", "audit", "--journal", "x", "--definitions", "y"]) == 2
    assert "pip install 'trellis-broker[pipeline]'" in capsys.readouterr().err


def test_versions_that_were_not_tried_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "version", lambda package: "3.0.1" if package == "pandas" else "4.3.0" if package == "pyspark" else "26.0")
    with pytest.raises(PipelineError, match=r"pandas is 3\.0\.1, and should be >=2\.2,<3: pip install"):
        session.check_versions()


def test_all_code_that_workers_need_is_in_the_zip(tmp_path: Path) -> None:
    import subprocess

    archive = session.ship(tmp_path / "code.zip")
    shutil.copy(archive, tmp_path / "copy.zip")
    script = "import pyspark_trellis, matching; print(pyspark_trellis.__file__, matching.__file__)"
    ran = subprocess.run([sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'copy.zip')!r}); {script}"],
                         cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [f"{tmp_path}/copy.zip/{name}/__init__.py" for name in ("pyspark_trellis", "matching")]
