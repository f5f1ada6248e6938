"""tx: what a channel has published and settled since the last commit.

Publications are checked and routed at once, as RabbitMQ does, and go to what is left of that at the
commit; settled deliveries stay the channel's until then, so that a rollback need only forget. A
commit is one record of the store: after a crash it was whole, or was not.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message
from broker.routing.planner import ResolvedTargets
from broker.routing.route import Route
from protocols.amqp.errors import AmqpError

#: How a delivery is settled.
ACKED: Final = 0
GIVEN_UP: Final = 1
PUT_BACK: Final = 2


class TransactedPublication:
    """A message, and where it goes at the commit."""

    def __init__(self, route: Route, aim: ResolvedTargets, message: Message, flags: i64) -> None:
        self.route = route
        self.aim = aim
        self.message = message
        self.flags: i64 = flags


class Transaction:
    """Of one channel in tx mode, begun anew by every commit and rollback."""

    def __init__(self, most: int) -> None:
        """`most` is how many octets its contents may have together."""
        self.publications: list[TransactedPublication] = []
        #: Delivery tag -> how it is settled.
        self.settlements: dict[int, int] = {}
        self._most = most
        self._octets = 0

    def publish(self, route: Route, aim: ResolvedTargets, message: Message, flags: i64) -> None:
        """Raises AmqpError when it grows too large."""
        self._octets += len(message.content)
        if self._octets > self._most:
            raise AmqpError(506, f"transaction of more than {self._most} octets")
        self.publications.append(TransactedPublication(route, aim, message, flags))

    def clear(self) -> None:
        """Forget everything."""
        self.publications = []
        self.settlements = {}
        self._octets = 0
