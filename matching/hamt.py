"""A map that never changes: to put a pair into it is to make another, which shares with it all but
one path.

    [ . . o . o . ]                      a fork of 16: four bits of the key's hash choose
          |   `----- {k: v, k: v, ...}   a leaf: a dict of at most 64 pairs
          `--------- [ o . . . o . ]     the next four bits
                       `---- {k: v}

A leaf is copied to be changed, and so are the forks above it: log16 n of them. A lookup takes the
same steps and asks one dict.

The hash array mapped trie of article 2. That one has 32 branches a node and a bitmap that says
which of them are there; but to count bits is dear in Python, and to ask a dict is not. Keys whose
hashes collide need nothing of their own (the article's L-nodes): they share a leaf, which may be
larger where no bits are left.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: A leaf, or a fork: a list of tables.
Table: TypeAlias = dict[K, V] | list[Any]

_BITS: Final = 4
_FORK: Final = 16
#: A leaf of more pairs becomes a fork, and a fork of at most half as many a leaf.
_LEAF: Final = 64
#: So many bits of a hash are used: seven forks, 268 million leaves.
_HASH: Final = (1 << 28) - 1
_DEEPEST: Final = 7


class Hamt(Generic[K, V]):
    """A map of hashable keys to values that are not None. It has at least one pair."""

    __slots__ = ("_size", "top")

    def __init__(self, top: Table[K, V], size: int) -> None:
        #: A dict of all pairs while they are few: who asks very often may ask it without `get`.
        #: Never to be changed.
        self.top = top
        self._size = size

    def __len__(self) -> int:
        return self._size

    def get(self, key: K) -> V | None:
        """The value of the key, None if it has none."""
        table: Any = self.top
        if isinstance(table, list):
            bits = hash(key) & _HASH
            while isinstance(table, list):
                table = table[bits & (_FORK - 1)]
                bits >>= _BITS
        leaf: dict[K, V] = table
        return leaf.get(key)

    def put(self, key: K, value: V) -> Hamt[K, V]:
        """The map in which the key has this value."""
        size = self._size if self.get(key) is not None else self._size + 1
        return Hamt(_put(self.top, hash(key) & _HASH, 0, key, value), size)

    def without(self, key: K) -> Hamt[K, V] | None:
        """The map without this key, which it has; None if nothing is left."""
        if self._size == 1:
            return None
        return Hamt(_without(self.top, hash(key) & _HASH, key), self._size - 1)

    def leaves(self) -> list[dict[K, V]]:
        """All pairs, in dicts that must not be changed."""
        found: list[dict[K, V]] = []
        waiting: list[Table[K, V]] = [self.top]
        while waiting:
            table = waiting.pop()
            if isinstance(table, list):
                waiting.extend(table)
            else:
                found.append(table)
        return found


def only(key: K, value: V) -> Hamt[K, V]:
    """The map with this pair and no other."""
    return Hamt({key: value}, 1)


def _put(table: Table[K, V], bits: int, depth: int, key: K, value: V) -> Table[K, V]:
    """The table with the pair; `bits` are those of the hash that no fork above has used."""
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
    """The table without the key, a leaf if so few pairs are left."""
    if isinstance(table, list):
        fork = table.copy()
        at = bits & (_FORK - 1)
        fork[at] = _without(table[at], bits >> _BITS, key)
        return _gathered(fork)
    leaf = table.copy()
    del leaf[key]
    return leaf


def _gathered(fork: list[Any]) -> Table[Any, Any]:
    """The fork, or the pairs of its leaves when one leaf holds them easily."""
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
