"""The bindings of an exchange in chunks of bounded size, for a search that looks at all of them.

An exchange keeps the bindings to each destination in a dict, by `Binding.identity`. A chunk refers
to such dicts. A search that needs only the keys takes them from the identities, and reads only the
few Binding objects that it selects. With 100,000 bindings, most objects are not in the processor's
cache, so that reading them all would take longer than comparing their keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.queues.destination import Destination
from broker.routing.binding import ARGUMENTS_MARK, Binding
from broker.routing.exchanges import Exchange

#: Largest number of bindings in a chunk, and of destinations that are examined for one chunk.
CHUNK_MAX: Final = 256


class BindingChunk:
    """Up to CHUNK_MAX bindings of an exchange."""

    def __init__(self) -> None:
        self._owners: list[dict[str, Binding]] = []
        self.size = 0

    def add(self, bindings: dict[str, Binding]) -> None:
        """Extend the chunk by bindings to one destination; the keys are `Binding.identity`."""
        self._owners.append(bindings)
        self.size += len(bindings)

    def keys(self) -> list[str]:
        """Return the binding keys."""
        keys: list[str] = []
        for owner in self._owners:
            keys += owner
        if ARGUMENTS_MARK in "".join(keys):
            return [binding.key for binding in self.bindings()]
        return keys

    def bindings(self) -> list[Binding]:
        """Return the bindings, in the order of `keys`."""
        bindings: list[Binding] = []
        for owner in self._owners:
            bindings += owner.values()
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
                size = len(self._owners[at])
                if index >= first + size:
                    first += size
                else:
                    some = list(self._owners[at].values())
                at += 1
            bindings.append(some[index - first])
        return bindings


def chunks_of(exchange: Exchange, reached: set[Destination]) -> Iterator[BindingChunk]:
    """Yield the bindings of an exchange, except bindings to the destinations in `reached`.

    A chunk ends after CHUNK_MAX destinations, even if it has few or no bindings because most of
    these destinations were skipped: so the caller can let other work run between two chunks. The
    caller must use a chunk before other work runs.
    """
    chunk = BindingChunk()
    passed = 0
    for target in list(exchange.bindings):
        passed += 1
        mine = exchange.bindings.get(target)
        if mine is not None and target not in reached and not target.dead:
            for piece in [mine] if len(mine) <= CHUNK_MAX else _pieces(mine):
                if chunk.size + len(piece) > CHUNK_MAX:
                    yield chunk
                    chunk, passed = BindingChunk(), 0
                chunk.add(piece)
        if passed >= CHUNK_MAX:
            yield chunk
            chunk, passed = BindingChunk(), 0
    yield chunk


def _pieces(bindings: dict[str, Binding]) -> Iterator[dict[str, Binding]]:
    """Yield the bindings to one destination in parts: dicts of up to CHUNK_MAX bindings."""
    identities = list(bindings)
    for at in range(0, len(identities), CHUNK_MAX):
        part = identities[at : at + CHUNK_MAX]
        yield {identity: bindings[identity] for identity in part if identity in bindings}
