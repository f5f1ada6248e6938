"""Topic patterns in, subscribers out. Knows nothing of brokers.

A topic is a list of words, and a pattern is one in which a word may be a wildcard: for exactly one word, or for
any number of them. There are two `Grammar`s, `AMQP` and `MQTT`, and three ways to find the patterns that match a
topic, all of them a `Matcher` of (pattern, subscriber) pairs:

    naive    tries every pattern by the definition in `Grammar.matches`; what the tests compare the others with
    trie     shares what patterns begin with; the default
    bitmap   keeps for each word of each position the set of patterns that agree with it

A subscriber is anything hashable. It is found once, however many of its patterns match. A pattern is known by its
text, and each grammar's patterns want a matcher of their own, asked with the topic as that grammar writes it
(`swap`): a pattern is never translated.

`TopicIndex` is the reverse: topics are stored, and a pattern is asked which of them it matches.

Nothing here reads a clock, waits, or looks at who subscribed. All of it runs compiled and interpreted, also from
a zip on a machine that has only Python (the bitmaps need the package pyroaring, which is imported on their first
use).

Read `grammar`, `matcher`, `naive`, then `bucket`, `trie`, `bitmap`, `topics`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final, TypeVar

from matching.grammar import AMQP, DEFAULT, MQTT, Grammar, InvalidPattern, InvalidTopic, swap
from matching.matcher import Matcher
from matching.naive import Naive
from matching.topics import TopicIndex
from matching.trie import Trie

S = TypeVar("S")

NAMES: Final = ("trie", "bitmap", "naive")

__all__ = [
    "AMQP",
    "DEFAULT",
    "MQTT",
    "NAMES",
    "Grammar",
    "InvalidPattern",
    "InvalidTopic",
    "Matcher",
    "TopicIndex",
    "create",
    "swap",
]


def create(name: str, grammar: Grammar) -> Matcher[S]:
    """An empty matcher by the name of its algorithm. Raises ValueError."""
    if name == "trie":
        return Trie(grammar)
    if name == "bitmap":
        from matching.bitmap import Bitmap

        return Bitmap(grammar)
    if name == "naive":
        return Naive(grammar)
    nearest = get_close_matches(name, NAMES, n=1, cutoff=0)[0]
    raise ValueError(f"unknown matcher {name!r}; known: {', '.join(NAMES)}; nearest: {nearest}")
