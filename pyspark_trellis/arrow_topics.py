"""Computes the aggregates of the published topics in this process, on an Arrow table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_trellis.counts import KEYS, PERIOD, SPLIT_KEYS, Span, added, decoded, instant
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.routing import BatchRouters, RoutedGroup, Rows
from pyspark_trellis.topics import (
    MOST,
    BusiestTopics,
    MatchedBindings,
    OverlapCount,
    PublishedTopics,
    RoutingComparison,
    TopicCount,
)

#: If `_OverlapCounts` stores more partial sums than this number, the sums of equal pairs of
#: bindings are added up.
_PAIRS: Final = 1 << 20


class ArrowTopics(PublishedTopics):
    """A table with the sums of each (vhost, exchange, topic), as `counts.TopicSums` makes it.

    The topics may be divided by period and publisher (SPLIT_KEYS).
    """

    def __init__(self, sums: pa.Table) -> None:
        self._divided: Final = PERIOD in sums.schema.names
        if self._divided and "minute" not in sums.schema.names:
            self.table = sums.combine_chunks()  # Has one row for each topic part.
        else:
            keys = SPLIT_KEYS if self._divided else KEYS
            self.table = added(sums, *keys).combine_chunks()
        self._messages: Final[Rows] = self.table.column("messages").to_numpy()

    def vhosts(self) -> frozenset[str]:
        """Return the virtual hosts that have published topics."""
        return frozenset(self.table.column("vhost").unique().to_pylist())

    def span(self) -> Span:
        table = added(self.table, *KEYS) if self._divided else self.table
        first, last = (
            pc.cast(aggregate(table.column(name)), pa.int64()).as_py()
            for name, aggregate in (("first_at", pc.min), ("last_at", pc.max))
        )
        return Span(int(self._messages.sum()), table.num_rows, instant(first), instant(last))

    def compared(
        self, current: DefinitionsFile | None, proposed: DefinitionsFile
    ) -> RoutingComparison:
        unroutable: Rows = self.table.column("unroutable").to_numpy()
        was = self._messages > unroutable
        before: dict[tuple[str, str], int] = {}
        after: dict[tuple[str, str], int] = {}
        reached, unknown = self._routed(proposed, after)
        lost = ~reached & ~unknown
        if current is not None:
            missing = np.zeros(self.table.num_rows, bool)
            reached, unknown_before = self._routed(current, before, missing)
            was = np.where(missing, was, reached | unknown_before)
            unknown = unknown | unknown_before
        messages = int(self._messages[unknown].sum())
        return RoutingComparison(before, after, self._most_frequent(was & lost), messages)

    def matched(self, definitions: DefinitionsFile) -> MatchedBindings:
        lost = np.zeros(self.table.num_rows, bool)
        used = np.zeros(len(definitions.bindings), bool)
        met = _OverlapCounts(definitions)
        for group in BatchRouters(definitions.hosts).groups(self.table):
            if group.missing:
                continue
            rows, numbers = group.routed.bindings
            used[numbers] = True
            lost[group.rows] = ~_reached(group) & ~group.routed.unknown
            met.add(rows, numbers, self._messages[group.rows], self._topics(group.rows))
        hit = set(np.nonzero(used)[0].tolist())
        return MatchedBindings(hit, self._most_frequent(lost)[:MOST], met.most_frequent())

    def busiest(self, most: int) -> BusiestTopics:
        counts: dict[tuple[str, str], tuple[int, int]] = {}
        top: dict[tuple[str, str], list[tuple[str, int]]] = {}
        order = [("vhost", "ascending"), ("exchange", "ascending"), ("messages", "descending")]
        for vhost, exchange, topic, messages in self._rows([*order, ("topic", "ascending")]):
            topics, total = counts.get((vhost, exchange), (0, 0))
            counts[vhost, exchange] = (topics + 1, total + messages)
            if topics < most:
                top.setdefault((vhost, exchange), []).append((topic, messages))
        return BusiestTopics(counts, top)

    def _routed(
        self,
        definitions: DefinitionsFile,
        counts: dict[tuple[str, str], int],
        missing: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Route all topics by the definitions; return two arrays with a boolean for each topic.

        In the first array, a boolean is True if the topic reaches a queue or a session. In the
        second array, a boolean is True if the topic's destinations depend on more than the topic.
        Add the number of messages of each (vhost, destination) to `counts`. Set `missing` to True
        for each topic whose exchange the definitions lack.
        """
        reached, unknown = (np.zeros(self.table.num_rows, bool) for _ in range(2))
        for group in BatchRouters(definitions.hosts).groups(self.table):
            reached[group.rows], unknown[group.rows] = _reached(group), group.routed.unknown
            if missing is not None:
                missing[group.rows] = group.missing
            rows, receivers = group.routed.receivers
            sums = np.zeros(len(group.names), np.int64)
            np.add.at(sums, receivers, self._messages[group.rows[rows]])
            for receiver in np.unique(receivers).tolist():
                key = (group.vhost, group.names[receiver])
                counts[key] = counts.get(key, 0) + int(sums[receiver])
        return reached, unknown

    def _most_frequent(self, chosen: NDArray[np.bool_]) -> list[TopicCount]:
        """Return the topics for which `chosen` is True, the topic with the most messages first."""
        order = [("messages", "descending"), *((name, "ascending") for name in KEYS)]
        return [TopicCount(*row) for row in self._rows(order, chosen)]

    def _topics(self, rows: Rows) -> Rows | None:
        """Return the topic index of each row; None if topics are not divided into parts.

        The rows must be of one exchange.
        """
        if not self._divided:
            return None
        topics = self.table.column("topic").take(pa.array(rows)).combine_chunks()
        numbers: Rows = topics.dictionary_encode().indices.to_numpy().astype(np.int64)
        return numbers

    def _rows(
        self, order: list[tuple[str, str]], chosen: NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        table = self.table if chosen is None else self.table.filter(pa.array(chosen))
        if self._divided:
            table = added(table, *KEYS)
        table = decoded(table.select([*KEYS, "messages"]))
        table = table.sort_by(order)
        return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _reached(group: RoutedGroup) -> NDArray[np.bool_]:
    """Return an array with True for each topic of the group that reaches a queue or session."""
    reached = np.zeros(len(group.rows), bool)
    reached[group.routed.receivers[0]] = True
    return reached


class _OverlapCounts:
    """Counts what pairs of bindings with the same source and the same destination have in common:
    the topics that both bindings of a pair match, and the messages of these topics.
    """

    def __init__(self, definitions: DefinitionsFile) -> None:
        self._count: Final = len(definitions.bindings)
        known: dict[tuple[str, str, str, str], int] = {}
        self._destinations: Final = np.array(
            [
                known.setdefault((each.kind, each.vhost, each.source, each.destination), len(known))
                for each in definitions.bindings
            ],
            np.int64,
        )
        #: The indexes of the bindings, sorted by destination, and the rank of each binding.
        self._ranked: Final = np.argsort(self._destinations, kind="stable")
        self._ranks: Final = np.empty(self._count, np.int64)
        self._ranks[self._ranked] = np.arange(self._count)
        self._bits: Final = self._count.bit_length()
        #: Columns (pair, topics, messages). The pair of the bindings with the indexes `one` and
        #: `other` is stored as the integer `one * self._count + other`.
        self._sums: list[tuple[Rows, Rows, Rows]] = []
        self._rows = 0

    def add(self, rows: Rows, numbers: Rows, messages: Rows, topics: Rows | None = None) -> None:
        """Count the topics that several bindings to one destination match.

        The binding with the index `numbers[n]` matches part `rows[n]` of a topic's messages. A part
        is an index in `messages` and `topics`: `messages` has the message count of each part, and
        `topics` the index of the part's topic. If `topics` is None, each part is a whole topic.
        """
        if not len(rows):
            return
        # Sorting one integer for each pair is faster than sorting two columns.
        order = np.sort((rows << self._bits) + self._ranks[numbers])
        rows, numbers = order >> self._bits, self._ranked[order & ((1 << self._bits) - 1)]
        destinations = self._destinations[numbers]
        # The bindings of one topic to one destination are now adjacent. Compare each binding with
        # the binding 1, 2, 3, ... places behind it, until no two compared bindings are of the same
        # topic and destination.
        at = np.arange(len(rows))
        distance = 0
        while len(at):
            distance += 1
            at = at[at + distance < len(rows)]
            next_at = at + distance
            at = at[(rows[at] == rows[next_at]) & (destinations[at] == destinations[next_at])]
            pairs = numbers[at] * self._count + numbers[at + distance]
            count = np.ones(len(pairs), np.int64)
            if topics is not None:
                size = int(topics.max()) + 1
                _, first = np.unique(pairs * size + topics[rows[at]], return_index=True)
                count[:] = 0
                count[first] = 1
            self._sums.append((pairs, count, messages[rows[at]]))
            self._rows += len(pairs)
            if self._rows > _PAIRS:
                self._add_up()

    def _add_up(self) -> None:
        columns = [np.concatenate(column) for column in zip(*self._sums, strict=True)]
        pairs, inverse = np.unique(columns[0], return_inverse=True)
        sums = [np.zeros(len(pairs), np.int64) for _ in range(2)]
        for sum_, column in zip(sums, columns[1:], strict=True):
            np.add.at(sum_, inverse, column)
        self._sums = [(pairs, sums[0], sums[1])]
        # If all pairs differ, adding up does not shorten the list: do not try again at once.
        self._rows = len(pairs) // 2

    def most_frequent(self) -> list[OverlapCount]:
        """Return the pairs of bindings with the most messages, at most MOST pairs."""
        if not self._sums:
            return []
        self._add_up()
        pairs, topics, messages = self._sums[0]
        order = np.lexsort((pairs, -messages))[:MOST]
        return [
            OverlapCount(pair // self._count, pair % self._count, count, total)
            for pair, count, total in zip(
                pairs[order].tolist(), topics[order].tolist(), messages[order].tolist(), strict=True
            )
        ]
