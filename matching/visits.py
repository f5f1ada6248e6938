"""Bounds the number of trie nodes that the lookup of one topic can visit.

    a.*.c, b.*.c      one mask: word * word      prefixes: word, word *, word * word      3 nodes
    *.*.c             one more mask              prefixes: *, * *, * * word               6 nodes

The mask of a pattern is the pattern with each literal word replaced by `word`. The lookup of one
topic visits at most one node for each prefix of a mask: two such nodes differ in a literal word,
and the topic has only one of the two words at this position. So the number of distinct prefixes is
an upper bound of the visited nodes, however many patterns there are. 100,000 patterns of devices
have a handful of masks. But 65,536 patterns that combine ``*`` and ``a`` in all ways in 16 levels
have 65,536 masks.

This rule changes behind a ``#``. Behind the first ``#``, the rest of the pattern may begin at every
word of the topic, so each prefix counts as many nodes as a topic has words. Behind a second ``#``,
a lookup can visit every node, so patterns are counted there with their literal words.
"""

from __future__ import annotations

from typing import Final

from matching.grammar import Grammar

#: The most words of an AMQP routing key, which has at most 255 bytes. (In MQTT no words follow a
#: ``#``.)
WORDS_MAX: Final = 128


class VisitBound:
    """An upper bound of the number of nodes that the lookup of one topic visits in a trie.

    The bound is computed for a set of patterns of one grammar, without building the trie. `nodes`
    is the bound. Memory: one dict entry per distinct prefix, with all literal words taken as equal.
    """

    __slots__ = ("_counts", "_words", "grammar", "nodes")

    def __init__(self, grammar: Grammar, words: int = WORDS_MAX) -> None:
        """Create the bound of an empty set of patterns, for topics of at most `words` words."""
        self.grammar: Final = grammar
        self._words: Final = words
        #: The most nodes that the lookup of one topic can visit, the root not counted.
        self.nodes = 0
        #: The number of patterns that have a prefix of this name (`_prefixes`), by name.
        self._counts: dict[str, int] = {}

    def add(self, pattern: str) -> None:
        """Add a pattern to the set, and update the bound `nodes`."""
        for prefix, nodes in self._prefixes(pattern):
            count = self._counts.get(prefix, 0)
            self._counts[prefix] = count + 1
            if not count:
                self.nodes += nodes

    def remove(self, pattern: str) -> None:
        """Remove a pattern, which must be in the set, and update the bound `nodes`."""
        for prefix, nodes in self._prefixes(pattern):
            count = self._counts[prefix] - 1
            if count:
                self._counts[prefix] = count
            else:
                del self._counts[prefix]
                self.nodes -= nodes

    def with_pattern(self, pattern: str) -> int:
        """Return the value that `nodes` would have with this pattern; do not add the pattern."""
        counts = self._counts
        return self.nodes + sum(
            nodes for prefix, nodes in self._prefixes(pattern) if prefix not in counts
        )

    def _prefixes(self, pattern: str) -> list[tuple[str, int]]:
        """Return a pair (name, nodes) for each prefix of the pattern.

        `name` is the prefix with each literal word replaced by "w". Behind a second ``#``, `name`
        is the prefix itself. `nodes` is the largest number of trie nodes that the lookup of one
        topic can visit for all prefixes with this name. The bound, an upper limit of all visited
        nodes, is the sum over the distinct names.
        """
        grammar = self.grammar
        one, many = grammar.one, grammar.many
        prefixes: list[tuple[str, int]] = []
        mask = path = ""
        passed = 0
        for word in grammar.split(pattern):
            mask += word if word in (one, many) else "w"
            path += grammar.separator + word
            if passed == 0:
                prefixes.append((mask, 1))
            else:
                prefixes.append((mask if passed == 1 else path, self._words))
            passed += word == many
        return prefixes
