"""Matchers with one deliberate mistake each. The linearizability check must find each mistake."""

from __future__ import annotations

from typing import Any

from matching.cstrie import ConcurrentTrie
from matching.snapshot import Persistent
from tests.matching.concurrent.histories import PAIRS


class SingleCollect(ConcurrentTrie[int]):
    """A trie with the lookup of the articles, which may mix states.

    The lookup reads the contents of several I-nodes one after the other, while they may change.
    """

    def _unchanged(self, root: Any, inodes: list[Any], mains: list[Any]) -> bool:
        return True


class NoTombs(ConcurrentTrie[int]):
    """A trie that cuts off nodes that other threads may still change."""

    def _tomb(self, emptied: Any) -> Any:
        return emptied


class NoGenerations(ConcurrentTrie[int]):
    """A trie that replaces nodes by plain compare-and-set, without comparing the generation.

    So the trie writes into snapshots.
    """

    def _gcas(self, inode: Any, main: Any, changed: Any) -> bool:
        changed.previous = self._no_previous
        return bool(inode.main.compare_and_set(main, changed))


class SlowSnapshot(Persistent[int]):
    """A snapshot matcher that copies its pairs one by one while other threads continue."""

    def snapshot(self) -> Persistent[int]:
        copy: Persistent[int] = Persistent(self.grammar, self._kind)
        for pattern, subscriber in PAIRS:
            if (pattern, subscriber) in self:
                copy.subscribe(pattern, subscriber)
        return copy
