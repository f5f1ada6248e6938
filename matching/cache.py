"""Answers kept by topic, in front of any matcher, and dropped when they may have changed.

    topic --> Answer --+-- subscribers, or nothing since a change
                       `-- stands in a TopicIndex too, which is asked with the pattern that changed

A plain key that changes touches the answer of one topic, a pattern those of the topics it matches:
exactly these are dropped. An answer that was dropped keeps its place, for its topic is likely to be
asked again. When the cache is full, the oldest topic makes room (a hit moves nothing, so a hit is
one probe of a dict).

Asking the index costs what the pattern meets there. Where that is more than `precise` nodes, a
change drops all answers at once, in one step: every answer has the number of the epoch it is from,
and a new one begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, Generic

from matching.grammar import Grammar, swap
from matching.matcher import Matcher, S
from matching.topics import TopicIndex

#: Topics that make room together when the cache is full. (The first key of a dict is found by
#: passing those deleted before it: one at a time, that costs more than all the rest.)
_ROOM: Final = 64
#: The epoch of no answer.
_NEVER: Final = 0


class _Answer(Generic[S]):
    """The subscribers of a topic, if the answer is from the current epoch.

    It is in the first `indexed` indexes.
    """

    __slots__ = ("epoch", "indexed", "subscribers", "topic")

    def __init__(self, topic: str) -> None:
        self.topic: Final = topic
        self.subscribers: tuple[S, ...] = ()
        self.epoch = _NEVER
        self.indexed = 0


class RouteCache(Matcher[S]):
    """A matcher in front of another one, which must be changed through this one, or `changed` must
    be told of it.
    """

    def __init__(
        self, source: Matcher[S], most: int = 65_536, heaviest: int = 1 << 22, precise: int = 4_096
    ) -> None:
        """Keeps `most` answers, with `heaviest` subscribers in all of them (a tuple has 8 octets
        for each).

        `precise` is how many nodes of an index a change may look at to find what it drops; where
        they are more, it drops all.
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
        #: Answers dropped one by one, and times that all were.
        self.dropped = 0
        self.epochs = 0

    def find(self, topic: str) -> tuple[S, ...]:
        """The same as `match` in a tuple that others may be given too. Hot path."""
        answer = self._answers.get(topic)
        if answer is not None and answer.epoch == self._epoch:
            self.hits += 1
            return answer.subscribers
        return self._ask(topic)

    def match(self, topic: str) -> list[S]:
        return list(self.find(topic))

    def matches_any(self, topic: str) -> bool:
        return len(self.find(topic)) > 0

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        added = self.source.subscribe(pattern, subscriber)
        if added:
            self.changed(pattern, self.grammar)
        return added

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        removed = self.source.unsubscribe(pattern, subscriber)
        if removed:
            self.changed(pattern, self.grammar)
        return removed

    def changed(self, pattern: str, grammar: Grammar) -> None:
        """Somebody subscribed by this pattern of this grammar to the source, or does no longer.

        The first change in a grammar that is not the source's drops all answers. Raises
        InvalidPattern.
        """
        if not grammar.is_pattern(pattern):
            answer = self._answers.get(pattern if grammar is self.grammar else swap(pattern))
            if answer is not None:
                self._drop(answer)
                self.dropped += 1
            return
        index = self._index(grammar)
        answers = None if index is None else index.within(pattern, self.precise)
        if answers is None:
            self.forget()
            return
        for answer in answers:
            self._drop(answer)
        self.dropped += len(answers)

    def forget(self) -> None:
        """Drop all answers."""
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
        """Those of the source, how many topics are kept and subscribers of them, and what became of
        questions and answers.
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

    def _ask(self, topic: str) -> tuple[S, ...]:
        """Ask the source, and keep what it says."""
        self.misses += 1
        subscribers = tuple(self.source.match(topic))
        known = self._answers.get(topic)
        if known is not None:
            self._drop(known)
        while self._answers and (
            known is None
            and len(self._answers) >= self.most
            or self._kept + len(subscribers) > self.heaviest
        ):
            self._make_room()
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

    def _drop(self, answer: _Answer[S]) -> None:
        self._kept -= len(answer.subscribers)
        answer.subscribers = ()
        answer.epoch = _NEVER

    def _make_room(self) -> None:
        for topic in list(islice(self._answers, _ROOM)):
            answer = self._answers.pop(topic)
            self._drop(answer)
            for index in self._indexes[: answer.indexed]:
                index.remove(self._spelled(topic, index))

    def _index(self, grammar: Grammar) -> TopicIndex[_Answer[S]] | None:
        """The index to ask with patterns of this grammar; None when it is new and knows no topic
        yet.
        """
        for index in self._indexes:
            if index.grammar is grammar:
                return index
        self._indexes.append(TopicIndex(grammar))
        return None

    def _spelled(self, topic: str, index: TopicIndex[_Answer[S]]) -> str:
        return topic if index.grammar is self.grammar else swap(topic)
