"""Metrics: plain ints, copied on the loop's thread in steps, rendered in another (3 us a series).

RabbitMQ's names where it has one, so that its stock dashboards work; `trellis_*` for the rest.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import trellis
from broker.census import Census
from broker.queue import COPY_FATES
from broker.route import FATES, ROUTED, UNROUTABLE
from protocols.front import Front
from protocols.mqtt.session import Session
from trellis import process
from trellis.node import Node

#: Objects counted in one turn.
STEP: Final = 2_000

Labels = dict[str, str]


class Family:
    """One metric: name without `_total`, kind (gauge or counter), help, and its samples."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.samples: list[tuple[Labels, float]] = []


class Page:
    """Families in order, each named once."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, name: str, kind: str, text: str, value: float, **labels: str) -> None:
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = Family(name, kind, text)
        family.samples.append((labels, value))

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        self.add(name, "gauge", text, value, **labels)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        self.add(name, "counter", text, value, **labels)

    def collect(self) -> Iterator[Metric]:
        """The role of a collector of prometheus_client."""
        for family in self.families.values():
            metric = Metric(family.name, family.text, family.kind)
            suffix = "_total" if family.kind == "counter" else ""
            for labels, value in family.samples:
                metric.add_sample(family.name + suffix, labels, value)
            yield metric

    def render(self) -> bytes:
        """The text that Prometheus scrapes. Slow: run it in a thread."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


async def aggregated(node: Node) -> Page:
    """/metrics. The copying yields to the loop after every STEP objects."""
    page = Page()
    censuses = []
    for vhost in node.broker.vhosts.values():
        census = vhost.census()
        while census.step(STEP):
            await asyncio.sleep(0)
        censuses.append(census)
    _connections(page, node)
    _queues(page, node, censuses)
    _messages(page, node, sum(census.relayed for census in censuses))
    _process(page, node)
    _trellis(page, node, censuses)
    return page


async def per_object(node: Node) -> Page:
    """/metrics/per-object: queues and sessions by name."""
    page = Page()
    done = 0
    for vhost in node.broker.vhosts.values():
        for queue in [*vhost.queues.values(), *vhost.inboxes.values()]:
            labels = {"vhost": vhost.name, "queue": queue.name}
            ready, unacked = int(queue.depth), int(queue.unacked)
            page.gauge("rabbitmq_queue_messages_ready", "Messages ready to be delivered", ready, **labels)
            page.gauge("rabbitmq_queue_messages_unacked", "Messages delivered and not yet settled", unacked, **labels)
            page.gauge("rabbitmq_queue_messages", "Ready and unacked messages", ready + unacked, **labels)
            page.gauge("rabbitmq_queue_consumers", "Consumers of a queue", len(queue.consumers), **labels)
            done += 1
            if done % STEP == 0:
                await asyncio.sleep(0)
    for session in node.mqtt.sessions.all():
        labels = {"vhost": session.vhost.name, "client_id": session.name}
        page.counter("trellis_session_dropped_messages", "QoS 0 messages dropped for a slow client", int(session.dropped), **labels)
        page.counter("trellis_session_missed_messages", "QoS 0 messages for a client that was away", int(session.missed), **labels)
        done += 1
        if done % STEP == 0:
            await asyncio.sleep(0)
    return page


def _connections(page: Page, node: Node) -> None:
    fronts = node.fronts
    page.gauge("rabbitmq_connections", "Connections open now", sum(len(front.connections) for front in fronts))
    page.counter("rabbitmq_connections_opened", "Connections opened", sum(front.opened for front in fronts))
    page.counter("rabbitmq_connections_closed", "Connections closed", sum(sum(front.closed.values()) for front in fronts))
    page.gauge("rabbitmq_channels", "Channels open now", node.amqp.channels)
    page.counter("rabbitmq_channels_opened", "Channels opened", int(node.amqp.tally.channels_opened))
    page.counter("rabbitmq_channels_closed", "Channels closed", int(node.amqp.tally.channels_closed))
    for front in fronts:
        page.gauge("trellis_connections", "Connections open now by protocol", len(front.connections), protocol=front.name)
        for reason, count in sorted(front.closed.items()):
            page.counter("trellis_connections_closed", "Connections closed by reason", count, protocol=front.name, reason=reason)
        for outcome in ("accepted", "refused", "busy"):
            count = front.logins.get(outcome, 0)
            page.counter("trellis_logins", "Logins by outcome", count, protocol=front.name, outcome=outcome)
        logins = {outcome: front.logins.get(outcome, 0) for outcome in ("accepted", "refused", "busy")}
        page.counter("rabbitmq_auth_attempts", "Authentication attempts", sum(logins.values()), protocol=front.name)
        page.counter("rabbitmq_auth_attempts_succeeded", "Authentication attempts that succeeded", logins["accepted"], protocol=front.name)
        page.counter("rabbitmq_auth_attempts_failed", "Authentication attempts that failed", logins["refused"] + logins["busy"],
                     protocol=front.name)
    for reason in ("connections", "unauthenticated_per_address"):
        page.counter("trellis_connections_refused", "Connections turned away unread", node.admission.refused.get(reason, 0), reason=reason)
    page.gauge("trellis_connections_limit", "Connections that are taken at most", node.admission.connections)


