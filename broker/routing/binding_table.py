"""The bindings of one exchange, by destination and by `Binding.identity`.

Most destinations, such as the sessions of devices, have one binding. A dict with one entry takes
184 bytes, so a single binding is stored without a dict:

    destination --> binding                    one binding
                --> {identity: binding, ...}   several bindings
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

from broker.queues.destination import Destination
from broker.routing.binding import Binding

#: The bindings to one destination: a single binding, or several bindings by `Binding.identity`.
BindingGroup: TypeAlias = Binding | dict[str, Binding]


def size_of(group: BindingGroup) -> int:
    """Return the number of bindings in a group."""
    return 1 if isinstance(group, Binding) else len(group)


def members_of(group: BindingGroup) -> list[Binding]:
    """Return a new list of the bindings in a group, in the order of their creation."""
    return [group] if isinstance(group, Binding) else list(group.values())


class BindingTable:
    """The bindings of one exchange. `len` is the number of destinations that have a binding."""

    def __init__(self) -> None:
        self._groups: dict[Destination, BindingGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, destination: Destination) -> bool:
        return destination in self._groups

    def __iter__(self) -> Iterator[Binding]:
        """Yield all bindings. The table may change during the iteration.

        The iteration takes the bindings to one destination at a time. It leaves out a destination
        that gets its first binding during the iteration.
        """
        for destination in self.destinations():
            yield from self.to(destination)

    def destinations(self) -> list[Destination]:
        """Return a new list of the destinations that have a binding."""
        return list(self._groups)

    def some_destinations(self, most: int) -> list[Destination]:
        """Return up to `most` destinations that have a binding."""
        return list(islice(self._groups, most))

    def group(self, destination: Destination) -> BindingGroup | None:
        """Return the bindings to a destination as they are stored; None if there are none.

        The caller must not change a returned dict. The table changes this dict when a binding is
        added or removed.
        """
        return self._groups.get(destination)

    def count(self, destination: Destination) -> int:
        """Return the number of bindings to a destination."""
        group = self._groups.get(destination)
        return 0 if group is None else size_of(group)

    def to(self, destination: Destination) -> list[Binding]:
        """Return a new list of the bindings to a destination, in the order of their creation."""
        group = self._groups.get(destination)
        return [] if group is None else members_of(group)

    def some_to(self, destination: Destination, most: int) -> list[Binding]:
        """Return up to `most` bindings to a destination, the oldest first."""
        group = self._groups.get(destination)
        if group is None or isinstance(group, Binding):
            return [] if group is None else [group]
        return list(islice(group.values(), most))

    def get(self, destination: Destination, identity: str) -> Binding | None:
        """Return the binding to a destination with this identity; None if there is none."""
        group = self._groups.get(destination)
        if isinstance(group, Binding):
            return group if group.identity == identity else None
        return None if group is None else group.get(identity)

    # -- changes

    def put(self, binding: Binding) -> None:
        """Add a binding, or replace the binding with the same destination and identity."""
        group = self._groups.get(binding.destination)
        if group is None:
            self._groups[binding.destination] = binding
        elif not isinstance(group, Binding):
            group[binding.identity] = binding
        elif group.identity == binding.identity:
            self._groups[binding.destination] = binding
        else:
            self._groups[binding.destination] = {group.identity: group, binding.identity: binding}

    def pop(self, destination: Destination, identity: str) -> Binding | None:
        """Remove and return the binding to a destination with this identity; None if there is none.

        With its last binding, the destination is removed from the table, too.
        """
        binding = self.get(destination, identity)
        if binding is None:
            return None
        group = self._groups[destination]
        if isinstance(group, Binding):
            del self._groups[destination]
        else:
            del group[identity]
            if not group:
                del self._groups[destination]
        return binding

    def move(self, old: Destination, new: Destination) -> None:
        """Move all bindings of the destination `old` to the destination `new`.

        `new` must not have a binding yet.
        """
        group = self._groups.pop(old)
        self._groups[new] = group
        for binding in self.to(new):
            binding.destination = new
