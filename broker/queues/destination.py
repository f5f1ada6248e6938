"""Destinations of bindings: the base class of queues, subscribers and exchanges."""

from __future__ import annotations

from typing import ClassVar

from mypy_extensions import i64

from broker.agenda import Task


class Destination(Task):
    """The end of a binding: a queue, a subscriber or another exchange, under its name.

    It is a Task itself, so that deferred work such as a drain needs no second object per queue,
    which would be a reference cycle for the garbage collector.
    """

    #: The word for this class of destination in the seed of a consistent-hash binding. The seed
    #: decides which messages a binding receives, so this word never changes, not even when the
    #: class is renamed.
    hash_kind: ClassVar[str] = "Destination"

    def __init__(self, name: str) -> None:
        self.name = name
        #: The number of its definition in the store, 0 if it is not durable. A number is never used
        #: again, but a name may be. The predeclared exchanges have numbers below 0.
        self.number: i64 = 0
        #: True once the destination is deleted. Its bindings are removed in slices afterwards, and
        #: no route leads to it any more.
        self.dead = False
