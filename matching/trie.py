"""A trie of words, walked without backtracking.

    root --a--> o --*--> o [x]          a.*  -> x
      |         `---#--> O [y]          a.#  -> y
      `----#--> O --b--> o [z]          #.b  -> z

Every node has one parent, so a walk that follows words and ``*`` meets no node twice, and a ``#``
that ends its pattern takes the rest of the topic whatever it is: neither needs to remember where
the walk has been. Only behind a ``#`` from which the trie goes on may two ways meet in one node,
and only in a ``#`` node (drawn O), the one kind that is entered and never left. So what lies behind
such a ``#`` is walked apart, as an NFA: a list of the nodes to which one more word led, a list of
the ``#`` nodes that stay, and a set of these. A lookup costs at most words x nodes, whatever the
number of ``#`` in one pattern or in many.

From articles 1 and 5, whose walk backtracks at each ``#``: exponential in their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic

from matching.bucket import Bucket, PairCounts, holds, members, size, take, with_added, without
from matching.grammar import Grammar
from matching.matcher import Matcher, S

#: So many different words are held only once, whatever number of nodes they lead to; then others
#: are. Besides the memory, a lookup finds them in the processor's cache. (1M patterns of devices:
#: an eighth less time, 261 octets a subscription instead of 324.) Longer words are not, since words
#: are held here after their last pattern, too.
_POOLED: Final = 16_384
LONGEST_POOLED: Final = 64


class TrieNode(Generic[S]):
    """What may follow a prefix, and who subscribed to the prefix itself."""

    __slots__ = ("bucket", "children", "depth", "many", "one")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.children: dict[str, TrieNode[S]] | None = None
        self.one: TrieNode[S] | None = None
        self.many: TrieNode[S] | None = None
        self.bucket: Bucket[S] = None


class Trie(Matcher[S]):
    """Good at every size and every mix of wildcards."""

    def __init__(self, grammar: Grammar, tally: PairCounts[S] | None = None) -> None:
        """A matcher that keeps some of its patterns in this trie and some elsewhere hands over the
        tally of both.
        """
        super().__init__(grammar)
        self._root = self._fresh(0, False)
        self._tally: PairCounts[S] = PairCounts() if tally is None else tally
        self._pool: dict[str, str] = {}
        self._pairs = 0
        self._patterns = 0
        self._nodes = 1

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # what cannot be hashed is refused before anything changes
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
        self._served(node)
        if node.bucket is None:
            self._patterns -= 1
            self._prune(path, words)
        return True

    def match(self, topic: str) -> list[S]:
        found = self.find(topic, False)
        return self._tally.distinct(found) if self._tally.shared else found

    def matches_any(self, topic: str) -> bool:
        return len(self.find(topic, True)) > 0

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        grammar = self.grammar
        words: list[str] = []
        waiting: list[tuple[TrieNode[S], int, str]] = [(self._root, 0, "")]
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
        self._root = self._fresh(0, False)
        self._tally = PairCounts()
        self._pool = {}
        self._pairs = 0
        self._patterns = 0
        self._nodes = 1

    def stats(self) -> dict[str, int]:
        """`shared` is the number of subscribers with several patterns: above 0, answers are
        searched for repeats.
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
        """Subscribe to a pattern, given as its words, that is known to be valid."""
        node = self._grown(words)
        if holds(node.bucket, subscriber):
            return False
        if node.bucket is None:
            self._patterns += 1
        self._tally.add(subscriber)
        node.bucket = with_added(node.bucket, subscriber)
        self._pairs += 1
        self._served(node)
        return True

    def patterns(self) -> int:
        """How many patterns there are."""
        return self._patterns

    def knows(self, pattern: str) -> bool:
        """Whether anybody subscribed to the pattern."""
        path = self._path(self.grammar.split(pattern))
        return path is not None and path[-1].bucket is not None

    def pop(self) -> tuple[list[str], Bucket[S]] | None:
        """Take out one pattern, whichever is near, as its words and all its subscribers; None if
        there is none.

        They are on their way to another matcher with the same tally, which so is not told.
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
                # The newest child: to look for the oldest, a dict steps over all that are gone.
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
        """Put in a pattern that was lifted elsewhere."""
        self._grown(words).bucket = bucket
        self._patterns += 1
        self._pairs += size(bucket)

    def find(self, topic: str, enough: bool) -> list[S]:
        """Subscribers of all patterns that match; one or some of them, if that is enough."""
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
        # The nodes where `*` turned off from a word: the first one in a local, which saves most
        # lookups a list.
        turn: TrieNode[S] | None = None
        turns: list[TrieNode[S]] | None = None
        while True:
            many = node.many
            if many is not None:
                bucket = many.bucket
                if bucket is not None:
                    if isinstance(bucket, (list, dict)):
                        if enough:
                            return [next(iter(bucket))]
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
                        if enough:
                            return [next(iter(bucket))]
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

    def _grown(self, words: list[str]) -> TrieNode[S]:
        """The node of a pattern, with all that is missing on the way to it."""
        grammar = self.grammar
        one = grammar.one
        many = grammar.many
        node = self._root
        fork: TrieNode[S] | None = None
        for depth, word in enumerate(words, 1):
            child: TrieNode[S] | None
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
                child = self._fresh(depth, word == many)
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
            self._turned(fork)
        return node

    def _pooled(self, word: str) -> str:
        """An equal word that came before, if there is one."""
        known = self._pool.get(word)
        if known is not None:
            return known
        if len(word) > LONGEST_POOLED:
            return word
        if len(self._pool) >= _POOLED:
            self._pool = {}
        self._pool[word] = word
        return word

    def _path(self, words: list[str]) -> list[TrieNode[S]] | None:
        """The nodes from the root to that of a pattern, or None where no such pattern may be."""
        grammar = self.grammar
        node = self._root
        path = [node]
        for word in words:
            child: TrieNode[S] | None = None
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

    def _prune(self, path: list[TrieNode[S]], words: list[str]) -> None:
        """Cut off the nodes at the end of the path that lead nowhere now."""
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
            self._turned(parent)

    def _fresh(self, depth: int, many: bool) -> TrieNode[S]:
        """A new node.

        This and the two below are for algorithms that keep something about each node.
        """
        return TrieNode(depth)

    def _turned(self, node: TrieNode[S]) -> None:
        """The node has another child now, or lost one."""

    def _served(self, node: TrieNode[S]) -> None:
        """The node's bucket is another one now."""


