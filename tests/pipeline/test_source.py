"""Tests of `format("trellis")` on a directory: every row between the offsets exactly once, and
clear errors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.errors import PipelineError, line_of
from pyspark_trellis.journal import Directory
from pyspark_trellis.query_lag import input_rows, lag
from tests.pipeline.written import Row, Writer, journal, row

TOPICS = ("a.b", "a.c", "b", "a.b.c", "")


def some(count: int, base: int = 0) -> list[Row]:
    return [
        row(
            base + at,
            TOPICS[at % len(TOPICS)],
            body=b"%d" % at,
            content_type="text/plain" if at % 3 else None,
        )
        for at in range(count)
    ]


def offsets_of(df: DataFrame) -> list[int]:
    return sorted(each[0] for each in df.select("offset").collect())


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("trellis").options(**options).load(str(path))


def error_of(action: Any) -> str:
    with pytest.raises(Exception, match="PipelineError") as caught:
        action()
    line = line_of(caught.value)
    assert line is not None
    return line


def test_all_columns_of_all_rows_are_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = journal(tmp_path / "s", some(100))
    df = load(spark, tmp_path / "s", rowsPerTask=25)
    assert df.columns == list(COLUMNS)
    read_rows = df.orderBy("offset").collect()
    assert [each["offset"] for each in read_rows] == list(range(100))
    for each, wrote in zip(read_rows, rows, strict=True):
        assert (each["topic"], bytes(each["body"]), each["content_type"], each["qos"]) == (
            wrote["topic"],
            wrote["body"],
            wrote["content_type"],
            wrote["qos"],
        )
        assert each["published_at"].timestamp() == wrote["published_at"].timestamp()
    assert df.select(F.spark_partition_id()).distinct().count() >= 4


def test_offsets_pattern_and_projection(spark: SparkSession, tmp_path: Path) -> None:
    rows = journal(tmp_path / "s", some(100))
    assert offsets_of(load(spark, tmp_path / "s", startingOffsets=13, endingOffsets=77)) == list(
        range(13, 77)
    )
    assert offsets_of(load(spark, tmp_path / "s", startingOffsets="latest")) == []
    matched = [each["offset"] for each in rows if each["topic"] in ("a.b", "a.c")]
    assert offsets_of(load(spark, tmp_path / "s", pattern="a.*")) == matched
    thin = (
        spark.read.format("trellis").schema("topic string, offset long").load(str(tmp_path / "s"))
    )
    assert thin.columns == ["topic", "offset"]
    assert sorted(map(tuple, thin.collect())) == sorted(
        (each["topic"], each["offset"]) for each in rows
    )


@pytest.mark.parametrize("enabled", ["true", "false"])
@pytest.mark.parametrize("pushdown", ["true", "false"])
@pytest.mark.parametrize(
    ("condition", "python"),
    [
        (
            "offset >= 20 and offset < 60 and topic = 'a.b' and size > 1",
            lambda each: 20 <= each["offset"] < 60 and each["topic"] == "a.b" and each["size"] > 1,
        ),
        ("topic in ('a.b', 'b')", lambda each: each["topic"] in ("a.b", "b")),
        (
            "published_at >= '2026-03-01 12:01:10' and published_at < '2026-03-01 12:01:30'",
            lambda each: 70 <= each["offset"] < 90,
        ),
    ],
)
def test_conditions_select_the_same_rows_with_and_without_pushdown(
    condition: str,
    python: Callable[[Row], bool],
    pushdown: str,
    enabled: str,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check each combination of the option `pushdown` and of Spark's setting: the rows are equal.

    Only if both are "true", the source filters rows itself, and Spark's plan has no filter.
    """
    rows = journal(tmp_path / "s", some(100))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        df = load(spark, tmp_path / "s", pushdown=pushdown).where(condition)
        assert offsets_of(df) == [each["offset"] for each in rows if python(each)]
        df.explain()
        plan = capsys.readouterr().out
        taken = pushdown == enabled == "true" and condition.startswith("topic")
        assert (") Filter " in plan) == (not taken), plan
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("least", [1, 4])
def test_rows_are_divided_among_at_least_so_many_tasks(
    spark: SparkSession, tmp_path: Path, least: int
) -> None:
    journal(tmp_path, some(60))
    tasks = (
        spark.read.format("trellis")
        .options(minPartitions=least)
        .load(str(tmp_path))
        .groupBy(F.spark_partition_id().alias("task"))
        .count()
        .collect()
    )
    assert sorted(row["count"] for row in tasks) == [60 // least] * least


def test_several_journals_in_one_query_until_their_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, count in (("a", 60), ("b", 25)):
        journal(tmp_path / "streams" / "%2F" / name, some(count))
    query = (
        spark.readStream.format("trellis")
        .options(journalPattern="[ab]", maxOffsetsPerTrigger=30, minPartitions=3)
        .load(str(tmp_path / "streams"))
        .select("journal", "offset")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))
    assert rows == sorted([("a", at) for at in range(60)] + [("b", at) for at in range(25)])
    progress = [each for each in query.recentProgress if input_rows(each)]
    assert [input_rows(each) for each in progress] == [30, 30, 25]
    behind = [{each.journal: each.rows for each in lag(each)} for each in progress]
    assert [sum(each.values()) for each in behind] == [55, 25, 0]
    assert behind[0].keys() == {"a", "b"}


