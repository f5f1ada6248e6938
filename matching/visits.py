"""Bounds the number of trie nodes that the lookup of one topic can visit.

    a.*.c, b.*.c      one mask: word * word      prefixes: word, word *, word * word      3 nodes
    *.*.c             one more mask              prefixes: *, * *, * * word               6 nodes

The mask of a pattern has only the positions of its words and of its wildcards. The same topic can
visit two nodes of one level only if their paths differ in the positions of ``*``: at a position
where both paths have a word, a topic has at most one of the two words. So the number of distinct
prefixes of masks is an upper bound, however many patterns there are. 100,000 patterns of devices
have a handful of masks. But 65,536 patterns that combine ``*`` and ``a`` in all ways in 16 levels
have 65,536 masks.

After a ``#`` with further words, the rest of the pattern may begin at every position of the topic,
so a topic can visit as many nodes of one mask as it has words. After a second ``#``, a topic can
visit every node, each at every position of the topic. There the bound counts nodes instead of
masks.
"""

from __future__ import annotations

from typing import Final

from matching.grammar import Grammar

#: The most words of an AMQP routing key, which has at most 255 bytes. (In MQTT no words follow a
#: ``#``.)
WORDS_MAX: Final = 128


class VisitBound:
    """An upper bound of the number of nodes that the lookup of one topic visits in a trie.

    The bound is computed for a set of patterns, without building the trie. The patterns have one
    grammar. Memory: one dict entry per distinct prefix, with all literal words counted as equal.
    """

    __slots__ = ("_counts", "_words", "grammar", "nodes")

    def __init__(self, grammar: Grammar, words: int = WORDS_MAX) -> None:
        """Create the bound of an empty set of patterns, for topics of at most `words` words."""
        self.grammar: Final = grammar
        self._words: Final = words
        #: The most nodes that the lookup of one topic can visit, the root not counted.
        self.nodes = 0
        #: The number of patterns for each prefix of a mask.
        self._counts: dict[str, int] = {}

    def add(self, pattern: str) -> None:
        """Add a pattern to the set whose bound is computed."""
        for prefix, nodes in self._prefixes(pattern):
            count = self._counts.get(prefix, 0)
            self._counts[prefix] = count + 1
            if not count:
                self.nodes += nodes

    def remove(self, pattern: str) -> None:
        """Remove a pattern from the set whose bound is computed; the pattern must be in the set."""
        for prefix, nodes in self._prefixes(pattern):
            count = self._counts[prefix] - 1
            if count:
                self._counts[prefix] = count
            else:
                del self._counts[prefix]
                self.nodes -= nodes

    def with_pattern(self, pattern: str) -> int:
        """Return the bound that the set would have with this pattern added; change nothing."""
        counts = self._counts
        return self.nodes + sum(
            nodes for prefix, nodes in self._prefixes(pattern) if prefix not in counts
        )

    def _prefixes(self, pattern: str) -> list[tuple[str, int]]:
        """Return a pair (name, nodes) for each prefix of the pattern.

        The bound counts prefixes of the same name only once. The name is the prefix with every
        literal word replaced by "w"; after a second ``#``, it is the prefix itself. `nodes` is the
        largest number of nodes that the lookup of one topic can visit for this name.
        """
        grammar = self.grammar
        one, many = grammar.one, grammar.many
        found: list[tuple[str, int]] = []
        mask = path = ""
        passed = 0
        for word in grammar.split(pattern):
            mask += word if word in (one, many) else "w"
            path += grammar.separator + word
            if passed == 0:
                found.append((mask, 1))
            else:
                found.append((mask if passed == 1 else path, self._words))
            passed += word == many
        return found
