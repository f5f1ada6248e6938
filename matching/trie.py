"""A trie of words, searched without backtracking: the standard algorithm.

    root --a--> o --*--> o [x]          a.*  -> x
      |         `---#--> O [y]          a.#  -> y
      `----#--> O --b--> o [z]          #.b  -> z

A lookup follows, for each word of the topic, the child of that word and the ``*`` child. Every node
has one parent, so a lookup visits no node twice in this way. A ``#`` at the end of a pattern
matches any rest of the topic and needs no walk. Only nodes below a ``#`` in the middle of a pattern
can be reached in several ways. They are searched as a nondeterministic automaton: a list of the
nodes that the last word led to, a list of the ``#`` nodes (drawn O) that stay active, and a set of
the ``#`` nodes already entered.

Costs: a lookup takes at most words x nodes steps, whatever the number of ``#``; usually it visits a
few nodes per word. A subscription takes O(words). Memory: 261 bytes per subscription for a million
device patterns. Choose this matcher for any mix of patterns. Above some 250,000 patterns, `shapes`
needs less than half the memory; `auto` changes to `shapes` at this number.

Source: articles 1 and 5 (listed in `matching`). Their search backtracks at each ``#`` and is
exponential in the number of ``#`` (see `backtracking`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matching.bucket import Bucket, PairCounts, holds, members, size, take, with_added, without
from matching.grammar import Grammar
from matching.matcher import Matcher, S, Search
from matching.trie_search import TrieNode, TrieSearch
from matching.trie_walk import cross

#: The most words in the pool, which stores one copy of each short word; a full pool is emptied. The
#: pool saves memory and, in lookups, cache misses. (With 1 million device patterns, a lookup takes
#: an eighth less time, and a subscription takes 261 bytes instead of 324.) Longer words are not
#: pooled, because the pool keeps words even after their last pattern is removed.
_POOLED: Final = 16_384
LONGEST_POOLED: Final = 64


class Trie(Matcher[S]):
    """The matcher for any number of patterns and any mix of wildcards."""

    def __init__(self, grammar: Grammar, tally: PairCounts[S] | None = None) -> None:
        """Create an empty trie.

        `tally` counts the patterns of each subscriber. A matcher that stores only a part of its
        patterns in this trie passes its own tally, which counts all of them.
        """
        super().__init__(grammar)
        self._root = self._new_node(0, False)
        self._tally: PairCounts[S] = PairCounts() if tally is None else tally
        self._pool: dict[str, str] = {}
        self._pairs = 0
        self._patterns = 0
        self._nodes = 1

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
        grammar = self.grammar
        grammar.check(pattern)
        return self.enter(grammar.split(pattern), subscriber)

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        words = self.grammar.split(pattern)
        path = self._path(words)
        if path is None or not holds(path[-1].bucket, subscriber):
            return False
        node = path[-1]
        node.bucket = without(node.bucket, subscriber)
        self._tally.remove(subscriber)
        self._pairs -= 1
        self._bucket_changed(node)
        if node.bucket is None:
            self._patterns -= 1
            self._prune(path, words)
        return True

    def match(self, topic: str) -> list[S]:
        subscribers = self.find(topic, False)
        return self._tally.distinct(subscribers) if self._tally.shared else subscribers

    def searches(self, topic: str, subscribers: list[S]) -> list[Search[S]]:
        grammar = self.grammar
        words = topic.split(grammar.separator) if topic else grammar.split(topic)
        return [TrieSearch(self._root, words, grammar.hides and grammar.hidden(topic), subscribers)]

    def matches_any(self, topic: str) -> bool:
        return len(self.find(topic, True)) > 0

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        grammar = self.grammar
        words: list[str] = []
        waiting: list[tuple[TrieNode, int, str]] = [(self._root, 0, "")]
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
        self._root = self._new_node(0, False)
        self._tally = PairCounts()
        self._pool = {}
        self._pairs = 0
        self._patterns = 0
        self._nodes = 1

    def stats(self) -> dict[str, int]:
        """Return the sizes of the trie.

        `shared` is the number of subscribers with several patterns: above 0, answers are
        deduplicated.
        """
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

    def enter(self, words: list[str], subscriber: S) -> bool:
        """Subscribe to the valid pattern of these words. Return False if the pair was present."""
        node = self._grow(words)
        if holds(node.bucket, subscriber):
            return False
        if node.bucket is None:
            self._patterns += 1
        self._tally.add(subscriber)
        node.bucket = with_added(node.bucket, subscriber)
        self._pairs += 1
        self._bucket_changed(node)
        return True

    def patterns(self) -> int:
        """Return the number of patterns."""
        return self._patterns

    def has_pattern(self, pattern: str) -> bool:
        """True if the pattern has a subscriber."""
        path = self._path(self.grammar.split(pattern))
        return path is not None and path[-1].bucket is not None

    def pop(self) -> tuple[list[str], Bucket[S]] | None:
        """Remove an arbitrary pattern and return its words and all its subscribers.

        Return None if the trie is empty.

        The counts of patterns per subscriber (the tally) do not change: the caller inserts the
        pattern into another matcher that uses the same counts.
        """
        if not self._patterns:
            return None
        grammar = self.grammar
        node = self._root
        path = [node]
        words: list[str] = []
        while True:
            if node.one is not None:
                words.append(grammar.one)
                node = node.one
            elif node.many is not None:
                words.append(grammar.many)
                node = node.many
            elif node.children is not None:
                # Take the newest child: Python finds the oldest key of a dict only by stepping over
                # all entries that were removed before it.
                word = next(reversed(node.children))
                words.append(word)
                node = node.children[word]
            else:
                break
            path.append(node)
        bucket = node.bucket
        node.bucket = None
        self._patterns -= 1
        self._pairs -= size(bucket)
        self._prune(path, words)
        return words, bucket

    def restore(self, words: list[str], bucket: Bucket[S]) -> None:
        """Insert a pattern that was popped from another matcher, with its subscribers.

        Both matchers share the counts of patterns per subscriber, so the counts do not change.
        """
        self._grow(words).bucket = bucket
        self._patterns += 1
        self._pairs += size(bucket)

    def find(self, topic: str, stop_at_first: bool) -> list[S]:
        """Return the subscribers of all matching patterns, maybe with duplicates.

        With `stop_at_first`, return at least one subscriber if any pattern matches.
        """
        subscribers: list[S] = []
        grammar = self.grammar
        words = topic.split(grammar.separator) if topic else grammar.split(topic)
        end = len(words)
        node = self._root
        at = 0
        if grammar.hides and grammar.hidden(topic):
            child = None if node.children is None else node.children.get(words[0])
            if child is None:
                return subscribers
            node = child
            at = 1
        # `*` nodes still to visit. The first is in a local variable, so that most lookups allocate
        # no list.
        turn: TrieNode | None = None
        turns: list[TrieNode] | None = None
        bucket: Bucket[S]
        while True:
            many = node.many
            if many is not None:
                bucket = many.bucket
                if bucket is not None:
                    if isinstance(bucket, (list, dict)):
                        if stop_at_first:
                            return [next(iter(bucket))]
                        take(bucket, subscribers)
                    else:
                        subscribers.append(bucket)
                if many.children is not None or many.one is not None or many.many is not None:
                    cross(many, words, at, subscribers)
                if stop_at_first and subscribers:
                    return subscribers
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
                        if stop_at_first:
                            return [next(iter(bucket))]
                        take(bucket, subscribers)
                    else:
                        subscribers.append(bucket)
                    if stop_at_first:
                        return subscribers
            if turn is not None:
                node = turn
                turn = None
            elif turns:
                node = turns.pop()
            else:
                return subscribers
            at = node.depth

    def _grow(self, words: list[str]) -> TrieNode:
        """Return the node of a pattern, creating the missing nodes on its path."""
        grammar = self.grammar
        one = grammar.one
        many = grammar.many
        node = self._root
        fork: TrieNode | None = None
        for depth, word in enumerate(words, 1):
            child: TrieNode | None
            if word == one:
                child = node.one
            elif word == many:
                child = node.many
            else:
                children = node.children
                if children is None:
                    children = node.children = {}
                child = children.get(word)
            if child is None:
                child = self._new_node(depth, word == many)
                self._nodes += 1
                if word == one:
                    node.one = child
                elif word == many:
                    node.many = child
                else:
                    assert node.children is not None
                    node.children[self._pooled(word)] = child
                if fork is None:
                    fork = node
            node = child
        if fork is not None:
            self._children_changed(fork)
        return node

    def _pooled(self, word: str) -> str:
        """Return the pool's copy of a word, so that equal words share memory.

        If the pool has no copy, return `word`, and add it to the pool unless it is long.
        """
        known = self._pool.get(word)
        if known is not None:
            return known
        if len(word) > LONGEST_POOLED:
            return word
        if len(self._pool) >= _POOLED:
            self._pool = {}
        self._pool[word] = word
        return word

    def _path(self, words: list[str]) -> list[TrieNode] | None:
        """Return the nodes from the root to the pattern's node, or None if there is no such
        node.
        """
        grammar = self.grammar
        node = self._root
        path = [node]
        for word in words:
            child: TrieNode | None = None
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

    def _prune(self, path: list[TrieNode], words: list[str]) -> None:
        """Remove the nodes at the end of the path that have no subscribers and no children."""
        grammar = self.grammar
        depth = len(words)
        while depth > 0:
            node = path[depth]
            if (
                node.bucket is not None
                or node.children is not None
                or node.one is not None
                or node.many is not None
            ):
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
            self._children_changed(parent)

    def _new_node(self, depth: int, many: bool) -> TrieNode:
        """Return a new node at this depth; `many` is True for a node of the wildcard ``#``.

        A subclass that stores more in each node overrides this method, `_children_changed` and
        `_bucket_changed`.
        """
        return TrieNode(depth)

    def _children_changed(self, node: TrieNode) -> None:
        """Do nothing: a hook for subclasses, called after a node has gained or lost a child."""

    def _bucket_changed(self, node: TrieNode) -> None:
        """Do nothing: a hook for subclasses, called after a node's subscribers have changed."""
