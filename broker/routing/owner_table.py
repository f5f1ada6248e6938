"""A table of values by owner and name, in which an owner with many values evicts its own values.

The table serves owners that do not trust each other. `evict` removes the oldest value of the owner
that has the most values. A caller limits the table to N values: it calls `evict` whenever the table
has more. If n owners have values, an owner with at most N / n values (rounded down) then loses none
of them, because another owner has more.

    by_owner   owner -> name -> value, the newest value last
    _by_size   number of values -> the owners with so many values

`put`, `get` and `remove` take constant time. `evict` and `remove_owner` look for the largest number
of values in `_by_size`. In a table of N values, `_by_size` has at most sqrt(2 N) numbers: 447 for
100,000 values.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from mypy_extensions import i64

V = TypeVar("V")


class OwnerTable(Generic[V]):
    """Values by owner and name.

    The table finds the oldest value of the owner with the most values in little time.
    """

    def __init__(self) -> None:
        #: Owner -> name -> value; the newest value of an owner is at the end. Read only: the
        #: methods below change it. Each dict is an OrderedDict for the reason in eviction.py.
        self.by_owner: dict[str, OrderedDict[str, V]] = {}
        #: Number of values of all owners.
        self.size: i64 = 0
        #: Number of values -> the owners with so many values. `put` moves an owner to the end of
        #: its group, and `evict` to the front.
        self._by_size: dict[int, OrderedDict[str, None]] = {}

    def get(self, owner: str, name: str) -> V | None:
        """Return the owner's value with this name; None if there is none."""
        values = self.by_owner.get(owner)
        return None if values is None else values.get(name)

    def put(self, owner: str, name: str, value: V) -> None:
        """Set the owner's value with this name; it becomes the newest value of the owner."""
        values = self.by_owner.get(owner)
        if values is None:
            values = self.by_owner[owner] = OrderedDict()
        before = len(values)
        values[name] = value
        values.move_to_end(name)
        self._move(owner, before, len(values), True)

    def remove(self, owner: str, name: str) -> None:
        """Remove the owner's value with this name, if there is one."""
        values = self.by_owner.get(owner)
        if values is not None and name in values:
            del values[name]
            self._move(owner, len(values) + 1, len(values), True)

    def remove_owner(self, owner: str) -> list[str]:
        """Remove all values of an owner; return their names, the oldest first."""
        values = self.by_owner.get(owner)
        if values is None:
            return []
        self._move(owner, len(values), 0, True)
        return list(values)

    def evict(self) -> tuple[str, str]:
        """Remove the oldest value of the owner with the most values; return its owner and name.

        If several owners have the most values, an owner without a recent `put` is chosen. The table
        must not be empty.
        """
        owner = next(iter(self._by_size[max(self._by_size)]))
        values = self.by_owner[owner]
        name, _ = values.popitem(last=False)
        self._move(owner, len(values) + 1, len(values), False)
        return owner, name

    def _move(self, owner: str, before: int, size: int, last: bool) -> None:
        """Move an owner to the group with its new number of values; remove an owner without values.

        `before` is the old number, `size` the new one. The owner becomes the last of its new group
        if `last` is True, else the first.
        """
        self.size += size - before
        if before and before != size:
            group = self._by_size[before]
            del group[owner]
            if not group:
                del self._by_size[before]
        if not size:
            del self.by_owner[owner]
            return
        known = self._by_size.get(size)
        if known is None:
            known = self._by_size[size] = OrderedDict()
        known[owner] = None
        known.move_to_end(owner, last)
