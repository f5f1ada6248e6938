"""A record of the messages that the broker owes to its clients. Each violation is a complaint.

A family is a group of queues: a queue, and the queues to which its messages may be moved as dead
letters or by a transaction. The inbox of a session is a family too. Each family gets one copy of a
message. Until the copy is settled, it is in exactly one queue of the family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

#: The kinds of violations that the ledger finds.
LOST = "confirmed and lost"
BACK = "settled and back"
TWICE = "there twice"
STRAY = "from nowhere"
ORDER = "out of order"
HALF = "half a transaction"
AGAIN = "received twice with QoS 2"
QUALITY = "delivered with another QoS"
DEFINITIONS = "definitions are not those that were answered"
RETAINED = "a retained message that was replaced"
DISK = "the disk is not what the model says"
DAMAGE = "damage where there is none"
FATES = "fates do not sum"
OLD = "older than its queue"
FORGOTTEN = "delivered before and not redelivered"

Complain = Callable[[str, str], None]


class Copy:
    """The copy of a message that a family (a group of queues, see the module) gets."""

    __slots__ = ("confirmed", "delivered_from", "optional", "quality", "settled_at")

    def __init__(self, quality: int) -> None:
        #: The QoS with which the session gets the message; -1 if more than one QoS is possible.
        self.quality = quality
        self.confirmed = False
        #: The queues that delivered the copy to an AMQP consumer.
        self.delivered_from: set[str] = set()
        #: True if the family may lack the message, which was sent again under other bindings.
        self.optional = False
        #: The store's position when the copy was settled.
        self.settled_at: int | None = None


class Family:
    """A group of queues through which each message passes once (see the module's docstring).

    `lossy` is True if its messages may be dropped silently, `endless` if it has no consumer.
    """

    def __init__(
        self, name: str, queues: tuple[str, ...], lossy: bool, endless: bool = False
    ) -> None:
        self.name = name
        self.queues = queues
        self.lossy = lossy
        self.endless = endless
        self.copies: dict[str, Copy] = {}
        #: Messages whose settlement is durable.
        self.settled: set[str] = set()
        #: Message that the client of the family received -> its QoS.
        self.received: dict[str, int] = {}
        self.newest: dict[str, int] = {}


class Ledger:
    """All messages that clients have sent, and what must happen to each of them.

    A message is named PUBLISHER-NUMBER, with rising numbers. If `forgets` is True, the broker may
    deliver a message again after a crash without the flag `redelivered`.
    """

    def __init__(self, complain: Complain, forgets: bool = False) -> None:
        self._forgets = forgets
        self.families: dict[str, Family] = {}
        #: All messages that were confirmed and routed.
        self.promised: set[str] = set()
        self._complain = complain
        self._of: dict[str, list[Family]] = {}
        self._transactions: list[list[tuple[Family, str]]] = []
        #: Topic -> values in the order in which they were sent; the first one is confirmed or
        #: recovered.
        self.retained: dict[str, list[bytes]] = {}

    def family(self, name: str, *others: str, lossy: bool = False, endless: bool = False) -> None:
        self.families[name] = Family(name, (name, *others), lossy, endless)

    def holding(self, queue: str) -> Family:
        """Return the family (a group of queues, see the module) to which a queue belongs."""
        for family in self.families.values():
            if queue in family.queues:
                return family
        raise KeyError(queue)

    # -- publishers

    def sent(self, message: str, targets: dict[str, int], again: bool = False) -> None:
        """Note a message that a publisher sends, or sends again (`again`).

        `targets` has the QoS of the copy for each family (group of queues) that gets a copy.
        """
        known = self._of.get(message, [])
        families = [self.families[name] for name in targets if name in self.families]
        for family in known if again else []:
            if family not in families and message in family.copies:
                family.copies[message].optional = True
        for family in families:
            copy = family.copies.get(message)
            if copy is None and message not in family.settled:
                copy = family.copies[message] = Copy(targets[family.name])
                copy.optional = again and bool(known)
            elif copy is not None and copy.quality != targets[family.name]:
                copy.quality = -1
        self._of[message] = list({family.name: family for family in known + families}.values())

    def confirmed(self, message: str) -> None:
        if self._of.get(message):
            self.promised.add(message)
        for family in self._of.get(message, []):
            if message in family.copies:
                family.copies[message].confirmed = True

    def refused(self, message: str) -> None:
        for family in self._of.pop(message, []):
            family.copies.pop(message, None)

    def transaction(self, messages: dict[str, dict[str, int]]) -> None:
        """Note a transaction that publishes messages.

        For each message, `messages` has the QoS of its copy for each family (group of queues).
        """
        for message, targets in messages.items():
            self.sent(message, targets)
        self._transactions.append(
            [
                (self.families[name], message)
                for message, targets in messages.items()
                for name in targets
                if name in self.families and not self.families[name].lossy
            ]
        )

    # -- consumers

    def delivered(self, queue: str, message: str, redelivered: bool = True) -> None:
        """Check a message that a consumer of the queue got with the flag `redelivered`."""
        family = self.holding(queue)
        copy = family.copies.get(message)
        if copy is None:
            self._complain(
                BACK if message in family.settled else STRAY,
                f"{message} was delivered from {queue}",
            )
        elif copy.settled_at is not None:
            self._complain(
                BACK, f"{message} was delivered from {queue}, settled at {copy.settled_at}"
            )
        if copy is not None:
            if queue in copy.delivered_from and not redelivered and not self._forgets:
                self._complain(FORGOTTEN, f"{message} was delivered from {queue}")
            copy.delivered_from.add(queue)

    def received(self, session: str, message: str, quality: int) -> None:
        """Check a message that a session's client received with the QoS `quality`.

        A client that receives a QoS 2 packet identifier again calls this method only once.
        """
        family = self.families[session]
        self.delivered(session, message)
        copy = family.copies.get(message)
        if copy is not None and copy.quality not in (-1, quality):
            self._complain(
                QUALITY, f"{message} came to {session} with QoS {quality}, not {copy.quality}"
            )
        publisher, number = _parse(message)
        if message in family.received:
            if quality == 2 and family.received[message] == 2:
                self._complain(AGAIN, f"{message} at {session}")
        elif number < family.newest.get(publisher, 0):
            self._complain(
                ORDER, f"{message} came to {session} after {publisher}-{family.newest[publisher]}"
            )
        else:
            family.newest[publisher] = number
        family.received[message] = quality

    def settle(self, queue: str, message: str, position: int) -> None:
        """Note that a consumer settled a message while the store was at a position."""
        family = self.holding(queue)
        copy = family.copies.get(message)
        if copy is not None and copy.settled_at is None:
            copy.settled_at = position

    # -- after a start

    def recovered(self, by_queue: dict[str, list[str]], last: int) -> None:
        """Check the messages in the queues after a start; the log ends at position `last`."""
        for family in self.families.values():
            there = Counter(
                message for queue in family.queues for message in by_queue.get(queue, [])
            )
            for message, count in there.items():
                self._judge(family, message, count, last)
            self._check_order(family.name, by_queue.get(family.name, []))
            for message, copy in family.copies.items():
                if (
                    message not in there
                    and copy.settled_at is None
                    and copy.confirmed
                    and not copy.optional
                    and not family.lossy
                ):
                    self._complain(LOST, f"{message} of {family.name}")
        self._check_transactions(by_queue, last)
        for family in self.families.values():
            there = Counter(
                message for queue in family.queues for message in by_queue.get(queue, [])
            )
            for message, copy in list(family.copies.items()):
                if message in there:
                    copy.confirmed, copy.settled_at = True, None
                    copy.delivered_from = {
                        queue for queue in copy.delivered_from if message in by_queue.get(queue, [])
                    }
                    continue
                del family.copies[message]
                if copy.settled_at is not None and copy.settled_at <= last:
                    family.settled.add(message)
                    continue
                if family in self._of.get(message, []):
                    self._of[message].remove(family)
                if family.received.get(message) == 1:
                    del family.received[message]
            # The publisher may send a message again that the crash lost, after later messages.
            family.newest.clear()
            for message in family.received.keys() & (family.copies.keys() | family.settled):
                publisher, number = _parse(message)
                family.newest[publisher] = max(number, family.newest.get(publisher, 0))

    def _judge(self, family: Family, message: str, count: int, last: int) -> None:
        copy = family.copies.get(message)
        if count > 1:
            self._complain(TWICE, f"{message} in {family.name}")
        if copy is None:
            self._complain(
                BACK if message in family.settled else STRAY, f"{message} in {family.name}"
            )
        elif copy.settled_at is not None and copy.settled_at <= last:
            self._complain(
                BACK,
                f"{message} in {family.name}, settled at {copy.settled_at}, and the log goes"
                f" to {last}",
            )

    def _check_order(self, queue: str, messages: list[str]) -> None:
        newest: dict[str, int] = {}
        for message in messages:
            publisher, number = _parse(message)
            if number < newest.get(publisher, 0):
                self._complain(
                    ORDER, f"{message} in {queue} behind {publisher}-{newest[publisher]}"
                )
            newest[publisher] = number

    def _check_transactions(self, by_queue: dict[str, list[str]], last: int) -> None:
        there = {(queue, message) for queue, messages in by_queue.items() for message in messages}
        for transaction in self._transactions:
            present = []
            for family, message in transaction:
                copy = family.copies.get(message)
                settled = (
                    message in family.settled
                    or copy is not None
                    and copy.settled_at is not None
                    and copy.settled_at <= last
                )
                present.append(settled or any((queue, message) in there for queue in family.queues))
            if any(present) and not all(present):
                self._complain(
                    HALF,
                    ", ".join(
                        f"{message} in {family.name}: {is_}"
                        for (family, message), is_ in zip(transaction, present, strict=True)
                    ),
                )
        self._transactions.clear()

    def finished(self) -> None:
        """Check that each message was delivered, after all clients have read everything.

        Families with `lossy` or `endless`, and optional copies, may have messages that were not
        delivered.
        """
        for family in self.families.values():
            for message, copy in family.copies.items():
                if (
                    copy.settled_at is None
                    and not copy.optional
                    and not family.lossy
                    and not family.endless
                ):
                    self._complain(LOST, f"{message} of {family.name} was never delivered")

    # -- retained messages

    def retain(self, topic: str, value: bytes) -> None:
        self.retained.setdefault(topic, [b""]).append(value)

    def retain_confirmed(self, topic: str, value: bytes) -> None:
        values = self.retained[topic]
        if value in values:
            del values[: values.index(value)]

    def check_retained(self, values: dict[str, bytes]) -> None:
        """Check retained messages after a start: the last confirmed value of each topic, or a later
        value.
        """
        for topic in self.retained.keys() | values.keys():
            value = values.get(topic, b"")
            if value not in self.retained.get(topic, [b""]):
                self._complain(
                    RETAINED,
                    f"{topic}: {value!r}, and it should be one of {self.retained.get(topic)}",
                )
            self.retained[topic] = [value]


def _parse(message: str) -> tuple[str, int]:
    publisher, _, number = message.rpartition("-")
    return publisher, int(number)
