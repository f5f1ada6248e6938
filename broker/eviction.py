"""Eviction from a cache of bounded size: the oldest entries make room for a new entry.

A dict keeps its entries in the order of insertion. A cache that inserts an entry again whenever it
uses the entry therefore evicts the least recently used entry.

A cache that also removes first entries without inserting others uses an OrderedDict: a dict keeps
the slots of removed entries until it grows, and a search for the first entry passes all of them.
"""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def evict_oldest(entries: dict[K, V], count: int = 1) -> list[tuple[K, V]]:
    """Remove the `count` entries that were inserted first, and return them, the oldest first."""
    evicted = list(islice(entries.items(), count))
    for key, _ in evicted:
        del entries[key]
    return evicted
