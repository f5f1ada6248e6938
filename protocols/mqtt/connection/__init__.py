"""MQTT connections: login, packet handlers of each level, subscribing, reauthorization.

Reading order:

    service          state and counters that all connections share
    connection       one client over one transport
    closing          the ways in which a connection ends
    login            from CONNECT to CONNACK
    authentication   enhanced authentication of MQTT 5: AUTH packets
    refused_publications  which refused publications are logged
    packet_handler   publications from a client, at every level
    level4, level5   the other packets from a client, by protocol level
    replies          acknowledgements of publications, once they are durable
    subscribing      SUBSCRIBE and UNSUBSCRIBE
    reauthorization  changed permissions of a user
"""
