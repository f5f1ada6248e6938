"""The front ends for AMQP and MQTT: they decode the bytes of a client, call the broker core, and
encode the replies. The front ends use no socket and no clock.

Reading order of the modules: tally, connection, front, window; then amqp or mqtt. The modules
layer, websocket and proxy handle the protocol layers between a socket and a connection. The two
front ends never import each other: crossing.py has the header names that both front ends use.
"""
