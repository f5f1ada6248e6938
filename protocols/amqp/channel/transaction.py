"""tx mode: the publications and settlements of a channel since its last commit.

A publication is checked and routed when it arrives, as in RabbitMQ. The commit delivers it to those
of its queues that still exist. A delivery that the client settles stays outstanding until the
commit, so a rollback only clears the transaction. A commit is one group of store records: after a
crash, all of its effects have happened or none.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message
from broker.routing.planner import ResolvedTargets
from broker.routing.route import Route
from protocols.amqp.errors import AmqpError

#: Ways to settle a delivery at the commit.
ACKED: Final = 0
REJECTED: Final = 1
REQUEUED: Final = 2


class TransactedPublication:
    """A message that waits for the commit, with the targets found when it was published."""

    def __init__(
        self, route: Route, targets: ResolvedTargets, message: Message, flags: i64
    ) -> None:
        self.route = route
        self.targets = targets
        self.message = message
        self.flags: i64 = flags


class Transaction:
    """The current transaction of one channel; each commit and rollback begins a new one."""

    def __init__(self, limit: int, parts_max: int) -> None:
        """Start an empty transaction.

        Its message contents may have `limit` bytes together. A commit has effects all at once, so
        the copies of its messages and its settlements may be `parts_max` together.
        """
        self.publications: list[TransactedPublication] = []
        #: Delivery tag -> ACKED, REJECTED or REQUEUED.
        self.settlements: dict[int, int] = {}
        #: All deliveries with delivery tags up to this one that were outstanding are settled here.
        self.settled_up_to: i64 = 0
        self._limit = limit
        self._size = 0
        self._parts_max = parts_max
        self._copies = 0

    def publish(self, route: Route, targets: ResolvedTargets, message: Message, flags: i64) -> None:
        """Add a publication. Raises AmqpError if the transaction exceeds its limit."""
        self._size += len(message.content)
        if self._size > self._limit:
            raise AmqpError(506, f"transaction above {self._limit} bytes: commit more often")
        self._copies += max(1, targets.copies)
        self.check_parts(0)
        self.publications.append(TransactedPublication(route, targets, message, flags))

    def settle(self, number: int, how: int) -> None:
        """Add a settlement. Raises AmqpError if the transaction exceeds its limit."""
        self.check_parts(1)
        self.settlements[number] = how

    @property
    def room(self) -> int:
        """Number of settlements that may still be added."""
        return self._parts_max - self._copies - len(self.settlements)

    def check_parts(self, more: int) -> None:
        """Raise AmqpError if the transaction cannot have so many more parts."""
        if self.room < more:
            raise AmqpError(
                406,
                f"transaction above {self._parts_max} parts (copies of messages and settlements): "
                "commit more often",
            )

    def clear(self) -> None:
        """Remove all publications and settlements."""
        self.publications = []
        self.settlements = {}
        self._size = self._copies = 0
        self.settled_up_to = 0
