"""Stored topics, asked with a pattern: which of them does it match? A matcher turned round.

    root --home--> o --door--> o[x]             home/+    -> x
           `--$SYS--> o --uptime--> o[y]        #         -> x, for `$` hides y
                                                $SYS/#    -> y

A walk carries, beside a node of the trie, the places in the pattern where the words on the way may
have led: bit n is set when the pattern's first n words match them. Behind a ``#`` there may be many
places, and still every node is visited once at most: a walk costs nodes x places at worst, and its
stack is a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from matching.grammar import Grammar

V = TypeVar("V")


class Absent:
    """The value where no topic ends. (None may be somebody's value.)"""


_ABSENT: Final = Absent()
#: Nodes that `browse` looks at without an answer before it says so.
PAUSE: Final = 64


class _Node(Generic[V]):
    """What may follow a prefix, and the value of the topic that is the prefix itself."""

    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] | None = None
        self.value: V | Absent = _ABSENT


class _Places:
    """The places in one pattern, and where a word leads from them.

    A set of places is an int of bits.
    """

    __slots__ = ("_literal", "_many", "_one", "_words", "begin", "end", "open")

    def __init__(self, pattern: str, grammar: Grammar) -> None:
        self._words: list[str] = []
        self._literal: dict[str, int] = {}
        self._one = 0
        self._many = 0
        place = 1
        for word in grammar.split(pattern):
            if word == grammar.many:
                if self._many & (place >> 1):
                    # `#.#` is `#`, so a step over one of them never lands in front of another
                    continue
                self._many |= place
            elif word == grammar.one:
                self._one |= place
            else:
                self._literal[word] = self._literal.get(word, 0) | place
            self._words.append(word)
            place <<= 1
        #: Where all words lead on.
        self.open = self._one | self._many
        self.begin = 1 | (self._many & 1) << 1
        self.end = place

    def follow(self, places: int, word: str) -> int:
        """The places after a further word of the topic."""
        stays = places & self._many
        moved = (places & (self._literal.get(word, 0) | self._one)) << 1
        return stays | moved | ((stays | moved) & self._many) << 1

    def wanted(self, places: int, children: dict[str, _Node[V]]) -> list[str]:
        """Which children may lead on: all of these, or the one that the pattern names, or none."""
        if places & (self._one | self._many):
            return list(children)
        # Whoever stands in two places stands in front of a `#`: this is one place, or the end.
        return [self._words[places.bit_length() - 1]] if places < self.end else []


class TopicIndex(Generic[V]):
    """A map from topics to values that a pattern can be asked of."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._root: _Node[V] = _Node()
        self._topics = 0

    def put(self, topic: str, value: V) -> bool:
        """Store the topic's value, in place of an older one; True when the topic is new.

        Topics are not checked here: wildcard characters in one are ordinary words.
        """
        node = self._root
        for word in self.grammar.split(topic):
            if node.children is None:
                node.children = {}
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
            node = child
        new = isinstance(node.value, Absent)
        if new:
            self._topics += 1
        node.value = value
        return new

    def remove(self, topic: str) -> bool:
        """Forget the topic; False when it was not there."""
        words = self.grammar.split(topic)
        path = self._path(words)
        if path is None or isinstance(path[-1].value, Absent):
            return False
        path[-1].value = _ABSENT
        self._topics -= 1
        depth = len(words)
        while depth and path[depth].children is None and isinstance(path[depth].value, Absent):
            depth -= 1
            children = path[depth].children
            assert children is not None
            del children[words[depth]]
            if not children:
                path[depth].children = None
        return True

    def get(self, topic: str) -> V | None:
        """The topic's value, None when it is not there."""
        path = self._path(self.grammar.split(topic))
        value = _ABSENT if path is None else path[-1].value
        return None if isinstance(value, Absent) else value

    def match(self, pattern: str) -> list[V]:
        """The values of all topics that the pattern matches, in no order. Raises InvalidPattern."""
        return list(self.walk(pattern))

    def walk(self, pattern: str) -> Iterator[V]:
        """The same one by one. Raises InvalidPattern, at once.

        Topics may be put and removed between two steps: one that is there all the time comes
        exactly once, any other at most once.
        """
        return self._values(self.browse(pattern))

    def browse(self, pattern: str) -> Iterator[V | Absent]:
        """The same for one who shares its time with others: after PAUSE nodes without an answer
        comes an Absent.
        """
        self.grammar.check(pattern)
        return self._walk(_Places(pattern, self.grammar), self._hidden_from(pattern))

    def _values(self, found: Iterator[V | Absent]) -> Iterator[V]:
        for value in found:
            if not isinstance(value, Absent):
                yield value

    def within(self, pattern: str, most: int) -> list[V] | None:
        """The same as `match`, or None when more than `most` nodes had to be looked at.

        Raises InvalidPattern.
        """
        self.grammar.check(pattern)
        places = _Places(pattern, self.grammar)
        veiled = self._hidden_from(pattern)
        found: list[V] = []
        root = self._root
        if places.begin & places.end and not isinstance(root.value, Absent):
            found.append(root.value)
        waiting: list[tuple[_Node[V], int]] = [(root, places.begin)]
        left = most
        while waiting:
            node, here = waiting.pop()
            if node.children is None:
                continue
            if here & places.open:
                left -= len(node.children)
                if left < 0:
                    return None
            words = places.wanted(here, node.children)
            if veiled:
                words = [word for word in words if not self.grammar.hidden(word)]
                veiled = False
            for word in words:
                child = node.children.get(word)
                if child is None:
                    continue
                there = places.follow(here, word)
                if there & places.end and not isinstance(child.value, Absent):
                    found.append(child.value)
                waiting.append((child, there))
        return found

    def __len__(self) -> int:
        return self._topics

    def _path(self, words: list[str]) -> list[_Node[V]] | None:
        """The nodes from the root to that of a topic, or None where there is none."""
        node = self._root
        path = [node]
        for word in words:
            child = None if node.children is None else node.children.get(word)
            if child is None:
                return None
            node = child
            path.append(node)
        return path

    def _hidden_from(self, pattern: str) -> bool:
        """Whether the pattern begins with a wildcard from which some topics are hidden."""
        grammar = self.grammar
        return grammar.hides and grammar.split(pattern)[0] in (grammar.one, grammar.many)

    def _walk(self, places: _Places, veiled: bool) -> Iterator[V | Absent]:
        """Depth first. Each level of the stack: a node, the places there, and the words still to
        try.

        A node above a topic that stays is never pruned, so what the stack holds of the way to it is
        the trie itself.
        """
        node = self._root
        here = places.begin
        words: list[str] = []
        if here & places.end and not isinstance(node.value, Absent):
            yield node.value
        if node.children is not None:
            words = places.wanted(here, node.children)
            if veiled:
                words = [word for word in words if not self.grammar.hidden(word)]
        stack: list[tuple[_Node[V], int, list[str]]] = [(node, here, words)]
        fruitless = 0
        while stack:
            node, here, words = stack[-1]
            fruitless += 1
            if fruitless >= PAUSE:
                fruitless = 0
                yield _ABSENT
            if not words or node.children is None:
                stack.pop()
                continue
            word = words.pop()
            child = node.children.get(word)
            if child is None:
                continue
            there = places.follow(here, word)
            if there & places.end and not isinstance(child.value, Absent):
                fruitless = 0
                yield child.value
            if there and child.children is not None:
                words = places.wanted(there, child.children)
                if words:
                    stack.append((child, there, words))
