"""Routes resolved before anybody asks: what a gate is given to know when it is made, so that first
messages need no lookup.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.routing.publish_context import Prewarmer, PublishContext

#: Names resolved in one turn of the loop: some 0.5 ms.
SLICE: Final[i64] = 100


class PrewarmedName:
    """A name that messages are published to: octets as a front end looks them up, and what they
    mean.
    """

    def __init__(self, octets: bytes, exchange: str, key: str) -> None:
        self.octets = octets
        self.exchange = exchange
        self.key = key


class Prewarming(Prewarmer):
    """What the gates of one virtual host are given: by the name of the front end."""

    def __init__(self, agenda: Agenda, names: dict[str, list[PrewarmedName]]) -> None:
        self._agenda = agenda
        self._names = names

    def prewarm(self, context: PublishContext) -> None:
        """Resolve what is not known there, a slice a turn."""
        names = self._names.get(context.front)
        if names:
            self._agenda.add(_PrewarmTask(self._agenda, context, names))


class _PrewarmTask(Task):
    def __init__(self, agenda: Agenda, context: PublishContext, names: list[PrewarmedName]) -> None:
        self._agenda = agenda
        self._context = context
        self._names = names
        self._at: i64 = 0

    def run(self) -> None:
        context = self._context
        end = min(self._at + SLICE, i64(len(self._names)))
        while self._at < end:
            name = self._names[self._at]
            if len(context.routes) >= context.capacity:
                return  # A cache that is full is warm.
            if name.octets not in context.routes:
                context.resolve(name.octets, name.exchange, name.key)
            self._at += 1
        if self._at < len(self._names):
            self._agenda.later(self)
