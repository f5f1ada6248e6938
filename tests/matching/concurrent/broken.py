"""Matchers with one deliberate mistake each. The linearizability check must find each mistake."""

from __future__ import annotations

from typing import Any

from matching.cstrie import ConcurrentTrie
from matching.snapshot import Persistent
from tests.matching.concurrent.histories import PAIRS


class SingleCollect(ConcurrentTrie[int]):
    """Wrong on purpose: a trie whose lookup may mix two states of the trie.

    It is the lookup that the published articles describe. It reads the contents of several I-nodes
    one after the other, without a check that they have not changed in between.
    """

    def _unchanged(self, root: Any, inodes: list[Any], mains: list[Any]) -> bool:
        return True


class NoTombs(ConcurrentTrie[int]):
    """Wrong on purpose: a trie that removes an empty node without a mark (tomb) on the node.

    Another thread may still add a subscription to the removed node, which is lost then.
    """

    def _tomb(self, emptied: Any) -> Any:
        return emptied


class NoGenerations(ConcurrentTrie[int]):
    """Wrong on purpose: a trie whose changes may also change an earlier snapshot.

    It replaces nodes by a plain compare-and-set, without a comparison of the root's generation.
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
