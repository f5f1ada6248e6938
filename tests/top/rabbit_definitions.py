"""A realistic definitions document of RabbitMQ, generated from a seed."""

from __future__ import annotations

import base64
import hashlib
import random
from typing import Any

#: Policy keys with an effect in Trellis; then RabbitMQ's keys without an effect in Trellis.
EFFECTIVE: list[tuple[str, Any]] = [
    ("message-ttl", 60_000),
    ("expires", 3_600_000),
    ("max-length", 10_000),
    ("max-length-bytes", 1 << 20),
    ("overflow", "reject-publish"),
    ("dead-letter-exchange", "dead"),
    ("dead-letter-routing-key", "again"),
    ("alternate-exchange", "lost"),
    ("delivery-limit", 5),
    ("max-age", "7D"),
    ("stream-max-segment-size-bytes", 1 << 20),
]
INEFFECTIVE: list[tuple[str, Any]] = [
    ("ha-mode", "exactly"),
    ("ha-params", 2),
    ("ha-sync-mode", "automatic"),
    ("queue-master-locator", "min-masters"),
    ("queue-leader-locator", "balanced"),
    ("queue-mode", "lazy"),
    ("queue-version", 2),
    ("federation-upstream-set", "all"),
    ("max-in-memory-length", 100),
    ("target-group-size", 3),
]
ARGUMENTS: list[tuple[str, Any]] = [
    ("x-message-ttl", 30_000),
    ("x-max-length", 500),
    ("x-dead-letter-exchange", "dead"),
    ("x-max-priority", 5),
    ("x-single-active-consumer", True),
    ("x-queue-mode", "lazy"),
    ("x-queue-master-locator", "client-local"),
    ("x-expires", 1_800_000),
]


def password_hash(password: bytes) -> str:
    return base64.b64encode(b"salt" + hashlib.sha256(b"salt" + password).digest()).decode()


def _vhost(name: str, description: str, tags: list[str], default: str) -> dict[str, Any]:
    metadata = {"description": description, "tags": tags, "default_queue_type": default}
    return {"name": name, **metadata, "metadata": dict(metadata), "limits": {}}


def document(seed: int = 1) -> dict[str, Any]:
    """Return a document with 40 policies, 200 queues, limits and parameters."""
    chosen = random.Random(seed)
    vhosts = [
        _vhost("/", "Default virtual host", [], "classic"),
        _vhost("shop", "orders and stock", ["production", "eu"], "quorum"),
        _vhost("metrics", "sensors", [], "stream"),
    ]
    names = [vhost["name"] for vhost in vhosts]
    users = [
        {
            "name": f"user{number}",
            "password_hash": password_hash(b"secret%d" % number),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": tags,
            "limits": limits,
        }
        for number, (tags, limits) in enumerate(
            [
                (["administrator"], {}),
                (["monitoring", "management"], {"max-connections": 20}),
                (["policymaker"], {"max-channels": 100}),
                ([], {"max-connections": 2, "max-channels": 8}),
            ]
        )
    ]
    permissions = [
        {"user": user["name"], "vhost": name, "configure": "^app", "write": ".*", "read": ".*"}
        for user in users
        for name in names
    ]
    exchanges = [
        {
            "name": f"app.{kind}.{number}",
            "vhost": chosen.choice(names),
            "type": kind,
            "durable": True,
            "auto_delete": False,
            "internal": number % 5 == 4,
            "arguments": {"alternate-exchange": "lost"} if number % 3 == 2 else {},
        }
        for kind in ("direct", "fanout", "topic", "headers")
        for number in range(10)
    ]
    queues = []
    for number in range(200):
        kind = chosen.choice(["classic", "classic", "quorum", "stream"])
        arguments: dict[str, Any] = {"x-queue-type": kind}
        if kind == "classic":
            arguments |= dict(chosen.sample(ARGUMENTS, chosen.randint(0, 4)))
        elif kind == "quorum":
            arguments |= {"x-delivery-limit": 7, "x-quorum-initial-group-size": 3}
        else:
            arguments |= {"x-max-age": "1D"}
        queues.append(
            {
                "name": f"app.queue.{number}",
                "vhost": chosen.choice(names),
                "durable": True,
                "auto_delete": False,
                "arguments": arguments,
            }
        )
    bindings = []
    for queue in queues:
        sources = [one for one in exchanges if one["vhost"] == queue["vhost"]]
        for source in chosen.sample(sources, 2):
            bindings.append(
                {
                    "source": source["name"],
                    "vhost": queue["vhost"],
                    "destination": queue["name"],
                    "destination_type": "queue",
                    "routing_key": f"key.{chosen.randint(0, 9)}.#",
                    "arguments": {"x-match": "all", "kind": queue["name"]}
                    if source["type"] == "headers"
                    else {},
                }
            )
    policies = [
        {
            "vhost": chosen.choice(names),
            "name": f"policy{number}",
            "pattern": f"^app\\.queue\\.{number % 10}",
            "apply-to": chosen.choice(["queues", "all", "classic_queues", "quorum_queues"]),
            "priority": number,
            "definition": dict(
                chosen.sample(EFFECTIVE, chosen.randint(1, 4))
                + chosen.sample(INEFFECTIVE, chosen.randint(0, 3))
            ),
        }
        for number in range(40)
    ]
    parameters = [
        {
            "vhost": "shop",
            "component": "vhost-limits",
            "name": "limits",
            "value": {"max-connections": 500, "max-queues": 1_000},
        },
        {
            "vhost": "shop",
            "component": "operator_policy",
            "name": "bounds",
            "value": {
                "pattern": ".*",
                "apply-to": "queues",
                "priority": 1,
                "definition": {"max-length": 5_000},
            },
        },
        {
            "vhost": "shop",
            "component": "federation-upstream",
            "name": "west",
            "value": {"uri": "amqp://west", "ack-mode": "on-confirm"},
        },
        {
            "vhost": "metrics",
            "component": "shovel",
            "name": "old",
            "value": {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://b"},
        },
    ]
    return {
        "rabbit_version": "3.13.7",
        "rabbitmq_version": "3.13.7",
        "product_name": "RabbitMQ",
        "product_version": "3.13.7",
        "users": users,
        "vhosts": vhosts,
        "permissions": permissions,
        "topic_permissions": [
            {
                "user": "user3",
                "vhost": "shop",
                "exchange": "amq.topic",
                "write": "^a",
                "read": "^b",
            }
        ],
        "parameters": parameters,
        "global_parameters": [{"name": "cluster_name", "value": "rabbit@shop"}],
        "policies": policies,
        "queues": queues,
        "exchanges": exchanges,
        "bindings": bindings,
    }