def test_bytes_limit_the_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    journal(tmp_path / "s", [row(at, "t", body=bytes(1_000)) for at in range(60)], 6, 30)
    query = (
        spark.readStream.format("trellis")
        .options(maxBytesPerTrigger=30_000, startingTimestamp="2026-03-01T12:00:06Z")
        .load(str(tmp_path / "s"))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [count for each in query.recentProgress if (count := input_rows(each))]
    assert rows == [18, 18, 18]


def test_a_journal_is_followed_in_steps(spark: SparkSession, tmp_path: Path) -> None:
    """A streaming query reads a journal in several runs, and continues at its checkpoint.

    The query must not read a torn batch at the end of the journal. When a later segment has a
    higher epoch, the query must not read the rows of the older segment at the same offsets.
    """
    first = journal(tmp_path / "s", some(50))
    writer = Writer(tmp_path / "s", 1, 50)
    writer.write(some(10, 50))
    writer.write(some(10, 60), torn=5)

    def follow() -> list[int]:
        query = (
            spark.readStream.format("trellis")
            .option("maxRowsPerTrigger", 16)
            .schema("offset long, topic string")
            .load(str(tmp_path / "s"))
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return offsets_of(spark.read.parquet(str(tmp_path / "out")))

    assert follow() == list(range(len(first) + 10))
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 4
    later = Writer(tmp_path / "s", 2, 60)
    later.write(some(20, 60))
    assert follow() == list(range(80))


def test_rows_that_were_never_durable_do_not_hide_a_gap(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal(tmp_path / "s", some(30))
    stream = Directory(str(tmp_path / "s"))
    assert stream.bounds() == (0, 30, 1)
    assert stream.rewritten(30, 1) is None
    Writer(tmp_path / "s", 2, 25).write(some(10, 25))
    assert stream.bounds() == (0, 35, 2)
    assert stream.rewritten(30, 1) == 25
    assert stream.rewritten(25, 1) is None
    assert [(piece.cut.low, piece.cut.high) for piece in stream.pieces(20, 35)] == [
        (20, 25),
        (25, 35),
    ]


def test_errors_are_one_line(spark: SparkSession, tmp_path: Path) -> None:
    journal(tmp_path / "s" / "deep", some(60, 40))
    deep = tmp_path / "s" / "deep"
    assert error_of(lambda: load(spark, tmp_path / "nowhere").count()).startswith(
        f"cannot read the journal {tmp_path / 'nowhere'}: "
    )
    assert "but directories (deep); name the directory of one stream" in error_of(
        lambda: load(spark, tmp_path / "s").count()
    )
    assert "offset 3 of " in error_of(lambda: load(spark, deep, startingOffsets=3).count())
    assert "the first remaining offset is 40" in error_of(
        lambda: load(spark, deep, startingOffsets=3).count()
    )
    assert "is after the end" in error_of(lambda: load(spark, deep, endingOffsets=101).count())
    assert "must be earliest, latest or an offset" in error_of(
        lambda: load(spark, deep, startingOffsets="first").count()
    )
    assert "has no option 'patern'; the nearest is 'pattern'" in error_of(
        lambda: load(spark, deep, patern="a").count()
    )
    assert "invalid pattern" in error_of(lambda: load(spark, deep, pattern="x" * 300).count())
    narrow = spark.read.format("trellis").schema("offset int")
    assert (
        "column 'offset' of a journal has the type long, but the query's schema has int"
        in error_of(lambda: narrow.load(str(deep)).count())
    )
    other = spark.read.format("trellis").schema("ofset long")
    assert "no column 'ofset'; the nearest is 'offset'" in error_of(
        lambda: other.load(str(deep)).count()
    )


def test_a_segment_of_another_kind_is_named(spark: SparkSession, tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"offset": [0, 1], "topic": ["a", "b"]})
    (tmp_path / "0000000001-00000000000000000000.arrow").write_bytes(
        batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes()
    )
    assert "has no column 'published_at'" in error_of(lambda: load(spark, tmp_path).collect())
    (tmp_path / "0000000001-00000000000000000000.arrow").write_bytes(b"nothing of the kind")
    assert "is damaged: there is no Arrow message at byte 0" in error_of(
        lambda: load(spark, tmp_path).collect()
    )


def test_lost_offsets_are_named(tmp_path: Path) -> None:
    journal(tmp_path, some(40))
    journal(tmp_path, some(40, 60))
    with pytest.raises(PipelineError, match=r"offsets 40 to 59 of .* are lost"):
        Directory(str(tmp_path)).pieces(0, 100)


def test_a_timestamp_that_is_no_time_is_none(spark: SparkSession, tmp_path: Path) -> None:
    """Check that Spark reads a timestamp that is no valid time in seconds as None.

    A publisher may send any 64-bit number as the timestamp of a message. The row itself must not be
    lost.
    """
    timestamps = [
        1_700_000_000,
        1_700_000_000_000,
        1_700_000_000_000_000_000,
        (1 << 63) - 1,
        -(1 << 63),
        -62_135_596_800,
        None,
    ]
    journal(
        tmp_path / "s", [row(at, "a", timestamp=seconds) for at, seconds in enumerate(timestamps)]
    )
    rows = (
        load(spark, tmp_path / "s")
        .selectExpr("offset", "unix_seconds(timestamp) AS at")
        .orderBy("offset")
        .collect()
    )
    assert [each["at"] for each in rows] == [
        timestamps[0],
        None,
        None,
        None,
        None,
        timestamps[5],
        None,
    ]
