"""`whatif`: what was published, against definitions that somebody proposes. Who would get what, and what would be lost?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_trellis import history as hist
from pyspark_trellis.definitions import Definitions
from pyspark_trellis.routing import routed


@dataclass(frozen=True)
class QueueChange:
    """Messages a queue got of the history, by either file; None where it is not in the file."""

    vhost: str
    queue: str
    before: int | None
    after: int | None


@dataclass(frozen=True)
class LostTopic:
    """A topic that was routed, and would not be any more."""

    vhost: str
    exchange: str
    topic: str
    messages: int


@dataclass(frozen=True)
class WhatIf:
    """The answer. `queues`: all of both files. `lost`: by falling messages. `unknown`: messages of which a topic does not say where
    they go by either file."""

    span: hist.Span
    queues: list[QueueChange]
    lost: list[LostTopic]
    unknown: int

    @property
    def newly_hit(self) -> list[QueueChange]:
        """Queues that got nothing, or were not there, and would get something."""
        return [queue for queue in self.queues if queue.after and not queue.before]

    @property
    def starved(self) -> list[QueueChange]:
        """Queues that got something, and would get nothing or not be there."""
        return [queue for queue in self.queues if queue.before and not queue.after]

    @property
    def breaks(self) -> bool:
        """Whether something is lost: what a pipeline of a CI stops at."""
        return bool(self.lost or self.starved)


def what_if(history: DataFrame, current: Definitions | None, proposed: Definitions) -> WhatIf:
    """Without `current`, what was routed before is what the journal says, and queues have no `before`."""
    span = hist.span(history)
    after = routed(history, proposed).select(*history.columns, F.col("queues").alias("after"),
                                             (F.col("unknown")).alias("after_unknown")).drop("first_at", "last_at")
    if current is not None:
        both = routed(after, current).select("*", F.col("queues").alias("before"))
        was = (F.size("before") > 0) | F.col("unknown")
        unknown = F.col("unknown") | F.col("after_unknown")
    else:
        both = after.withColumn("before", F.array().cast("array<string>"))
        was = F.col("messages") > F.col("unroutable")
        unknown = F.col("after_unknown")
    both = both.cache()
    try:
        lost = [LostTopic(*row) for row in both.where(was & (F.size("after") == 0) & ~F.col("after_unknown"))
                .orderBy(F.desc("messages"), "vhost", "exchange", "topic").select("vhost", "exchange", "topic", "messages").collect()]
        counts = [_counts(both, "before") if current is not None else {}, _counts(both, "after")]
        open_ended = both.where(unknown).agg(F.coalesce(F.sum("messages"), F.lit(0))).collect()[0][0]
    finally:
        both.unpersist()
    names = sorted({(vhost, queue) for file in (current, proposed) if file is not None for vhost, host in file.hosts.items()
                    for queue in host.queues})
    queues = [QueueChange(vhost, queue, *[_of(file, found, vhost, queue) for file, found in zip((current, proposed), counts, strict=True)])
              for vhost, queue in names]
    return WhatIf(span, queues, lost, open_ended)


def _counts(both: DataFrame, column: str) -> dict[tuple[str, str], int]:
    found: Any = (
        both.select("vhost", F.explode(column).alias("queue"), "messages").groupBy("vhost", "queue").agg(F.sum("messages")).collect()
    )
    return {(row[0], row[1]): row[2] for row in found}


def _of(file: Definitions | None, found: dict[tuple[str, str], int], vhost: str, queue: str) -> int | None:
    if file is None or vhost not in file.hosts or queue not in file.hosts[vhost].queues:
        return None
    return found.get((vhost, queue), 0)
