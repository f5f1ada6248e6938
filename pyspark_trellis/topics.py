"""The interface between the jobs and the published messages that they examine.

The jobs `whatif`, `audit` and `advise` call the methods of `PublishedTopics`, and compute their
answers from the results. `SparkTopics` computes the results with Spark, `ArrowTopics` in this
process (docs/decisions/0022-answers-without-spark.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_trellis.counts import Span
from pyspark_trellis.definitions import DefinitionsFile

#: The maximum number of unroutable topics in `MatchedBindings`, and of pairs of bindings. The
#: topics and pairs with the most messages are returned.
MOST: Final = 1_000


class TopicCount(NamedTuple):
    """The number of messages of one topic that were published to one exchange."""

    vhost: str
    exchange: str
    topic: str
    messages: int


class OverlapCount(NamedTuple):
    """Two bindings to one destination, and the number of topics and messages that both match.

    `one` and `other` are the numbers of the bindings; `one` is the smaller number.
    """

    one: int
    other: int
    topics: int
    messages: int


@dataclass(frozen=True)
class RoutingComparison:
    """The routing of the published messages by two definitions files.

    `before` and `after` map (vhost, queue or session) to a number of messages; `before` is empty if
    the current definitions are unknown. `lost` has the topics that reached a queue and would not
    reach one any more, the most frequent topic first. `unknown` is the number of messages whose
    destinations depend on more than the topic.
    """

    before: dict[tuple[str, str], int]
    after: dict[tuple[str, str], int]
    lost: list[TopicCount]
    unknown: int


@dataclass(frozen=True)
class MatchedBindings:
    """The bindings that match published topics, and the topics that reach no queue.

    `numbers` has the numbers of all bindings that match at least one topic. `lost` has the topics
    that reach no queue. `overlaps` has the pairs of bindings that match the same topics. `lost` and
    `overlaps` have at most MOST elements, the element with the most messages first.
    """

    numbers: set[int]
    lost: list[TopicCount]
    overlaps: list[OverlapCount]


@dataclass(frozen=True)
class BusiestTopics:
    """The totals and the most frequent topics of each exchange.

    `counts` maps (vhost, exchange) to the exchange's number of topics and of messages. `top` maps
    (vhost, exchange) to pairs of topic and number of messages, the most frequent topic first.
    """

    counts: dict[tuple[str, str], tuple[int, int]]
    top: dict[tuple[str, str], list[tuple[str, int]]]


class PublishedTopics:
    """The interface of the published topics: answers what jobs ask about topics and messages."""

    def span(self) -> Span:
        """Return the number of messages and topics, and the times of the first and last message."""
        raise NotImplementedError

    def compared(
        self, current: DefinitionsFile | None, proposed: DefinitionsFile
    ) -> RoutingComparison:
        """Return the routing by the current and the proposed definitions.

        If `current` is None, or lacks the exchange of a message, the journal shows if the message
        reached a queue.
        """
        raise NotImplementedError

    def matched(self, definitions: DefinitionsFile) -> MatchedBindings:
        """Return the bindings that match published topics, and the topics that reach no queue."""
        raise NotImplementedError

    def busiest(self, most: int) -> BusiestTopics:
        """Return at most `most` topics of each exchange, and the exchanges' totals."""
        raise NotImplementedError
