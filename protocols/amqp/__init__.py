"""AMQP 0-9-1. Reading order: frames, contents, consumer, confirms, channel, methods, handshake, connection, front.

pamqp reads and writes the methods that come rarely; publish, deliver and ack are handled in octets.
"""
