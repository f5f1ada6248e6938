"""Topic patterns in, subscribers out. Knows nothing of brokers.

A topic is a list of words, and a pattern is one in which a word may be a wildcard: for exactly one
word, or for any number of them. There are two `Grammar`s, `AMQP` and `MQTT`, and many ways to find
the patterns that match a topic, all of them a `Matcher` of (pattern, subscriber) pairs. `registry`
lists them, `create` makes one by name:

    auto                                trie or shapes, whichever suits; the default
    trie  shapes  bitmap  dfa           the fast ones: a trie, tables of keys, sets of numbers, an automaton
    snapshot  cstrie                    for many threads at once
    bitmap-fixed  trie-backtracking  word-sets  word-cache      as the articles have them, to compare with
    naive                               tries every pattern by the definition in `Grammar.matches`: the tests' oracle

A subscriber is anything hashable. It is found once, however many of its patterns match. A pattern
is known by its text, and each grammar's patterns want a matcher of their own, asked with the topic
as that grammar writes it (`swap`): a pattern is never translated.

Around them:

    composite   plain keys in a dict before a matcher, for one grammar or two: what a topic exchange is
    cache       answers by topic in front of any matcher, dropped precisely when they may have changed
    topics      the reverse: topics are stored, and a pattern is asked which of them it matches
    batch       many topics at once against a fixed set of patterns
    covers      whether one pattern matches all that another one does
    fields      headers instead of topics: criteria that must all hold, or one of them

Nothing here reads a clock, waits, or looks at who subscribed. All of it runs compiled and
interpreted, also from a zip on a machine that has only Python; pyroaring, cereggii and numpy are
imported only by who needs them.

Read `grammar`, `matcher`, `naive`, then `bucket`, `trie`, `shapes`, `auto`; then what interests
you: for many threads `snapshot` first, then `cells`, `hamt`, `cnodes`, `cwalk` (lookups), `cstrie`
(changes).
"""

from __future__ import annotations

from matching.grammar import AMQP, DEFAULT, MQTT, Grammar, InvalidPattern, InvalidTopic, swap
from matching.matcher import Matcher
from matching.registry import ALGORITHMS, NAMES, Algorithm, algorithms, create
from matching.topics import TopicIndex

__all__ = [
    "ALGORITHMS",
    "AMQP",
    "DEFAULT",
    "MQTT",
    "NAMES",
    "Algorithm",
    "Grammar",
    "InvalidPattern",
    "InvalidTopic",
    "Matcher",
    "TopicIndex",
    "algorithms",
    "create",
    "swap",
]
