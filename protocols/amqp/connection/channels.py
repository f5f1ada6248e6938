"""The channels of a connection: open channels, and closing channels that wait for channel.close-ok.

closing.py has the table of a channel's states.
"""

from __future__ import annotations

from typing import Final

import pamqp.commands as spec
from mypy_extensions import i64

from broker.queues.consumer import MessageSource
from broker.vhost.options import MAX_CHANNELS
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.publisher import ChannelPublisher
from protocols.amqp.channel.receiver import unsubscribe_receivers
from protocols.amqp.codec.assembly import Assembly
from protocols.amqp.connection.handshake import Handshake
from protocols.amqp.errors import AmqpError
from protocols.connection import ConnectionRegistry

#: Limit of the total size of the incomplete contents on one connection, in bytes: UNFINISHED times
#: the size of the largest message, plus UNFINISHED_LEAST. The constant part leaves room for the
#: overhead of the frames if the largest message is small.
UNFINISHED: Final[i64] = 4
UNFINISHED_LEAST: Final[i64] = 1 << 20


class ChannelTable:
    """The channels of one connection, and the total size of their incomplete contents."""

    def __init__(self, message_max: i64) -> None:
        #: Open channels by number.
        self.open: dict[int, Channel] = {}
        #: Numbers of the channels that the broker has closed and for which the client has not sent
        #: channel.close-ok yet.
        self.closing: set[int] = set()
        self._message_max: i64 = message_max
        #: Index of the queue with which the last `resume_deliveries` began, counted from the end of
        #: the list of queues (1 is the last queue).
        self._resumed = 0
        #: Size of the incomplete contents on all channels, in bytes, frames included.
        self.unfinished: i64 = 0

    def open_channel(
        self, connection: ConnectionInterface, handshake: Handshake, number: i64
    ) -> None:
        """Open the channel `number` for a client, and send channel.open-ok.

        Raises AmqpError if the channel is open already, or the client may open no further channel.
        """
        if number in self.open:
            raise AmqpError(504, "second 'channel.open' seen")
        if number > handshake.channel_max:
            raise AmqpError(
                530,
                f"channel number {number} is above the negotiated channel_max "
                f"({handshake.channel_max})",
            )
        broker = connection.front.broker
        limit = broker.user_limit(handshake.user, MAX_CHANNELS, broker.limits.user_channels)
        if 0 <= limit <= _channels_of_user(connection.front, handshake.user):
            raise AmqpError(
                530,
                f"number of channels opened for user '{handshake.user}' has reached the maximum "
                f"allowed limit of ({limit})",
            )
        vhost, context = connection.vhost, connection.context
        assert vhost is not None and context is not None
        client = handshake.client
        self.open[number] = Channel(
            vhost,
            context,
            connection,
            number,
            connection.frame_max,
            client.can("consumer_cancel_notify"),
            client.product,
        )
        connection.send(number, spec.Channel.OpenOk())

    def end(self, number: i64) -> None:
        """Remove the channel `number` and release its resources, if the channel is open."""
        channel = self.open.pop(number, None)
        if channel is not None:
            self._drop_assembly(channel.publisher)
            channel.on_closed()

    def end_all(self) -> None:
        """Remove all channels and release their resources, because the connection has ended."""
        unsubscribe_receivers([channel.receiver for channel in self.open.values()])
        for number in list(self.open):
            self.end(number)
        self.closing.clear()

    def confirm(self) -> None:
        """Send the confirms that are ready, on all channels."""
        for channel in self.open.values():
            channel.publisher.confirm()

    def resume_deliveries(self) -> None:
        """Schedule a drain of every queue that delivers to one of the channels.

        The first queues may fill the output buffer, and the other queues then wait for the next
        call. So each call begins with a different queue.
        """
        queues: list[MessageSource] = []
        for channel in self.open.values():
            for consumer in channel.receiver.consumers.values():
                queues.append(consumer.queue)
        if queues:
            self._resumed = (self._resumed + 1) % len(queues)
            for at in range(len(queues)):
                queues[at - self._resumed].schedule_drain()

    # -- contents that come in several chunks

    def add_frame(self, publisher: ChannelPublisher, kind: i64, frame: bytes) -> Assembly | None:
        """Add a frame to the incomplete content of a channel; `kind` is the type of the frame.

        Return the content if it is complete now, otherwise None. Raises AmqpError for an unexpected
        frame, or if incomplete contents take too much memory.
        """
        assembly = publisher.assembly
        if assembly is None:
            raise AmqpError(505, "a content frame needs a basic.publish before it")
        before: i64 = assembly.held
        complete = assembly.add(kind, frame)
        self.unfinished += assembly.held - before
        if assembly.size > self._message_max:
            self._drop_assembly(publisher)
            raise publisher.too_large(assembly.size)
        if complete:
            self._drop_assembly(publisher)
            return assembly
        if self.unfinished > UNFINISHED * self._message_max + UNFINISHED_LEAST:
            raise AmqpError(
                506,
                f"incomplete messages take {self.unfinished} bytes of memory on this connection; "
                "complete a message before you begin the next message on another channel",
            )
        return None

    def _drop_assembly(self, publisher: ChannelPublisher) -> None:
        """Remove the incomplete content of a channel, if there is one."""
        if publisher.assembly is not None:
            self.unfinished -= publisher.assembly.held
            publisher.assembly = None


def _channels_of_user(front: ConnectionRegistry, user: str) -> int:
    """Return the number of channels that all connections of a user have open."""
    return sum(
        connection.open_channels
        for connection in front.connections
        if isinstance(connection, ConnectionInterface) and connection.owner[0] == user
    )
