"""Answers the reverse question: which of the stored topics does a pattern match?

    root --home--> o --door--> o[x]             home/+    -> x
           `--$SYS--> o --uptime--> o[y]        #         -> x (y is hidden: it begins with `$`)
                                                $SYS/#    -> y

The topics are in a trie of words. A search walks the trie. For each node, it computes the set of
positions in the pattern that the node's topic may have reached: bit n is set if the first n words
of the pattern match the words on the path to the node. A ``#`` can make many positions possible,
but every node is visited at most once, so a search costs at most nodes x positions. The search is
iterative, so deep topics cannot exhaust the call stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from matching.grammar import Grammar

V = TypeVar("V")


class Absent:
    """A marker for a node where no topic ends. (None can be a stored value.)"""


_ABSENT: Final = Absent()
#: After this many nodes without a result, `browse` yields an Absent, so that its caller can pause.
PAUSE: Final = 64


class _TopicNode(Generic[V]):
    """A trie node: the nodes of longer topics, and the value of the topic that ends here."""

    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode[V]] | None = None
        self.value: V | Absent = _ABSENT


class _Positions:
    """The positions in one pattern, and the transitions between positions that a word of a topic
    causes.

    A set of positions is an int used as a bit set.
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
                    # `#.#` matches the same topics as `#`, so two adjacent `#` have one position.
                    continue
                self._many |= place
            elif word == grammar.one:
                self._one |= place
            else:
                self._literal[word] = self._literal.get(word, 0) | place
            self._words.append(word)
            place <<= 1
        #: The pattern positions at which any word is accepted.
        self.open = self._one | self._many
        self.begin = 1 | (self._many & 1) << 1
        self.end = place

    def follow(self, positions: int, word: str) -> int:
        """Return the pattern positions that are reached after one more word of the topic."""
        stays = positions & self._many
        moved = (positions & (self._literal.get(word, 0) | self._one)) << 1
        return stays | moved | ((stays | moved) & self._many) << 1

    def to_visit(self, positions: int, children: dict[str, _TopicNode[V]]) -> list[str]:
        """Return the words of the children of a node that a search must visit from these positions:
        all words, only the word that the pattern names, or no word.
        """
        if positions & (self._one | self._many):
            return list(children)
        # Several positions are possible only if one of them is at a `#`, which is open. No position
        # is open at this point, so there is a single position: at a literal word, or at the end.
        return [self._words[positions.bit_length() - 1]] if positions < self.end else []


class TopicIndex(Generic[V]):
    """A map from topics to values that can be searched with a pattern."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._root: _TopicNode[V] = _TopicNode()
        self._topics = 0

    def put(self, topic: str, value: V) -> bool:
        """Store the topic's value in place of an older value. Return True if the topic is new.

        The topic is not validated: a wildcard character in it is an ordinary character.
        """
        node = self._root
        for word in self.grammar.split(topic):
            if node.children is None:
                node.children = {}
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _TopicNode()
            node = child
        new = isinstance(node.value, Absent)
        if new:
            self._topics += 1
        node.value = value
        return new

    def remove(self, topic: str) -> bool:
        """Remove the topic. Return False if it was not present."""
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
        """Return the topic's value, or None if the topic is not stored."""
        path = self._path(self.grammar.split(topic))
        value = _ABSENT if path is None else path[-1].value
        return None if isinstance(value, Absent) else value

    def match(self, pattern: str) -> list[V]:
        """Return the values of all topics that the pattern matches, in no order. Raises
        InvalidPattern.
        """
        return list(self.walk(pattern))

    def walk(self, pattern: str) -> Iterator[V]:
        """Iterate over the values of all topics that the pattern matches.

        Topics may be added and removed during the iteration: a topic that is present throughout is
        returned exactly once, any other topic at most once. The call of `walk` raises
        InvalidPattern, not the iteration.
        """
        return self._values(self.browse(pattern))

    def browse(self, pattern: str) -> Iterator[V | Absent]:
        """Iterate like `walk`, and yield an Absent after every PAUSE nodes without a result.

        The Absent lets a caller on an event loop pause a search that finds little.
        """
        self.grammar.check(pattern)
        return self._walk(_Positions(pattern, self.grammar), self._hidden_from(pattern))

    def _values(self, entries: Iterator[V | Absent]) -> Iterator[V]:
        for value in entries:
            if not isinstance(value, Absent):
                yield value

    def within(self, pattern: str, most: int) -> list[V] | None:
        """Return the values that the pattern matches, or None if more than `most` nodes must be
        visited.

        Raises InvalidPattern.
        """
        self.grammar.check(pattern)
        positions = _Positions(pattern, self.grammar)
        skip_hidden = self._hidden_from(pattern)
        values: list[V] = []
        root = self._root
        if positions.begin & positions.end and not isinstance(root.value, Absent):
            values.append(root.value)
        waiting: list[tuple[_TopicNode[V], int]] = [(root, positions.begin)]
        left = most
        while waiting:
            node, here = waiting.pop()
            if node.children is None:
                continue
            if here & positions.open:
                left -= len(node.children)
                if left < 0:
                    return None
            words = positions.to_visit(here, node.children)
            if skip_hidden:
                words = [word for word in words if not self.grammar.hidden(word)]
                skip_hidden = False
            for word in words:
                child = node.children.get(word)
                if child is None:
                    continue
                there = positions.follow(here, word)
                if there & positions.end and not isinstance(child.value, Absent):
                    values.append(child.value)
                waiting.append((child, there))
        return values

    def __len__(self) -> int:
        return self._topics

    def _path(self, words: list[str]) -> list[_TopicNode[V]] | None:
        """Return the nodes from the root to the node of these words, or None if there is no such
        node.
        """
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
        """True if the pattern begins with a wildcard that must not match `$` topics."""
        grammar = self.grammar
        return grammar.hides and grammar.split(pattern)[0] in (grammar.one, grammar.many)

    def _walk(self, positions: _Positions, skip_hidden: bool) -> Iterator[V | Absent]:
        """Iterate depth first over the values of the topics that the pattern matches, and yield an
        Absent after every PAUSE nodes without a result.

        If `skip_hidden` is True, topics that are hidden from a leading wildcard are left out. Each
        entry of the stack is a node, the pattern positions that its topic has reached, and the
        words of the children that are still to be visited.

        `remove` never prunes a node above a stored topic, so the stack stays valid for every topic
        that is present throughout.
        """
        node = self._root
        here = positions.begin
        words: list[str] = []
        if here & positions.end and not isinstance(node.value, Absent):
            yield node.value
        if node.children is not None:
            words = positions.to_visit(here, node.children)
            if skip_hidden:
                words = [word for word in words if not self.grammar.hidden(word)]
        stack: list[tuple[_TopicNode[V], int, list[str]]] = [(node, here, words)]
        without_result = 0
        while stack:
            node, here, words = stack[-1]
            without_result += 1
            if without_result >= PAUSE:
                without_result = 0
                yield _ABSENT
            if not words or node.children is None:
                stack.pop()
                continue
            word = words.pop()
            child = node.children.get(word)
            if child is None:
                continue
            there = positions.follow(here, word)
            if there & positions.end and not isinstance(child.value, Absent):
                without_result = 0
                yield child.value
            if there and child.children is not None:
                words = positions.to_visit(there, child.children)
                if words:
                    stack.append((child, there, words))
