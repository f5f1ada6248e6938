"""Rows for operators, as shown by `trellis list`: field names as in RabbitMQ, no nested values."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

import msgspec

from broker.queues.consumer import ReturnedMessage
from broker.queues.delay import DelayQueue
from broker.queues.queue import Queue
from broker.queues.statistics import DEATH_REASONS
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange, TopicExchange
from broker.routing.topic_history import HistorySum
from broker.vhost.background import kind_of
from broker.vhost.vhost import VirtualHost
from protocols.mqtt.session.session_row import session_row
from trellis import logs
from trellis.monitoring import client_rows
from trellis.monitoring.ingress import collect_counts
from trellis.monitoring.queue_counts import counts_of_queue, counts_of_session, dead_letters_of
from trellis.monitoring.route_rows import printable_key
from trellis.server.node import BrokerNode

Row = dict[str, object]
#: Number of queues whose dead letters are added up in one turn of the event loop.
_QUEUES_PER_SLICE: Final = 100


def _text(arguments: Mapping[str, object]) -> str:
    """Return the arguments of an object, such as a queue, as JSON text; "" if there are none."""
    return msgspec.json.encode(dict(arguments), enc_hook=str).decode() if arguments else ""


async def _queues(node: BrokerNode) -> AsyncIterator[Row]:
    for vhost in list(node.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            yield _queue(vhost, queue)


def _queue(vhost: VirtualHost, queue: Queue) -> Row:
    return {
        "vhost": vhost.name,
        "name": queue.name,
        "kind": kind_of(queue),
        "durable": queue.declared_durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_to is not None,
        "messages_ready": int(queue.depth),
        "messages_unacknowledged": int(queue.unacked),
        "head_age_ms": queue.head_age,
        "consumers": queue.consumer_count,
        **counts_of_queue(queue),
        "paused": queue.paused,
        "policy": _policy(vhost, queue),
        "arguments": _text(queue.arguments.arguments),
    }


def _policy(vhost: VirtualHost, queue: Queue) -> str:
    policy = vhost.policies.for_queue(queue.name, queue.arguments.arguments.get("x-queue-type"))
    return "" if policy is None else policy.name


async def _dead_letters(vhost: VirtualHost) -> dict[str, Counter[str]]:
    """Return the numbers of dead letters, by the name of the dead letter exchange, then by reason.

    All dead letters of a queue count for its present dead letter exchange. The dead letters of
    deleted queues are not counted.
    """
    by_exchange: dict[str, Counter[str]] = {}
    for number, queue in enumerate(list(vhost.queues.values()), 1):
        exchange = queue.arguments.dead_letter_exchange
        if exchange is not None:
            by_exchange.setdefault(exchange, Counter()).update(
                {f"dead_letters_{name}": count for name, count in dead_letters_of(queue).items()}
            )
        if number % _QUEUES_PER_SLICE == 0:
            await asyncio.sleep(0)
    return by_exchange


async def _exchanges(node: BrokerNode) -> AsyncIterator[Row]:
    nothing = {f"dead_letters_{reason}": 0 for reason in DEATH_REASONS}
    for vhost in list(node.broker.vhosts.values()):
        await collect_counts([vhost])
        dead_letters = await _dead_letters(vhost)
        for exchange in list(vhost.exchanges.values()):
            options = exchange.options
            row: Row = {
                "vhost": vhost.name,
                "name": exchange.name,
                "type": exchange.kind,
                "durable": options.durable,
                "auto_delete": options.auto_delete,
                "internal": options.internal,
                "bindings": sum(
                    exchange.bindings.count(each) for each in exchange.bindings.destinations()
                ),
                "published": int(exchange.published),
                "copies": int(exchange.copies),
                "unroutable": int(exchange.unroutable),
                **dead_letters.get(exchange.name, nothing),
                "matcher": exchange.algorithm if isinstance(exchange, TopicExchange) else "",
                "arguments": _text(options.arguments),
            }
            yield row


async def _bindings(node: BrokerNode) -> AsyncIterator[Row]:
    for vhost in list(node.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            yield {
                "vhost": vhost.name,
                "source": "",
                "routing_key": queue.name,
                "grammar": "amqp",
                "destination": queue.name,
                "destination_type": "queue",
                "arguments": "",
            }
        for exchange in list(vhost.exchanges.values()):
            for binding in exchange.bindings:
                yield _binding(vhost, exchange, binding)


def _binding(vhost: VirtualHost, exchange: Exchange, binding: Binding) -> Row:
    target = binding.destination
    kind = (
        "queue"
        if isinstance(target, Queue)
        else "exchange"
        if isinstance(target, Exchange)
        else "session"
    )
    key = binding.key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return {
        "vhost": vhost.name,
        "source": exchange.name,
        "routing_key": key,
        "grammar": binding.grammar.name,
        "destination": target.name,
        "destination_type": kind,
        "arguments": _text(binding.arguments),
    }


async def _delayed(node: BrokerNode) -> AsyncIterator[Row]:
    for vhost in list(node.broker.vhosts.values()):
        for waiting in list(vhost.delays.values()):
            for returned in waiting.waiting():
                yield _delayed_row(node, vhost, waiting, returned)


def _delayed_row(
    node: BrokerNode, vhost: VirtualHost, waiting: DelayQueue, returned: ReturnedMessage
) -> Row:
    message = returned.message
    left = max(0, int(message.expires - node.broker.agenda.now))
    key = message.address.key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return {
        "vhost": vhost.name,
        "exchange": waiting.name,
        "id": int(returned.sequence),
        "routing_key": key,
        "due": int(node.broker.agenda.wall + left / 1000),
        "left_ms": left,
        "bytes": int(message.encoding.size(message.content)),
        "persistent": message.position > 0,
    }


async def _connections(node: BrokerNode) -> AsyncIterator[Row]:
    for front in node.fronts:
        for connection in list(front.connections):
            yield connection.describe()


async def _policies(node: BrokerNode) -> AsyncIterator[Row]:
    for vhost in list(node.broker.vhosts.values()):
        for policy in list(vhost.policies.by_name.values()):
            yield {
                "vhost": vhost.name,
                "name": policy.name,
                "pattern": policy.pattern,
                "apply_to": policy.apply_to,
                "priority": policy.priority,
                "definition": _text(policy.definition),
            }


async def _sessions(node: BrokerNode) -> AsyncIterator[Row]:
    for session in node.mqtt.sessions.all():
        yield session_row(session) | counts_of_session(session)


async def _topics(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield the topics of the last hour, each with its numbers of messages."""
    await node.topic_collector.collect()
    published, unroutable = HistorySum(node.broker.history), HistorySum(node.broker.history, True)
    for part in (published, unroutable):
        for _ in part.steps():
            await asyncio.sleep(0)
    places = dict.fromkeys([*published.counts, *unroutable.counts])
    for place in places:
        lost = unroutable.counts.get(place, {})
        counts = published.counts.get(place, {})
        for key in dict.fromkeys([*counts, *lost]):
            yield {
                "vhost": place[0],
                "exchange": place[1],
                "routing_key": printable_key(key),
                "messages": max(counts.get(key, 0), lost.get(key, 0)),
                "unroutable": lost.get(key, 0),
            }


