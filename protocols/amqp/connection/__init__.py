"""AMQP connections: handshake, life cycle and the table of methods."""
