"""tx mode: the publications and settlements of a channel since its last commit.

A publication is checked and routed when it arrives, as in RabbitMQ. The commit delivers the
publication to each of its queues that still exists (commit.py). If the permissions of the user have
changed in between, the commit checks the publication again. A delivery that the client settles
stays outstanding until the commit, so a rollback only empties the transaction.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.messages.message import Message
from broker.routing.deduplication import NumberedPublication
from broker.routing.resolved_targets import ResolvedTargets, TargetPlans
from broker.routing.route import MessageRoute, Route
from broker.vhost.publishing import prepare
from broker.vhost.vhost import VirtualHost
from protocols.amqp.errors import AmqpError, unknown_tag
from protocols.window import Window

#: Ways to settle a delivery when the transaction commits.
ACKED: Final = 0
REJECTED: Final = 1
REQUEUED: Final = 2


class TransactedPublication:
    """A message that waits for the commit, with the destinations that were found when the client
    published it.
    """

    __slots__ = ("flags", "identity", "keys", "lifetime", "message", "number", "route", "targets")

    def __init__(
        self,
        identity: Identity,
        route: Route,
        keys: list[str],
        targets: ResolvedTargets,
        message: Message,
        flags: i64,
        number: NumberedPublication | None,
        lifetime: i64,
    ) -> None:
        #: The user, with the permissions with which the publication was checked last.
        self.identity = identity
        self.route = route
        #: All routing keys of the message: its own, then the keys of its headers CC and BCC.
        self.keys = keys
        self.targets = targets
        self.message = message
        self.flags: i64 = flags
        #: Publisher and sequence number for deduplication; None if the message has no sequence
        #: number.
        self.number = number
        #: Time from the commit to the message's expiry, in ms; -1 for a message without expiry.
        self.lifetime: i64 = lifetime

    def prepare(self, plans: TargetPlans, vhost: VirtualHost) -> None:
        """Replace the route by a route to the destinations that still exist, and prepare the
        message.

        The time to live of the message begins now, not when the client published the message,
        because only the commit puts the message into queues.
        """
        old = self.route
        blind = old.blind if isinstance(old, MessageRoute) else []
        route = MessageRoute(old.exchange, [old.key], blind, plans.plan_of(self.targets))
        if self.lifetime >= 0:
            self.message.expires = vhost.agenda.now + self.lifetime
        prepare(vhost, route, self.message)
        self.route = route


class Transaction:
    """The current transaction of one channel; each commit or rollback begins a new transaction."""

    def __init__(self, limit: int, parts_max: int) -> None:
        """Start an empty transaction.

        The contents of its messages may have at most `limit` bytes in total. The settlements and
        the copies of messages for queues, counted together, may be at most `parts_max`, because a
        commit carries them out in one turn of the event loop.
        """
        self.publications: list[TransactedPublication] = []
        #: Delivery tag -> ACKED, REJECTED or REQUEUED.
        self.settlements: dict[int, int] = {}
        #: The transaction settles all outstanding deliveries with delivery tags up to this number.
        self.settled_up_to: i64 = 0
        self._limit = limit
        self._size = 0
        self._parts_max = parts_max
        self._copies = 0

    def publish(self, publication: TransactedPublication) -> None:
        """Add a publication to the transaction.

        Raises AmqpError if the transaction exceeds its limit.
        """
        self._size += len(publication.message.content)
        if self._size > self._limit:
            raise AmqpError(
                506, f"the transaction has more than {self._limit} bytes: commit more often"
            )
        self._copies += max(1, publication.targets.copies)
        self.check_parts(0)
        self.publications.append(publication)

    def settle(self, number: int, how: int) -> None:
        """Add the settlement of a delivery: `number` is the delivery tag, `how` is ACKED, REJECTED
        or REQUEUED.

        Raises AmqpError if the transaction exceeds its limit.
        """
        self.check_parts(1)
        self.settlements[number] = how

    @property
    def room(self) -> int:
        """Number of settlements that can still be added to the transaction."""
        return self._parts_max - self._copies - len(self.settlements)

    def check_parts(self, more: int) -> None:
        """Raise AmqpError if `more` further copies or settlements would exceed `parts_max`."""
        if self.room < more:
            raise AmqpError(
                406,
                f"the transaction has more than {self._parts_max} parts (copies of messages and "
                "settlements): commit more often",
            )

    def clear(self) -> None:
        """Remove all publications and settlements from the transaction."""
        self.publications = []
        self.settlements = {}
        self._size = self._copies = 0
        self.settled_up_to = 0


def settle_at_commit(
    transaction: Transaction, unacked: Window, number: i64, multiple: bool, how: int
) -> None:
    """Add settlements to the transaction; its commit carries them out.

    `number` is a delivery tag. With `multiple`, add all outstanding deliveries up to this tag,
    except deliveries that the transaction settles already; a tag of 0 means all outstanding
    deliveries. `how` is ACKED, REJECTED or REQUEUED.

    Raises AmqpError if the tag is unknown, or if the transaction would become too large. With
    `multiple` and a tag other than 0, also raises AmqpError if no delivery is added.
    """
    settlements = transaction.settlements
    if not multiple:
        if number in settlements or unacked.get(number) is None:
            raise unknown_tag(number)
        transaction.settle(number, how)
        return
    last: i64 = number if number else unacked.next - 1
    numbers = [
        one
        for one in unacked.numbers(
            transaction.settled_up_to, last, transaction.room + len(settlements) + 1
        )
        if one not in settlements
    ]
    if number and (not numbers or number >= unacked.next):
        raise unknown_tag(number)
    transaction.check_parts(len(numbers))
    for one in numbers:
        settlements[one] = how
    transaction.settled_up_to = max(transaction.settled_up_to, last)
