"""Finds the subscribers whose patterns match a topic: a library of topic-matching algorithms.

The library imports no other package of this repository, and has no code about brokers.

**Theory of operation.** A topic is a list of words (``stock.nyse.ibm``). A pattern is a list of
words in which a word may be a wildcard: for exactly one word, or for any number of words. A
`Grammar` defines the notation of topics and patterns; there are two, `AMQP` and `MQTT`. A `Matcher`
holds (pattern, subscriber) pairs and answers `match(topic)` with the subscribers of all matching
patterns. A subscriber is any hashable object; an answer contains it once, however many of its
patterns match. Two patterns are the same only if their texts are equal. A matcher belongs to one
grammar. The caller rewrites a topic of the other grammar with `swap`; patterns are never
translated.

    matcher = create("auto", AMQP)
    matcher.subscribe("stock.*.ibm", "alice")
    matcher.match("stock.nyse.ibm")                 -> ["alice"]

**Algorithms.** `create` makes a matcher by name; `registry` lists all names with their costs:

    auto                  the default: trie, or shapes above 250,000 patterns
    trie                  a trie of words; fast for every mix of patterns
    shapes                hash tables, one per set of wildcard positions; least memory
    bitmap                sets of pattern numbers, intersected; needs pyroaring
    dfa                   an automaton built on demand; fastest for repeated topics
    snapshot, cstrie      tries that many threads use at once without a lock; need cereggii
    bitmap-fixed, trie-backtracking, word-sets, word-cache
                          algorithms as published, kept for comparison
    naive                 tries every pattern; the reference that the tests compare with

**Around the matchers:**

    composite   patterns without a wildcard in a dict, the others in a matcher; two grammars at once
    cache       a bounded cache of answers by topic, invalidated precisely
    topics      the reverse question: which stored topics does a pattern match?
    topic_summary
                can a pattern match any topic of a file of messages?
    batch       many topics at once against a fixed set of patterns
    covers      does one pattern match every topic that another pattern matches?
    fields      matching by message headers instead of topics

No module does I/O, reads a clock or waits. All modules run compiled and interpreted, also from a
zip file on a machine that has only Python: pyroaring, cereggii and numpy are imported only by the
modules that need them.

**Reading order.** `grammar`, `matcher`, `naive`; then `bucket`, `trie`, `shapes`, `auto`. For many
threads: `snapshot`, then `cells`, `subscriber_set`, `hamt`, `cnodes`, `cwalk` (lookups), `cstrie`
(changes). Everything else can be read alone.

**Sources.** Docstrings cite five articles by number:

1. Tyler Treat, "Fast Topic Matching".
2. "Breaking and entering: lose the lock while embracing concurrency, Part II" (2015).
3. WSO2, "Fast Topic Matching Algorithm Implementation For WSO2 Message Broker" (2015).
4. iMatix, "High-speed message matching" (the OpenAMQ specifications).
5. The RabbitMQ blog, "Very fast and scalable topic routing".
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
