"""Routes resolved before anybody asks: what a gate is given to know when it is made, so that first
messages need no lookup.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.routing.publish_context import Gate, Preparer

#: Names resolved in one turn of the loop: some 0.5 ms.
SLICE: Final[i64] = 100


class Name:
    """A name that messages are published to: octets as a front end looks them up, and what they
    mean.
    """

    def __init__(self, octets: bytes, exchange: str, key: str) -> None:
        self.octets = octets
        self.exchange = exchange
        self.key = key


class Warmth(Preparer):
    """What the gates of one virtual host are given: by the name of the front end."""

    def __init__(self, agenda: Agenda, names: dict[str, list[Name]]) -> None:
        self._agenda = agenda
        self._names = names

    def prepare(self, gate: Gate) -> None:
        """Resolve what is not known there, a slice a turn."""
        names = self._names.get(gate.front)
        if names:
            self._agenda.add(_Warming(self._agenda, gate, names))


class _Warming(Task):
    def __init__(self, agenda: Agenda, gate: Gate, names: list[Name]) -> None:
        self._agenda = agenda
        self._gate = gate
        self._names = names
        self._at: i64 = 0

    def run(self) -> None:
        gate = self._gate
        end = min(self._at + SLICE, i64(len(self._names)))
        while self._at < end:
            name = self._names[self._at]
            if len(gate.routes) >= gate.most:
                return  # A cache that is full is warm.
            if name.octets not in gate.routes:
                gate.resolve(name.octets, name.exchange, name.key)
            self._at += 1
        if self._at < len(self._names):
            self._agenda.later(self)
