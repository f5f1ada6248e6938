"""Deduplication: idempotent producers, whose repeated messages are confirmed and dropped.

A producer that gets no confirm, because its connection broke, publishes its message again. To
prevent the broker from storing the message twice, the producer numbers its messages in two headers:

    x-trellis-producer    the name of the producer, unique in its virtual host
    x-trellis-sequence    the sequence number: 0 or more, larger with each message, with or without
                          gaps. A text of decimal digits is accepted too, because user properties
                          of MQTT are texts.

The broker remembers the last sequence number of each producer. A message with a number that is not
larger is confirmed and dropped. The store keeps the last number in one group with the message, so a
crash keeps both or none.

A full queue may refuse a message, and the producer then publishes the message again. If the broker
accepted a larger number in between, it would drop the message as a repeat. So after a refusal, the
broker refuses all larger numbers of the producer until it has accepted the refused number. If the
producer does not publish the refused number again within REFUSAL_MS, the broker accepts larger
numbers again. This applies only to publishers that learn of the refusal: publishers with confirms,
or with QoS 1 or 2.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.errors import PreconditionFailed
from broker.eviction import evict_oldest
from broker.messages.message import Properties
from broker.store.contract import Store, Ticket
from broker.store.entries import Sequenced

PRODUCER: Final = "x-trellis-producer"
SEQUENCE: Final = "x-trellis-sequence"
#: Largest number of producers that a virtual host remembers. Above this number, the producer that
#: published longest ago is evicted.
PRODUCERS_MAX: Final = 100_000
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
            f"and is {sequence!r}"
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


class Producers:
    """The last and the refused sequence numbers of the producers of one virtual host."""

    def __init__(self, vhost: str, store: Store, agenda: Agenda) -> None:
        #: Last sequence numbers by producer name; the producer that published last is at the end.
        self.last: dict[str, int] = {}
        #: The refused numbers by producer name; at most PRODUCERS_MAX, the latest refusal is at the
        #: end. Not stored: after a restart, a producer repeats all unconfirmed messages in order.
        self.refused: dict[str, Refusal] = {}
        self._vhost = vhost
        self._store = store
        self._agenda = agenda

    def is_repeat(self, publication: NumberedPublication) -> bool:
        """True if the producer has published this sequence number, or a higher one, before."""
        return publication.sequence <= self.last.get(publication.producer, -1)

    def is_held_back(self, publication: NumberedPublication) -> bool:
        """True if the producer must first publish a lower sequence number, which was refused."""
        refusal = self.refused.get(publication.producer)
        if refusal is None or publication.sequence <= refusal.sequence:
            return False
        if refusal.expires > self._agenda.now:
            return True
        del self.refused[publication.producer]
        return False

    def refuse(self, publication: NumberedPublication) -> None:
        """Remember a refused sequence number, unless the producer has a lower refused number."""
        refused, producer = self.refused, publication.producer
        known = refused.pop(producer, None)
        sequence = (
            publication.sequence if known is None else min(known.sequence, publication.sequence)
        )
        refused[producer] = Refusal(sequence, self._agenda.now + REFUSAL_MS)
        if len(refused) > PRODUCERS_MAX:
            evict_oldest(refused)

    def record(self, publication: NumberedPublication, ticket: Ticket | None) -> None:
        """Remember and store the sequence number of a message that is published.

        Called between `begin` and `commit` of the store, so that the number is stored in one group
        with the message.
        """
        last, producer = self.last, publication.producer
        refusal = self.refused.get(producer)
        if refusal is not None and refusal.sequence <= publication.sequence:
            del self.refused[producer]
        last.pop(producer, None)
        last[producer] = publication.sequence
        self._store.append(Sequenced(self._vhost, producer, publication.sequence), ticket)
        if len(last) > PRODUCERS_MAX:
            self._evict(1)

    def clear(self, most: int) -> bool:
        """Forget up to `most` producers, because the virtual host is deleted.

        Without this, a restart would give the sequence numbers to a new virtual host of the same
        name, which would then drop new messages as repeats. Return True if no producer is left.
        """
        self._evict(most)
        return not self.last

    def _evict(self, most: int) -> None:
        """Forget up to `most` producers, in memory and in the store; the oldest first."""
        for producer, _ in evict_oldest(self.last, most):
            self._store.append(Sequenced(self._vhost, producer, -1), None)
