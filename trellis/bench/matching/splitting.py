"""Measures the time that is saved if patterns and topics are split into words only once.

(The idea is from article 5 of the list in matching/__init__.py.)
"""

from __future__ import annotations

from collections.abc import Sequence

from matching import AMQP
from trellis.bench.matching.answers import WrongMatch
from trellis.bench.matching.measure import per_call


def _fits(pattern: list[str], words: list[str]) -> bool:
    """Return True if a pattern without `#` matches a topic; both are split into words."""
    return len(pattern) == len(words) and all(
        one in ("*", word) for one, word in zip(pattern, words, strict=True)
    )


class SplittingScan:
    """A naive matcher for patterns without `#`: compares a topic with one pattern after another.

    There are two forms. `each_time` splits pattern and topic into words for each comparison. `once`
    uses patterns that were split before, and splits the topic once.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [pattern for pattern in patterns if "#" not in pattern]
        self._split = [AMQP.split(pattern) for pattern in self._patterns]

    def each_time(self, topic: str) -> list[int]:
        """Return the numbers of the patterns that match a topic.

        Pattern and topic are split into words again for each comparison.
        """
        return [
            number
            for number, pattern in enumerate(self._patterns)
            if _fits(AMQP.split(pattern), AMQP.split(topic))
        ]

    def once(self, topic: str) -> list[int]:
        """Return the numbers of the patterns that match a topic.

        The topic is split into words once; the patterns were split before.
        """
        words = AMQP.split(topic)
        return [number for number, pattern in enumerate(self._split) if _fits(pattern, words)]


def splitting(patterns: Sequence[str], topics: Sequence[str], seconds: float) -> dict[str, float]:
    """Return ns per lookup of the two forms of SplittingScan: `each` (each_time) and `once`.

    Each form is measured for about `seconds`. Raises WrongMatch if the two forms find different
    patterns.
    """
    scan = SplittingScan(patterns)
    if any(scan.each_time(topic) != scan.once(topic) for topic in topics[:10]):
        raise WrongMatch("splitting once finds other patterns than splitting for each comparison")
    return {
        "each": per_call(scan.each_time, topics, seconds),
        "once": per_call(scan.once, topics, seconds),
    }
