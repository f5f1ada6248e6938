"""Destinations: what a binding may lead to."""

from __future__ import annotations

from broker.agenda import Task


class Destination(Task):
    """A queue, a listener or another exchange, under its name. What it does later, it does itself: a task of its own
    would be a cycle for the collector, one a queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Deleted: its bindings follow, and no route leads here any more.
        self.dead = False
