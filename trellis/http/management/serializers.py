"""Queues, exchanges, bindings, policies and virtual hosts as JSON of RabbitMQ's management API."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from urllib.parse import quote_plus

from broker.queues.policies import Policy, bounded
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.vhost.vhost import VirtualHost
from matching.grammar import AMQP, swap
from protocols.amqp.channel.consumer import AmqpConsumer
from trellis.http.management.answers import Row, encode
from trellis.monitoring.queue_counts import ended_of

#: Kinds of the destination of a binding, as rows of the API name them.
QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"


def printable(key: str) -> str:
    """Return a routing key as printable text. A key may contain bytes that are not UTF-8."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def counts(ready: int, unacked: int) -> Row:
    """Return the fields of an API row with the numbers of ready, unacknowledged and all
    messages.
    """
    return {
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
    }


def queue_row(vhost: VirtualHost, queue: Queue, node: str) -> Row:
    """Return a queue as a row of the API; `node` is the name of this node.

    The inbox of an MQTT session has type `MQTT`, so that tools show where messages wait.
    """
    row: Row = {
        "name": queue.name,
        "vhost": vhost.name,
        "type": "MQTT" if queue.private else queue_type(queue),
        "durable": queue.declared_durable or queue.private and queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_to is not None,
        "arguments": dict(queue.arguments.arguments),
        "node": node,
        "state": "running",
        "consumers": queue.consumer_count,
        "paused": queue.paused,
        **counts(int(queue.depth), int(queue.unacked)),
    }
    if queue.head_age is not None:
        row["head_age_ms"] = queue.head_age
    ended = ended_of(queue)
    if ended:
        row["copies_ended"] = ended
    if not queue.private:
        row |= _policies_of(vhost, queue)
    if queue.consumer_count == 0:
        return row
    active = [one for one in queue.consumers if isinstance(one, AmqpConsumer)]
    if active and queue.arguments.single_active_consumer:
        row["single_active_consumer_tag"] = active[0].tag
    elif active and active[0].exclusive:
        row["exclusive_consumer_tag"] = active[0].tag
    return row


def queue_type(queue: Queue) -> str:
    """Return the type of a queue: classic, quorum or stream."""
    arguments = queue.arguments
    return "stream" if arguments.stream else "quorum" if arguments.quorum else "classic"


def _policies_of(vhost: VirtualHost, queue: Queue) -> Row:
    """Return the fields of a queue's API row about its policies.

    The fields are the names of the queue's policy and operator policy, and the definition in force.
    """
    row: Row = {}
    policies = vhost.policies
    if not policies.by_name and not policies.operator_by_name:
        return row
    kind = queue_type(queue)
    policy = policies.for_queue(queue.name, kind)
    operator = policies.operator_for_queue(queue.name, kind)
    if policy is not None:
        row["policy"] = policy.name
    if operator is not None:
        row["operator_policy"] = operator.name
    if policy is not None or operator is not None:
        row["effective_policy_definition"] = bounded(
            {} if policy is None else policy.definition,
            {} if operator is None else operator.definition,
        )
    return row


def exchange_row(vhost: VirtualHost, exchange: Exchange) -> Row:
    """Return an exchange as a row of the API."""
    options = exchange.options
    row: Row = {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": options.durable,
        "auto_delete": options.auto_delete,
        "internal": options.internal,
        "arguments": dict(options.arguments),
    }
    policy = vhost.policies.for_exchange(exchange.name)
    if policy is not None:
        row["policy"] = policy.name
    return row


def binding_row(vhost: VirtualHost, source: str, binding: Binding) -> Row:
    """Return a binding as a row of the API; `source` is the name of the exchange.

    A subscription of an MQTT session is a binding of its inbox, with its filter as a binding key.
    """
    target = binding.destination
    kind = EXCHANGE if isinstance(target, Exchange) else QUEUE
    key = binding.key
    if binding.grammar is not AMQP:
        key = ".".join(["*" if word == "+" else swap(word) for word in key.split("/")])
    arguments = dict(binding.arguments) if binding.grammar is AMQP else {}
    return {
        "source": source,
        "vhost": vhost.name,
        "destination": target.name,
        "destination_type": kind,
        "routing_key": printable(key),
        "arguments": arguments,
        "properties_key": properties_key(binding),
    }


def properties_key(binding: Binding) -> str:
    """Return the text that identifies a binding among all bindings with the same source and
    destination.

    The text is part of API paths. The text consists of the routing key and a digest of the
    arguments, or is `~` for a binding without a key and arguments. The routing key is
    percent-encoded as in RabbitMQ, because Terraform's provider puts the text into a name whose
    parts are separated by `/`.
    """
    key = _quoted(printable(binding.key))
    if not binding.arguments:
        return key or "~"
    digest = blake2b(
        encode(sorted(dict(binding.arguments).items(), key=lambda one: one[0])), digest_size=8
    ).hexdigest()
    return f"{key}~{digest}"


def _quoted(key: str) -> str:
    """Return a routing key percent-encoded; a space becomes `+`, and `~` becomes `%7E`."""
    return quote_plus(key, safe="").replace("~", "%7E")


def default_binding(vhost: VirtualHost, queue: Queue) -> Row:
    """Return as JSON the binding of a queue to the default exchange; its key is the queue name."""
    return {
        "source": "",
        "vhost": vhost.name,
        "destination": queue.name,
        "destination_type": QUEUE,
        "routing_key": queue.name,
        "arguments": {},
        "properties_key": _quoted(queue.name),
    }


def policy_row(vhost: VirtualHost, policy: Policy) -> Row:
    """Return a policy as a row of the API."""
    return {"vhost": vhost.name, "name": policy.name, **policy.row}


def vhost_row(vhost: VirtualHost, node: str, ready: int, unacked: int) -> Row:
    """Return a virtual host as a row of the API, with its numbers of messages.

    `node` is the name of this node. `ready` and `unacked` count the ready and the unacknowledged
    messages.
    """
    options = vhost.options
    return {
        "name": vhost.name,
        "description": options.description,
        "tags": list(options.tags),
        "metadata": {
            "description": options.description,
            "tags": list(options.tags),
            "default_queue_type": options.default_queue_type or "classic",
        },
        "limits": dict(options.limits),
        "tracing": False,
        "default_queue_type": options.default_queue_type or "classic",
        "cluster_state": {node: "stopping" if vhost.closing else "running"},
        "protected_from_deletion": options.protected or vhost.name == "/",
        **counts(ready, unacked),
    }
