"""Destinations: what a binding may lead to."""

from __future__ import annotations

from typing import ClassVar

from mypy_extensions import i64

from broker.agenda import Task


class Destination(Task):
    """A queue, a listener or another exchange, under its name. What it does later, it does itself:
    a task of its own would be a cycle for the collector, one a queue."""

    #: The word for this class of destination in the seed of a consistent-hash binding. The seed
    #: decides which messages a binding receives, so this word never changes, not even when the
    #: class is renamed.
    hash_kind: ClassVar[str] = "Destination"

    def __init__(self, name: str) -> None:
        self.name = name
        #: The position of the entry that made it, if it lasts: never used again, while names are.
        #: (What is there from the beginning has one below 0.)
        self.number: i64 = 0
        #: Deleted: its bindings follow, and no route leads here any more.
        self.dead = False
