"""Selects the rows of a journal whose topics match a pattern."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from matching.grammar import MQTT, Grammar, swap
from matching.trie import Trie

#: The largest number of topics whose results are cached.
_KNOWN_MAX: Final = 1_000_000


class TopicFilter:
    """A filter for the rows whose topics match a pattern; it caches the result for each topic.

    The topics of a journal are routing keys of AMQP. So an MQTT filter is compared with the topics
    in MQTT's notation, in which `/` and `.` are exchanged.
    """

    def __init__(self, pattern: str, grammar: Grammar) -> None:
        self._trie: Trie[int] = Trie(grammar)
        self._trie.subscribe(pattern, 0)
        self._swapped: Final = grammar is MQTT
        self._known: dict[str, bool] = {}

    def filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the batch whose topics match."""
        topics = batch.column("topic").dictionary_encode()
        known = self._known
        right = []
        for topic in topics.dictionary.to_pylist():
            answer = known.get(topic)
            if answer is None:
                if len(known) >= _KNOWN_MAX:
                    known.clear()
                name = swap(topic) if self._swapped else topic
                answer = known[topic] = self._trie.matches_any(name)
            right.append(answer)
        return batch.filter(pa.array(right, pa.bool_()).take(topics.indices))
