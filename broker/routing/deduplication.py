"""Producers that number what they publish: what comes a second time is confirmed, and goes nowhere.

    headers    x-trellis-producer, a text: who; unique in its virtual host
               x-trellis-sequence, a number from 0: rises with every message; gaps are no matter. A text of decimal digits is one, too:
                                   MQTT's user properties are texts, and stay so when they cross

The last number of a producer is in the same record of the store as its message: after a crash it
was both, or neither.
"""

from __future__ import annotations

from typing import Final

from broker.errors import PreconditionFailed
from broker.eviction import evict_oldest
from broker.messages.message import Properties
from broker.store.contract import Sequenced, Store, Ticket

PRODUCER: Final = "x-trellis-producer"
SEQUENCE: Final = "x-trellis-sequence"
#: Producers that a virtual host remembers. One more, and the one that was silent longest is
#: forgotten.
PRODUCERS_MAX: Final = 100_000
#: Octets of a producer's name.
NAME_MAX: Final = 255
#: Of a number below 2**63.
_DIGITS: Final = 19


class NumberedPublication:
    """Who published, and the how manieth message of theirs it is."""

    def __init__(self, producer: str, sequence: int) -> None:
        self.producer = producer
        self.sequence = sequence


def numbered(headers: Properties) -> NumberedPublication | None:
    """What the headers say; None when they name no producer. Raises PreconditionFailed."""
    producer, sequence = headers.get(PRODUCER), headers.get(SEQUENCE)
    if producer is None:
        return None
    if (
        not isinstance(producer, str)
        or not 0 < len(producer.encode("utf-8", "surrogateescape")) <= NAME_MAX
    ):
        raise PreconditionFailed(f"header '{PRODUCER}' is no text of 1 to {NAME_MAX} octets")
    if (
        isinstance(sequence, str)
        and len(sequence) <= _DIGITS
        and sequence.isascii()
        and sequence.isdigit()
    ):
        sequence = int(sequence)
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 <= sequence < 1 << 63:
        raise PreconditionFailed(
            f"header '{SEQUENCE}' of producer '{producer}' is {sequence!r}, no number from 0"
        )
    return NumberedPublication(producer, sequence)


class Producers:
    """Of one virtual host; those that published longest ago come first."""

    def __init__(self, vhost: str, store: Store) -> None:
        self.last: dict[str, int] = {}
        self._vhost = vhost
        self._store = store

    def is_repeat(self, publication: NumberedPublication) -> bool:
        """True if the producer has published this sequence number, or a higher one, before."""
        return publication.sequence <= self.last.get(publication.producer, -1)

    def record(self, publication: NumberedPublication, ticket: Ticket | None) -> None:
        """It is published: between `begin` and `commit` of the store, with its message."""
        last, producer = self.last, publication.producer
        last.pop(producer, None)
        last[producer] = publication.sequence
        self._store.append(Sequenced(self._vhost, producer, publication.sequence), ticket)
        if len(last) > PRODUCERS_MAX:
            for oldest, _ in evict_oldest(last):
                self._store.append(Sequenced(self._vhost, oldest, -1), None)
