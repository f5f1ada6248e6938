"""A persistent map (hash array mapped trie): adding a pair returns a new map that shares most nodes
with the old map.

    [ . . o . o . ]                      a fork of 16: four bits of the key's hash choose the entry
          |   `----- {k: v, k: v, ...}   a leaf: a dict of at most 64 pairs
          `--------- [ o . . . o . ]     the next four bits
                       `---- {k: v}

A change copies one leaf and the log16 n forks above it. A lookup takes log16 n steps and probes one
dict.

Source: article 2 (listed in `matching`). In the article, a node has 32 branches and a bitmap of the
branches present. Here, a fork is a list of 16 entries, because counting bits is slow in Python.
Keys with colliding hashes need no special case (the article has L-nodes for them). Such keys share
a leaf, and a leaf may grow beyond 64 pairs when all bits of the hash are used.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: A leaf, or a fork: a list of 16 tables.
Table: TypeAlias = dict[K, V] | list[Any]

_BITS: Final = 4
_FORK: Final = 16
#: The most pairs in a leaf. A fork with at most half as many pairs becomes a leaf again.
_LEAF: Final = 64
#: The bits of a hash that are used: 28, which is enough for seven levels of forks, so for 268
#: million leaves.
_HASH: Final = (1 << 28) - 1
_DEEPEST: Final = 7


class Hamt(Generic[K, V]):
    """An immutable map from hashable keys to values that are not None, with at least one pair."""

    __slots__ = ("_size", "top")

    def __init__(self, top: Table[K, V], size: int) -> None:
        #: The root table. A frequent reader may probe the table directly when it is a dict. The
        #: table must not be changed.
        self.top = top
        self._size = size

    def __len__(self) -> int:
        return self._size

    def get(self, key: K) -> V | None:
        """Return the key's value, or None if the key is absent."""
        table: Any = self.top
        if isinstance(table, list):
            bits = hash(key) & _HASH
            while isinstance(table, list):
                table = table[bits & (_FORK - 1)]
                bits >>= _BITS
        leaf: dict[K, V] = table
        return leaf.get(key)

    def put(self, key: K, value: V) -> Hamt[K, V]:
        """Return a map with the pairs of this map, in which `key` has the value `value`."""
        size = self._size if self.get(key) is not None else self._size + 1
        return Hamt(_put(self.top, hash(key) & _HASH, 0, key, value), size)

    def without(self, key: K) -> Hamt[K, V] | None:
        """Return a map without this key, which must be present; None if the map would be empty."""
        if self._size == 1:
            return None
        return Hamt(_without(self.top, hash(key) & _HASH, key), self._size - 1)

    def leaves(self) -> list[dict[K, V]]:
        """Return all pairs of the map, in dicts that must not be changed."""
        leaves: list[dict[K, V]] = []
        waiting: list[Table[K, V]] = [self.top]
        while waiting:
            table = waiting.pop()
            if isinstance(table, list):
                waiting.extend(table)
            else:
                leaves.append(table)
        return leaves


def only(key: K, value: V) -> Hamt[K, V]:
    """Return a map with this single pair."""
    return Hamt({key: value}, 1)


def _put(table: Table[K, V], bits: int, depth: int, key: K, value: V) -> Table[K, V]:
    """Return a copy of the table with the pair added.

    `depth` is the number of tables above this one. `bits` are the bits of the key's hash that these
    tables have not used.
    """
    if isinstance(table, list):
        fork = table.copy()
        at = bits & (_FORK - 1)
        fork[at] = _put(table[at], bits >> _BITS, depth + 1, key, value)
        return fork
    leaf = table.copy()
    leaf[key] = value
    if len(leaf) <= _LEAF or depth == _DEEPEST:
        return leaf
    leaves: list[dict[K, V]] = [{} for _ in range(_FORK)]
    for each, its in leaf.items():
        leaves[((hash(each) & _HASH) >> (_BITS * depth)) & (_FORK - 1)][each] = its
    return leaves


def _without(table: Table[K, V], bits: int, key: K) -> Table[K, V]:
    """Return a copy of the table without the key; a fork with few remaining pairs becomes a leaf.

    `bits` are the bits of the key's hash that the tables above this one have not used.
    """
    if isinstance(table, list):
        fork = table.copy()
        at = bits & (_FORK - 1)
        fork[at] = _without(table[at], bits >> _BITS, key)
        return _gathered(fork)
    leaf = table.copy()
    del leaf[key]
    return leaf


def _gathered(fork: list[Any]) -> Table[Any, Any]:
    """Return the fork; if it has at most _LEAF // 2 pairs, return a leaf with all its pairs
    instead.
    """
    size = 0
    for table in fork:
        if isinstance(table, list):
            return fork
        size += len(table)
    if size * 2 > _LEAF:
        return fork
    leaf: dict[Any, Any] = {}
    for table in fork:
        leaf.update(table)
    return leaf
