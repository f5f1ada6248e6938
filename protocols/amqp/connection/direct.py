"""AMQP connections without a socket or a handshake, for requests of the HTTP API."""

from __future__ import annotations

from typing import Final

from broker.access.identity import Identity
from broker.errors import AccessRefused
from broker.vhost.vhost import VirtualHost
from protocols.amqp.connection import states
from protocols.amqp.connection.connection import AmqpConnection

#: Name of the publish contexts of HTTP requests. In a journal, it is the protocol of the messages
#: that were published over the HTTP API.
HTTP: Final = "http"


def open_directly(connection: AmqpConnection, identity: Identity, vhost: VirtualHost) -> None:
    """Open a new connection and its channel 1.

    `identity` is the user; the caller has checked the user's credentials. Raises AccessRefused if
    the user may not enter the virtual host, and AmqpError if the user may open no further channel.
    After such an error, the caller ends the connection.
    """
    within = identity.for_vhost(vhost.name)
    if within is None or vhost.closing:
        raise AccessRefused(
            f"access to vhost '{vhost.name}' refused for user '{identity.name}': grant "
            "permissions with `trellis permissions set`"
        )
    handshake = connection.handshake
    handshake.identity, handshake.user, handshake.channel_max = identity, identity.name, 1
    handshake.mechanism = "HTTP"
    connection.admit(None)
    connection.set_deadline(0)
    connection.frame_max = handshake.options.frame_max
    connection.state = states.RUNNING
    connection.vhost = vhost
    connection.use_context(vhost.contexts.enter(within, HTTP))
    connection.channels.open_channel(connection, handshake, 1)
