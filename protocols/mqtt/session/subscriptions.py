"""The subscriptions of a session: topic filters, their bindings and options.

A broker may have very many sessions with few subscriptions, most of them without a connected
client. To save memory, up to FEW subscriptions are stored in a tuple, and all sessions share one
object for an empty collection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.agenda import Agenda, BulkTask
from broker.routing.binding import Binding
from protocols.mqtt.session.interfaces import SharedSubscription
from protocols.mqtt.session.shared_deliveries import MEMBERSHIPS_PER_SLICE, SharedDeliveries
from protocols.mqtt.session.subscription_options import SessionOptions, is_special

#: Up to this many subscriptions are stored in a tuple instead of a dict (a single subscription
#: takes 64 bytes in a tuple, 184 bytes in a dict).
FEW: Final = 4
#: The empty dict that all sessions without shared subscriptions share, and that never changes.
_NO_MEMBERSHIPS: Final[dict[str, SharedSubscription]] = {}
_NO_SUBSCRIPTIONS: Final[tuple[Binding, ...]] = ()


class SessionSubscriptions:
    """The subscriptions of one session, by topic filter.

    Shared subscriptions are in `memberships`, by their full name `$share/GROUP/FILTER`. `len` does
    not count shared subscriptions, and `items` does not return them.
    """

    def __init__(self) -> None:
        self.memberships: dict[str, SharedSubscription] = _NO_MEMBERSHIPS
        #: `has_shared` is True if the session has or had a shared subscription during the present
        #: connection. `deliveries` attaches, drains and detaches the shared subscriptions; None if
        #: the session has had none over a connection.
        self.has_shared = False
        self.deliveries: SharedDeliveries | None = None
        #: Subscription identifiers and Retain As Published; None if no subscription has either.
        self.options: SessionOptions | None = None
        self._few = _NO_SUBSCRIPTIONS
        self._many: dict[str, Binding] | None = None

    def __len__(self) -> int:
        return len(self._few) if self._many is None else len(self._many)

    @property
    def total(self) -> int:
        """The number of subscriptions, shared subscriptions included."""
        return len(self) + len(self.memberships)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the topic filters present at the start. Subscriptions may change during the
        iteration.
        """
        return iter([topic_filter for topic_filter, _ in self.items()])

    def items(self) -> list[tuple[str, Binding]]:
        """Return a list of all topic filters with their bindings."""
        if self._many is None:
            return [(binding.key, binding) for binding in self._few]
        return list(self._many.items())

    def get(self, topic_filter: str) -> Binding | None:
        """Return the binding of the subscription with this topic filter; None if there is none."""
        if self._many is not None:
            return self._many.get(topic_filter)
        for binding in self._few:
            if binding.key == topic_filter:
                return binding
        return None

    # -- changes

    def put(self, binding: Binding) -> Binding | None:
        """Add a subscription. Return the replaced binding with the same topic filter; None if there
        was none.
        """
        replaced = self.get(binding.key)
        if self._many is not None:
            self._many[binding.key] = binding
        else:
            few = [other for other in self._few if other.key != binding.key]
            few.append(binding)
            if len(few) > FEW:
                self._many = {one.key: one for one in few}
                self._few = _NO_SUBSCRIPTIONS
            else:
                self._few = tuple(few)
        self._change_options(replaced, binding)
        return replaced

    def remove(self, topic_filter: str) -> Binding | None:
        """Remove and return the subscription with this topic filter; None if there is none."""
        binding = self.get(topic_filter)
        if binding is None:
            return None
        if self._many is not None:
            del self._many[topic_filter]
        else:
            self._few = tuple([other for other in self._few if other is not binding])
        self._change_options(binding, None)
        return binding

    def clear(self) -> None:
        """Remove all subscriptions except shared subscriptions, because the session has ended.

        Also drop `deliveries`, whose reference to the session would keep the session in memory.
        """
        self._few = _NO_SUBSCRIPTIONS
        self._many = None
        self.options = None
        self.deliveries = None

    # -- shared subscriptions

    def add_membership(self, membership: SharedSubscription) -> None:
        """Add a shared subscription."""
        if self.memberships is _NO_MEMBERSHIPS:
            self.memberships = {}
        self.memberships[membership.name] = membership

    def take_memberships(self) -> list[SharedSubscription]:
        """Remove and return all shared subscriptions."""
        memberships, self.memberships = self.memberships, _NO_MEMBERSHIPS
        return list(memberships.values())

    def detach_shared(self) -> None:
        """Stop the deliveries of all shared subscriptions, because the connection has ended."""
        self.has_shared = False
        if self.deliveries is not None:
            self.deliveries.detach(list(self.memberships.values()))

    def drain_shared(self) -> None:
        """Drain the session's shared subscriptions, because the session accepts messages again."""
        if self.deliveries is not None:
            self.deliveries.drain(list(self.memberships.values()))

    def drain_refused(self) -> None:
        """Drain the shared subscriptions for whose messages the session had no room.

        Hot path.
        """
        deliveries = self.deliveries
        if deliveries is not None and deliveries.has_refused:
            deliveries.drain_refused()

    # -- subscription options

    def set_identifier(self, membership: SharedSubscription, identifier: int) -> None:
        """Set the subscription identifier of a shared subscription; 0 removes it."""
        if membership.identifier or identifier:
            self._own_options().shared += bool(identifier) - bool(membership.identifier)
            membership.identifier = identifier
            self._drop_empty_options()

    def _change_options(self, old: Binding | None, new: Binding | None) -> None:
        if old is not None and is_special(old):
            self._own_options().remove(old)
        if new is not None and is_special(new):
            self._own_options().add(new)
        self._drop_empty_options()

    def _own_options(self) -> SessionOptions:
        options = self.options
        if options is None:
            options = self.options = SessionOptions()
        return options

    def _drop_empty_options(self) -> None:
        if self.options is not None and self.options.empty:
            self.options = None


#: The subscriptions of every session without an inbox, which has none. They are never changed.
EMPTY_SUBSCRIPTIONS: Final = SessionSubscriptions()


class MembershipRemoval(BulkTask):
    """A task that removes the shared subscriptions of an ended session, in slices."""

    def __init__(self, agenda: Agenda, memberships: list[SharedSubscription]) -> None:
        super().__init__(agenda)
        self._memberships = memberships

    def has_work(self) -> bool:
        return bool(self._memberships)

    def do_slice(self) -> None:
        left = MEMBERSHIPS_PER_SLICE
        while left > 0 and self._memberships:
            left -= 1
            self._memberships.pop().leave(None)
