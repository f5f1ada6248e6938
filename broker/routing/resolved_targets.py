"""The destinations of a transaction's messages: found when a message is published, used when the
transaction commits.
"""

from __future__ import annotations

from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.plan import Plan
from broker.routing.plan_search import live_destinations
from broker.routing.subscriber import Subscriber
from broker.stream.queue import StreamQueue


class ResolvedTargets:
    """The destinations of a message that a transaction publishes when it commits.

    `targets` are the destinations with their QoS. `unrepresentable` is the number of further
    destinations, which cannot represent the topic. `journals` are the streams that record the
    message with the name of its `publisher`. Destinations that are bound later get no copy.
    """

    def __init__(
        self,
        targets: list[tuple[Queue | Subscriber, int]],
        unrepresentable: int,
        journals: list[StreamQueue],
        publisher: str,
    ) -> None:
        self._targets = targets
        self._unrepresentable = unrepresentable
        self._journals = journals
        self._publisher = publisher

    @property
    def copies(self) -> int:
        """The number of copies of the message, one for each destination; journals do not count."""
        return len(self._targets)

    @property
    def has_dead(self) -> bool:
        """True if a destination has been deleted or replaced since the last `remove_dead`."""
        for target, _ in self._targets:
            if target.dead:
                return True
        return any(journal.dead for journal in self._journals)

    def remove_dead(self) -> None:
        """Remove the deleted destinations. A replaced queue is represented by its replacement."""
        if self.has_dead:
            self._targets = live_destinations(self._targets)
            self._journals = [journal for journal in self._journals if not journal.dead]

    def identity(self) -> tuple[object, ...]:
        """Return a key that is equal for messages of one publisher with equal destinations."""
        return (self._unrepresentable, len(self._journals), *self._journals, *self._targets)

    def plan(self) -> Plan:
        """Return a new plan that leads to these destinations."""
        plan = Plan(self._targets, self._unrepresentable, False)
        plan.add_journals(self._journals, self._publisher)
        return plan

    def destinations(self) -> list[Destination]:
        """Return the destinations, followed by the journals that record the message."""
        destinations: list[Destination] = [target for target, _ in self._targets]
        destinations += self._journals
        return destinations


class TargetPlans:
    """The plans of one commit. Messages with the same destinations share a plan."""

    def __init__(self) -> None:
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._destinations: dict[Destination, None] = {}

    def plan_of(self, targets: ResolvedTargets) -> Plan:
        """Return the plan of the destinations in `targets` that still exist."""
        targets.remove_dead()
        identity = targets.identity()
        plan = self._plans.get(identity)
        if plan is None:
            plan = self._plans[identity] = targets.plan()
            for destination in targets.destinations():
                self._destinations[destination] = None
        return plan

    @property
    def has_dead(self) -> bool:
        """True if a destination of a plan has been deleted or replaced."""
        for destination in self._destinations:
            if destination.dead:
                return True
        return False
