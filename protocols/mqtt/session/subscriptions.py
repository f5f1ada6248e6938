"""The part of a session that says what its client wants to hear: subscriptions, how they look at
publications, retained messages.

Most sessions have few subscriptions, and are away for most of their lives, in great numbers: what
they do not have costs nothing.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Task
from broker.queues.queue import Queue
from broker.routing.binding import Arguments, Binding
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from matching.grammar import MQTT
from protocols.mqtt.codec.relay_formats import VERSION_4
from protocols.mqtt.codec.topics import EXCHANGE
from protocols.mqtt.session.inflight import InflightSubscriber
from protocols.mqtt.session.interfaces import SharedSubscription
from protocols.mqtt.session.subscription_options import SessionOptions, is_special
from protocols.tally import FrontCounters

#: Messages in the inbox from which on retained ones wait outside, and do not push others out of it.
BACKLOGGED: Final[i64] = 500
#: Subscriptions up to which they stand in a tuple (64 octets for one; a dict of one takes 184).
FEW: Final = 4
#: What most sessions have, in one copy; nothing is ever put into these.
NO_MEMBERSHIPS: Final[dict[str, SharedSubscription]] = {}
_NONE_PARKED: Final[dict[str, Task]] = {}
_NO_SUBSCRIPTIONS: Final[tuple[Binding, ...]] = ()


class SessionSubscriptions(InflightSubscriber):
    """Has subscriptions; shared ones are memberships."""

    def __init__(
        self,
        vhost: VirtualHost,
        client_id: str,
        inbox: Queue,
        persistent: bool,
        tally: FrontCounters,
    ) -> None:
        super().__init__(vhost, client_id, inbox, persistent, tally)
        #: Whether a SUBACK waits for the store: retained messages come after it.
        self.suback_pending = False
        #: Its shared subscriptions, by name.
        self.memberships: dict[str, SharedSubscription] = NO_MEMBERSHIPS
        self._few = _NO_SUBSCRIPTIONS
        self._many: dict[str, Binding] | None = None
        #: Retained messages on their way that wait for that or for room, by topic filter.
        self._waiting_retained: dict[str, Task] = _NONE_PARKED

    # -- subscriptions

    @property
    def subscriptions(self) -> dict[str, Binding]:
        """By topic filter: a copy."""
        return (
            {binding.key: binding for binding in self._few}
            if self._many is None
            else dict(self._many)
        )

    @property
    def subscription_count(self) -> int:
        return len(self._few) if self._many is None else len(self._many)

    def subscription(self, topic_filter: str) -> Binding | None:
        """The one with this topic filter."""
        if self._many is not None:
            return self._many.get(topic_filter)
        for binding in self._few:
            if binding.key == topic_filter:
                return binding
        return None

    def _put(self, binding: Binding) -> None:
        """In place of the one with its topic filter, if there is one."""
        if self._many is not None:
            self._many[binding.key] = binding
            return
        few = [other for other in self._few if other.key != binding.key]
        few.append(binding)
        if len(few) > FEW:
            self._many = {one.key: one for one in few}
            self._few = _NO_SUBSCRIPTIONS
        else:
            self._few = tuple(few)

    def _drop(self, topic_filter: str) -> Binding | None:
        if self._many is not None:
            return self._many.pop(topic_filter, None)
        binding = self.subscription(topic_filter)
        if binding is not None:
            self._few = tuple([other for other in self._few if other is not binding])
        return binding

    def _drop_all(self) -> None:
        self._few = _NO_SUBSCRIPTIONS
        self._many = None
        self.views = None

    def subscribe(
        self,
        topic_filter: str,
        qos: i64,
        ticket: Ticket | None,
        wishes: Arguments | None = None,
    ) -> None:
        """Add or replace a subscription [MQTT-3.8.4-3]."""
        known = self.subscription(topic_filter)
        binding = Binding(topic_filter, self, qos, wishes, MQTT)
        self._put(binding)
        if known is not None and known.identity != binding.identity:
            self.vhost.unbind(EXCHANGE, known, ticket)
        self._look_again(known, binding)
        self.vhost.bind(EXCHANGE, binding, ticket)

    def restore_subscription(self, binding: Binding) -> None:
        """It had this one before, and is bound already."""
        self._put(binding)
        self._look_again(None, binding)

    def unsubscribe(self, topic_filter: str, ticket: Ticket | None) -> bool:
        """Whether it was there."""
        binding = self._drop(topic_filter)
        if binding is not None:
            self._look_again(binding, None)
            self.vhost.unbind(EXCHANGE, binding, ticket)
        elif self.persistent:
            self.vhost.reply_when_all_durable(ticket)
        return binding is not None

    def _look_again(self, old: Binding | None, new: Binding | None) -> None:
        """A subscription changed, and with it perhaps what the client wants to see."""
        if old is not None and is_special(old):
            self._see().remove(old)
        elif new is None or not is_special(new):
            return
        if new is not None and is_special(new):
            self._see().add(new)
        self._choose_view()

    def rename(self, membership: SharedSubscription, identifier: int) -> None:
        """A shared subscription has this identifier from now on; 0 for none."""
        if membership.identifier or identifier:
            self._see().shared += bool(identifier) - bool(membership.identifier)
            membership.identifier = identifier
            self._choose_view()

    def _see(self) -> SessionOptions:
        views = self.views
        if views is None:
            views = self.views = SessionOptions()
        return views

    def _choose_view(self) -> None:
        if self.views is not None and self.views.empty:
            self.views = None
        self._choose_relay_format()

    def _choose_relay_format(self) -> None:
        """Others may relay their octets here, or may not any more."""
        pen = self.writer
        relay_format = VERSION_4 if pen is None else pen.relay_format(self.views)
        if relay_format is not self.relay_format:
            self.relay_format = relay_format
            if self._few or self._many:
                self.vhost.changed()

    # -- retained messages

    def backlogged(self, topic_filter: str, task: Task) -> bool:
        """Whether more of them must wait; then the task runs again when there is room."""
        outlet = self.outlet
        if (
            outlet is None
            or not self.suback_pending
            and self.inbox.depth < BACKLOGGED
            and outlet.open()
        ):
            return False
        if self._waiting_retained is _NONE_PARKED:
            self._waiting_retained = {}
        self._waiting_retained[topic_filter] = task
        return True

    def resume_retained(self) -> None:
        """There may be room for what waited for it."""
        if self._waiting_retained:
            parked, self._waiting_retained = self._waiting_retained, _NONE_PARKED
            for task in parked.values():
                self.vhost.agenda.add(task)
