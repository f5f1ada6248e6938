"""Front ends: bytes in, calls on the core, bytes out. No sockets, no clock, and never each other.

Reading order: tally, connection, front, window; then amqp or mqtt.
"""
