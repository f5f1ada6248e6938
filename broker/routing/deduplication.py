"""Deduplication: idempotent producers, whose repeated messages are confirmed and dropped.

A producer that gets no confirm, because its connection broke, publishes its message again. To
prevent the broker from storing the message twice, the producer numbers its messages in two headers:

    x-trellis-producer    the name of the producer, unique among the producers of its user in the
                          virtual host
    x-trellis-sequence    the sequence number: 0 or more, larger with each message, with or without
                          gaps. A text of decimal digits is accepted too, because user properties
                          of MQTT are texts.

The broker remembers the last sequence number of each producer. A message with a number that is not
larger is confirmed and dropped. The store keeps the last number in one group with the message, so a
crash keeps both or none.

A producer belongs to the user that publishes its messages (`owner_of`), so that no user can use up
the sequence numbers of another user. If two users choose the same producer name, these are two
producers. Earlier versions stored sequence numbers without a user. Until such a number is evicted,
it counts for the producers of this name of all users: a message whose sequence number is not larger
than this number is a repeat, too.

A full queue may refuse a message, and the producer then publishes the message again. If the broker
accepted a larger number in between, it would drop the message as a repeat. So after a refusal, the
broker refuses all larger numbers of the producer until it has accepted the refused number. If the
producer does not publish the refused number again within REFUSAL_MS, the broker accepts larger
numbers again. This applies only to publishers that learn of the refusal: publishers with confirms,
or with QoS 1 or 2.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.agenda import Agenda, BulkTask
from broker.errors import PreconditionFailed
from broker.messages.message import Properties
from broker.names import fault_of
from broker.routing.owner_table import OwnerTable
from broker.store.contract import Store, Ticket
from broker.store.entries import Sequenced, producer_scope

PRODUCER: Final = "x-trellis-producer"
SEQUENCE: Final = "x-trellis-sequence"
NUMBER_HEADERS: Final = (PRODUCER, SEQUENCE)
#: Largest number of sequence numbers that a virtual host remembers. Above it, a number that is
#: stored without a user is evicted. If there is none, the user with the most producers loses the
#: number of the producer that published longest ago.
PRODUCERS_MAX: Final = 100_000
#: Number of a deleted user's producers that are removed from the store in one slice.
REMOVALS_PER_SLICE: Final = 200
#: Time in ms for which a refused sequence number is remembered after its last refusal.
REFUSAL_MS: Final = 3_600_000
#: Size in bytes of the longest producer name.
NAME_MAX: Final = 255
#: Number of decimal digits of the largest sequence number, 2**63 - 1.
_DIGITS: Final = 19


class NumberedPublication:
    """The producer name and the sequence number of one message."""

    def __init__(self, producer: str, sequence: int) -> None:
        self.producer = producer
        self.sequence = sequence


def numbered(headers: Properties) -> NumberedPublication | None:
    """Return the producer and the sequence number in the headers; None if there is no producer.

    Raises PreconditionFailed if one of the two headers is invalid.
    """
    producer, sequence = headers.get(PRODUCER), headers.get(SEQUENCE)
    if producer is None:
        return None
    if (
        not isinstance(producer, str)
        or not 0 < len(producer.encode("utf-8", "surrogateescape")) <= NAME_MAX
    ):
        raise PreconditionFailed(f"header '{PRODUCER}' must be a text of 1 to {NAME_MAX} bytes")
    if (
        isinstance(sequence, str)
        and len(sequence) <= _DIGITS
        and sequence.isascii()
        and sequence.isdigit()
    ):
        sequence = int(sequence)
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 <= sequence < 1 << 63:
        raise PreconditionFailed(
            f"header '{SEQUENCE}' of producer '{producer}' must be an integer from 0 to 2**63 - 1, "
            f"not {sequence!r}"
        )
    return NumberedPublication(producer, sequence)


class Refusal:
    """A refused sequence number, which the producer must publish next.

    `expires` is the time at which the broker forgets the refusal, in ms of the agenda's clock.
    """

    __slots__ = ("expires", "sequence")

    def __init__(self, sequence: int, expires: i64) -> None:
        self.sequence = sequence
        self.expires: i64 = expires


def owner_of(identity: Identity) -> str:
    """Return the owner of the producers of a user, which the store keeps: the name of the user.

    All clients without a user name have the owner "". A plugin may admit a user whose name is not
    valid as the name of an account, for example because it is too long. The owner of such a user is
    NUL and a digest of the name; no valid name contains NUL.
    """
    if identity.anonymous:
        return ""
    name = identity.name
    if fault_of(name):
        return "\0" + sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return name


class Producers:
    """The last and the refused sequence numbers of the producers of one virtual host.

    The methods identify a producer by its owner (`owner_of`) and by its name.
    """

    def __init__(self, vhost: str, store: Store, agenda: Agenda) -> None:
        #: Last sequence numbers by owner and producer name.
        self.last: OwnerTable[int] = OwnerTable()
        #: Last sequence numbers by producer name that an earlier version stored without an owner,
        #: in the order in which they were stored. `last` and `unowned` together have at most
        #: PRODUCERS_MAX numbers.
        self.unowned: OrderedDict[str, int] = OrderedDict()
        #: The refused numbers by owner and producer name; at most PRODUCERS_MAX. They are not
        #: stored: after a restart, a producer repeats all unconfirmed messages in order.
        self.refused: OwnerTable[Refusal] = OwnerTable()
        self._vhost = vhost
        self._store = store
        self._agenda = agenda
        self._removal = OwnerRemoval(self, agenda)

    def is_repeat(self, owner: str, publication: NumberedPublication) -> bool:
        """True if the producer has published this sequence number, or a higher one, before."""
        sequence = publication.sequence
        last = self.last.get(owner, publication.producer)
        if last is not None and sequence <= last:
            return True
        return bool(self.unowned) and sequence <= self.unowned.get(publication.producer, -1)

    def is_held_back(self, owner: str, publication: NumberedPublication) -> bool:
        """True if the producer must first publish a lower sequence number, which was refused."""
        refusal = self.refused.get(owner, publication.producer)
        if refusal is None or publication.sequence <= refusal.sequence:
            return False
        if refusal.expires > self._agenda.now:
            return True
        self.refused.remove(owner, publication.producer)
        return False

    def refuse(self, owner: str, publication: NumberedPublication) -> None:
        """Remember a refused sequence number, unless the producer has a lower refused number."""
        refused, producer = self.refused, publication.producer
        known = refused.get(owner, producer)
        sequence = (
            publication.sequence if known is None else min(known.sequence, publication.sequence)
        )
        refused.put(owner, producer, Refusal(sequence, self._agenda.now + REFUSAL_MS))
        if refused.size > PRODUCERS_MAX:
            refused.evict()

    def record(self, owner: str, publication: NumberedPublication, ticket: Ticket | None) -> None:
        """Remember and store the sequence number of a message that is published.

        Called between `begin` and `commit` of the store, so that the number is stored in one group
        with the message.
        """
        last, producer = self.last, publication.producer
        refusal = self.refused.get(owner, producer)
        if refusal is not None and refusal.sequence <= publication.sequence:
            self.refused.remove(owner, producer)
        last.put(owner, producer, publication.sequence)
        scope = producer_scope(self._vhost, owner)
        self._store.append(Sequenced(scope, producer, publication.sequence), ticket)
        if last.size + len(self.unowned) > PRODUCERS_MAX:
            self._evict(producer)

    def restore(self, owner: str | None, producer: str, sequence: int) -> None:
        """Add a stored sequence number; `owner` is None if an earlier version stored it.

        Call this method in the order in which the numbers were stored, so that the producer that
        published longest ago is still evicted first.
        """
        if owner is None:
            self.unowned[producer] = sequence
        else:
            self.last.put(owner, producer, sequence)

    def remove_owner(self, owner: str) -> None:
        """Forget the producers of a user that is deleted: in memory now, and in the store soon.

        If the broker still remembered these producers, it would drop new messages of a later user
        of this name as repeats.
        """
        self.refused.remove_owner(owner)
        self._removal.add(owner, self.last.remove_owner(owner))

    def clear(self, most: int) -> bool:
        """Forget up to `most` producers, because the virtual host is deleted.

        If their sequence numbers stayed in the store, a restart would give them to a new virtual
        host of the same name. The broker would then drop new messages as repeats. Return True if no
        producer is left.
        """
        left = most - self._removal.remove(most)
        while left > 0 and (self.unowned or self.last.size):
            self._evict("")
            left -= 1
        return not self._removal.has_work() and not self.unowned and self.last.size == 0

    def remove_stored(self, owner: str, producer: str) -> None:
        """Remove a producer's number from the store if the broker does not remember the producer.

        If a new user has the name of the deleted user, and has published by this producer's name,
        the broker remembers the producer again. In this case the stored number is the new user's,
        and stays.
        """
        if self.last.get(owner, producer) is None:
            self._store.append(Sequenced(producer_scope(self._vhost, owner), producer, -1), None)

    def _evict(self, producer: str) -> None:
        """Forget one sequence number, in memory and in the store.

        Numbers without an owner (from earlier versions) are evicted first: the number of the name
        `producer` if it has one, because this producer has a number with an owner now, else the
        oldest number. If all numbers have an owner, evict the oldest number of the owner with the
        most numbers.
        """
        if self.unowned:
            name = producer if producer in self.unowned else next(iter(self.unowned))
            del self.unowned[name]
            self._store.append(Sequenced(self._vhost, name, -1), None)
        else:
            owner, name = self.last.evict()
            self._store.append(Sequenced(producer_scope(self._vhost, owner), name, -1), None)


class OwnerRemoval(BulkTask):
    """Removes the numbers of deleted users from the store, in slices."""

    def __init__(self, producers: Producers, agenda: Agenda) -> None:
        super().__init__(agenda)
        self._producers = producers
        #: The deleted owners, and the producers of each that are still to be removed.
        self._waiting: list[tuple[str, list[str]]] = []

    def add(self, owner: str, producers: list[str]) -> None:
        """Begin to remove the numbers of `producers`, which belong to the deleted user `owner`."""
        if producers:
            self._waiting.append((owner, producers))
            self.schedule()

    def has_work(self) -> bool:
        return bool(self._waiting)

    def do_slice(self) -> None:
        self.remove(REMOVALS_PER_SLICE)

    def remove(self, most: int) -> int:
        """Remove up to `most` producers from the store; return how many were removed."""
        removed = 0
        while self._waiting and removed < most:
            owner, producers = self._waiting[-1]
            producer = producers.pop()
            if not producers:
                self._waiting.pop()
            removed += 1
            self._producers.remove_stored(owner, producer)
        return removed
