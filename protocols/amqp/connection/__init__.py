"""AMQP connections: frames, handshake, closing, and the table of channel methods."""
