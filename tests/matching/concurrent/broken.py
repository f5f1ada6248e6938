"""Matchers with one deliberate mistake each. The linearizability check must find each mistake."""

from __future__ import annotations

from typing import Any

from matching.cstrie import ConcurrentTrie
from matching.snapshot import Persistent
from tests.matching.concurrent.histories import PAIRS


class SingleCollect(ConcurrentTrie[int]):
    """Wrong on purpose: a trie whose lookup may combine nodes from two states of the trie.

    The lookup reads the contents of several I-nodes one after the other, and does not check that
    the contents are still the same at the end. The published articles describe such a lookup.
    """

    def _unchanged(self, root: Any, inodes: list[Any], mains: list[Any]) -> bool:
        return True


class NoTombs(ConcurrentTrie[int]):
    """Wrong on purpose: a trie that removes an empty node without a mark (tomb) on the node.

    Another thread may still add a subscription to the removed node: the subscription is lost.
    """

    def _tomb(self, emptied: Any) -> Any:
        return emptied


class NoGenerations(ConcurrentTrie[int]):
    """Wrong on purpose: a trie whose changes may also change an earlier snapshot.

    The trie replaces nodes by a plain compare-and-set. It does not compare the generation of the
    node with the generation of the root.
    """

    def _gcas(self, inode: Any, main: Any, changed: Any) -> bool:
        changed.previous = self._no_previous
        return bool(inode.main.compare_and_set(main, changed))


class SlowSnapshot(Persistent[int]):
    """Wrong on purpose: a matcher whose snapshot is not made in one moment.

    The snapshot copies the subscriptions one by one, while other threads make changes.
    """

    def snapshot(self) -> Persistent[int]:
        copy: Persistent[int] = Persistent(self.grammar, self._kind)
        for pattern, subscriber in PAIRS:
            if (pattern, subscriber) in self:
                copy.subscribe(pattern, subscriber)
        return copy
