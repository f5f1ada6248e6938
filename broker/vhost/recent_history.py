"""The job that gives the history of an `x-recent-history` exchange to a new binding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.agenda import BulkTask
from broker.errors import BrokerError
from broker.messages.cc_headers import additional_keys
from broker.messages.message import AT_LEAST_ONCE, Message
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.routing.exchanges.recent_history import RecentHistoryExchange
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.route import Route
from broker.vhost.dead_letters import SEARCH_STEPS, STEPS_PER_SLICE, MessagePublisher

#: Number of steps that one message costs besides its copies.
_MESSAGE_STEPS: Final[i64] = 9


class HistoryReplay(BulkTask):
    """A task that publishes recent messages of an exchange to the destination of a new binding.

    A slice publishes up to 100 messages. Newer messages may reach the destination between slices.
    The task ends early if the binding is removed.
    """

    def __init__(
        self, publisher: MessagePublisher, exchange: RecentHistoryExchange, binding: Binding
    ) -> None:
        super().__init__(publisher.agenda)
        self._publisher = publisher
        self._exchange = exchange
        self._identity = binding.identity
        self._target = binding.destination
        #: The messages still to be published; the next message is at the end.
        self._messages = exchange.recent.recent()
        self._messages.reverse()
        #: Function that the task calls once, when it has ended; None for no call.
        self.on_end: Callable[[], None] | None = None
        #: The number of messages when the task began.
        self.size: i64 = len(self._messages)
        #: The paused search for the destinations of the next message; None if no search is paused.
        self._slot: SearchSlot | None = None

    def has_work(self) -> bool:
        return bool(self._messages) and self._is_bound()

    def do_slice(self) -> None:
        left: i64 = STEPS_PER_SLICE
        try:
            while left > 0 and self.has_work():
                left -= self._publish_next()
        finally:
            on_end = self.on_end
            if on_end is not None and not self.has_work():
                self.on_end = None
                on_end()

    def _is_bound(self) -> bool:
        """True if the binding still exists.

        If a policy has replaced the queue of the binding by another Queue object, the binding to
        this other object counts.
        """
        target = self._target
        while isinstance(target, Queue) and target.replacement is not None:
            target = self._target = target.replacement
        return not target.dead and self._exchange.bindings.get(target, self._identity) is not None

    def _publish_next(self) -> i64:
        """Publish the next message, and return the number of steps that this took."""
        publisher = self._publisher
        message = self._messages.pop()
        slot = self._slot or SearchSlot()
        self._slot = None
        route = self._route(message, slot)
        if route is None:
            self._messages.append(message)
            self._slot = slot
            return STEPS_PER_SLICE
        if 0 < message.expires <= publisher.agenda.now:
            return 1
        copy = message.copy(message.qos, False)
        copy.position = 0
        context = publisher.internal
        context.received += 1
        try:
            publisher.publish(context, route, route.plan, copy, None)
        except BrokerError:
            pass  # The exchange to which the binding leads has been deleted.
        return _MESSAGE_STEPS + route.plan.weight + slot.spent // SEARCH_STEPS

    def _route(self, message: Message, slot: SearchSlot) -> Route | None:
        """Return the route of a message to the destination.

        Return None if the search for the queues behind the destination takes longer than this
        slice.
        """
        target, address = self._target, message.address
        publisher = self._publisher
        if isinstance(target, Exchange):
            properties = message.properties
            headers = properties.get("headers")
            keys = [address.key]
            if isinstance(headers, dict):
                keys += additional_keys(headers)
            return publisher.route_by(publisher.internal, target.name, keys, properties, None, slot)
        plan = Plan([(target, int(AT_LEAST_ONCE))] if isinstance(target, Queue) else [], 0, False)
        return Route(address.exchange, address.key, plan)
