"""Checks the consumers of a connection after the permissions of its user have changed.

A connection may have very many consumers. So they are checked in slices, as bulk work of the
agenda, and consumers of one queue that end in the same slice are removed from the queue in one
pass. If a connection has few consumers, all of them are checked at once.

After an unexpected exception the connection is closed, because some of its consumers may be
unchecked.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.agenda import BulkTask
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.channel.receiver import ChannelReceiver
from protocols.end_reasons import INTERNAL_ERROR, INTERNAL_ERROR_TEXT

#: Largest number of consumers of one connection that are checked in one slice. Such a slice takes
#: up to 1 ms. A consumer that ends counts as several checked consumers.
CHECKED_PER_SLICE: Final[i64] = 500
#: If a connection has at most this number of consumers, all of them are checked at once.
CHECKED_AT_ONCE: Final = 50


class ConsumerReauthorization(BulkTask):
    """A task that cancels the consumers of queues that a user may no longer read, in slices."""

    def __init__(
        self,
        connection: ConnectionInterface,
        receivers: list[ChannelReceiver],
        identity: Identity,
    ) -> None:
        super().__init__(connection.agenda)
        #: True once the task has nothing left to do, or a later change of permissions has replaced
        #: it.
        self.ended = False
        self._connection = connection
        self._identity = identity
        #: The channels that are not checked yet, the next one last.
        self._receivers = receivers
        self._receivers.reverse()
        #: The consumers of the next channel that are not checked yet, the next one last; None until
        #: the check of this channel begins.
        self._consumers: list[AmqpConsumer] | None = None

    def start(self) -> None:
        """Check all consumers now if there are at most CHECKED_AT_ONCE, else in slices."""
        count = 0
        for receiver in self._receivers:
            count += len(receiver.consumers)
        if count <= CHECKED_AT_ONCE:
            self.run_first_slice()
        else:
            self.schedule()

    def has_work(self) -> bool:
        return not self.ended

    def on_failure(self) -> None:
        self.ended = True
        self._connection.close(INTERNAL_ERROR, INTERNAL_ERROR_TEXT)

    def do_slice(self) -> None:
        left: i64 = CHECKED_PER_SLICE
        while left > 0 and self._receivers and not self.ended:
            left -= self._check_next(left)
        if not self._receivers:
            self.ended = True

    def _check_next(self, most: i64) -> i64:
        """Check up to `most` consumers of the next channel.

        Return the cost in units of one checked consumer.
        """
        receiver = self._receivers[-1]
        consumers = self._consumers
        if consumers is None:
            consumers = self._consumers = list(receiver.consumers.values())
            consumers.reverse()
        some = consumers[-most:]
        del consumers[-most:]
        some.reverse()
        if not consumers:
            self._receivers.pop()
            self._consumers = None
        return 1 + receiver.cancel_unreadable(some, self._identity)
