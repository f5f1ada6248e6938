"""MQTT 3.1, 3.1.1 and 5.

    octets      reasons, packets, properties, packets5, connect
    contents    content (MQTT's words and the core's), stored, dialects (who relays octets to whom)
    sessions    topics, views, pen, flight, roles, subscriber, session, restoring, latecomer, deadlines, shared, wills, sessions, sys
    clients     answers, service, subscribing, client -> level4 -> level5 -> connection, front

A connection is one object: `client` is what it is whatever it speaks, `level4` and `level5` are the
packet loops, and `connection` reads the CONNECT that chooses between them. So one of level 4 pays
nothing for level 5.
"""
