"""Computes the history of published messages for routing questions: a Spark table with the sums
(`counts`) of each (vhost, exchange, topic).

A history is computed from a journal, or from the rollup that `traffic` maintains, which has the
same columns per minute. The event time is the publisher's `timestamp`; if the message has none, it
is the time at which the broker received the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.counts import (
    COUNTS,
    KEYS,
    NEEDED,
    PERIOD,
    PUBLISHER,
    SPLIT_KEYS,
    Span,
    instant,
    partial,
    split_columns,
)
from pyspark_trellis.errors import PipelineError, brief, of_spark
from pyspark_trellis.offsets import LATEST
from pyspark_trellis.periods import RowSplits
from pyspark_trellis.rows import stream_of

PROJECTION: Final = ", ".join(f"`{name}` {COLUMNS[name]}" for name in NEEDED)
#: The columns of the rollup.
ROLLUP: Final = (
    "minute timestamp, vhost string, exchange string, topic string, messages long, size long, "
    "fanout long, unroutable long, "
    "first_at timestamp, last_at timestamp"
)
DIVIDED_ROLLUP: Final = f"{ROLLUP}, {PERIOD} int, {PUBLISHER} string"


def event_time() -> Column:
    """Return the expression for a message's event time."""
    return F.coalesce("timestamp", "published_at")


