"""The interface through which a channel, its publisher and its receiver use their connection.

AmqpConnection implements it. The rooms form a chain without a cycle: `connection/` imports
`channel/`, and `channel/` knows its connection by this base class alone. A base class costs one
virtual call where compiled code would look up each method of a Protocol by name.
"""

from __future__ import annotations

from abc import abstractmethod

import pamqp.base
from mypy_extensions import i64

from broker.messages.outlet import LARGE_BODY
from protocols.amqp.channel.exclusive_queues import ExclusiveQueues
from protocols.amqp.errors import AmqpError
from protocols.connection import Connection, ConnectionRegistry, Peer


class ChannelConnection(Connection):
    """An AMQP connection as its channels see it."""

    def __init__(self, front: ConnectionRegistry, peer: Peer) -> None:
        super().__init__(front, peer)
        #: Queues that only this connection may use, and that are deleted with it.
        self.exclusive_queues = ExclusiveQueues()

    @abstractmethod
    def send(self, number: i64, method: pamqp.base.Frame) -> None:
        """Write a method on the channel with this number."""
        raise NotImplementedError

    def write_content(self, content: bytes) -> None:
        """Write the frames of a content; a large content is not copied."""
        if len(content) < LARGE_BODY:
            self.out.write(content)
        else:
            self.attach(content)

    @abstractmethod
    def require_slow_path(self) -> None:
        """Send every publication of this connection through ChannelPublisher.publish from now on.

        A channel in transaction mode needs this: it must see each publication.
        """
        raise NotImplementedError

    @abstractmethod
    def close_channel(self, number: i64, error: AmqpError, method: i64) -> None:
        """Close one channel with channel.close, which names the error and the failed method."""
        raise NotImplementedError
