"""`trellis pipeline lake` copies a journal to Parquet files, each message exactly once; `trellis
pipeline traffic` maintains counts per topic and minute (the rollup).

Both jobs are streaming queries with Spark's file sink. The sink's log of committed files
(`_spark_metadata`) lists the valid files; a file of a killed task is not in the log. The checkpoint
holds the position in the journal. Read the lake with Spark, which reads only the files in the log.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.errors import PipelineError, brief, line_of, of_spark
from pyspark_trellis.history import PROJECTION, event_time, read_table, rollup
from pyspark_trellis.session_files import files_of

#: The columns by which the lake is partitioned into directories.
DIVIDED_BY: Final = ("day", "vhost", "exchange")
#: Seconds between two polls of a journal.
EVERY: Final = 5
_LAKE: Final = ", ".join(
    f"`{name}` {kind}"
    for name, kind in (COLUMNS | {"event_time": "timestamp", "day": "date"}).items()
)


def follow(spark: SparkSession, options: dict[str, str], schema: str | None = None) -> DataFrame:
    """Return the journal that the options name, as a streaming table."""
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
    """Start the streaming query that writes the lake, and return the query.

    With `once`, the query stops at the present end of the journal; otherwise it reads new messages
    every `every` seconds. Raises PipelineError.
    """
    journal = follow(spark, options)
    rows = journal.withColumn("event_time", event_time()).withColumn("day", F.to_date("event_time"))
    return _started_query(rows, target, checkpoint, once, every, "lake", DIVIDED_BY)


def traffic(
    spark: SparkSession,
    options: dict[str, str],
    target: str,
    checkpoint: str,
    once: bool,
    every: int = EVERY,
) -> Any:
    """Start the streaming query that writes the rollup, and return the query.

    With `once`, the query stops at the present end of the journal; otherwise it reads new messages
    every `every` seconds. Raises PipelineError.
    """
    return _started_query(
        rollup(follow(spark, options, PROJECTION)), target, checkpoint, once, every, "traffic", ()
    )


def _check_ownership(spark: SparkSession, target: str, checkpoint: str, job: str) -> None:
    """Check that the target and the checkpoint belong to this job and to each other.

    Spark does not check this. With a new checkpoint, Spark would number batches from 0 again, and
    would not write a batch whose number the target already has. Raises PipelineError.
    """
    files = files_of(spark)
    mark = f"trellis-{job}"
    try:
        kept = files.exists(target, "_spark_metadata")
        if not files.exists(checkpoint, "commits"):
            if kept:
                raise PipelineError(
                    f"{target} was not written with the checkpoint {checkpoint}: set "
                    "--checkpoint to the checkpoint of that --target, or choose another --target"
                )
        elif not files.exists(checkpoint, mark):
            raise PipelineError(
                f"{checkpoint} is not a checkpoint of the job `{job}`: choose another --checkpoint"
            )
        elif not kept:
            raise PipelineError(
                f"{target} lacks the rows that the query has read so far, because {checkpoint} was "
                "used with another --target: set --target to the former directory, or choose "
                "another --checkpoint to start again"
            )
        files.make(target)
        files.make(checkpoint, mark)
    except Exception as error:  # exceptions that come through py4j have no common base class
        if not of_spark(error):
            raise
        raise PipelineError(
            f"cannot write {target} or {checkpoint}: {line_of(error) or brief(error)}"
        ) from None


def _started_query(
    rows: DataFrame,
    target: str,
    checkpoint: str,
    once: bool,
    every: int,
    name: str,
    divided: tuple[str, ...],
) -> Any:
    _check_ownership(rows.sparkSession, target, checkpoint, name)
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
    """Read the lake: the columns of a journal, `event_time` and `day`. Raises PipelineError.

    The lake has one directory per exchange, and the name of a directory cannot be empty. So Spark
    returns the name of the default exchange as null, which this function replaces by an empty text.
    """
    return read_table(spark, path, _LAKE, "trellis pipeline lake").fillna(
        {"exchange": "", "vhost": ""}
    )
