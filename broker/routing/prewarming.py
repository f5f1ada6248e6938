"""Prewarming: routes that are resolved before the first message needs them.

An operator's matching profile (trellis/server/matching_profile.py) lists topics that clients will
publish to. Prewarming puts their routes into the route cache of each new PublishContext, so that
even the first messages are cache hits.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.routing.plan_search import STEPS_PER_TURN, SearchSlot
from broker.routing.publish_context import Prewarmer, PublishContext

#: Number of names that are resolved in one turn; this takes about 0.5 ms.
NAMES_PER_SLICE: Final[i64] = 100


class PrewarmedName:
    """An exchange and a routing key to resolve.

    `cache_key` has the bytes of both names, as a client's packet contains them.
    """

    def __init__(self, cache_key: bytes, exchange: str, key: str) -> None:
        self.cache_key = cache_key
        self.exchange = exchange
        self.key = key


class Prewarming(Prewarmer):
    """Fills the route caches of one virtual host in advance.

    `names` has the names to resolve, by front end.
    """

    def __init__(self, agenda: Agenda, names: dict[str, list[PrewarmedName]]) -> None:
        self._agenda = agenda
        self._names = names

    def prewarm(self, context: PublishContext) -> None:
        """Put the routes of the expected names into the context's route cache, in slices."""
        names = self._names.get(context.front)
        if names:
            self._agenda.add(_PrewarmTask(self._agenda, context, names))


class _PrewarmTask(Task):
    """A task that resolves the expected names in one publish context, in slices."""

    def __init__(self, agenda: Agenda, context: PublishContext, names: list[PrewarmedName]) -> None:
        self._agenda = agenda
        self._context = context
        self._names = names
        self._at: i64 = 0

    def run(self) -> None:
        context = self._context
        slot = SearchSlot()
        end = min(self._at + NAMES_PER_SLICE, i64(len(self._names)))
        while self._at < end:
            name = self._names[self._at]
            if len(context.routes) >= context.capacity:
                return  # The cache is full: more names would evict the first names.
            if name.cache_key not in context.routes:
                # A name whose search pauses is resolved by the first message that needs it.
                context.resolve(name.cache_key, name.exchange, name.key, slot)
                slot.searches = None
            self._at += 1
            if slot.spent > STEPS_PER_TURN:
                break
        if self._at < len(self._names):
            self._agenda.later(self)
