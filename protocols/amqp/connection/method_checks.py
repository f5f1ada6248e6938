"""Functions that handlers of channel methods share: checks of permissions and names, replies."""

from __future__ import annotations

from typing import Any, Final

from broker.errors import QUEUE, AccessRefused, NotFound
from broker.queues.queue import Queue
from broker.routing.authorization import DeclarationRights
from broker.vhost.client_declarations import rights_of as declaration_rights
from protocols.amqp.channel.channel import Channel
from protocols.amqp.codec.contents import DIRECT

#: The name that stands for direct replies, and from which clients consume them.
REPLY_QUEUE: Final = DIRECT.decode()


def is_reply_queue(name: str) -> bool:
    """True if the name stands for direct replies, or is the name of a channel's reply queue."""
    return name == REPLY_QUEUE or name.startswith(REPLY_QUEUE + ".")


def reply(channel: Channel, method: Any, answer: Any) -> None:
    """Send the reply to a method, unless the client wants none (nowait)."""
    if not getattr(method, "nowait", False):
        channel.reply(answer)


def last_queue(channel: Channel) -> str:
    """Return the name of the queue declared last, to which a method without a queue name refers.

    Raises NotFound if the channel has declared no queue.
    """
    if not channel.last_queue:
        raise NotFound("no previously declared queue", QUEUE)
    return channel.last_queue


def permitted_queue(channel: Channel, name: str, operation: str) -> Queue:
    """Return the queue with this name, or the queue declared last if the name is empty.

    Raises AccessRefused unless the user has the permission `operation`. The permission is checked
    first, so that a user without it does not learn which queues exist. Raises NotFound if the queue
    does not exist.
    """
    name = name or last_queue(channel)
    require(channel, operation, "queue", name)
    return channel.vhost.queue(name, channel.connection)


def stripped(name: str) -> str:
    """Return the name of a queue or exchange without line breaks.

    RabbitMQ removes CR and LF in declare, delete, bind and unbind, and in no other method.
    """
    return name.replace("\n", "").replace("\r", "")


def refuse_default_exchange(exchange: str) -> None:
    """Raise AccessRefused for the default exchange, whose name is empty."""
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")


def require(channel: Channel, operation: str, kind: str, name: str) -> None:
    """Raise AccessRefused unless the user may do `operation` (configure, write or read).

    `kind` is "queue" or "exchange", `name` the name of the queue or exchange.
    """
    channel.identity.may(operation, kind, name, channel.vhost.name)


def rights_of(channel: Channel) -> DeclarationRights:
    """Return the rights of the channel's user: what the user may declare in the virtual host."""
    return declaration_rights(channel.vhost, channel.identity, channel.connection.administrator)
