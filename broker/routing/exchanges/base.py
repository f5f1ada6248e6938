"""The base class of all exchange types: name, options, and the bindings by destination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from mypy_extensions import i64

from broker.messages.memory import BINDING_SIZE, SAMPLES
from broker.messages.message import Properties
from broker.queues.destination import Destination
from broker.routing.binding import Binding
from broker.routing.binding_table import BindingTable
from matching.bucket import with_added, without
from matching.matcher import Search

#: The time to remove a binding grows with the length of its key. For the size of a slice, this
#: number of bytes of a key counts as one binding.
KEY_BYTES_PER_BINDING: Final = 40


class ExchangeOptions:
    """The options and arguments with which an exchange was declared."""

    def __init__(
        self,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: Mapping[str, object] = arguments or {}
        alternate = self.arguments.get("alternate-exchange")
        self.alternate = alternate if isinstance(alternate, str) else None


class Exchange(Destination):
    """An exchange with its bindings; the subclass decides which bindings match a message."""

    #: The name of the exchange type, as clients declare it.
    kind: ClassVar[str] = ""
    #: True if a match depends on the message's headers, so that the match cannot be cached.
    by_headers: ClassVar[bool] = False

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name)
        self.options = options
        #: The name of the alternate exchange, which gets the messages that match no binding. The
        #: declaration or a policy sets the name; None without an alternate exchange.
        self.alternate = options.alternate
        self.bindings = BindingTable()
        #: A number that grows with each change that makes plans through this exchange stale, such
        #: as a change of a binding.
        self.version: i64 = 0
        #: Number of messages published to this exchange, and number of copies of these messages.
        #: Routes add their counts when their plan changes, and when the counts are read.
        self.published: i64 = 0
        self.copies: i64 = 0
        #: Number of messages published to this exchange that reached no queue and no session.
        self.unroutable: i64 = 0

    @property
    def lookup_steps(self) -> i64:
        """The number of search steps that the last call of `match` took."""
        return 0

    @property
    def uses_keys(self) -> bool:
        """True if a match depends on the routing key. If False, one lookup serves all keys."""
        return True

    @property
    def needs_search(self) -> bool:
        """True if `match` may take too long for one turn. The planner then calls `searches`."""
        return False

    def bind(self, binding: Binding) -> Binding | None:
        """Add a binding. Return the binding that it replaces, or None.

        A new binding replaces the binding with the same destination, key and arguments.
        """
        target = binding.destination
        if target not in self.bindings:
            target.bound_to = with_added(target.bound_to, self)
        self.version += 1
        known = self.bindings.get(target, binding.identity)
        if known is not None:
            self.removed(known)
        self.bindings.put(binding)
        self.added(binding)
        return known

    def unbind(self, destination: Destination, identity: str) -> Binding | None:
        """Remove and return the binding to `destination` with this `Binding.identity`.

        Return None if there is no such binding.
        """
        known = self.bindings.pop(destination, identity)
        if known is not None:
            if destination not in self.bindings:
                destination.bound_to = without(destination.bound_to, self)
            self.version += 1
            self.removed(known)
        return known

    def unbind_some(self, destination: Destination, most: int) -> list[Binding]:
        """Remove and return up to `most` bindings to a destination, fewer if their keys are long.

        An empty list means that there are no more bindings to the destination.
        """
        removed: list[Binding] = []
        key_bytes = 0
        for binding in self.bindings.some_to(destination, most):
            self.unbind(destination, binding.identity)
            removed.append(binding)
            key_bytes += len(binding.key)
            if key_bytes > most * KEY_BYTES_PER_BINDING:
                break
        return removed

    def redirect(self, old: Destination, new: Destination) -> None:
        """Move all bindings from the old destination to the new destination."""
        if old in self.bindings:
            self.version += 1
            self.bindings.move(old, new)
            old.bound_to = without(old.bound_to, self)
            new.bound_to = with_added(new.bound_to, self)

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the bindings with their index, in bytes."""
        some = self.bindings.some_destinations(int(SAMPLES))
        count: i64 = 0
        for destination in some:
            count += self.bindings.count(destination)
        return BINDING_SIZE * (count * len(self.bindings) // len(some)) if some else 0

    def __iter__(self) -> Iterator[Binding]:
        return iter(self.bindings)

    def all_bindings(self) -> list[Binding]:
        """Return a new list of all bindings."""
        return list(self.bindings)

    def check(self, binding: Binding) -> None:
        """Raise PreconditionFailed if this type of exchange does not accept the binding."""

    def check_limit(self, binding: Binding, most: int) -> None:
        """Raise LimitExceeded if the binding would make lookups of routing keys too expensive.

        The bindings to one destination may make a lookup visit up to `most` nodes of the index. A
        binding that adds no such node is accepted even above this limit, so a session above the
        limit can still make bindings with its present keys again.
        """

    def first_word(self, binding: Binding) -> str | None:
        """Return the first word that all routing keys matching the binding share.

        Return None if there is no such word, as for a binding key that begins with a wildcard.
        """
        return None

    def searches(
        self, key: str, properties: Properties, bindings: list[Binding]
    ) -> list[Search[Binding]]:
        """Return searches that can pause, and that add the matching bindings to `bindings`.

        An exchange without such searches adds the bindings itself, and returns an empty list.
        """
        bindings += self.match(key, properties)
        return []

    def match(self, key: str, properties: Properties) -> list[Binding]:
        """Return the bindings that match a message, in no particular order.

        `properties` are the properties of the message if `by_headers` is True, and empty otherwise.
        """
        raise NotImplementedError

    def added(self, binding: Binding) -> None:
        """Add a binding to the index of the subclass, if the subclass has an index."""

    def removed(self, binding: Binding) -> None:
        """Remove a binding from the index of the subclass, if the subclass has an index."""
