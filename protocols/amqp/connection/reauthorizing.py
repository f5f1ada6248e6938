"""Applies changed permissions to a running AMQP connection, its channels and its consumers."""

from __future__ import annotations

from broker.routing.publish_context import PublishContext
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.reauthorization import ConsumerReauthorization
from protocols.amqp.channel.receiver import ChannelReceiver
from protocols.amqp.connection import states
from protocols.amqp.connection.channels import ChannelTable
from protocols.amqp.connection.handshake import Handshake
from protocols.end_reasons import EXPELLED


class Reauthorizing:
    """The part of a connection that applies changed permissions.

    The connection is a parameter of each method, so that the two objects form no reference cycle.
    """

    def __init__(self, handshake: Handshake, channels: ChannelTable) -> None:
        self._handshake = handshake
        self._channels = channels
        #: The check of the consumers after a change of permissions; None if no change has happened
        #: yet.
        self._task: ConsumerReauthorization | None = None

    def run(self, connection: ConnectionInterface) -> None:
        """Apply the client's present permissions; close the connection if it must not stay open."""
        vhost, context = connection.vhost, connection.context
        if connection.state in (states.CLOSING, states.CLOSED):
            return
        lost = self._handshake.renew(connection.front.broker.authenticator, vhost)
        renewed = self._handshake.identity
        if lost:
            connection.close(EXPELLED, lost)
        elif vhost is not None and context is not None and renewed is not None:
            identity = renewed.for_vhost(vhost.name)
            if identity is not None and identity is not context.identity:
                entered = vhost.contexts.enter(identity, context.front)
                self._apply(connection, vhost, context, entered)

    def _apply(
        self,
        connection: ConnectionInterface,
        vhost: VirtualHost,
        old: PublishContext,
        context: PublishContext,
    ) -> None:
        """Replace the publish context `old` by `context`, which has the new permissions.

        Also end the consumers of queues that the user may no longer read.
        """
        connection.use_context(context)
        connection.end_search()
        vhost.contexts.leave(old)
        receivers: list[ChannelReceiver] = []
        for channel in self._channels.open.values():
            channel.publisher.context = context
            receivers.append(channel.receiver)
        if self._task is not None:
            self._task.ended = True
        task = ConsumerReauthorization(connection, receivers, context.identity)
        self._task = task
        task.start()
        if task.ended:
            self._task = None
