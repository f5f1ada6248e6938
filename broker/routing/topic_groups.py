"""Counters of unroutable messages by groups of topics (`metrics.topics`).

A counter for each topic would be a metric without bound. The operator names a few topic filters
instead; a message counts in each group whose filter matches its topic, or in OTHER if no filter
matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mypy_extensions import i64

from matching.grammar import MQTT, swap

#: Name of the group of messages whose topic no filter matches.
OTHER: Final = "other"


class TopicGroups:
    """The numbers of unroutable messages by topic filter, in all virtual hosts."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._filters = list(filters)
        #: Number of unroutable messages by filter.
        self.unroutable: dict[str, int] = dict.fromkeys([*self._filters, OTHER], 0)

    def count(self, key: str, messages: i64) -> None:
        """Count unroutable messages with this routing key in the groups whose filter matches."""
        topic = swap(key)
        filters = [one for one in self._filters if MQTT.matches(one, topic)] or [OTHER]
        for one in filters:
            self.unroutable[one] += int(messages)
