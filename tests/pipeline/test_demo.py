"""Tests of `trellis pipeline demo` and `bench` as a whole, and of the page in a browser.

The commands use a real broker, and Spark sessions of their own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_trellis import definitions
from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.demo import broker, document, proposal, traffic
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import Directory
from pyspark_trellis.publisher import SinkPublisher
from pyspark_trellis.remote import Remote
from tests.broker import BrokerProcess
from tests.foreign import require

ROOT = Path(__file__).parents[2]
BROWSER = ROOT / "tests" / "browser"


def test_a_journal_of_the_broker_is_read_as_it_was_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "definitions.json").write_text(json.dumps(document()))
    messages = list(traffic(700, 1_772_366_400, random.Random(1)))
    with broker(tmp_path / "data", tmp_path / "definitions.json") as url:
        assert SinkPublisher(url).publish(iter(messages)) == len(messages)
    table = spark.read.format("trellis").load(
        str(tmp_path / "data" / "streams" / "%2F" / "journal")
    )
    rows = table.orderBy("offset").collect()
    assert [
        (row["exchange"], row["topic"], bytes(row["body"]), row["content_type"], row["protocol"])
        for row in rows
    ] == [(each.exchange, each.key, each.body, "application/json", "amqp091") for each in messages]
    assert [row["timestamp"].timestamp() for row in rows] == [
        each.properties.timestamp for each in messages
    ]
    unroutable = {row["topic"].partition(".")[0] for row in rows if row["routed"] == 0}
    assert unroutable == {"factroy", "cancelled"}


def test_a_stream_is_read_over_http_as_from_its_directory(tmp_path: Path) -> None:
    """A stream has the same rows, whether it is read over HTTP or from its directory.

    A command that fails prints its error as one line.
    """
    (tmp_path / "definitions.json").write_text(json.dumps(document()))
    process = BrokerProcess(
        "--data-dir",
        str(tmp_path / "data"),
        "--definitions-file",
        str(tmp_path / "definitions.json"),
    )
    try:
        messages = list(traffic(900, 1_772_366_400, random.Random(2)))
        for message in messages:
            message.properties.delivery_mode = 2  # the confirm comes when the message is durable
        assert SinkPublisher(process.amqp_url).publish(iter(messages)) == 900
        http = process.addresses["http"]
        remote = Remote.of(f"http://{http.host}:{http.port}", {"stream": "journal"})
        local = Directory(str(tmp_path / "data" / "streams" / "%2F" / "journal"))
        limits = remote.bounds()
        assert limits[:2] == local.bounds()[:2] == (0, 900)
        for low, high in ((0, limits.next), (limits.next // 3, limits.next // 2)):
            tables = [
                pa.Table.from_batches(
                    batch
                    for piece in stream.pieces(low, high, 100)
                    for batch in piece.batches(list(COLUMNS))
                )
                for stream in (remote, local)
            ]
            assert tables[0].column("offset").to_pylist() == list(range(low, high))
            assert tables[0].equals(tables[1])
        with pytest.raises(PipelineError, match="no stream 'none' in vhost '/'"):
            Remote.of(f"http://{http.host}:{http.port}", {"stream": "none"}).bounds()
        with pytest.raises(
            PipelineError, match="answered a request of user 'guest' with status 401"
        ):
            Remote.of(
                f"http://{http.host}:{http.port}", {"stream": "journal", "password": "wrong"}
            ).bounds()
        with pytest.raises(PipelineError, match="no stream of"):
            Remote.of(f"http://{http.host}:{http.port}", {})
    finally:
        process.stop()


def test_the_definitions_of_the_demo_fit_together() -> None:
    current, proposed = definitions.parse(document(), "now"), definitions.parse(proposal(), "then")
    assert {each.destination for each in current.bindings} - {
        each.destination for each in proposed.bindings
    } == {"risk"}


def trellis(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trellis", "pipeline", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "output"
    ran = trellis("demo", "--output", str(path), "--messages", "5000", "--master", "local[2]")
    assert ran.returncode == 0, ran.stderr
    assert "5,000 messages, each exactly once" in ran.stdout
    return path


@pytest.mark.long
def test_the_demo_makes_all_it_names(output: Path) -> None:
    assert json.loads((output / "matching-profile.json").read_text())["format"] == 1
    ran = trellis("demo", "--output", str(output))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "exists and is not empty" in ran.stderr


@pytest.mark.long
def test_the_page_can_be_read_on_a_phone(output: Path, tmp_path: Path) -> None:
    """Check that the page fits into 390 and 1150 pixels: no wide part, no small text, all plots.

    If TRELLIS_PICTURES names a directory, the screenshots of the page are kept in it.
    """
    require("browser")
    picture = Path(os.environ.get("TRELLIS_PICTURES", tmp_path)) / "report"
    ran = subprocess.run(
        ["node", "picture.mjs", str(output / "report.html"), str(picture), "390", "1150"],
        cwd=BROWSER,
        capture_output=True,
        text=True,
        check=True,
    )
    pages: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [page["width"] for page in pages] == [page["wide"] for page in pages] == [390, 1150]
    for page in pages:
        assert page["requests"] == page["complaints"] == []
        assert page["smallest"] >= 12
        assert len(page["plots"]) == 7
        assert all(label and width >= 300 for label, width in page["plots"])


@pytest.mark.long
def test_the_bench_asserts_equal_results(tmp_path: Path) -> None:
    ran = trellis(
        "bench", "--quick", "--json", str(tmp_path / "figures.json"), "--master", "local[2]"
    )
    assert ran.returncode == 0, ran.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["measured"]) == 13
    assert len(figures["targets"]) == 9
