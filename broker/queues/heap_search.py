"""Finds and removes one entry of a large heap without holding the event loop.

A heap is ordered by rank, and an entry is wanted by its sequence number, so each entry must be
compared. The comparison runs in slices, while entries come and go between two slices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import i64


class HeapSearch:
    """A search for the entry with a sequence number in a heap, from the end to the head.

    `heappop` moves entries only towards the head, where the search has not been. `heappush` moves
    entries away from the head, along one path. So the owner of the heap calls `on_push` after each
    push, and `on_push` looks for the wanted entry on this path.
    """

    def __init__(
        self, entries: list[Any], sequence_of: Callable[[Any], int], sequence: int
    ) -> None:
        self.entries = entries
        self._sequence_of = sequence_of
        self._sequence = sequence
        #: Entries with an index below this number were not compared yet.
        self._unseen: i64 = len(entries)

    @property
    def is_over(self) -> bool:
        """True if no entry of the heap has the sequence number."""
        return self._unseen == 0

    def on_push(self) -> None:
        """Handle a push, which may have moved the wanted entry into the part searched already.

        In this case, the search goes back to the wanted entry.
        """
        at: i64 = len(self.entries) - 1
        while at >= self._unseen:
            if self._sequence_of(self.entries[at]) == self._sequence:
                self._unseen = at + 1
                return
            at = (at - 1) >> 1

    def find(self, limit: i64) -> i64:
        """Compare up to `limit` further entries; return the index of the wanted entry, or -1."""
        entries, sequence_of = self.entries, self._sequence_of
        at: i64 = min(self._unseen, len(entries))
        end: i64 = max(0, at - limit)
        while at > end:
            at -= 1
            if sequence_of(entries[at]) == self._sequence:
                self._unseen = at + 1
                return at
        self._unseen = at
        return -1


def remove_at(entries: list[Any], at: i64) -> None:
    """Remove the entry with the index `at` from a heap. Takes logarithmic time, as heappop does.

    Do not call this for a queue that counts its bytes (HeapQueue.count_slice). The count would miss
    an entry that the removal moves to an index which the count has visited already.
    """
    last = entries.pop()
    size: i64 = len(entries)
    if at == size:
        return
    child: i64 = 2 * at + 1
    while child < size:
        if child + 1 < size and entries[child + 1] < entries[child]:
            child += 1
        if not entries[child] < last:
            break
        entries[at] = entries[child]
        at = child
        child = 2 * at + 1
    while at > 0 and last < entries[(at - 1) >> 1]:
        entries[at] = entries[(at - 1) >> 1]
        at = (at - 1) >> 1
    entries[at] = last
