"""Destination: the base class of queues, subscribers and exchanges, to which bindings lead."""

from __future__ import annotations

from typing import ClassVar

from mypy_extensions import i64

from broker.agenda import Task
from matching.bucket import Bucket


class Destination(Task):
    """An object to which bindings lead: a queue, a subscriber or an exchange.

    A destination is itself a Task, so that deferred work such as a drain needs no second object,
    which would form a reference cycle with the destination.
    """

    #: The word for this class of destination in the seed of a consistent-hash binding. The seed
    #: decides which messages a binding receives, so this word never changes, not even when the
    #: class is renamed. For queues, `QueueArguments.hash_kind` has the word.
    hash_kind: ClassVar[str] = "Destination"

    def __init__(self, name: str) -> None:
        self.name = name
        #: The number of this object's definition in the store, 0 if the object is not durable. No
        #: other object ever gets the same number, but a new object can have the name of a deleted
        #: object. A predeclared exchange has a number below 0.
        self.number: i64 = 0
        #: The exchanges that have bindings to this destination.
        self.bound_to: Bucket[Destination] = None
        #: True once the destination is deleted. Its bindings are then removed in slices, and no
        #: route leads to the destination any more.
        self.dead = False
