"""Tests that Spark, and the pipeline without Spark, read rows that only the archive still has.

Retention has removed these rows from the broker's disk. The broker fetches them from its archive
and serves them over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_trellis.columns import projection
from pyspark_trellis.journal import JournalStream
from pyspark_trellis.journals import one_stream
from pyspark_trellis.rows import SelectedRows, read_table
from tests.archive.running import ArchivingBroker, body

ROWS = 600
LOGIN = {"user": "guest", "password": "guest"}


def stream_of(broker: ArchivingBroker) -> JournalStream:
    return one_stream(LOGIN | {"path": broker.url, "journal": "s"})


@pytest.fixture
def archiving(tmp_path: Path) -> Iterator[ArchivingBroker]:
    archive = tmp_path / "archive"
    archive.mkdir()
    broker = ArchivingBroker(tmp_path / "data", f"file://{archive}")
    try:
        yield broker
    finally:
        broker.kill()


@pytest.mark.long
def test_times_and_limits_of_bytes_count_in_the_archive(archiving: ArchivingBroker) -> None:
    archiving.declare()
    archiving.publish(0, ROWS)
    archiving.wait_uploaded()
    stream = stream_of(archiving)
    local = archiving.get("streams")[0]["local"]
    table = read_table(archiving.url, ["offset", "published_at"], journal="s", **LOGIN)
    times = table.column("published_at").cast("int64").to_pylist()
    for at in (0, 1, local // 2, local - 1, local, ROWS - 1):
        assert stream.offset_at(times[at]) == times.index(times[at])
        assert stream.offset_at(times[at] + 1) == sum(time <= times[at] for time in times)
    assert stream.offset_at(0) == 0
    # In the archive, each row has the time of the first row of its file.
    assert times[0] <= stream.time_of(local - 1) <= times[local - 1]
    first = stream.spans()[0]
    assert stream.end_within(0, ROWS, 1) == first.high < local


@pytest.mark.long
def test_rows_that_retention_removes_after_the_plan_are_read_from_the_archive(
    archiving: ArchivingBroker,
) -> None:
    archiving.declare()
    archiving.publish(0, 100)
    pieces = stream_of(archiving).pieces(0, 100, 30)
    archiving.publish(100, ROWS)
    archiving.wait_uploaded()
    assert archiving.get("streams")[0]["local"] > 100
    selected = SelectedRows(projection(["offset", "journal"]), {})
    assert [
        (row["offset"], row["journal"])
        for piece in pieces
        for batch in selected.batches(piece)
        for row in batch.to_pylist()
    ] == [(at, "s") for at in range(100)]


@pytest.mark.long
def test_spark_reads_the_archive(
    spark: SparkSession, tmp_path: Path, archiving: ArchivingBroker
) -> None:
    archiving.declare()
    archiving.publish(0, ROWS)
    archiving.wait_uploaded()
    local = archiving.get("streams")[0]["local"]
    assert local > 0
    table = spark.read.format("trellis").options(stream="s", **LOGIN).load(archiving.url)
    rows = table.select("offset", "body").orderBy("offset").collect()
    assert [(row.offset, bytes(row.body)) for row in rows] == [
        (number, body(number)) for number in range(ROWS)
    ]
    some = table.where(f"offset >= 10 and offset < {local + 10}").count()
    assert some == local
    files = spark.read.parquet(str(tmp_path / "archive" / "%2F" / "stream=s"))
    assert files.where("offset < 10").select("number", "day").distinct().count() == 1
    archiving.stop()
