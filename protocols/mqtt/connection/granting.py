"""The properties of a CONNACK of level 5: what the broker grants to a client that logs in."""

from __future__ import annotations

from protocols.mqtt.codec.connect import Connect
from protocols.mqtt.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    RESPONSE_INFORMATION,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    Properties5,
)
from protocols.mqtt.connection.authentication import EnhancedAuthentication
from protocols.mqtt.connection.connection import MqttConnection


def granted(
    connection: MqttConnection,
    connect: Connect,
    client_id: str,
    expiry: int,
    authentication: EnhancedAuthentication | None,
    data: bytes,
) -> Properties5:
    """Return the properties of a CONNACK (section 3.2.2.3).

    The properties are the broker's limits, and the values that the broker has changed or assigned,
    such as a shorter session expiry: `expiry` is the granted value in seconds. `data` is the
    authenticator's last data for the client. The keep-alive of the connection is set to the value
    that the CONNACK grants.
    """
    options = connection.service.options
    properties = Properties5()
    if expiry != connect.expiry:
        properties.numbers[SESSION_EXPIRY] = expiry
    properties.numbers[RECEIVE_MAXIMUM] = options.receive_maximum
    properties.numbers[MAXIMUM_PACKET_SIZE] = options.max_packet
    if options.topic_alias_maximum:
        properties.numbers[TOPIC_ALIAS_MAXIMUM] = options.topic_alias_maximum
    keep_alive_max = options.keep_alive_max
    if keep_alive_max and not 0 < connection.keep_alive <= keep_alive_max:
        connection.keep_alive = keep_alive_max
        properties.numbers[SERVER_KEEP_ALIVE] = keep_alive_max
    if not connect.client_id:
        properties.texts[ASSIGNED_CLIENT_IDENTIFIER] = client_id
    if connect.wants_response_information and options.response_prefix:
        properties.texts[RESPONSE_INFORMATION] = options.response_prefix + client_id
    if authentication is not None:
        properties.texts[AUTHENTICATION_METHOD] = authentication.method
        if data:
            properties.binaries[AUTHENTICATION_DATA] = data
    return properties
