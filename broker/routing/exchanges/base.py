"""What all exchange types share: names, options, and the bindings by destination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import ClassVar, Final

from broker.messages.message import Properties
from broker.queues.destination import Destination
from broker.routing.binding import Binding

#: What removing a binding takes grows with its key. So many octets of a key count as one binding.
OCTETS: Final = 40


class ExchangeOptions:
    """How an exchange was declared."""

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
    """Keeps the bindings; a type says which of them match.

    bindings    destination -> identity -> Binding       so that a destination leaves in one step
    """

    kind: ClassVar[str] = ""
    #: Whether the answer depends on more than the key, so that it cannot be kept.
    by_headers: ClassVar[bool] = False

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name)
        self.options = options
        #: Where messages go that nothing here matches: as declared, or as a policy says.
        self.alternate = options.alternate
        self.bindings: dict[Destination, dict[str, Binding]] = {}

    def bind(self, binding: Binding) -> Binding | None:
        """Add a binding; returns the equal one whose place it takes, if there was one."""
        mine = self.bindings.setdefault(binding.destination, {})
        known = mine.get(binding.identity)
        if known is not None:
            self.removed(known)
        mine[binding.identity] = binding
        self.added(binding)
        return known

    def unbind(self, destination: Destination, identity: str) -> Binding | None:
        """Remove and return a binding; None when it is not there."""
        mine = self.bindings.get(destination)
        known = None if mine is None else mine.pop(identity, None)
        if mine is not None and not mine:
            del self.bindings[destination]
        if known is not None:
            self.removed(known)
        return known

    def unbind_some(self, destination: Destination, most: int) -> list[Binding]:
        """Remove and return up to `most` bindings to a destination, fewer if their keys are long;
        none when none is left.
        """
        mine = self.bindings.get(destination, {})
        found: list[Binding] = []
        octets = 0
        for identity in list(islice(mine, most)):
            binding = self.unbind(destination, identity)
            if binding is not None:
                found.append(binding)
                octets += len(binding.key)
            if octets > most * OCTETS:
                break
        return found

    def redirect(self, old: Destination, new: Destination) -> None:
        """What led to one destination leads to the other from now on."""
        mine = self.bindings.pop(old, None)
        if mine is not None:
            self.bindings[new] = mine
            for binding in mine.values():
                binding.destination = new

    def __iter__(self) -> Iterator[Binding]:
        return iter([binding for mine in self.bindings.values() for binding in mine.values()])

    def check(self, binding: Binding) -> None:
        """Raise PreconditionFailed for a binding that this type does not know."""

    def match(self, key: str, properties: Properties) -> list[Binding]:
        """The bindings that want this, in no order.

        The properties are the message's, where `by_headers` says so.
        """
        raise NotImplementedError

    def added(self, binding: Binding) -> None:
        """For types with an index of their own."""

    def removed(self, binding: Binding) -> None:
        """For types with an index of their own."""
