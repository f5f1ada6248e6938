"""Spark reads rows that retention has removed from a broker's disk, through the broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.archive.running import ArchivingBroker, body

ROWS = 600


@pytest.mark.long
def test_spark_reads_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    broker = ArchivingBroker(tmp_path / "data", f"file://{archive}")
    try:
        broker.declare()
        broker.publish(0, ROWS)
        broker.wait_uploaded()
        local = broker.get("streams")[0]["local"]
        assert local > 0
        options = {"stream": "s", "user": "guest", "password": "guest"}
        table = spark.read.format("trellis").options(**options).load(broker.url)
        rows = table.select("offset", "body").orderBy("offset").collect()
        assert [(row.offset, bytes(row.body)) for row in rows] == [
            (number, body(number)) for number in range(ROWS)
        ]
        some = table.where(f"offset >= 10 and offset < {local + 10}").count()
        assert some == local
        files = spark.read.parquet(str(archive / "%2F" / "stream=s"))
        assert files.where("offset < 10").select("number", "day").distinct().count() == 1
        broker.stop()
    finally:
        broker.kill()