def rollup(journal: DataFrame, splits: RowSplits | None = None) -> DataFrame:
    """Return the partial sums of a journal's rows by minute and topic.

    `journal` may be a batch or a streaming query. With `splits`, the sums are divided by PERIOD and
    PUBLISHER, too.
    """
    if splits is None:
        return journal.select(*NEEDED).mapInArrow(partial, ROLLUP)

    def divided(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in partial(batches, splits):
            yield each.select(columns)  # Spark needs the columns in the order of the schema.

    columns = ["minute", *KEYS, *COUNTS, "first_at", "last_at", PERIOD, PUBLISHER]
    return journal.select(*NEEDED).mapInArrow(divided, DIVIDED_ROLLUP)


def keys_of(parts: DataFrame) -> tuple[str, ...]:
    """Return the names of the key columns of partial sums.

    The names are KEYS, or SPLIT_KEYS if the sums are divided by period and publisher.
    """
    return SPLIT_KEYS if PERIOD in parts.columns else KEYS


def summed(parts: DataFrame, *keys: str) -> DataFrame:
    """Return the total of the partial sums for each combination of values of `keys`.

    `keys` are names of columns; the default is KEYS.
    """
    return parts.groupBy(*(keys or KEYS)).agg(
        *[F.sum(name).alias(name) for name in COUNTS],
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )


class TopologyFeed:
    """A source of the counts of published messages by minute and topic (partial sums).

    The messages are read from the journal that `options` name. If `options` is None, the sums are
    read from the rollup in the directory `traffic` instead. With `followed`, each call of `parts`
    reads only the messages that the journal got since the previous call, and adds them to the sums.
    `since` and `until` are times in microseconds since 1970, or None: only rows of the journal that
    the broker received from `since` on and before `until` count.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: dict[str, str] | None,
        traffic: str | None,
        ending: str = LATEST,
        followed: bool = False,
        since: int | None = None,
        until: int | None = None,
    ) -> None:
        self._spark: Final = spark
        self._options: Final = options
        self._traffic: Final = traffic
        self._ending: Final = ending
        self._followed: Final = followed
        self._since: Final = since
        self._until: Final = until
        #: The position after the last read: the next offset of a journal, or the number of files of
        #: a rollup.
        self._read: int | None = None
        self._parts: DataFrame | None = None

    def parts(self, splits: RowSplits | None = None) -> DataFrame:
        """Return the partial sums of all messages so far; with `splits`, divided by PERIOD and
        PUBLISHER.

        Pass `splits` in all calls, or in none. Raises PipelineError.
        """
        if self._options is None:
            assert self._traffic is not None
            self._read = self._end()
            sums = read_rollup(self._spark, self._traffic)
            return sums if splits is None else _divided(sums, splits)
        if not self._followed:
            return self._journal(self._options["startingOffsets"], self._ending, splits)
        end = self._end()
        start = self._options["startingOffsets"] if self._read is None else str(self._read)
        new = self._journal(start if start.lower() != LATEST else str(end), str(end), splits)
        known = self._parts
        # Without the checkpoint, Spark would read the earlier messages again for the new sums.
        self._parts = summed(
            new if known is None else known.unionByName(new), "minute", *keys_of(new)
        ).localCheckpoint()
        if known is not None:
            known.unpersist()
        self._read = end
        return self._parts

    def extended(self) -> bool:
        """True if messages have been published since the last call of `parts`.

        Raises PipelineError.
        """
        return self._end() != self._read

    def _end(self) -> int:
        if self._options is None:
            assert self._traffic is not None
            return len(read_rollup(self._spark, self._traffic).inputFiles())
        return (
            stream_of({name.lower(): value for name, value in self._options.items()}).bounds().next
        )

    def _journal(self, start: str, end: str, splits: RowSplits | None) -> DataFrame:
        options = {**(self._options or {}), "startingOffsets": start, "endingOffsets": end}
        rows = self._spark.read.format("trellis").schema(PROJECTION).options(**options).load()
        received = F.col("published_at")
        if self._since is not None:
            rows = rows.where(received >= F.timestamp_micros(F.lit(self._since)))
        if self._until is not None:
            rows = rows.where(received < F.timestamp_micros(F.lit(self._until)))
        return rollup(rows, splits)


def _divided(parts: DataFrame, splits: RowSplits) -> DataFrame:
    """Return the sums of a rollup with two added columns, PERIOD and PUBLISHER.

    The minute of a row decides its period. PUBLISHER is "" in all rows, because a rollup has no
    publishers.
    """

    def divide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            columns = dict(zip(each.schema.names, each.columns, strict=True))
            yield pa.RecordBatch.from_pydict(columns | split_columns(each, "minute", splits))

    return parts.mapInArrow(divide, DIVIDED_ROLLUP)


def read_rollup(spark: SparkSession, path: str) -> DataFrame:
    """Read the rollup that `traffic` maintains. Raises PipelineError."""
    return read_table(spark, path, ROLLUP, "trellis pipeline traffic")


def read_table(spark: SparkSession, path: str, schema: str, maker: str) -> DataFrame:
    """Read a directory of Parquet files that must have the columns of `schema` (Spark's DDL).

    `maker` is the command that writes such files; errors name this command. Raises PipelineError.
    """
    from pyspark.sql.types import StructType

    try:
        table = spark.read.parquet(path)
        names = table.columns  # Spark Connect reads the files' schema only now.
    except Exception as error:  # exceptions of Spark and its JVM have no common base class
        if not of_spark(error):
            raise
        raise PipelineError(
            f"{path} cannot be read as the output of `{maker}`: {brief(error)}"
        ) from None
    wanted = StructType.fromDDL(schema)
    assert isinstance(wanted, StructType)
    for field in wanted.fields:
        if field.name not in names:
            raise PipelineError(
                f"{path} has no column '{field.name}', so `{maker}` has not written it: name the "
                "directory that was the --target of that command"
            )
    return table.select(
        *[F.col(field.name).cast(field.dataType).alias(field.name) for field in wanted.fields]
    )


def span(history: DataFrame) -> Span:
    """Return how many messages and topics a history has, and the times of its first and its last
    message.
    """
    row = history.agg(
        F.coalesce(F.sum("messages"), F.lit(0)),
        F.count("*"),
        F.unix_micros(F.min("first_at")),
        F.unix_micros(F.max("last_at")),
    ).collect()[0]
    return Span(row[0], row[1], instant(row[2]), instant(row[3]))