def _queues(page: Page, node: Node, censuses: list[Census]) -> None:
    vhosts = node.broker.vhosts.values()
    ready = sum(int(census.ready + census.inbox_ready) for census in censuses)
    unacked = sum(int(census.unacked + census.inbox_unacked) for census in censuses)
    page.gauge("rabbitmq_queues", "Queues", sum(census.queues for census in censuses))
    page.gauge("rabbitmq_exchanges", "Exchanges", sum(len(vhost.exchanges) for vhost in vhosts))
    page.gauge("rabbitmq_consumers", "Consumers", sum(int(census.consumers) for census in censuses))
    page.gauge("rabbitmq_queue_messages_ready", "Messages ready to be delivered, in queues and sessions", ready)
    page.gauge("rabbitmq_queue_messages_unacked", "Messages delivered and not yet settled", unacked)
    page.gauge("rabbitmq_queue_messages", "Ready and unacked messages", ready + unacked)
    page.counter("rabbitmq_queues_declared", "Queue declarations", sum(vhost.queues_declared for vhost in vhosts))
    page.counter("rabbitmq_queues_created", "Queues created", sum(vhost.queues_created for vhost in vhosts))
    page.counter("rabbitmq_queues_deleted", "Queues deleted", sum(vhost.queues_deleted for vhost in vhosts))
    for reason in ("expired", "maxlen", "rejected", "delivery_limit"):
        page.counter(f"rabbitmq_global_messages_dead_lettered_{reason}", f"Messages dead-lettered: {reason}",
                     sum(vhost.dead_letters.get(reason, 0) for vhost in vhosts))


def _messages(page: Page, node: Node, relayed: int) -> None:
    for front in node.fronts:
        _messages_of(page, node, front, relayed if front is node.mqtt else 0)


def _messages_of(page: Page, node: Node, front: Front, relayed: int) -> None:
    """`relayed` are copies that went straight to connections."""
    name, tally = front.name, front.tally
    received, routed, unroutable = 0, 0, 0
    for vhost in node.broker.vhosts.values():
        ingress = vhost.gates.ingress().get(name)
        if ingress is not None:
            received += ingress.received
            routed += ingress.fates[ROUTED]
            unroutable += ingress.fates[UNROUTABLE]
    auto, manual = int(tally.delivered_auto) + relayed, int(tally.delivered_manual)
    gets = int(tally.get_auto + tally.get_manual)
    for metric, text, value in (
        ("received", "Messages received from publishers", received),
        ("received_confirm", "Messages received from publishers that want confirms", int(tally.received_confirm)),
        ("routed", "Messages routed to a queue or session", routed),
        ("confirmed", "Messages confirmed to publishers", int(tally.confirmed)),
        ("delivered", "Messages delivered to consumers", auto + manual + gets),
        ("delivered_consume_auto_ack", "Messages delivered to consumers that need not acknowledge", auto),
        ("delivered_consume_manual_ack", "Messages delivered to consumers that must acknowledge", manual),
        ("delivered_get_auto_ack", "Messages fetched without acknowledgement", int(tally.get_auto)),
        ("delivered_get_manual_ack", "Messages fetched with acknowledgement", int(tally.get_manual)),
        ("get_empty", "Fetches from empty queues", int(tally.get_empty)),
        ("redelivered", "Messages delivered again", int(tally.redelivered)),
        ("acknowledged", "Messages acknowledged by consumers", int(tally.acknowledged)),
        ("unroutable_dropped", "Messages that nobody wanted, dropped", unroutable - int(tally.returned)),
        ("unroutable_returned", "Messages that nobody wanted, returned to their publisher", int(tally.returned)),
    ):
        page.counter(f"rabbitmq_global_messages_{metric}", text, value, protocol=name)


