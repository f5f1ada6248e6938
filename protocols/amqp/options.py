"""Options of the AMQP front end: the limits and timings that it offers its clients.

The default values are the same as in the settings (trellis/settings/schema.py).
"""

from __future__ import annotations


class AmqpOptions:
    """Limits and timings of all AMQP connections of one broker."""

    def __init__(self, version: str = "0") -> None:
        #: Version of the broker, sent in connection.start.
        self.version = version
        #: Name of the product in connection.start, by which some clients choose their behaviour.
        self.product = "RabbitMQ"
        #: Largest number of channels that a connection may open.
        self.channel_max = 2047
        #: Size of the largest frame, in bytes; at most codec.frames.FRAME_MAX.
        self.frame_max = 131_072
        #: Heartbeat offered to clients, in seconds; 0 offers none.
        self.heartbeat = 60
        #: Time that a client has to finish the handshake, in milliseconds.
        self.handshake_ms = 10_000
