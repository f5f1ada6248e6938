"""A trie of words, walked without backtracking.

    root --a--> o --*--> o [x]          a.*  -> x
      |         `---#--> O [y]          a.#  -> y
      `----#--> O --b--> o [z]          #.b  -> z

Every node has one parent, so a walk that follows words and ``*`` meets no node twice, and a ``#`` that ends its
pattern takes the rest of the topic whatever it is: neither needs to remember where the walk has been. Only behind
a ``#`` from which the trie goes on may two ways meet in one node, and only in a ``#`` node (drawn O), the one kind
that is entered and never left. So what lies behind such a ``#`` is walked apart, as an NFA: a list of the nodes to
which one more word led, a list of the ``#`` nodes that stay, and a set of these. A lookup costs at most words x
nodes, whatever the number of ``#`` in one pattern or in many.

From articles 1 and 5, whose walk backtracks at each ``#``: exponential in their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from matching.bucket import Bucket, Tally, holds, joined, members, parted, take
from matching.grammar import Grammar
from matching.matcher import Matcher, S


class _Node(Generic[S]):
    """What may follow a prefix, and who subscribed to the prefix itself."""

    __slots__ = ("bucket", "children", "depth", "many", "one")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.children: dict[str, _Node[S]] | None = None
        self.one: _Node[S] | None = None
        self.many: _Node[S] | None = None
        self.bucket: Bucket[S] = None


class Trie(Matcher[S]):
    """The default matcher: good at every size and every mix of wildcards."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._root: _Node[S] = _Node(0)
        self._tally: Tally[S] = Tally()
        self._pairs = 0
        self._patterns = 0
        self._nodes = 1

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # what cannot be hashed is refused before anything changes
        grammar = self.grammar
        grammar.check(pattern)
        one = grammar.one
        many = grammar.many
        node = self._root
        for word in grammar.split(pattern):
            child: _Node[S] | None
            if word == one:
                child = node.one
                if child is None:
                    child = node.one = _Node(node.depth + 1)
                    self._nodes += 1
            elif word == many:
                child = node.many
                if child is None:
                    child = node.many = _Node(node.depth + 1)
                    self._nodes += 1
            else:
                children = node.children
                if children is None:
                    children = node.children = {}
                child = children.get(word)
                if child is None:
                    child = children[word] = _Node(node.depth + 1)
                    self._nodes += 1
            node = child
        if holds(node.bucket, subscriber):
            return False
        if node.bucket is None:
            self._patterns += 1
        self._tally.add(subscriber)
        node.bucket = joined(node.bucket, subscriber)
        self._pairs += 1
        return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        words = self.grammar.split(pattern)
        path = self._path(words)
        if path is None or not holds(path[-1].bucket, subscriber):
            return False
        node = path[-1]
        node.bucket = parted(node.bucket, subscriber)
        self._tally.remove(subscriber)
        self._pairs -= 1
        if node.bucket is None:
            self._patterns -= 1
            self._prune(path, words)
        return True

    def match(self, topic: str) -> list[S]:
        found = self.reach(topic, False)
        return self._tally.distinct(found) if self._tally.shared else found

    def matches_any(self, topic: str) -> bool:
        return len(self.reach(topic, True)) > 0

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        grammar = self.grammar
        words: list[str] = []
        waiting: list[tuple[_Node[S], int, str]] = [(self._root, 0, "")]
        while waiting:
            node, depth, word = waiting.pop()
            if depth:
                del words[depth - 1 :]
                words.append(word)
            for subscriber in members(node.bucket):
                yield grammar.separator.join(words), subscriber
            depth += 1
            if node.one is not None:
                waiting.append((node.one, depth, grammar.one))
            if node.many is not None:
                waiting.append((node.many, depth, grammar.many))
            if node.children is not None:
                for word, child in node.children.items():
                    waiting.append((child, depth, word))

    def clear(self) -> None:
        self._root = _Node(0)
        self._tally = Tally()
        self._pairs = 0
        self._patterns = 0
        self._nodes = 1

    def stats(self) -> dict[str, int]:
        """`shared` is the number of subscribers with several patterns: above 0, answers are searched for repeats."""
        return {
            "subscriptions": self._pairs,
            "patterns": self._patterns,
            "nodes": self._nodes,
            "shared": self._tally.shared,
        }

    def __len__(self) -> int:
        return self._pairs

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        path = self._path(self.grammar.split(pattern))
        return path is not None and holds(path[-1].bucket, subscriber)

    def reach(self, topic: str, enough: bool) -> list[S]:
        """Subscribers of all patterns that match; those of the first found only, if that is enough."""
        found: list[S] = []
        grammar = self.grammar
        words = topic.split(grammar.separator) if topic else grammar.split(topic)
        end = len(words)
        node = self._root
        at = 0
        if grammar.hides and grammar.hidden(topic):
            child = None if node.children is None else node.children.get(words[0])
            if child is None:
                return found
            node = child
            at = 1
        # The nodes where `*` turned off from a word: the first one in a local, which saves most lookups a list.
        turn: _Node[S] | None = None
        turns: list[_Node[S]] | None = None
        while True:
            many = node.many
            if many is not None:
                bucket = many.bucket
                if bucket is not None:
                    if isinstance(bucket, (list, dict)):
                        take(bucket, found)
                    else:
                        found.append(bucket)
                if many.children is not None or many.one is not None or many.many is not None:
                    _cross(many, words, at, found)
                if enough and found:
                    return found
            if at < end:
                children = node.children
                one = node.one
                child = None if children is None else children.get(words[at])
                at += 1
                if child is not None:
                    if one is not None:
                        if turn is None:
                            turn = one
                        elif turns is None:
                            turns = [one]
                        else:
                            turns.append(one)
                    node = child
                    continue
                if one is not None:
                    node = one
                    continue
            else:
                bucket = node.bucket
                if bucket is not None:
                    if isinstance(bucket, (list, dict)):
                        take(bucket, found)
                    else:
                        found.append(bucket)
                    if enough:
                        return found
            if turn is not None:
                node = turn
                turn = None
            elif turns:
                node = turns.pop()
            else:
                return found
            at = node.depth

    def _path(self, words: list[str]) -> list[_Node[S]] | None:
        """The nodes from the root to that of a pattern, or None where no such pattern may be."""
        grammar = self.grammar
        node = self._root
        path = [node]
        for word in words:
            child: _Node[S] | None = None
            if word == grammar.one:
                child = node.one
            elif word == grammar.many:
                child = node.many
            elif node.children is not None:
                child = node.children.get(word)
            if child is None:
                return None
            node = child
            path.append(node)
        return path

    def _prune(self, path: list[_Node[S]], words: list[str]) -> None:
        """Cut off the nodes at the end of the path that lead nowhere now."""
        grammar = self.grammar
        depth = len(words)
        while depth > 0:
            node = path[depth]
            if node.bucket is not None or node.children is not None or node.one is not None or node.many is not None:
                return
            depth -= 1
            parent = path[depth]
            word = words[depth]
            if word == grammar.one:
                parent.one = None
            elif word == grammar.many:
                parent.many = None
            else:
                assert parent.children is not None
                del parent.children[word]
                if not parent.children:
                    parent.children = None
            self._nodes -= 1


