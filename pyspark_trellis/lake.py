"""`lake` and `traffic`: a journal as Parquet, exactly once; and what each topic did in each minute.

Both are streaming queries into Spark's file sink, whose log of committed files says which ones
count: a file of a task that was killed is not in it. The checkpoint says how far the journal was
read. Read the lake with Spark, which knows that log (`_spark_metadata`).
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.errors import PipelineError, brief, of_spark
from pyspark_trellis.history import PROJECTION, event_time, read_table, rollup

#: How the lake is divided into directories.
DIVIDED_BY: Final = ("day", "vhost", "exchange")
#: Seconds between two looks into a journal that is followed.
EVERY: Final = 5
_LAKE: Final = ", ".join(
    f"`{name}` {kind}"
    for name, kind in (COLUMNS | {"event_time": "timestamp", "day": "date"}).items()
)


def follow(spark: SparkSession, options: dict[str, str], schema: str | None = None) -> DataFrame:
    """The journal that the options name, as a stream."""
    reader = spark.readStream.format("trellis").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def lake(
    spark: SparkSession,
    options: dict[str, str],
    target: str,
    checkpoint: str,
    once: bool,
    every: int = EVERY,
) -> Any:
    """Begin to write the lake; returns the streaming query. `once`: up to what is there now."""
    journal = follow(spark, options)
    rows = journal.withColumn("event_time", event_time()).withColumn("day", F.to_date("event_time"))
    return _written(rows, target, checkpoint, once, every, "lake", DIVIDED_BY)


def traffic(
    spark: SparkSession,
    options: dict[str, str],
    target: str,
    checkpoint: str,
    once: bool,
    every: int = EVERY,
) -> Any:
    """Begin to write the rollup; returns the streaming query."""
    return _written(
        rollup(follow(spark, options, PROJECTION)), target, checkpoint, once, every, "traffic", ()
    )


def _claim(spark: SparkSession, target: str, checkpoint: str, job: str) -> None:
    """Whether this target and this checkpoint are this job's and belong together. Spark looks at
    neither: with a new checkpoint it would number its batches anew, and pass over those whose
    numbers the target has. Raises PipelineError.
    """
    context: Any = spark.sparkContext
    at = context._jvm.org.apache.hadoop.fs.Path
    log, begun, mark = (
        at(target, "_spark_metadata"),
        at(checkpoint, "commits"),
        at(checkpoint, f"trellis-{job}"),
    )
    try:
        kept, noted = (
            path.getFileSystem(context._jsc.hadoopConfiguration()) for path in (log, mark)
        )
        if not noted.exists(begun):
            if kept.exists(log):
                raise PipelineError(
                    f"{target} was written by a query with another checkpoint than {checkpoint}: name that one with "
                    "--checkpoint, or another --target"
                )
        elif not noted.exists(mark):
            raise PipelineError(
                f"{checkpoint} is the checkpoint of another query than `{job}`: name another --checkpoint, or --target"
            )
        elif not kept.exists(log):
            raise PipelineError(
                f"{checkpoint} says what was read, and {target} has none of it: name its own --target, or another "
                "--checkpoint, to begin anew"
            )
        for system, directory in ((kept, log.getParent()), (noted, mark.getParent())):
            if not system.mkdirs(directory):
                raise PipelineError(f"{directory} cannot be made a directory")
        noted.createNewFile(mark)
    except Exception as error:  # What comes through py4j has no base class of its own.
        if not of_spark(error):
            raise
        raise PipelineError(
            f"{target}, or {checkpoint}, cannot be written: {brief(error)}"
        ) from None


def _written(
    rows: DataFrame,
    target: str,
    checkpoint: str,
    once: bool,
    every: int,
    name: str,
    divided: tuple[str, ...],
) -> Any:
    _claim(rows.sparkSession, target, checkpoint, name)
    writer = (
        rows.writeStream.format("parquet")
        .queryName(name)
        .option("path", target)
        .option("checkpointLocation", checkpoint)
    )
    if divided:
        writer = writer.partitionBy(*divided)
    return (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{every} seconds")
    ).start()


def read_lake(spark: SparkSession, path: str) -> DataFrame:
    """The lake, with the columns of a journal, `event_time` and `day`. Raises PipelineError.

    A directory has no empty name, so Spark reads the default exchange's as null, which is mended
    here.
    """
    return read_table(spark, path, _LAKE, "trellis pipeline lake").fillna(
        {"exchange": "", "vhost": ""}
    )
