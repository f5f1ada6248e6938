"""`trellis pipeline whatif`: routes the published messages by proposed definitions, and compares
the result with the current routing.

The answer has the messages per queue, before and after the change, and the topics whose messages
would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_trellis import history as hist
from pyspark_trellis.definitions import SESSION, DefinitionsFile, shown
from pyspark_trellis.routing import routed


@dataclass(frozen=True)
class WhatIfChange:
    """The number of messages that one queue or MQTT session receives, before and after a change.

    `before` counts the messages by the current definitions, `after` by the proposed definitions.
    A count is None if its definitions do not have the queue or session. `kind` is queue or session.
    """

    vhost: str
    kind: str
    name: str
    before: int | None
    after: int | None

    def __str__(self) -> str:
        return shown(SESSION + self.name if self.kind == "session" else self.name)


@dataclass(frozen=True)
class LostTopic:
    """A topic whose messages reached a queue, but would reach none under the proposed
    definitions.
    """

    vhost: str
    exchange: str
    topic: str
    messages: int


@dataclass(frozen=True)
class WhatIf:
    """The comparison of the current and the proposed definitions.

    `queues` has every queue and MQTT session that the current or the proposed definitions have.
    `lost` has the topics whose messages would reach no queue any more; the topic with the most
    messages is the first. `unknown` is the number of messages whose destinations depend on more
    than the topic.
    """

    span: hist.Span
    queues: list[WhatIfChange]
    lost: list[LostTopic]
    unknown: int

    @property
    def newly_hit(self) -> list[WhatIfChange]:
        """The queues and sessions that receive messages only by the proposed definitions.

        By the current definitions, such a queue gets no message or does not exist.
        """
        return [queue for queue in self.queues if queue.after and not queue.before]

    @property
    def starved(self) -> list[WhatIfChange]:
        """The queues and sessions that receive messages only by the current definitions.

        By the proposed definitions, such a queue gets no message or does not exist.
        """
        return [queue for queue in self.queues if queue.before and not queue.after]

    @property
    def breaks(self) -> bool:
        """True if a topic or a queue would lose all its messages. The command then exits with code
        1, so that a CI job fails.
        """
        return bool(self.lost or self.starved)


def what_if(
    history: DataFrame, current: DefinitionsFile | None, proposed: DefinitionsFile
) -> WhatIf:
    """Return the comparison of the routing of the history by the current and the proposed
    definitions.

    Without `current`, the journal shows which messages reached a queue, and `before` of each queue
    is None. If `current` lacks the exchange of a message, the journal shows if the message reached
    a queue.
    """
    span = hist.span(history)
    after = (
        routed(history, proposed)
        .select(
            *history.columns,
            F.col("places").alias("after"),
            F.col("unknown").alias("after_unknown"),
        )
        .drop("first_at", "last_at")
    )
    was_routed = F.col("messages") > F.col("unroutable")
    if current is not None:
        both = routed(after, current).select("*", F.col("places").alias("before"))
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
            LostTopic(*row)
            for row in both.where(was & (F.size("after") == 0) & ~F.col("after_unknown"))
            .orderBy(F.desc("messages"), "vhost", "exchange", "topic")
            .select("vhost", "exchange", "topic", "messages")
            .collect()
        ]
        counts = [_counts(both, "before") if current is not None else {}, _counts(both, "after")]
        open_ended = (
            both.where(unknown).agg(F.coalesce(F.sum("messages"), F.lit(0))).collect()[0][0]
        )
    finally:
        both.unpersist()
    there = [
        set()
        if file is None
        else {(vhost, place) for vhost, host in file.hosts.items() for place in host.places}
        for file in (current, proposed)
    ]
    changes = []
    for place in sorted(there[0] | there[1]):
        before, then = (
            found.get(place, 0) if place in known else None
            for known, found in zip(there, counts, strict=True)
        )
        name = place[1].removeprefix(SESSION)
        changes.append(
            WhatIfChange(place[0], "queue" if name == place[1] else "session", name, before, then)
        )
    return WhatIf(span, changes, lost, open_ended)


def _counts(both: DataFrame, column: str) -> dict[tuple[str, str], int]:
    found: Any = (
        both.select("vhost", F.explode(column).alias("place"), "messages")
        .groupBy("vhost", "place")
        .agg(F.sum("messages"))
        .collect()
    )
    return {(row[0], row[1]): row[2] for row in found}
