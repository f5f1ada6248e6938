"""The front ends: bytes in, calls of the core, bytes out. No sockets and no clock.

Reading order: tally, connection, front, window; then amqp or mqtt. layer, websocket and proxy are
for what is between a socket and a connection. The two front ends never import each other; crossing
has the names that both must know.
"""
