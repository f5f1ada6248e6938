"""The queues that clients cannot declare, such as the inbox of an MQTT session."""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.fates import OVER_LIMIT
from broker.queues.delivery_gate import NO_LIMIT
from broker.queues.queue import Queue
from broker.store.contract import Store


class ShortQueue(Queue):
    """A queue without arguments that drops its oldest message above `max_length` messages."""

    def __init__(
        self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool, max_length: int
    ) -> None:
        super().__init__(vhost, name, agenda, store, durable)
        self.max_length = max_length
        self._set_overflow_depth()

    def _set_overflow_depth(self) -> None:
        super()._set_overflow_depth()
        self._overflow_depth = min(self._overflow_depth, self.max_length)

    def _overflow(self) -> None:
        super()._overflow()
        if self.depth > self.max_length and self.depth > self._waiting.paged:
            self.drop_head(OVER_LIMIT)
            if self.depth > self.max_length and self.depth > self._waiting.paged:
                # The queue grew beyond the limit while its head could not be read. Two dropped
                # messages for each new one bring the queue back to the limit.
                self.drop_head(OVER_LIMIT)
            self._set_overflow_depth()


class Inbox(ShortQueue):
    """The queue of an MQTT session.

    The session, not this queue, records the deliveries of the queue in the store.
    """

    def __init__(
        self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool, max_length: int
    ) -> None:
        super().__init__(vhost, name, agenda, store, durable, max_length)
        self.private = True
        self._deliver_up_to = NO_LIMIT

    def reserve(self) -> i64:
        """Take and return the next sequence number, for a message that is not put into the queue.

        The number is for a shared subscription's message that bypasses this inbox.
        """
        return self._waiting.reserve()

    def skip(self, count: int) -> None:
        """Leave `count` sequence numbers unused. Called only if no undelivered message waits."""
        self._waiting.sequence += count

    def next_sequence(self) -> i64:
        """Return the sequence number of the next message that is put into the queue."""
        return self._waiting.next_sequence()

    @property
    def annotates(self) -> bool:
        return True

    def annotate(self, lowered: bool) -> int:
        """Return the sequence number of the next message, negative if `lowered`.

        `lowered` is True if the session gets the message with a lower QoS than the message was
        published with.
        """
        return -int(self.next_sequence()) if lowered else int(self.next_sequence())


class GroupInbox(Inbox):
    """The queue of a subscription group, which may become durable while it holds messages."""

    def __init__(
        self, vhost: str, name: str, agenda: Agenda, store: Store, max_length: int
    ) -> None:
        super().__init__(vhost, name, agenda, store, False, max_length)
        #: The store does not record messages at or below this position for this queue.
        self.recorded_after: i64 = 0

    def make_durable(self, number: i64, recorded_after: i64) -> None:
        """Make the queue durable, under the number that the store has given to its definition.

        If the store keeps messages that the queue holds already, it keeps them for other queues, at
        positions up to `recorded_after`.
        """
        self.durable = True
        self.number = number
        self.recorded_after = recorded_after
        self._set_overflow_depth()

    def release_position(self, position: i64) -> None:
        if position > self.recorded_after:
            super().release_position(position)
