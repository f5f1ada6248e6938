"""The articles' own walk of the trie: at every wildcard it tries all ways, one after the other.

    root --#--> O --b--> o        asked a.c.b: the ``#`` is left with `a.c.b`, `c.b`, `b` and nothing

Kept to be measured, not to be used. Its ``*`` costs what that of `trie` costs. But each ``#`` is
left with every tail of what remains of the topic, and two ways that meet again are walked twice: a
pattern of n ``#`` asked with a topic of L words costs about L to the n-th (`trie` visits every node
once a word at most). RabbitMQ's walk, the same one, took 909 ms for 5 ``#`` and 60 words. Time is
all that grows: the ways not yet tried are at most nodes of a branch x words, and a node that was
reached a thousand times is remembered once.

From article 5 (its section on the trie), and article 1 for ``*``.
"""

from __future__ import annotations

from matching.bucket import take
from matching.matcher import S
from matching.trie import Trie, TrieNode


class Backtracking(Trie[S]):
    """The trie, asked the old way.

    Lookups are exponential in the number of ``#`` of one pattern.
    """

    def find(self, topic: str, enough: bool) -> list[S]:
        grammar = self.grammar
        words = grammar.split(topic)
        end = len(words)
        hidden = grammar.hides and grammar.hidden(topic)
        # Where the walk has to come back to: a node, and how many words led there.
        ways: list[tuple[TrieNode[S], int]] = [(self._root, 0)]
        # Many ways may lead to one node: its subscribers are found once.
        reached: dict[TrieNode[S], None] = {}
        while ways:
            node, at = ways.pop()
            if node.many is not None and not (hidden and at == 0):
                for tail in range(at, end + 1):
                    ways.append((node.many, tail))
            if at == end:
                if node.bucket is not None:
                    reached[node] = None
                    if enough:
                        break
                continue
            if node.one is not None and not (hidden and at == 0):
                ways.append((node.one, at + 1))
            if node.children is not None:
                child = node.children.get(words[at])
                if child is not None:
                    ways.append((child, at + 1))
        found: list[S] = []
        for node in reached:
            take(node.bucket, found)
        return found
