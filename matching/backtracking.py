"""A trie search with backtracking: at every wildcard, the search tries each continuation, one
after the other.

    root --#--> O --b--> o        for a.c.b, `#` is tried with the rests a.c.b, c.b, b and nothing

The algorithm is kept as a reference for measurements; use `trie` instead. A ``*`` costs the same as
in `trie`. Each ``#`` is tried with every rest of the topic, and if two continuations reach the same
node, both are followed. So a pattern with n ``#`` costs about L^n steps for a topic of L words.
(`trie` visits every node at most once per word.) RabbitMQ uses the same algorithm; its search took
909 ms for 5 ``#`` and 60 words. Memory is bounded: at most (nodes of a branch x words)
continuations wait to be tried, and each node found is recorded once.

Source: article 5 (its section on the trie), and article 1 for ``*``; `matching` lists the articles.
"""

from __future__ import annotations

from matching.bucket import take
from matching.matcher import S
from matching.trie import Trie
from matching.trie_search import TrieNode


class Backtracking(Trie[S]):
    """A trie whose lookups backtrack at wildcards.

    A lookup is exponential in the number of ``#`` in one pattern.
    """

    def find(self, topic: str, stop_at_first: bool) -> list[S]:
        grammar = self.grammar
        words = grammar.split(topic)
        end = len(words)
        hidden = grammar.hides and grammar.hidden(topic)
        # Positions still to be searched: a node, and the number of topic words that led to the
        # node.
        pending: list[tuple[TrieNode, int]] = [(self._root, 0)]
        # A node may be found in several ways; its subscribers are reported once.
        matched: dict[TrieNode, None] = {}
        while pending:
            node, at = pending.pop()
            if node.many is not None and not (hidden and at == 0):
                for tail in range(at, end + 1):
                    pending.append((node.many, tail))
            if at == end:
                if node.bucket is not None:
                    matched[node] = None
                    if stop_at_first:
                        break
                continue
            if node.one is not None and not (hidden and at == 0):
                pending.append((node.one, at + 1))
            if node.children is not None:
                child = node.children.get(words[at])
                if child is not None:
                    pending.append((child, at + 1))
        subscribers: list[S] = []
        for node in matched:
            take(node.bucket, subscribers)
        return subscribers
