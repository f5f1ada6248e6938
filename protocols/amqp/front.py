"""The AMQP front end: makes the connections of AMQP 0-9-1 clients."""

from __future__ import annotations

from broker.broker import Broker
from protocols.amqp.codec.contents import AmqpPropertyCodec
from protocols.amqp.codec.journal_codec import AmqpHeaderCodec
from protocols.amqp.connection.connection import AmqpConnection
from protocols.amqp.connection.direct import HTTP
from protocols.amqp.options import AmqpOptions
from protocols.connection import Connection
from protocols.front import Front
from protocols.peer import Peer


class AmqpFront(Front):
    """The AMQP front end of one broker."""

    def __init__(self, broker: Broker, options: AmqpOptions | None = None) -> None:
        super().__init__("amqp091", broker)
        self.context_names = (self.name, HTTP)
        self.options = options or AmqpOptions()
        broker.streams.codecs.header_codec = AmqpHeaderCodec()
        broker.streams.codecs.property_codec = AmqpPropertyCodec()

    def connect(self, peer: Peer) -> Connection:
        return AmqpConnection(self, peer, self.options)

    @property
    def channels(self) -> int:
        """Number of open channels on all AMQP connections."""
        return int(self.tally.channels_opened - self.tally.channels_closed)
