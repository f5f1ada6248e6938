"""Destinations: what a binding may lead to."""

from __future__ import annotations


class Destination:
    """A queue, a listener or another exchange, under its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Deleted: its bindings follow, and no route leads here any more.
        self.dead = False
