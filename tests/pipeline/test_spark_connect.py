"""Tests of Spark Connect: commands on the command line, errors, and the progress of tasks."""

from __future__ import annotations

import io
import json
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_trellis import spark_connect
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.progress import PipelineProgress
from tests.pipeline.spark_places import connect_server
from tests.pipeline.traffic import definitions, rows
from tests.pipeline.written import journal
from trellis.cli import main


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    """Check that a missing server is an error at once; Spark's client would try for ten minutes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and not listening
        url = f"sc://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PipelineError) as caught:
            spark_connect.connected(url, "test", {}, Path("code.zip"))
    assert str(caught.value) == (
        f"no connection to Spark Connect at {url}: [Errno 111] Connection refused; start the "
        "server, or correct the URL (sc://HOST:PORT)"
    )


@pytest.mark.parametrize("url", ["sc://host:port", "sc://"])
def test_an_invalid_url_is_named(url: str) -> None:
    with pytest.raises(PipelineError, match=f"no connection to Spark Connect at {url}: "):
        spark_connect.connected(url, "test", {}, Path("code.zip"))


@pytest.mark.long
def test_a_command_of_a_client_gives_the_answer_of_ask(tmp_path: Path) -> None:
    rng = random.Random(3)
    old = definitions(rng, 25)
    journal(tmp_path / "journal", rows(rng, 200, old), 50, 100)
    (tmp_path / "old.json").write_text(json.dumps(old))
    words = ["audit", "--journal", str(tmp_path / "journal")]
    words += ["--definitions", str(tmp_path / "old.json")]
    assert main(["ask", *words, "--json", str(tmp_path / "ask.json")]) == 0
    with connect_server(tmp_path / "server") as url:
        ran = subprocess.run(
            [sys.executable, "-m", "trellis", "pipeline", *words, "--master", url, "--json", "-"],
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == json.loads((tmp_path / "ask.json").read_text())


def test_the_progress_counts_the_tasks_of_each_kind_of_session(spark: SparkSession) -> None:
    shown = io.StringIO()
    with PipelineProgress(shown, shown=True).of(spark, "job"):
        for _ in range(300):
            spark.range(0, 64, 1, 64).mapInArrow(lambda batches: batches, "id long").count()
            if " tasks, " in shown.getvalue():
                break
    assert " of 64 tasks, " in shown.getvalue()
