"""Matchers with one mistake each, which the search for linearizability must find."""

from __future__ import annotations

from typing import Any

from matching.cstrie import ConcurrentTrie
from matching.snapshot import Persistent
from tests.matching.concurrent.histories import PAIRS


class SingleCollect(ConcurrentTrie[int]):
    """The articles' lookup: what it reads of one I-node after the other, it takes for one state."""

    def _unchanged(self, root: Any, inodes: list[Any], mains: list[Any]) -> bool:
        return True


class NoTombs(ConcurrentTrie[int]):
    """Cuts off nodes that others may still change."""

    def _tomb(self, emptied: Any) -> Any:
        return emptied


class NoGenerations(ConcurrentTrie[int]):
    """Exchanges by a plain compare-and-set, whatever generation the root has: writes into
    snapshots.
    """

    def _gcas(self, inode: Any, main: Any, changed: Any) -> bool:
        changed.previous = self._settled
        return bool(inode.main.compare_and_set(main, changed))


class SlowSnapshot(Persistent[int]):
    """Copies its pairs one by one while others go on."""

    def snapshot(self) -> Persistent[int]:
        copy: Persistent[int] = Persistent(self.grammar, self._kind)
        for pattern, subscriber in PAIRS:
            if (pattern, subscriber) in self:
                copy.subscribe(pattern, subscriber)
        return copy
