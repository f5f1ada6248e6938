"""The bindings of an exchange in chunks of bounded size, for a search that looks at all of them.

If a destination has several bindings, the exchange has them in a dict, by `Binding.identity`
(binding_table.py). A chunk refers to such dicts, and to single bindings. A search that needs only
the keys takes them from the identities in the dicts, and reads only the few Binding objects that it
selects. With 100,000 bindings, most objects are not in the processor's cache, so that reading them
all would take longer than comparing their keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.queues.destination import Destination
from broker.routing.binding import ARGUMENTS_MARK, Binding
from broker.routing.binding_table import BindingGroup, members_of, size_of
from broker.routing.exchanges import Exchange

#: Largest number of bindings in a chunk, and of destinations that are examined for one chunk.
CHUNK_MAX: Final = 256


class BindingChunk:
    """Up to CHUNK_MAX bindings of an exchange."""

    def __init__(self) -> None:
        self._groups: list[BindingGroup] = []
        self.size = 0

    def add(self, group: BindingGroup) -> None:
        """Extend the chunk by bindings to one destination."""
        self._groups.append(group)
        self.size += size_of(group)

    def keys(self) -> list[str]:
        """Return the binding keys."""
        keys: list[str] = []
        for group in self._groups:
            if isinstance(group, Binding):
                keys.append(group.key)
            else:
                keys += group
        if ARGUMENTS_MARK in "".join(keys):
            return [binding.key for binding in self.bindings()]
        return keys

    def bindings(self) -> list[Binding]:
        """Return the bindings, in the order of `keys`."""
        bindings: list[Binding] = []
        for group in self._groups:
            bindings += members_of(group)
        return bindings

    def selected(self, indices: list[int]) -> list[Binding]:
        """Return the bindings at these indices, which must be in ascending order."""
        bindings: list[Binding] = []
        first = 0
        at = 0
        some: list[Binding] = []
        for index in indices:
            while index >= first + len(some):
                first += len(some)
                some = []
                size = size_of(self._groups[at])
                if index >= first + size:
                    first += size
                else:
                    some = members_of(self._groups[at])
                at += 1
            bindings.append(some[index - first])
        return bindings


def chunks_of(exchange: Exchange, reached: set[Destination]) -> Iterator[BindingChunk]:
    """Yield the bindings of an exchange, except bindings to the destinations in `reached`.

    A chunk ends after CHUNK_MAX destinations. It may have few or no bindings, because the skipped
    destinations count, too. So the caller can let other work run between two chunks. The caller
    must use a chunk before other work runs.
    """
    chunk = BindingChunk()
    passed = 0
    for target in exchange.bindings.destinations():
        passed += 1
        group = exchange.bindings.group(target)
        if group is not None and target not in reached and not target.dead:
            for piece in _pieces(group):
                if chunk.size + size_of(piece) > CHUNK_MAX:
                    yield chunk
                    chunk, passed = BindingChunk(), 0
                chunk.add(piece)
        if passed >= CHUNK_MAX:
            yield chunk
            chunk, passed = BindingChunk(), 0
    yield chunk


def _pieces(group: BindingGroup) -> Iterator[BindingGroup]:
    """Yield the bindings to one destination in groups of up to CHUNK_MAX bindings."""
    if isinstance(group, Binding) or len(group) <= CHUNK_MAX:
        yield group
        return
    identities = list(group)
    for at in range(0, len(identities), CHUNK_MAX):
        part = identities[at : at + CHUNK_MAX]
        yield {identity: group[identity] for identity in part if identity in group}
