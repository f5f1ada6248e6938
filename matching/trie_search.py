"""The nodes of a trie, and a lookup that can pause: it continues in a later turn of an event loop.

`Trie.find` answers at once and is faster. A `TrieSearch` is for a topic that may visit so many
nodes that a single call would take too long. For each word of the topic, it takes these steps, and
may pause between any two of them:

    opening     for each node that the last word led to: enter the ``#`` nodes below it
    walking     for each of these nodes, and each ``#`` node entered so far: follow the word
    closing     after the last word: take the subscribers of the nodes that this word led to

The trie may change during a pause. A search finds every subscriber that was subscribed during the
whole search; it may also find subscribers that were added or removed meanwhile.
"""

from __future__ import annotations

from typing import Any

from matching.bucket import Bucket, size, take
from matching.matcher import S, Search

#: The number of subscribers in one bucket that cost as much as one visited node.
_TAKEN_PER_STEP = 16


class TrieNode:
    """A trie node: its children by word and wildcard, and the subscribers of the pattern ending
    here.

    The class is not generic, because an object of a compiled generic class takes 16 bytes more.
    """

    __slots__ = ("bucket", "children", "depth", "many", "one")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.children: dict[str, TrieNode] | None = None
        self.one: TrieNode | None = None
        self.many: TrieNode | None = None
        #: The subscribers of the pattern that ends at this node, as a `Bucket`.
        self.bucket: Any = None


class TrieSearch(Search[S]):
    """A lookup in a trie, which visits one node per step."""

    __slots__ = (
        "_at",
        "_entered",
        "_following",
        "_index",
        "_moving",
        "_opened",
        "_stays",
        "_words",
    )

    def __init__(
        self, root: TrieNode, words: list[str], hidden: bool, subscribers: list[S]
    ) -> None:
        """Create a search for a topic of these words.

        `hidden` is True if wildcards at the beginning of a pattern do not match the topic.
        """
        super().__init__(subscribers)
        self._words = words
        #: The number of words that were followed.
        self._at = 0
        #: The nodes that the last followed word led to.
        self._moving: list[TrieNode] = [root]
        if hidden:
            child = None if root.children is None else root.children.get(words[0])
            self._moving = [] if child is None else [child]
            self._at = 1
        #: The number of nodes in `_moving` whose ``#`` nodes were entered.
        self._opened = 0
        #: The nodes that the present word leads to.
        self._following: list[TrieNode] = []
        #: The ``#`` nodes that were entered, and those of them that have children other than ``#``.
        self._entered: set[TrieNode] = set()
        self._stays: list[TrieNode] = []
        #: While the present word is followed: the number of nodes from which it was followed. After
        #: the last word: the number of nodes in `_moving` whose subscribers were taken.
        self._index = 0

    def advance(self, steps: int) -> int:
        words = self._words
        while steps > 0:
            moving = self._moving
            if self._opened < len(moving):
                many = moving[self._opened].many
                self._opened += 1
                steps -= 1
                while many is not None and many not in self._entered:
                    self._entered.add(many)
                    steps -= self._take(many.bucket)
                    if many.children is not None or many.one is not None:
                        self._stays.append(many)
                    many = many.many
            elif self._at < len(words):
                stays = self._stays
                if self._index < len(stays) + len(moving):
                    node = (
                        stays[self._index]
                        if self._index < len(stays)
                        else moving[self._index - len(stays)]
                    )
                    self._index += 1
                    steps -= 1
                    if node.children is not None:
                        child = node.children.get(words[self._at])
                        if child is not None:
                            self._following.append(child)
                    if node.one is not None:
                        self._following.append(node.one)
                else:
                    self._at += 1
                    self._moving, self._following = self._following, []
                    self._opened = self._index = 0
                    if not self._moving and not stays:
                        self.done = True
                        return steps
            elif self._index < len(moving):
                steps -= self._take(moving[self._index].bucket)
                self._index += 1
            else:
                self.done = True
                return steps
        return 0

    def _take(self, bucket: Bucket[S]) -> int:
        """Append the subscribers of a bucket to `subscribers`; return the cost of this in steps."""
        take(bucket, self.subscribers)
        return 1 + size(bucket) // _TAKEN_PER_STEP
