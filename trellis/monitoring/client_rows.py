"""Rows for `trellis list`: AMQP channels and consumers, users, retained messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from matching.grammar import swap
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.connection.connection import AmqpConnection
from protocols.amqp.connection.method_checks import REPLY_QUEUE
from trellis.server.node import BrokerNode

Row = dict[str, object]


def _channels(node: BrokerNode) -> Iterator[tuple[AmqpConnection, Channel]]:
    for connection in list(node.amqp.connections):
        if isinstance(connection, AmqpConnection):
            for channel in list(connection.channels.open.values()):
                yield connection, channel


async def channels(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield a row for each open AMQP channel."""
    for connection, channel in _channels(node):
        confirms, receiver = channel.publisher.confirms, channel.receiver
        yield {
            "vhost": channel.vhost.name,
            "peer": str(connection.peer),
            "number": int(channel.number),
            "user": connection.handshake.user,
            "consumers": len(receiver.consumers),
            "prefetch": int(receiver.prefetch),
            "messages_unacknowledged": int(receiver.unacked.count),
            "messages_unconfirmed": 0 if confirms is None else confirms.waiting,
            "confirms": confirms is not None,
            "transactional": channel.transactional,
        }


async def consumers(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield a row for each AMQP consumer."""
    for connection, channel in _channels(node):
        for consumer in list(channel.receiver.consumers.values()):
            yield _consumer(connection, channel, consumer)


def shown_queue(channel: Channel, consumer: AmqpConsumer) -> str:
    """Return the name of a consumer's queue, as lists show it.

    A queue for direct replies has an unguessable name, so that only clients that got a request of
    the consumer can reply. Lists show REPLY_QUEUE in place of such a name.
    """
    name: str = consumer.queue.name
    return REPLY_QUEUE if name in channel.vhost.replies else name


def _consumer(connection: AmqpConnection, channel: Channel, consumer: AmqpConsumer) -> Row:
    queue = consumer.queue
    return {
        "vhost": channel.vhost.name,
        "queue": shown_queue(channel, consumer),
        "consumer_tag": consumer.tag,
        "user": connection.handshake.user,
        "peer": str(connection.peer),
        "channel": int(channel.number),
        "prefetch": int(consumer.prefetch),
        "acknowledges": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "priority": int(consumer.priority),
        "active": not queue.arguments.single_active_consumer or consumer in queue.consumers,
    }


async def users(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield a row for each user, of the settings and of the broker's catalog."""
    settings = node.accounts.settings_accounts
    for account in list(settings.values()):
        yield {
            "name": account.identity.name,
            "tags": " ".join(account.identity.tags),
            "role": "",
            "from": "settings",
            "loopback_only": account.loopback_only,
            "connections": _connections(node, account.identity.name),
        }
    for user in list(node.broker.users.by_name.values()):
        if user.name not in settings:
            yield {
                "name": user.name,
                "tags": " ".join(user.tags),
                "role": user.role_name,
                "from": "broker",
                "loopback_only": False,
                "connections": _connections(node, user.name),
            }


def _connections(node: BrokerNode, user: str) -> int:
    """Return the number of a user's open connections."""
    return sum(vhost.contexts.connections.of_user(user) for vhost in node.broker.vhosts.values())


async def retained(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield a row for each retained message, without its body."""
    for vhost in list(node.broker.vhosts.values()):
        for key in vhost.retained.topics():
            message = vhost.retained.get(key)
            if message is None:
                continue
            left = None if message.expires == 0 else int(message.expires - vhost.agenda.now)
            topic = swap(key).encode("utf-8", "surrogateescape")
            yield {
                "vhost": vhost.name,
                "topic": topic.decode("utf-8", "backslashreplace"),
                "qos": int(message.qos),
                "bytes": int(message.encoding.size(message.content)),
                "expires_in_ms": None if left is None else max(0, left),
            }