async def _topic_groups(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield the filters of `metrics.topics`, each with its number of unroutable messages."""
    await collect_counts(list(node.broker.vhosts.values()))
    groups = node.broker.topic_groups
    if groups is not None:
        for topics, unroutable in groups.unroutable.items():
            yield {"topics": topics, "unroutable": unroutable}


async def _log(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield the last events of the log, the newest first."""
    for event in reversed(list(logs.recent)):
        at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds")
        name, _, fields = event.text.partition(" ")
        yield {
            "time": at.replace("+00:00", "Z"),
            "level": event.level,
            "event": name,
            "fields": fields,
        }


async def _certificates(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield the certificates of the listeners."""
    for file, ends in node.certificates.expirations.items():
        yield {
            "file": file,
            "not_after": datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "days_left": int((ends - node.broker.agenda.wall) // 86_400),
        }


async def _cluster(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield the figures of this node in its cluster; yield no row without a cluster."""
    if node.cluster_figures is not None:
        yield asdict(node.cluster_figures())


async def _bridges(node: BrokerNode) -> AsyncIterator[Row]:
    """Yield the links to other brokers: bridges, shovels and federation links."""
    for link in node.bridges:
        state = link.state
        yield {
            "kind": state.kind,
            "vhost": state.vhost,
            "name": state.name,
            "remote": state.remote,
            "state": state.state,
            "protocol": state.protocol,
            "since": link.since,
            **msgspec.structs.asdict(link.counters),
            "in_flight": state.in_flight,
            "error": state.error,
            "refusal": state.refusal,
        }


async def _settings(node: BrokerNode) -> AsyncIterator[Row]:
    for setting in node.settings_in_force:
        yield dict(setting._asdict())


KINDS: Final[dict[str, Callable[[BrokerNode], AsyncIterator[Row]]]] = {
    "queues": _queues,
    "exchanges": _exchanges,
    "bindings": _bindings,
    "connections": _connections,
    "sessions": _sessions,
    "channels": client_rows.channels,
    "consumers": client_rows.consumers,
    "users": client_rows.users,
    "retained": client_rows.retained,
    "delayed": _delayed,
    "policies": _policies,
    "settings": _settings,
    "topics": _topics,
    "topic_groups": _topic_groups,
    "log": _log,
    "certificates": _certificates,
    "cluster": _cluster,
    "bridges": _bridges,
}

#: The kinds that only users with the tag monitoring or administrator may list.
MONITORING_KINDS: Final = frozenset(
    {"retained", "topics", "topic_groups", "log", "certificates", "cluster", "bridges"}
)
#: The kinds that only administrators may list.
ADMINISTRATOR_KINDS: Final = ("users", "settings")
