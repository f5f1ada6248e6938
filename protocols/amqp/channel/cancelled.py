"""The cancelled consumers of a channel, whose deliveries may still be outstanding."""

from __future__ import annotations

from typing import Final

from protocols.amqp.channel.consumer import AmqpConsumer

#: Shortest length at which the list of cancelled consumers is searched for consumers without
#: outstanding deliveries.
_LEAST: Final = 8


class CancelledConsumers:
    """The cancelled consumers of one channel whose deliveries may still be outstanding."""

    def __init__(self) -> None:
        #: All cancelled consumers with outstanding deliveries, and perhaps some that have none.
        self.consumers: list[AmqpConsumer] = []
        self._most = _LEAST

    def keep(self, consumer: AmqpConsumer) -> None:
        """Add a cancelled consumer to the list, if it has outstanding deliveries.

        A consumer whose deliveries are all settled is not removed at once. Such consumers are
        removed each time that the length of the list has doubled.
        """
        if consumer.outstanding:
            if len(self.consumers) >= self._most:
                self.drop_settled()
                self._most = max(_LEAST, 2 * len(self.consumers))
            self.consumers.append(consumer)

    def drop_settled(self) -> None:
        """Remove the consumers without outstanding deliveries from the list."""
        self.consumers = [one for one in self.consumers if one.outstanding]
