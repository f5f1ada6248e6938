"""Random topics and patterns for the tests of matching, and an independent definition of a
match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, Matcher

GRAMMARS = [AMQP, MQTT]

_WORDS = ["a", "b", "", "$x", "a*", "*", "+", "#"]


def _some(words: list[str], most: int) -> st.SearchStrategy[list[str]]:
    """Draw one to `most` words.

    The strategy draws one number and computes all words from it, because Hypothesis needs longer to
    draw a value than most matchers need for a lookup.
    """
    texts = len(words) ** most

    def chosen(number: int) -> list[str]:
        size, number = divmod(number, texts)
        return [words[number // len(words) ** place % len(words)] for place in range(size + 1)]

    return st.integers(0, most * texts - 1).map(chosen)


@cache
def topics(grammar: Grammar) -> st.SearchStrategy[str]:
    """Draw short topics of few words, so that patterns match them often."""
    words = [word for word in _WORDS if grammar is AMQP or word not in ("+", "#")]
    texts = _some(words, 6).map(grammar.separator.join)
    return texts if grammar is AMQP else texts.filter(bool)


@cache
def patterns(grammar: Grammar) -> st.SearchStrategy[str]:
    """Draw short patterns with many wildcards."""
    words = ["a", "b", "", "$x", grammar.one, grammar.many]
    return _some(words, 5).map(lambda some: _pattern(grammar, some))


def _pattern(grammar: Grammar, words: list[str]) -> str:
    if grammar is MQTT:
        words = [grammar.one if word == "#" else word for word in words[:-1]] + words[-1:]
    pattern = grammar.separator.join(words)
    return pattern if pattern or grammar is AMQP else grammar.one


@cache
def _expression(pattern: tuple[str, ...], one: str, many: str) -> re.Pattern[str]:
    parts = {one: "[^\0]*\0", many: "(?:[^\0]*\0)*"}
    return re.compile("".join(parts.get(word, re.escape(word) + "\0") for word in pattern))


def agree(pattern: list[str], topic: list[str], grammar: Grammar) -> bool:
    """True if the pattern matches the topic, by a regular expression over whole words."""
    leading = bool(pattern) and pattern[0] in (grammar.one, grammar.many)
    if grammar is MQTT and leading and topic[0].startswith("$"):
        return False
    text = "".join(word + "\0" for word in topic)
    return _expression(tuple(pattern), grammar.one, grammar.many).fullmatch(text) is not None


class Listed(Matcher[int]):
    """A matcher as a third party would write it: interpreted, with only the required methods."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self.pairs: list[tuple[str, int]] = []

    def subscribe(self, pattern: str, subscriber: int) -> bool:
        self.grammar.check(pattern)
        known = (pattern, subscriber) in self.pairs
        if not known:
            self.pairs.append((pattern, subscriber))
        return not known

    def unsubscribe(self, pattern: str, subscriber: int) -> bool:
        known = (pattern, subscriber) in self.pairs
        if known:
            self.pairs.remove((pattern, subscriber))
        return known

    def match(self, topic: str) -> list[int]:
        return list(
            {
                subscriber
                for pattern, subscriber in self.pairs
                if self.grammar.matches(pattern, topic)
            }
        )

    def subscriptions(self) -> Iterator[tuple[str, int]]:
        return iter(self.pairs)
