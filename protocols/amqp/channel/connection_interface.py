"""What a channel needs of its connection."""

from __future__ import annotations

from mypy_extensions import i64

from broker.queues.queue import Queue
from protocols.amqp.errors import AmqpError
from protocols.connection import Connection, Peer
from protocols.front import Front


class AmqpClient(Connection):
    """An AMQP client as its channels see it."""

    def __init__(self, front: Front, peer: Peer) -> None:
        super().__init__(front, peer)
        #: What the client says of itself.
        self.product = ""
        self.version = ""
        self.capabilities: dict[str, object] = {}
        #: Queues that go with this connection.
        self.exclusive: dict[Queue, None] = {}

    def publish_slowly(self) -> None:
        """One of the channels must see every publication: none takes the short way any more."""
        raise NotImplementedError

    def close_channel(self, number: i64, error: AmqpError, about: i64) -> None:
        """A channel cannot go on: end it, and say why."""
        raise NotImplementedError

    def own(self, queue: Queue) -> None:
        """Remember a queue that is exclusive to this connection."""
        if queue.exclusive_to is self:
            self.exclusive[queue] = None

    def disown(self, queue: Queue) -> None:
        """The queue is deleted."""
        self.exclusive.pop(queue, None)
