"""`lake` and `traffic`: a journal as Parquet, exactly once; and what each topic did in each minute.

Both are streaming queries into Spark's file sink, whose log of committed files says which ones count: a file of a task that was killed
is not in it. The checkpoint says how far the journal was read. Read the lake with Spark, which knows that log (`_spark_metadata`).
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.history import PROJECTION, event_time, read_table, rollup

#: How the lake is divided into directories.
DIVIDED_BY: Final = ("day", "vhost", "exchange")
#: Seconds between two looks into a journal that is followed.
EVERY: Final = 5
_LAKE: Final = ", ".join(f"`{name}` {kind}" for name, kind in (COLUMNS | {"event_time": "timestamp", "day": "date"}).items())


def follow(spark: SparkSession, options: dict[str, str], schema: str | None = None) -> DataFrame:
    """The journal that the options name, as a stream."""
    reader = spark.readStream.format("trellis").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def lake(spark: SparkSession, options: dict[str, str], target: str, checkpoint: str, once: bool, every: int = EVERY) -> Any:
    """Begin to write the lake; returns the streaming query. `once`: up to what is there now."""
    journal = follow(spark, options)
    rows = journal.withColumn("event_time", event_time()).withColumn("day", F.to_date("event_time"))
    return _written(rows, target, checkpoint, once, every, "lake", DIVIDED_BY)


def traffic(spark: SparkSession, options: dict[str, str], target: str, checkpoint: str, once: bool, every: int = EVERY) -> Any:
    """Begin to write the rollup; returns the streaming query."""
    return _written(rollup(follow(spark, options, PROJECTION)), target, checkpoint, once, every, "traffic", ())


def _written(rows: DataFrame, target: str, checkpoint: str, once: bool, every: int, name: str, divided: tuple[str, ...]) -> Any:
    writer = rows.writeStream.format("parquet").queryName(name).option("path", target).option("checkpointLocation", checkpoint)
    if divided:
        writer = writer.partitionBy(*divided)
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every} seconds")).start()


def read_lake(spark: SparkSession, path: str) -> DataFrame:
    """The lake, with the columns of a journal, `event_time` and `day`. Raises PipelineError.

    A directory has no empty name, so Spark reads the default exchange's as null, which is mended here."""
    return read_table(spark, path, _LAKE, "trellis pipeline lake").fillna({"exchange": "", "vhost": ""})
