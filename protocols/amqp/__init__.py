"""AMQP 0-9-1. Reading order: errors, tables, frames, properties, contents, consumer, confirms,
client, channel, methods, handshake, connection, front.

pamqp knows the methods and writes those that come rarely; publish, deliver, ack and contents are
handled in octets.
"""