def _cross(start: TrieNode[S], words: list[str], at: int, found: list[S]) -> None:
    """Append whose patterns, behind a ``#``, match the words from there on; those of the ``#`` are
    the caller's.
    """
    entered: set[TrieNode[S]] = {start}
    stays: list[TrieNode[S]] = []
    _enter(start.many, entered, stays, found)
    stays.append(start)
    advance(stays, [], entered, words, at, found)


def advance(
    stays: list[TrieNode[S]],
    moving: list[TrieNode[S]],
    entered: set[TrieNode[S]],
    words: list[str],
    at: int,
    found: list[S],
) -> None:
    """Walk on from these nodes and append whose patterns match the words from there on.

    `entered` are the ``#`` nodes met so far, whose own subscribers the caller has; `stays` those of
    them from which the trie goes on.
    """
    end = len(words)
    while at < end:
        word = words[at]
        at += 1
        following: list[TrieNode[S]] = []
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
            many = node.many
            if many is not None and many not in entered:
                _enter(many, entered, stays, found)
        moving = following
    for node in moving:
        take(node.bucket, found)


def _enter(
    node: TrieNode[S] | None, entered: set[TrieNode[S]], stays: list[TrieNode[S]], found: list[S]
) -> None:
    """Go into a ``#`` node, and into those that follow it, unless that was done before."""
    while node is not None and node not in entered:
        entered.add(node)
        take(node.bucket, found)
        if node.children is not None or node.one is not None:
            stays.append(node)
        node = node.many
