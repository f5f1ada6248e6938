"""The deliveries of a session's shared subscriptions, which begin, continue and stop in slices.

A session may have very many shared subscriptions. A new connection, the end of a connection, and a
client that accepts messages again concern all of them. So the subscriptions are visited in slices;
the first slice runs at once.

All shared subscriptions of one connection draw on one pool of credit, the gate. When the connection
ends, the gate loses its credit, which stops the deliveries of all subscriptions at once. Afterwards
the subscriptions are detached in slices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask, Task
from broker.messages.outlet import Outlet
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import CreditPool
from protocols.mqtt.session.interfaces import SharedSubscription

#: Largest number of shared subscriptions of one session that one slice attaches, drains, detaches
#: or removes.
MEMBERSHIPS_PER_SLICE: Final = 100
#: Milliseconds after which refused shared subscriptions are drained again, if no acknowledgement of
#: the client can lead to a drain.
RETRY_MS: Final[i64] = 20


class SharedDeliveries(BulkTask):
    """The task that attaches, drains and detaches the shared subscriptions of one session.

    One pass goes through all shared subscriptions. The pass attaches a subscription to the present
    connection, drains an attached subscription, or detaches a subscription if the client is
    disconnected. A drain that is requested during a pass leads to a further pass, so that no
    subscription waits forever.

    If the session had no room for a message of a shared subscription, this subscription is put into
    a list. The subscriptions of the list are drained, without a pass, when the session has room.
    """

    def __init__(self, agenda: Agenda, has_room: Callable[[], bool]) -> None:
        super().__init__(agenda)
        self._has_room = has_room
        self._outlet: Outlet | None = None
        self._gate = CreditPool(0)
        #: The subscriptions that the present pass has not visited, the next one last.
        self._unvisited: list[SharedSubscription] = []
        #: The subscriptions to visit in the next pass; None if no further pass was requested.
        self._next_pass: list[SharedSubscription] | None = None
        #: The subscriptions for whose messages the session had no room. `_woken` has the earliest
        #: of these subscriptions, the next one last; `_refused` has the later ones, the next one
        #: first. `_woken` is drained before `_refused`.
        self._refused: list[SharedSubscription] = []
        self._woken: list[SharedSubscription] = []
        #: True if the session had no room for the message of a shared subscription.
        self.has_refused = False
        #: True while a `RefusedRetry` is scheduled.
        self._retries = False

    def attach(self, outlet: Outlet, memberships: list[SharedSubscription]) -> None:
        """Begin to deliver the messages of shared subscriptions over a new connection of the
        client.
        """
        self._gate.credit = 0
        self._gate = CreditPool(UNLIMITED)
        self._outlet = outlet
        self._start_pass(memberships)

    def attach_new(self, outlet: Outlet, membership: SharedSubscription) -> None:
        """Begin to deliver messages of a new shared subscription over the client's connection."""
        if self._outlet is not outlet:
            self.attach(outlet, [])
        membership.attach(outlet, self._gate)

    def detach(self, memberships: list[SharedSubscription]) -> None:
        """Stop all deliveries at once, and detach the shared subscriptions from the connection in
        slices.
        """
        self._gate.credit = 0
        self._outlet = None
        self._start_pass(memberships)

    def drain(self, memberships: list[SharedSubscription]) -> None:
        """Drain the shared subscriptions in slices, because the client accepts messages again."""
        if self._unvisited:
            self._next_pass = memberships
        else:
            self._start_pass(memberships)

    def refuse(self, membership: SharedSubscription, retry: bool) -> None:
        """Record that the session had no room for a message of this shared subscription.

        The subscription is drained after the client's next acknowledgement. If `retry` is True, the
        client has nothing to acknowledge, and the subscription is drained after RETRY_MS.
        """
        if not membership.refused:
            membership.refused = True
            self._refused.append(membership)
        self.has_refused = True
        if retry and not self._retries:
            self._retries = True
            self._agenda.at(self._agenda.now + RETRY_MS, RefusedRetry(self))

    def retry_refused(self) -> None:
        """Drain the refused shared subscriptions, because RETRY_MS have passed."""
        self._retries = False
        if self.has_refused:
            self.drain_refused()

    def drain_refused(self) -> None:
        """Drain the shared subscriptions that wait for room in the session."""
        if not self.waits:
            try:
                self._wake_slice()
            finally:
                self.schedule()

    def has_work(self) -> bool:
        if self._unvisited or self._next_pass is not None:
            return True
        return self.has_refused and self._has_room()

    def do_slice(self) -> None:
        self._visit_slice()
        if self.has_refused and self._has_room():
            self._wake_slice()

    def _start_pass(self, memberships: list[SharedSubscription]) -> None:
        memberships.reverse()
        self._unvisited = memberships
        self._next_pass = None
        try:
            self._visit_slice()
        finally:
            self.schedule()

    def _visit_slice(self) -> None:
        """Attach, drain or detach the next slice of the session's shared subscriptions."""
        outlet, gate, unvisited = self._outlet, self._gate, self._unvisited
        left = MEMBERSHIPS_PER_SLICE
        while unvisited and left > 0:
            left -= 1
            membership = unvisited.pop()
            if outlet is None:
                membership.detach()
            elif not membership.ended:
                membership.attach(outlet, gate)
                membership.schedule_drain()
        if not unvisited and self._next_pass is not None:
            self._unvisited, self._next_pass = self._next_pass, None
            self._unvisited.reverse()

    def _wake_slice(self) -> None:
        """Drain the next shared subscriptions that wait for room in the session."""
        left = MEMBERSHIPS_PER_SLICE
        while left > 0 and (self._woken or self._refused):
            left -= 1
            if not self._woken:
                self._woken, self._refused = self._refused, []
                self._woken.reverse()
            membership = self._woken.pop()
            membership.refused = False
            if not membership.ended:
                membership.schedule_drain()
        self.has_refused = bool(self._woken or self._refused)


class RefusedRetry(Task):
    """A timer that drains the refused shared subscriptions of one session again."""

    def __init__(self, deliveries: SharedDeliveries) -> None:
        self._deliveries = deliveries

    def run(self) -> None:
        self._deliveries.retry_refused()
