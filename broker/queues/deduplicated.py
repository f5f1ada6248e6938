"""The queue that deduplicates its messages (RabbitMQ's plugin `rabbitmq-message-deduplication`).

    put --> does a message in the queue have the same x-deduplication-header? --yes--> dropped
                `--no--> waits; the queue remembers the header until the message is settled or
                         discarded

An unacknowledged message is still in the queue. A message without the header is not compared. After
a restart, the queue reads its stored messages, so it knows their header values before the first new
message comes.
"""

from __future__ import annotations

from array import array
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.eviction import evict_oldest
from broker.messages.fates import REPEATED_IN_QUEUE
from broker.messages.message import Message
from broker.messages.tracing import report_fate
from broker.queues.arguments import QueueArguments
from broker.queues.duplicate_filter import ENTRY_SIZE, HEADER, hash_value
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.paged_tail import read_stored
from broker.queues.statistics import NOT_TAKEN
from broker.store.contract import Store

#: The largest number of values that a queue remembers; they take up to 200 MB. If more messages
#: with the header are in the queue, the oldest values are evicted.
VALUES_MAX: Final = 1_000_000


class DeduplicatedQueue(LimitedQueue):
    """A queue that drops a new message if a message in it has the same `x-deduplication-header`."""

    def __init__(
        self,
        vhost: str,
        name: str,
        agenda: Agenda,
        store: Store,
        durable: bool,
        arguments: QueueArguments,
        host: DeadLetterHost,
    ) -> None:
        super().__init__(vhost, name, agenda, store, durable, arguments, host)
        #: Maps the hash of each known value to the position of its message in the store, or to 0 if
        #: the message is not stored. The position distinguishes a purged, unacknowledged message
        #: from a later message with the same value.
        self._known: dict[bytes, int] = {}
        #: The largest number of values that the queue remembers.
        self.values_max = VALUES_MAX

    @property
    def entries(self) -> int:
        """The number of header values that the queue remembers for deduplication."""
        return len(self._known)

    def memory_bytes(self) -> i64:
        return super().memory_bytes() + ENTRY_SIZE * len(self._known)

    def put(self, message: Message) -> None:
        value = _value_of(message)
        if value is not None:
            if value in self._known:
                self.note(NOT_TAKEN)
                self.count(REPEATED_IN_QUEUE)
                if message.address.traced:
                    report_fate(message, REPEATED_IN_QUEUE, self.name)
                self.release(message)
                return
            self._record(value, message.position)
        super().put(message)

    def repeats(self, message: Message) -> bool:
        """True if the queue would drop the message, because a message in the queue has the same
        `x-deduplication-header`.
        """
        value = _value_of(message)
        return value is not None and value in self._known

    def _record(self, value: bytes, position: i64) -> None:
        self._known[value] = int(position)
        if len(self._known) > self.values_max:
            evict_oldest(self._known)

    def _forget(self, message: Message) -> None:
        """Forget the header value of a message that leaves the queue."""
        value = _value_of(message) if self._known else None
        if value is not None and self._known.get(value) == message.position:
            del self._known[value]

    def restore(self, positions: array[int], sequence: i64) -> None:
        super().restore(positions, sequence)
        for message in read_stored(self.store, self.number, positions, False):
            value = None if message is None else _value_of(message)
            if message is not None and value is not None:
                self._record(value, message.position)

    # -- how messages leave the queue

    def settle(self, message: Message) -> None:
        self._forget(message)
        super().settle(message)

    def auto_acknowledge(self, message: Message) -> None:
        self._forget(message)
        super().auto_acknowledge(message)

    def discard(self, message: Message, fate: i64) -> None:
        self._forget(message)
        super().discard(message, fate)

    def purge(self) -> int:
        self._known.clear()
        return super().purge()


def _value_of(message: Message) -> bytes | None:
    """Return a hash of the message's `x-deduplication-header`; None without this header."""
    headers = message.properties.get("headers")
    if not isinstance(headers, dict) or HEADER not in headers:
        return None
    return hash_value(headers[HEADER])
