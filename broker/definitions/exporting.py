"""Export of definitions in RabbitMQ's JSON format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from broker.broker import Broker
from broker.definitions.rabbitmq import SECTIONS
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.vhost.parameters import GLOBAL
from broker.vhost.vhost import VirtualHost

Row = Mapping[str, object]


def export(broker: Broker, show_hash: Callable[[str], tuple[str, str]]) -> dict[str, list[Row]]:
    """Return all durable definitions by section.

    `show_hash` gets a password hash as the broker stores it, and returns the hash and the name of
    its algorithm as RabbitMQ writes them.
    """
    document: dict[str, list[Row]] = {section: [] for section in SECTIONS}
    for section, row in export_rows(broker, show_hash):
        document[section].append(row)
    return document


def export_rows(
    broker: Broker, show_hash: Callable[[str], tuple[str, str]]
) -> Iterator[tuple[str, Row]]:
    """Yield all durable definitions one by one, each with the name of its section.

    The number of definitions may be large, so a caller can let other work run between two
    definitions. `show_hash` gets a password hash as the broker stores it, and returns the hash and
    the name of its algorithm as RabbitMQ writes them.
    """
    vhosts = list(broker.vhosts.values())
    users = list(broker.users.by_name.values())
    for vhost in vhosts:
        yield "vhosts", vhost_definition(vhost)
    for role in list(broker.users.roles.by_name.values()):
        yield "roles", {"name": role.name, **role.row}
    for user in users:
        password_hash, algorithm = show_hash(user.password_hash)
        yield (
            "users",
            {
                "name": user.name,
                "password_hash": password_hash,
                "hashing_algorithm": algorithm,
                "tags": list(user.tags),
                "limits": dict(user.limits),
                **({} if user.role is None else {"role": user.role_name}),
            },
        )
    for user in users:
        for name, (configure, write, read) in list(user.permissions.items()):
            yield (
                "permissions",
                {
                    "user": user.name,
                    "vhost": name,
                    "configure": configure,
                    "write": write,
                    "read": read,
                },
            )
        for name, topics in list(user.topics.items()):
            for exchange_name, (write, read) in topics.items():
                yield (
                    "topic_permissions",
                    {
                        "user": user.name,
                        "vhost": name,
                        "exchange": exchange_name,
                        "write": write,
                        "read": read,
                    },
                )
        for name, rules in list(user.rules.items()):
            yield "topic_rules", {"user": user.name, "vhost": name, "rules": list(rules)}
    for vhost in vhosts:
        for (component, name), value in list(vhost.parameters.values.items()):
            if component == GLOBAL:
                yield "global_parameters", {"name": name, "value": value}
            else:
                yield (
                    "parameters",
                    {"vhost": vhost.name, "component": component, "name": name, "value": value},
                )
        for policy in list(vhost.policies.by_name.values()):
            yield "policies", {"vhost": vhost.name, "name": policy.name, **policy.row}
        for exchange in list(vhost.exchanges.values()):
            if _is_durable(exchange):
                yield "exchanges", _exchange_row(vhost, exchange)
        for queue in list(vhost.queues.values()):
            if queue.durable:
                yield (
                    "queues",
                    {
                        "name": queue.name,
                        "vhost": vhost.name,
                        "durable": True,
                        "auto_delete": queue.auto_delete,
                        "arguments": dict(queue.arguments.arguments),
                    },
                )
        for exchange in list(vhost.exchanges.values()):
            for binding in exchange.bindings:
                row = _binding_row(vhost, exchange, binding)
                if row is not None:
                    yield "bindings", row


def vhost_definition(vhost: VirtualHost) -> dict[str, object]:
    """Return a virtual host as an object of the document.

    As in RabbitMQ, the description, tags, default queue type and protection are in the object
    twice: as its own fields, and in its field `metadata`.
    """
    options = vhost.options
    metadata: dict[str, object] = {"description": options.description, "tags": list(options.tags)}
    if options.default_queue_type:
        metadata["default_queue_type"] = options.default_queue_type
    if options.protected:
        metadata["protected_from_deletion"] = True
    return {"name": vhost.name, **metadata, "metadata": metadata, "limits": dict(options.limits)}


def _is_durable(exchange: Exchange) -> bool:
    """True if the exchange is durable and not predeclared."""
    return exchange.options.durable and exchange.number > 0


def _exchange_row(vhost: VirtualHost, exchange: Exchange) -> Row:
    options = exchange.options
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": True,
        "auto_delete": options.auto_delete,
        "internal": options.internal,
        "arguments": dict(options.arguments),
    }


def _binding_row(vhost: VirtualHost, exchange: Exchange, binding: Binding) -> Row | None:
    """Return the binding as an object of the document, or None if it is not durable."""
    target = binding.destination
    kind = (
        "queue"
        if isinstance(target, Queue) and target.durable
        else ("exchange" if isinstance(target, Exchange) and target.options.durable else "")
    )
    if not kind or not exchange.options.durable:
        return None
    return {
        "source": exchange.name,
        "vhost": vhost.name,
        "destination": target.name,
        "destination_type": kind,
        "routing_key": binding.key,
        "arguments": dict(binding.arguments),
    }
