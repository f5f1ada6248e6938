"""Equivalence of declarations: a new declaration of an existing object must have equal options.

AMQP 0-9-1 lets several clients declare the same object, if they all declare it with the same
options. If an option or an argument differs, the error names this option or argument.
"""

from __future__ import annotations

from typing import Final

from broker.errors import ResourceLocked, Typed, inequivalent
from broker.queues.arguments import QueueArguments
from broker.queues.queue import Queue
from broker.routing.exchanges import Exchange
from broker.routing.exchanges.base import ExchangeOptions

#: Arguments of an exchange that must be equal when it is declared again.
COMPARED: Final = (
    "alternate-exchange",
    "x-matcher",
    "x-delayed-type",
    "x-recent-history-length",
    "x-cache-size",
    "x-cache-ttl",
    "x-cache-persistence",
    "hash-header",
    "hash-property",
)


def check_exchange(known: Exchange, vhost: str, kind: str, options: ExchangeOptions) -> None:
    """Raise PreconditionFailed if the existing exchange differs from a new declaration."""
    thing = f"exchange '{known.name}'"
    current = known.options
    if known.kind != kind:
        raise inequivalent("type", thing, vhost, kind, known.kind)
    for field, received, is_ in (
        ("durable", options.durable, current.durable),
        ("auto_delete", options.auto_delete, current.auto_delete),
        ("internal", options.internal, current.internal),
    ):
        if received != is_:
            raise inequivalent(field, thing, vhost, received, is_)
    for argument in COMPARED:
        if options.arguments.get(argument) != current.arguments.get(argument):
            raise inequivalent(
                argument,
                thing,
                vhost,
                Typed(options.arguments.get(argument)),
                Typed(current.arguments.get(argument)),
            )


def check_queue(
    known: Queue,
    vhost: str,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    arguments: QueueArguments,
) -> None:
    """Raise PreconditionFailed if the existing queue differs from a new declaration.

    Raises ResourceLocked if the queue is exclusive and the declaration is not, or the reverse.
    """
    thing = f"queue '{known.name}'"
    if exclusive != (known.exclusive_to is not None):
        raise ResourceLocked(
            f"cannot obtain exclusive access to locked queue '{known.name}' in vhost '{vhost}'. "
            "It could be originally declared on another connection or the exclusive property value "
            "does not match that of the original declaration."
        )
    if known.declared_durable != durable:
        raise inequivalent("durable", thing, vhost, durable, known.declared_durable)
    if known.auto_delete != auto_delete:
        raise inequivalent("auto_delete", thing, vhost, auto_delete, known.auto_delete)
    given, current = arguments.given, known.arguments.given
    for argument in sorted(given.keys() | current.keys()):
        if given.get(argument) != current.get(argument):
            raise inequivalent(
                argument, thing, vhost, Typed(given.get(argument)), Typed(current.get(argument))
            )
