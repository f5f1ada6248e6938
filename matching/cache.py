"""A bounded cache of answers by topic, in front of any matcher.

    topic --> Answer --+-- subscribers, or nothing after the answer was invalidated
                       `-- indexed in a TopicIndex, which is searched with the changed pattern

A change of a subscription invalidates exactly the answers that it may affect. A pattern without
wildcards affects the answer of one topic, any other pattern the answers of all topics that it
matches. An invalidated answer keeps its entry, because its topic is likely to be looked up again.
When the cache is full, the topics that were added first are evicted. A hit does not change this
order, so it costs only one dict probe.

To find the affected topics, the cache visits the nodes of the index that the pattern leads to. If
the pattern leads to more than `precise` nodes, the change invalidates all answers in one step: a
new epoch begins, and an answer is valid only in the epoch whose number it has.

Costs: one dict probe per hit; memory for an entry per cached topic, and for the topic's path in a
trie (in two tries, if patterns of both grammars change). Put the cache in front of any matcher when
topics recur. Source: article 2 (listed in `matching`) suggests a cache; the invalidation is an own
design.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, Generic

from matching.grammar import Grammar, swap
from matching.matcher import Matcher, S
from matching.topics import TopicIndex

#: The number of topics that are evicted together when the cache is full. Evicting one topic at a
#: time would be too slow: the search for a dict's oldest key steps over all keys deleted before it.
_EVICTED_TOGETHER: Final = 64
#: The epoch number that marks an invalidated answer: no epoch of a cache has this number.
_NEVER: Final = 0


class _Answer(Generic[S]):
    """The cached answer for one topic: its subscribers.

    The answer is valid if `epoch` is the cache's current epoch. The cache has an index of
    topics for its own grammar, and one for the other grammar once a wildcard pattern of that
    grammar has changed. `indexed` is the number of indexes that have an entry for this topic.
    """

    __slots__ = ("epoch", "indexed", "subscribers", "topic")

    def __init__(self, topic: str) -> None:
        self.topic: Final = topic
        self.subscribers: tuple[S, ...] = ()
        self.epoch = _NEVER
        self.indexed = 0


class RouteCache(Matcher[S]):
    """A matcher that caches the answers of another matcher, the source.

    All changes of subscriptions must be made through this matcher, or be reported with
    `invalidate`.
    """

    def __init__(
        self, source: Matcher[S], most: int = 65_536, heaviest: int = 1 << 22, precise: int = 4_096
    ) -> None:
        """Create an empty cache in front of `source`.

        The cache keeps at most `most` answers, with at most `heaviest` subscribers in total (8
        bytes each). A change that would visit more than `precise` index nodes invalidates all
        answers instead.
        """
        super().__init__(source.grammar)
        self.source: Final = source
        self.most: Final = most
        self.heaviest: Final = heaviest
        self.precise: Final = precise
        self._answers: dict[str, _Answer[S]] = {}
        self._indexes: list[TopicIndex[_Answer[S]]] = [TopicIndex(source.grammar)]
        self._epoch = _NEVER + 1
        self._kept = 0
        self.hits = 0
        self.misses = 0
        #: The number of answers that were invalidated individually.
        self.dropped = 0
        #: The number of times that all answers were invalidated together.
        self.epochs = 0

    def find(self, topic: str) -> tuple[S, ...]:
        """Return the subscribers of a topic as a tuple shared with other callers. Hot path."""
        answer = self._answers.get(topic)
        if answer is not None and answer.epoch == self._epoch:
            self.hits += 1
            return answer.subscribers
        return self._look_up(topic)

    def match(self, topic: str) -> list[S]:
        return list(self.find(topic))

    def matches_any(self, topic: str) -> bool:
        return len(self.find(topic)) > 0

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        added = self.source.subscribe(pattern, subscriber)
        if added:
            self.invalidate(pattern, self.grammar)
        return added

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        removed = self.source.unsubscribe(pattern, subscriber)
        if removed:
            self.invalidate(pattern, self.grammar)
        return removed

    def invalidate(self, pattern: str, grammar: Grammar) -> None:
        """Invalidate the answers for the topics that this pattern matches.

        Call this method when the pattern's subscribers in the source have changed. The first call
        with a wildcard pattern of the other grammar invalidates all answers, because the cache
        cannot find the affected topics yet. Raises InvalidPattern.
        """
        if not grammar.is_pattern(pattern):
            answer = self._answers.get(pattern if grammar is self.grammar else swap(pattern))
            if answer is not None:
                self._invalidate(answer)
                self.dropped += 1
            return
        index = self._index(grammar)
        answers = None if index is None else index.within(pattern, self.precise)
        if answers is None:
            self.invalidate_all()
            return
        for answer in answers:
            self._invalidate(answer)
        self.dropped += len(answers)

    def invalidate_all(self) -> None:
        """Invalidate all answers in the cache in one step."""
        self._epoch += 1
        self.epochs += 1

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        return self.source.subscriptions()

    def snapshot(self) -> Matcher[S]:
        return self.source.snapshot()

    def clear(self) -> None:
        self.source.clear()
        self._answers = {}
        self._kept = 0
        self._indexes = [TopicIndex(index.grammar) for index in self._indexes]

    def stats(self) -> dict[str, int]:
        """Return the sizes of the source and of the cache.

        `topics` is the number of cached answers, and `kept` the number of subscribers in them. The
        other values are counts since the cache was made: `hits` and `misses` of lookups, answers
        that were invalidated individually (`dropped`), and invalidations of all answers together
        (`epochs`).
        """
        return {
            **self.source.stats(),
            "topics": len(self._answers),
            "kept": self._kept,
            "hits": self.hits,
            "misses": self.misses,
            "dropped": self.dropped,
            "epochs": self.epochs,
        }

    def __len__(self) -> int:
        return len(self.source)

    def __contains__(self, pair: tuple[str, S]) -> bool:
        return pair in self.source

    def _look_up(self, topic: str) -> tuple[S, ...]:
        """Return the subscribers of a topic from the source, and cache them as the answer."""
        self.misses += 1
        subscribers = tuple(self.source.match(topic))
        known = self._answers.get(topic)
        if known is not None:
            self._invalidate(known)
        while self._answers and (
            known is None
            and len(self._answers) >= self.most
            or self._kept + len(subscribers) > self.heaviest
        ):
            self._evict()
        answer = self._answers.get(topic)
        if answer is None:
            answer = self._answers[topic] = _Answer(topic)
        for index in self._indexes[answer.indexed :]:
            index.put(self._spelled(topic, index), answer)
            answer.indexed += 1
        answer.subscribers = subscribers
        answer.epoch = self._epoch
        self._kept += len(subscribers)
        return subscribers

    def _invalidate(self, answer: _Answer[S]) -> None:
        self._kept -= len(answer.subscribers)
        answer.subscribers = ()
        answer.epoch = _NEVER

    def _evict(self) -> None:
        for topic in list(islice(self._answers, _EVICTED_TOGETHER)):
            answer = self._answers.pop(topic)
            self._invalidate(answer)
            for index in self._indexes[: answer.indexed]:
                index.remove(self._spelled(topic, index))

    def _index(self, grammar: Grammar) -> TopicIndex[_Answer[S]] | None:
        """Return the index that is searched with patterns of this grammar.

        If there is no such index, create an empty one and return None. No cached topic is in the
        new index yet, so the caller must invalidate all answers.
        """
        for index in self._indexes:
            if index.grammar is grammar:
                return index
        self._indexes.append(TopicIndex(grammar))
        return None

    def _spelled(self, topic: str, index: TopicIndex[_Answer[S]]) -> str:
        return topic if index.grammar is self.grammar else swap(topic)