def _process(page: Page, node: Node) -> None:
    name = node.settings.node.name
    page.gauge("rabbitmq_process_open_fds", "Open file descriptors", process.descriptors())
    page.gauge("rabbitmq_process_max_fds", "File descriptors that may be open", node.max_descriptors)
    page.gauge("rabbitmq_process_resident_memory_bytes", "Memory in use", process.resident())
    page.gauge("rabbitmq_resident_memory_limit_bytes", "Memory of the machine or container", process.memory())
    if node.directory is not None:
        page.gauge("rabbitmq_disk_space_available_bytes", "Disk space free for the data directory", process.free_disk(node.directory))
        page.gauge("rabbitmq_disk_space_available_limit_bytes", "Disk space below which publishers are stopped", 0)
    page.gauge("rabbitmq_identity_info", "Which broker this is", 1, rabbitmq_node=f"{name}@{platform.node()}", rabbitmq_cluster=name,
               rabbitmq_endpoint=str(node.settings.metrics.port))
    page.gauge("rabbitmq_build_info", "What this broker is", 1, rabbitmq_version=trellis.__version__, product_name="Trellis",
               product_version=trellis.__version__)
    for alarm in ("memory_used_watermark", "free_disk_space_watermark", "file_descriptor_limit"):
        page.gauge(f"rabbitmq_alarms_{alarm}", "1 while the alarm is on", 0)


def _trellis(page: Page, node: Node, censuses: list[Census]) -> None:
    page.gauge("trellis_build_info", "Version, and whether the hot paths are compiled", 1, version=trellis.__version__,
               python=platform.python_version(), compiled="yes" if trellis.compiled() else "no")
    fates = [0] * len(FATES)
    copies, misses, routes, plans = 0, 0, 0, 0
    for vhost in node.broker.vhosts.values():
        plans += vhost.plans
        routes += sum(len(gate.routes) for gate in vhost.gates)
        for ingress in vhost.gates.ingress().values():
            fates = [so_far + more for so_far, more in zip(fates, ingress.fates, strict=True)]
            copies += ingress.copies
            misses += ingress.misses
    for fate, count in zip(FATES, fates, strict=True):
        page.counter("trellis_messages", "Messages that came in, by what became of them", count, fate=fate)
    page.counter("trellis_copies_made", "Copies of messages made for queues and sessions", copies)
    for at, fate in enumerate(COPY_FATES):
        page.counter("trellis_copies", "Copies by how they ended", sum(census.fates[at] for census in censuses), fate=fate)
    page.gauge("trellis_route_cache_entries", "Routes kept", routes)
    page.gauge("trellis_route_cache_limit", "Routes kept at most by one user", node.broker.bounds.routes)
    page.counter("trellis_route_cache_misses", "Publications whose route had to be found", misses)
    page.gauge("trellis_plans", "Sets of destinations kept", plans)
    for vhost in node.broker.vhosts.values():
        page.gauge("trellis_retained_messages", "Retained messages", len(vhost.retained), vhost=vhost.name)
        page.gauge("trellis_retained_bytes", "Retained messages with their topics", vhost.retained.octets, vhost=vhost.name)
        page.counter("trellis_retained_refused", "Messages not retained for lack of room", vhost.retained.refused, vhost=vhost.name)
    _sessions(page, node.mqtt.sessions.all(), node)
    page.counter("trellis_turns", "Turns of the loop that had work", node.turn.turns)
    page.gauge("trellis_loop_held_seconds_max", "Longest turn of the loop so far", node.turn.longest)
    page.counter("trellis_gc_pause_seconds", "Time in garbage collections", node.collector.paused)
    page.counter("trellis_gc_collections", "Garbage collections", node.collector.pauses)
    page.gauge("trellis_gc_pause_seconds_max", "Longest garbage collection so far", node.collector.longest)
    page.counter("trellis_passwords_hashed", "Passwords hashed to judge a login", node.accounts.hashed)
    page.counter("trellis_store_entries", "Changes of durable state", int(node.broker.store.position))


def _sessions(page: Page, sessions: Iterable[Session], node: Node) -> None:
    connected = sum(session.outlet is not None for session in sessions)
    page.gauge("trellis_mqtt_sessions", "Sessions by whether their client is here", connected, state="connected")
    page.gauge("trellis_mqtt_sessions", "Sessions by whether their client is here", len(node.mqtt.sessions) - connected, state="away")
    page.counter("trellis_mqtt_sessions_created", "Sessions created", node.mqtt.sessions.created)
    page.counter("trellis_mqtt_sessions_expired", "Sessions whose client stayed away too long", node.mqtt.sessions.expired)

