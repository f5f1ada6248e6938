"""Rules for declarations and purges that clients request: rights, default queue type, audit."""

from __future__ import annotations

from collections.abc import Mapping

from broker.access.identity import Identity
from broker.queues.queue import Queue
from broker.routing.authorization import DeclarationRights
from broker.vhost.vhost import VirtualHost


def with_default_type(
    vhost: VirtualHost,
    name: str,
    arguments: Mapping[str, object],
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
) -> Mapping[str, object]:
    """Return queue arguments with the default queue type of the virtual host.

    As in RabbitMQ, the default type is added if the arguments contain no type and the queue can
    have the default type. An existing queue of another type keeps its type.
    """
    default = vhost.options.default_queue_type
    if default in ("", "classic") or "x-queue-type" in arguments:
        return arguments
    if not durable or exclusive or auto_delete:
        return arguments
    known = vhost.queues.get(name)
    if known is not None and known.arguments.arguments.get("x-queue-type") != default:
        return arguments
    return {**arguments, "x-queue-type": default}


def rights_of(vhost: VirtualHost, identity: Identity, administrator: bool) -> DeclarationRights:
    """Return the rights of a user to declare and bind in this virtual host.

    `identity` is the user's identity in this virtual host. `administrator` is True if the user
    has the tag `administrator`.
    """
    return DeclarationRights(
        identity,
        administrator,
        vhost.name,
        vhost.exchanges,
        vhost.queues,
        vhost.moves,
        vhost.policies,
    )


def purge_queue(vhost: VirtualHost, queue: Queue) -> int:
    """Discard the waiting messages of a queue because a user asks for it; return how many.

    The audit trail records a purge that discarded messages.
    """
    purged = queue.purge()
    trail = vhost.store.audit
    if trail is not None and purged:
        trail.acted("purge", "queue", vhost.name, queue.name, {"messages": purged})
    return purged
