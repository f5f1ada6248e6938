"""Comparison with RabbitMQ of each item of a definitions document: equal, different or missing.

The tables in this module are the only source of these results and their reasons. The import of
definitions reports differences with the texts of the tables, `trellis doctor` prints the texts
before anything runs, and `tools/moving_page.py` writes them into docs/moving-from-rabbitmq.md.

The tables list all items that RabbitMQ 3.8 to 4.x knows. A table may say "missing" for a queue
argument or a policy key that Trellis supports. So `judge_argument` and `judge_policy_key` return
"equal" for each name in their parameter `effective`, whatever the table says.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
MISSING: Final = "missing"


class Comparison:
    """The comparison of one item, such as a policy key, with RabbitMQ.

    `kind` is EQUAL, DIFFERENT or MISSING, and `text` explains the difference.
    """

    __slots__ = ("kind", "text")

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text


_EQUAL: Final = Comparison(EQUAL, "")
_NO_REPLICAS: Final = (
    "has no effect: single queues are not replicated, and standbys have all queues"
)
_NO_LOCATION: Final = "has no effect: all queues are on the active node"
_PAGED: Final = "has no effect: long queues are paged to disk in any mode"
_EXCHANGES_ONLY: Final = "federates exchanges only, not queues"
_UPSTREAM: Final = "federates exchanges only, by a list of binding keys (bridges.md)"
_EVERY_RETURN: Final = "delays every returned message, also after basic.nack"
_ONE_STRATEGY: Final = "has no effect: Trellis has only one way to publish dead letters"
_QUORUM: Final = "makes a queue durable, with a delivery limit, and without replicas"

#: The comparison of each policy key.
POLICY_KEYS: Final[dict[str, Comparison]] = {
    "message-ttl": _EQUAL,
    "expires": _EQUAL,
    "max-length": _EQUAL,
    "max-length-bytes": Comparison(
        DIFFERENT,
        "does not count the messages of a long queue that are only on disk when a policy sets the "
        "limit",
    ),
    "overflow": _EQUAL,
    "dead-letter-exchange": _EQUAL,
    "dead-letter-routing-key": _EQUAL,
    "alternate-exchange": _EQUAL,
    "delivery-limit": Comparison(DIFFERENT, "applies to classic queues, too"),
    "max-age": _EQUAL,
    "stream-max-segment-size-bytes": _EQUAL,
    "stream-filter-size-bytes": Comparison(MISSING, "has no effect: streams have no filters"),
    "queue-mode": Comparison(MISSING, _PAGED),
    "queue-version": Comparison(MISSING, "has no effect: Trellis has only one format of queues"),
    "queue-master-locator": Comparison(MISSING, _NO_LOCATION),
    "queue-leader-locator": Comparison(MISSING, _NO_LOCATION),
    "dead-letter-strategy": Comparison(MISSING, _ONE_STRATEGY),
    "max-in-memory-length": Comparison(MISSING, _PAGED),
    "max-in-memory-bytes": Comparison(MISSING, _PAGED),
    "initial-cluster-size": Comparison(MISSING, _NO_REPLICAS),
    "target-group-size": Comparison(MISSING, _NO_REPLICAS),
    "ha-mode": Comparison(MISSING, _NO_REPLICAS),
    "ha-params": Comparison(MISSING, _NO_REPLICAS),
    "ha-sync-mode": Comparison(MISSING, _NO_REPLICAS),
    "ha-sync-batch-size": Comparison(MISSING, _NO_REPLICAS),
    "ha-promote-on-shutdown": Comparison(MISSING, _NO_REPLICAS),
    "ha-promote-on-failure": Comparison(MISSING, _NO_REPLICAS),
    "consumer-timeout": _EQUAL,
    "delayed-retry-type": Comparison(DIFFERENT, _EVERY_RETURN),
    "delayed-retry-min": Comparison(DIFFERENT, _EVERY_RETURN),
    "delayed-retry-max": Comparison(DIFFERENT, _EVERY_RETURN),
    "federation-upstream": Comparison(DIFFERENT, _EXCHANGES_ONLY),
    "federation-upstream-set": Comparison(DIFFERENT, _EXCHANGES_ONLY),
    "federation-upstream-pattern": Comparison(
        MISSING, "has no effect: use federation-upstream or federation-upstream-set"
    ),
}

#: The comparison of each queue argument.
QUEUE_ARGUMENTS: Final[dict[str, Comparison]] = {
    "x-message-ttl": _EQUAL,
    "x-expires": _EQUAL,
    "x-max-length": _EQUAL,
    "x-max-length-bytes": _EQUAL,
    "x-overflow": _EQUAL,
    "x-dead-letter-exchange": _EQUAL,
    "x-dead-letter-routing-key": _EQUAL,
    "x-max-priority": _EQUAL,
    "x-message-deduplication": Comparison(
        DIFFERENT, "applies to quorum queues, too; cannot be combined with x-max-priority"
    ),
    "x-single-active-consumer": _EQUAL,
    "x-delivery-limit": Comparison(DIFFERENT, "applies to classic queues, too"),
    "x-queue-type": _EQUAL,
    "x-max-age": _EQUAL,
    "x-stream-max-segment-size-bytes": _EQUAL,
    "x-stream-filter-size-bytes": Comparison(MISSING, "has no effect: streams have no filters"),
    "x-queue-mode": Comparison(MISSING, _PAGED),
    "x-queue-version": Comparison(MISSING, "has no effect: Trellis has only one format of queues"),
    "x-queue-master-locator": Comparison(MISSING, _NO_LOCATION),
    "x-queue-leader-locator": Comparison(MISSING, _NO_LOCATION),
    "x-dead-letter-strategy": Comparison(MISSING, _ONE_STRATEGY),
    "x-max-in-memory-length": Comparison(MISSING, _PAGED),
    "x-max-in-memory-bytes": Comparison(MISSING, _PAGED),
    "x-quorum-initial-group-size": Comparison(MISSING, _NO_REPLICAS),
    "x-initial-cluster-size": Comparison(MISSING, _NO_REPLICAS),
    "x-quorum-target-group-size": Comparison(MISSING, _NO_REPLICAS),
    "x-ha-policy": Comparison(MISSING, _NO_REPLICAS),
    "x-consumer-timeout": _EQUAL,
    "x-delayed-retry-type": Comparison(DIFFERENT, _EVERY_RETURN),
    "x-delayed-retry-min": Comparison(DIFFERENT, _EVERY_RETURN),
    "x-delayed-retry-max": Comparison(DIFFERENT, _EVERY_RETURN),
}

#: The comparison of each queue type.
QUEUE_TYPES: Final[dict[str, Comparison]] = {
    "classic": _EQUAL,
    "quorum": Comparison(DIFFERENT, _QUORUM),
    "stream": Comparison(
        DIFFERENT, "has no replicas, and serves clients of AMQP 0-9-1 and HTTP only (streams.md)"
    ),
}

#: The comparison of each exchange argument.
EXCHANGE_ARGUMENTS: Final[dict[str, Comparison]] = {
    "alternate-exchange": _EQUAL,
    "x-delayed-type": _EQUAL,
    "hash-header": _EQUAL,
    "hash-property": _EQUAL,
}

#: The comparison of each component of parameters.
COMPONENTS: Final[dict[str, Comparison]] = {
    "vhost-limits": _EQUAL,
    "operator_policy": _EQUAL,
    "policy": _EQUAL,
    "federation-upstream": Comparison(DIFFERENT, _UPSTREAM),
    "federation-upstream-set": Comparison(DIFFERENT, _UPSTREAM),
    "shovel": Comparison(
        DIFFERENT, "uses AMQP 0-9-1 only, and confirms messages in every ack-mode (bridges.md)"
    ),
}
#: The comparison of parameters of all other components, and of global parameters.
OTHER_PARAMETER: Final = Comparison(
    MISSING, "has no effect: Trellis only stores and returns its value"
)

#: Global parameters that only identify a cluster or an imported file of definitions.
_NAMES_ONLY: Final = ("cluster_name", "internal_cluster_id", "imported_definition_hash_value")

#: The comparison of each user tag.
USER_TAGS: Final[dict[str, Comparison]] = {
    "administrator": _EQUAL,
    "monitoring": _EQUAL,
    "policymaker": _EQUAL,
    "management": _EQUAL,
    "impersonator": _EQUAL,
}
#: The comparison of every tag that USER_TAGS lacks.
OTHER_TAG: Final = Comparison(EQUAL, "")

#: For each section of a definitions document, the fields of its objects that the import uses, or
#: that carry no information.
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "vhosts": (
        "name",
        "description",
        "tags",
        "default_queue_type",
        "limits",
        "metadata",
        "tracing",
        "protected_from_deletion",
    ),
    "roles": ("name", "vhosts"),
    "users": ("name", "password_hash", "hashing_algorithm", "tags", "limits", "role"),
    "permissions": ("user", "vhost", "configure", "write", "read"),
    "topic_permissions": ("user", "vhost", "exchange", "write", "read"),
    "topic_rules": ("user", "vhost", "rules"),
    "parameters": ("vhost", "component", "name", "value"),
    "global_parameters": ("name", "value"),
    "policies": ("vhost", "name", "pattern", "apply-to", "priority", "definition"),
    "operator_policies": ("vhost", "name", "pattern", "apply-to", "priority", "definition"),
    "exchanges": ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments"),
    "queues": ("name", "vhost", "type", "durable", "auto_delete", "arguments"),
    "bindings": (
        "source",
        "vhost",
        "destination",
        "destination_type",
        "routing_key",
        "arguments",
        "properties_key",
    ),
}
#: The fields that an object must have, by section. In each section that is not listed here, an
#: object must have only the field `name`.
REQUIRED_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "permissions": ("vhost", "user", "configure", "write", "read"),
    "topic_permissions": ("vhost", "user", "exchange", "write", "read"),
    "topic_rules": ("vhost", "user"),
    "parameters": ("vhost", "component", "name"),
    "operator_policies": ("vhost", "name"),
    "policies": ("vhost", "name"),
    "exchanges": ("vhost", "name", "type"),
    "queues": ("vhost", "name"),
    "bindings": ("vhost", "source", "destination", "routing_key"),
}
#: Fields of a document that carry no information about its objects.
DOCUMENT_FIELDS: Final = (
    "rabbit_version",
    "rabbitmq_version",
    "product_name",
    "product_version",
    "rabbitmq_definition_format",
    "original_cluster_name",
    "original_vhost_name",
    "explanation",
    "description",
    "metadata",
    "default_queue_type",
    "limits",
    "tags",
)

TRACING: Final = Comparison(
    MISSING,
    "tracing (amq.rabbitmq.trace) is not supported: declare a journal instead (streams.md)",
)
MQTT_SESSION: Final = Comparison(
    MISSING,
    "the queue belongs to an MQTT session, whose client gets a new session at its next login",
)


def judge_global_parameter(name: str) -> Comparison:
    """Return the comparison of a global parameter with RabbitMQ's: equal, different or missing."""
    return _EQUAL if name in _NAMES_ONLY else OTHER_PARAMETER


def judge_policy_key(key: str, effective: Container[str]) -> Comparison:
    """Return the comparison of a policy key with RabbitMQ: equal, different or missing.

    `effective` holds the names of all policy keys that have an effect in Trellis.
    """
    return _judge(key, POLICY_KEYS, effective, "was left out, because the key is unknown")


def judge_argument(argument: str, effective: Container[str]) -> Comparison:
    """Return the comparison of a queue argument with RabbitMQ: equal, different or missing.

    `effective` holds the names of all queue arguments that have an effect in Trellis.
    """
    return _judge(argument, QUEUE_ARGUMENTS, effective, "is kept, and has no effect")


def judge_exchange_argument(argument: str, effective: Container[str]) -> Comparison:
    """Return the comparison of an exchange argument with RabbitMQ: equal, different or missing.

    `effective` holds the names of all exchange arguments that have an effect in Trellis.
    """
    return _judge(argument, EXCHANGE_ARGUMENTS, effective, "is kept, and has no effect")


def _judge(
    name: str, table: dict[str, Comparison], effective: Container[str], unknown: str
) -> Comparison:
    known = table.get(name)
    if name in effective:
        return known if known is not None and known.kind != MISSING else _EQUAL
    return known if known is not None else Comparison(MISSING, unknown)
