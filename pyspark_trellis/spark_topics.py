"""Computes with Spark, locally or on a cluster, what the jobs ask about the published topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pyspark_trellis import history as hist
from pyspark_trellis.counts import KEYS, PERIOD, Span
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.routing import BatchRouters, Rows
from pyspark_trellis.spark_connect import sent
from pyspark_trellis.topics import (
    MOST,
    BusiestTopics,
    MatchedBindings,
    OverlapCount,
    PublishedTopics,
    RoutingComparison,
    TopicCount,
)


class SparkTopics(PublishedTopics):
    """The published topics as a Spark table: one row for each (vhost, exchange, topic).

    Each row has the number of messages and the other sums that `history.summed` computes.
    """

    def __init__(self, history: DataFrame) -> None:
        self._history: Final = history

    def span(self) -> Span:
        history = self._history
        return hist.span(hist.summed(history) if PERIOD in history.columns else history)

    def compared(
        self, current: DefinitionsFile | None, proposed: DefinitionsFile
    ) -> RoutingComparison:
        history = self._history
        was_routed = F.col("messages") > F.col("unroutable")
        after = (
            routed(history, proposed)
            .select(
                *history.columns,
                F.col("receivers").alias("after"),
                F.col("unknown").alias("after_unknown"),
            )
            .drop("first_at", "last_at")
        )
        if current is not None:
            both = routed(after, current).select("*", F.col("receivers").alias("before"))
            was = F.when(F.col("missing"), was_routed).otherwise(
                (F.size("before") > 0) | F.col("unknown")
            )
            unknown = F.col("unknown") | F.col("after_unknown")
        else:
            both = after.withColumn("before", F.array().cast("array<string>"))
            was = was_routed
            unknown = F.col("after_unknown")
        both = both.cache()
        try:
            lost = [
                TopicCount(*row)
                for row in both.where(was & (F.size("after") == 0) & ~F.col("after_unknown"))
                .groupBy(*KEYS)
                .agg(F.sum("messages").alias("messages"))
                .orderBy(F.desc("messages"), *KEYS)
                .collect()
            ]
            before = _by_receiver(both, "before") if current is not None else {}
            messages = both.where(unknown).agg(F.coalesce(F.sum("messages"), F.lit(0)))
            return RoutingComparison(
                before, _by_receiver(both, "after"), lost, messages.collect()[0][0]
            )
        finally:
            both.unpersist()

    def matched(self, definitions: DefinitionsFile) -> MatchedBindings:
        history, keys = self._history, hist.keys_of(self._history)
        where = routed(history, definitions).drop("first_at", "last_at").cache()
        try:
            hit = {row[0] for row in where.select(F.explode("bindings")).distinct().collect()}
            lost = [
                TopicCount(*row)
                for row in where.where(
                    (F.size("receivers") == 0) & ~F.col("unknown") & ~F.col("missing")
                )
                .groupBy(*KEYS)
                .agg(F.sum("messages").alias("messages"))
                .orderBy(F.desc("messages"), *KEYS)
                .limit(MOST)
                .collect()
            ]
            # Only topics with several bindings to one destination can have overlapping bindings.
            destinations = history.sparkSession.createDataFrame(
                [
                    (each.number, f"{each.kind}\0{each.vhost}\0{each.source}\0{each.destination}")
                    for each in definitions.bindings
                ]
                or [(-1, "")],
                "binding long, destination string",
            )
            met = (
                where.where(F.size("bindings") > 1)
                .select(*keys, "messages", F.explode("bindings").alias("binding"))
                .join(F.broadcast(destinations), "binding")
            )
            one, other = met.alias("one"), met.alias("other")
            topic = [F.col(f"one.{name}") for name in KEYS]
            same = F.col("one.binding") < F.col("other.binding")
            for name in ("destination", *keys):
                same = same & (F.col(f"one.{name}") == F.col(f"other.{name}"))
            pairs = [
                OverlapCount(*row)
                for row in one.join(other, same)
                .groupBy("one.binding", "other.binding")
                .agg(
                    F.count_distinct(*topic).alias("topics"),
                    F.sum("one.messages").alias("messages"),
                )
                .orderBy(F.desc("messages"), F.col("one.binding"), F.col("other.binding"))
                .limit(MOST)
                .collect()
            ]
        finally:
            where.unpersist()
        return MatchedBindings(hit, lost, pairs)

    def busiest(self, most: int) -> BusiestTopics:
        kept = self._history.cache()
        try:
            totals = kept.groupBy("vhost", "exchange").agg(F.count("*"), F.sum("messages"))
            counts = {(row[0], row[1]): (row[2], row[3]) for row in totals.collect()}
            rank = Window.partitionBy("vhost", "exchange").orderBy(F.desc("messages"), "topic")
            top: dict[tuple[str, str], list[tuple[str, int]]] = {}
            for vhost, exchange, topic, messages in (
                kept.withColumn("rank", F.row_number().over(rank))
                .where(F.col("rank") <= most)
                .orderBy("vhost", "exchange", "rank")
                .select(*KEYS, "messages")
                .collect()
            ):
                top.setdefault((vhost, exchange), []).append((topic, messages))
        finally:
            kept.unpersist()
        return BusiestTopics(counts, top)


def _by_receiver(both: DataFrame, column: str) -> dict[tuple[str, str], int]:
    rows: Any = (
        both.select("vhost", F.explode(column).alias("receiver"), "messages")
        .groupBy("vhost", "receiver")
        .agg(F.sum("messages"))
        .collect()
    )
    return {(row[0], row[1]): row[2] for row in rows}


def routed(history: DataFrame, definitions: DefinitionsFile) -> DataFrame:
    """Return the rows of `history`, with the destinations of each topic according to `definitions`.

    `history` must have the columns vhost, exchange and topic. The added columns are:

        receivers   array<string>  queues, and MQTT sessions with the prefix SESSION
        bindings    array<long>    numbers of the matching bindings in the file
        unknown     boolean        an exchange routes by more than the topic: `receivers` may be
                                   incomplete
        missing     boolean        the exchange or vhost is not in the file
    """
    hosts = sent(history.sparkSession, definitions.hosts)
    names = history.columns

    def search(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        routers = BatchRouters(hosts.value)
        for each in batches:
            for group in routers.groups(each):
                count, destinations = len(group.rows), group.routed
                receiver_names = pa.array(group.names, pa.string())
                yield pa.RecordBatch.from_arrays(
                    [
                        *each.take(pa.array(group.rows)).columns,
                        _lists(destinations.receivers, count, receiver_names),
                        _lists(destinations.bindings, count),
                        pa.array(destinations.unknown),
                        pa.array([group.missing] * count),
                    ],
                    [*names, "receivers", "bindings", "unknown", "missing"],
                )

    fields = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()}" for field in history.schema.fields
    )
    return history.mapInArrow(
        search,
        f"{fields}, receivers array<string>, bindings array<long>, unknown boolean, "
        "missing boolean",
    )


def _lists(pairs: tuple[Rows, Rows], count: int, names: pa.Array | None = None) -> pa.Array:
    """Return an array of `count` lists: list number n has the values of all `pairs` (n, value).

    The values of a list are in ascending order. If `names` is given, each value is an index into
    `names`, and the list has the name instead.
    """
    order = np.lexsort((pairs[1], pairs[0]))
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(pairs[0], minlength=count), out=ends[1:])
    values = pa.array(pairs[1][order], pa.int64())
    return pa.ListArray.from_arrays(pa.array(ends), values if names is None else names.take(values))