def _cross(start: _Node[S], words: list[str], at: int, found: list[S]) -> None:
    """Append whose patterns, behind a ``#``, match the words from there on; those of the ``#`` are the caller's.

    `stays` are the ``#`` nodes entered so far, `moving` those nodes that the last word led to.
    """
    entered: set[_Node[S]] = {start}
    stays: list[_Node[S]] = []
    moving: list[_Node[S]] = []
    _enter(start.many, entered, stays, found)
    stays.append(start)
    end = len(words)
    while at < end:
        word = words[at]
        at += 1
        following: list[_Node[S]] = []
        for node in stays + moving:
            children = node.children
            if children is not None:
                child = children.get(word)
                if child is not None:
                    following.append(child)
            one = node.one
            if one is not None:
                following.append(one)
        for node in following:
            if node.many is not None:
                _enter(node.many, entered, stays, found)
        moving = following
    for node in moving:
        take(node.bucket, found)


def _enter(node: _Node[S] | None, entered: set[_Node[S]], stays: list[_Node[S]], found: list[S]) -> None:
    """Go into a ``#`` node, and into those that follow it, unless that was done before."""
    while node is not None and node not in entered:
        entered.add(node)
        take(node.bucket, found)
        if node.children is not None or node.one is not None:
            stays.append(node)
        node = node.many
