"""Metrics: plain ints, copied on the loop's thread in steps, rendered in another (3 us a series).

RabbitMQ's names where it has one, so that its stock dashboards work; `trellis_*` for the rest.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import trellis
from broker.messages.fates import COPY_FATES
from broker.routing.publish_context import IngressCounters
from broker.routing.route import FATES, ROUTED, UNROUTABLE
from broker.stream.queue import StreamQueue
from broker.vhost.totals import VirtualHostTotals
from protocols.front import Front
from trellis import process
from trellis.monitoring.http_counters import HttpCounters
from trellis.server.node import BrokerNode
from trellis.server.store_writer import DurableStoreWriter, StoreWriter

#: Objects counted in one turn, and objects named in one turn, which takes longer.
COUNT_SLICE: Final = 1_000
NAMED_SLICE: Final = 200

Labels = dict[str, str]


class MetricFamily:
    """One metric: name without `_total`, kind (gauge or counter), help, and its samples."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.samples: list[tuple[Labels, float]] = []


class MetricsPage:
    """Families in order, each named once."""

    def __init__(self) -> None:
        self.families: dict[str, MetricFamily] = {}

    def add(self, name: str, kind: str, text: str, value: float, **labels: str) -> None:
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = MetricFamily(name, kind, text)
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
        """The text that Prometheus scrapes; the page is empty afterwards.

        Slow: run it in a thread.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        text = generate_latest(registry)
        for family in self.families.values():
            while family.samples:
                del family.samples[
                    -COUNT_SLICE:
                ]  # Let go on the loop's thread, all at once, 200,000 would hold it for 40 ms.
        return text


CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


async def aggregated_metrics(node: BrokerNode, http: HttpCounters) -> MetricsPage:
    """/metrics. The copying yields to the loop after every STEP objects."""
    page = MetricsPage()
    censuses = []
    for vhost in list(node.broker.vhosts.values()):
        census = vhost.totals()
        more = True
        while more:
            more = census.step(COUNT_SLICE)
            await asyncio.sleep(0)
        censuses.append(census)
    sessions = node.mqtt.sessions.all()
    connected = 0
    for at in range(0, len(sessions), COUNT_SLICE):
        connected += sum(session.outlet is not None for session in sessions[at : at + COUNT_SLICE])
        await asyncio.sleep(0)
    ingress = [vhost.contexts.ingress_counters() for vhost in node.broker.vhosts.values()]
    _connections(page, node, http)
    _listeners(page, node)
    _http(page, http)
    _queues(page, node, censuses)
    _streams(page, node, http)
    for front in node.fronts:
        _messages(
            page,
            front,
            ingress,
            sum(census.relayed for census in censuses) if front is node.mqtt else 0,
        )
    _trellis(page, node)
    _fates(page, ingress, censuses)
    _routes(page, node, ingress)
    _sessions(page, node, connected)
    await asyncio.get_running_loop().run_in_executor(None, _process, page, node)
    return page


async def per_object_metrics(node: BrokerNode) -> MetricsPage:
    """/metrics/per-object: queues and sessions by name."""
    page = MetricsPage()
    done = 0
    for vhost in list(node.broker.vhosts.values()):
        for queue in [*vhost.queues.values(), *vhost.inboxes.values()]:
            labels = {"vhost": vhost.name, "queue": queue.name}
            ready, unacked = int(queue.depth), int(queue.unacked)
            page.gauge(
                "rabbitmq_queue_messages_ready", "Messages ready to be delivered", ready, **labels
            )
            page.gauge(
                "rabbitmq_queue_messages_unacked",
                "Messages delivered and not yet settled",
                unacked,
                **labels,
            )
            page.gauge(
                "rabbitmq_queue_messages", "Ready and unacked messages", ready + unacked, **labels
            )
            page.gauge(
                "rabbitmq_queue_consumers", "Consumers of a queue", queue.consumer_count, **labels
            )
            done += 1
            if done % NAMED_SLICE == 0:
                await asyncio.sleep(0)
    for session in node.mqtt.sessions.all():
        labels = {"vhost": session.vhost.name, "client_id": session.name}
        page.counter(
            "trellis_session_dropped_messages",
            "QoS 0 messages dropped for a slow client",
            int(session.dropped),
            **labels,
        )
        page.counter(
            "trellis_session_missed_messages",
            "QoS 0 messages for a client that was away",
            int(session.missed),
            **labels,
        )
        done += 1
        if done % NAMED_SLICE == 0:
            await asyncio.sleep(0)
    return page


def _connections(page: MetricsPage, node: BrokerNode, http: HttpCounters) -> None:
    fronts = node.fronts
    page.gauge(
        "rabbitmq_connections",
        "Connections open now",
        sum(len(front.connections) for front in fronts),
    )
    page.counter(
        "rabbitmq_connections_opened", "Connections opened", sum(front.opened for front in fronts)
    )
    page.counter(
        "rabbitmq_connections_closed",
        "Connections closed",
        sum(sum(front.closed.values()) for front in fronts),
    )
    page.gauge("rabbitmq_channels", "Channels open now", node.amqp.channels)
    page.counter(
        "rabbitmq_channels_opened", "Channels opened", int(node.amqp.tally.channels_opened)
    )
    page.counter(
        "rabbitmq_channels_closed", "Channels closed", int(node.amqp.tally.channels_closed)
    )
    for front in fronts:
        page.gauge(
            "trellis_connections",
            "Connections open now by protocol",
            len(front.connections),
            protocol=front.name,
        )
        for reason, count in sorted(front.closed.items()):
            page.counter(
                "trellis_connections_closed",
                "Connections closed by reason",
                count,
                protocol=front.name,
                reason=reason,
            )
    for name, counted in [*node.logins.items(), ("http", http.logins)]:
        logins = {outcome: counted.get(outcome, 0) for outcome in ("accepted", "refused", "busy")}
        for outcome, count in logins.items():
            page.counter(
                "trellis_logins", "Logins by outcome", count, protocol=name, outcome=outcome
            )
        page.counter(
            "rabbitmq_auth_attempts", "Authentication attempts", sum(logins.values()), protocol=name
        )
        page.counter(
            "rabbitmq_auth_attempts_succeeded",
            "Authentication attempts that succeeded",
            logins["accepted"],
            protocol=name,
        )
        page.counter(
            "rabbitmq_auth_attempts_failed",
            "Authentication attempts that failed",
            logins["refused"] + logins["busy"],
            protocol=name,
        )
    for reason, count in node.admission.refused.items():
        page.counter(
            "trellis_connections_refused",
            "Connections turned away unread, and pauses for lack of descriptors",
            count,
            reason=reason,
        )
    for limit in node.rates.limits:
        page.counter(
            "trellis_rate_waits",
            "Times that a client was not read, because it was faster than it may be",
            node.rates.throttled[limit],
            limit=limit,
        )
        page.counter(
            "trellis_rate_refused",
            "Clients disconnected because they were faster than they may be",
            node.rates.disconnected[limit],
            limit=limit,
        )
    page.gauge(
        "trellis_connections_limit",
        "Connections that are taken at most",
        node.admission.connections,
    )


def _listeners(page: MetricsPage, node: BrokerNode) -> None:
    for listener, entrance in node.listener_contexts.items():
        if entrance.tls_context is not None:
            for version, count in sorted(entrance.tls.handshakes.items()):
                page.counter(
                    "trellis_tls_handshakes",
                    "TLS handshakes done, by version",
                    count,
                    listener=listener,
                    version=version,
                )
            for reason, count in sorted(entrance.tls.failures.items()):
                page.counter(
                    "trellis_tls_failures",
                    "TLS connections that failed, by reason",
                    count,
                    listener=listener,
                    reason=reason,
                )
            page.counter(
                "trellis_tls_resumed",
                "TLS handshakes that went on with an older session",
                entrance.tls.resumed,
                listener=listener,
            )
        if entrance.is_websocket:
            page.counter(
                "trellis_websocket_upgrades",
                "WebSockets opened",
                entrance.websocket.upgrades,
                listener=listener,
            )
            for reason, count in sorted(entrance.websocket.refused.items()):
                page.counter(
                    "trellis_websocket_refused",
                    "Requests for a WebSocket that were refused, by reason",
                    count,
                    listener=listener,
                    reason=reason,
                )
    for file, ends in node.certificates.expirations.items():
        page.gauge(
            "trellis_tls_certificate_end_seconds",
            "When a certificate ends, in seconds since 1970",
            ends,
            file=file,
        )


def _http(page: MetricsPage, http: HttpCounters) -> None:
    for listener, counters in http.listeners.items():
        for status, count in sorted(counters.responses.items()):
            page.counter(
                "trellis_http_responses",
                "HTTP answers by status",
                count,
                listener=listener,
                status=str(status),
            )
        for reason, count in counters.closed.items():
            page.counter(
                "trellis_http_closed",
                "HTTP connections that ended without an answer",
                count,
                listener=listener,
                reason=reason,
            )


def _queues(page: MetricsPage, node: BrokerNode, censuses: list[VirtualHostTotals]) -> None:
    vhosts = node.broker.vhosts.values()
    ready = sum(int(census.ready + census.inbox_ready) for census in censuses)
    unacked = sum(int(census.unacked + census.inbox_unacked) for census in censuses)
    page.gauge("rabbitmq_queues", "Queues", sum(census.queues for census in censuses))
    page.gauge("rabbitmq_exchanges", "Exchanges", sum(len(vhost.exchanges) for vhost in vhosts))
    page.gauge("rabbitmq_consumers", "Consumers", sum(int(census.consumers) for census in censuses))
    page.gauge(
        "rabbitmq_queue_messages_ready",
        "Messages ready to be delivered, in queues and sessions",
        ready,
    )
    page.gauge("rabbitmq_queue_messages_unacked", "Messages delivered and not yet settled", unacked)
    page.gauge("rabbitmq_queue_messages", "Ready and unacked messages", ready + unacked)
    page.counter(
        "rabbitmq_queues_declared",
        "Queue declarations",
        sum(vhost.queues_declared for vhost in vhosts),
    )
    page.counter(
        "rabbitmq_queues_created", "Queues created", sum(vhost.queues_created for vhost in vhosts)
    )
    page.counter(
        "rabbitmq_queues_deleted", "Queues deleted", sum(vhost.queues_deleted for vhost in vhosts)
    )
    for reason in ("expired", "maxlen", "rejected", "delivery_limit"):
        page.counter(
            f"rabbitmq_global_messages_dead_lettered_{reason}",
            f"Messages dead-lettered: {reason}",
            sum(vhost.dead_letters.get(reason, 0) for vhost in vhosts),
        )


def _streams(page: MetricsPage, node: BrokerNode, http: HttpCounters) -> None:
    streams = [
        queue
        for vhost in node.broker.vhosts.values()
        for queue in vhost.queues.values()
        if isinstance(queue, StreamQueue)
    ]
    page.gauge("trellis_streams", "Queues of type stream", len(streams))
    page.gauge(
        "trellis_stream_rows",
        "Rows of streams that are durable",
        sum(int(stream.archive.rows) for stream in streams),
    )
    page.gauge(
        "trellis_stream_bytes",
        "Octets of their segments",
        sum(int(stream.archive.size) for stream in streams),
    )
    page.gauge(
        "trellis_stream_segments",
        "Segments",
        sum(len(stream.archive.segments) for stream in streams),
    )
    page.gauge(
        "trellis_stream_readers",
        "Consumers that read streams",
        sum(len(stream.readers) for stream in streams),
    )
    page.counter(
        "trellis_stream_rows_served",
        "Rows given to consumers",
        int(node.broker.streams.served) + sum(int(stream.served) for stream in streams),
    )
    page.counter(
        "trellis_stream_bytes_sent", "Octets of segments sent over HTTP", http.segment_bytes_sent
    )


def _messages(
    page: MetricsPage, front: Front, vhosts: list[dict[str, IngressCounters]], relayed: int
) -> None:
    """`relayed` are copies that went straight to connections."""
    name, tally = front.name, front.tally
    mine = [ingress[way] for ingress in vhosts for way in front.ways_in if way in ingress]
    received = sum(ingress.received for ingress in mine)
    routed = sum(ingress.fates[ROUTED] for ingress in mine)
    unroutable = sum(ingress.fates[UNROUTABLE] for ingress in mine)
    auto, manual = int(tally.delivered_auto) + relayed, int(tally.delivered_manual)
    gets = int(tally.get_auto + tally.get_manual)
    for metric, text, value in (
        ("received", "Messages received from publishers", received),
        (
            "received_confirm",
            "Messages received from publishers that want confirms",
            int(tally.received_confirm),
        ),
        ("routed", "Messages routed to a queue or session", routed),
        ("confirmed", "Messages confirmed to publishers", int(tally.confirmed)),
        ("delivered", "Messages delivered to consumers", auto + manual + gets),
        (
            "delivered_consume_auto_ack",
            "Messages delivered to consumers that need not acknowledge",
            auto,
        ),
        (
            "delivered_consume_manual_ack",
            "Messages delivered to consumers that must acknowledge",
            manual,
        ),
        ("delivered_get_auto_ack", "Messages fetched without acknowledgement", int(tally.get_auto)),
        (
            "delivered_get_manual_ack",
            "Messages fetched with acknowledgement",
            int(tally.get_manual),
        ),
        ("get_empty", "Fetches from empty queues", int(tally.get_empty)),
        ("redelivered", "Messages delivered again", int(tally.redelivered)),
        ("acknowledged", "Messages acknowledged by consumers", int(tally.acknowledged)),
        (
            "unroutable_dropped",
            "Messages that nobody wanted, dropped",
            unroutable - int(tally.returned),
        ),
        (
            "unroutable_returned",
            "Messages that nobody wanted, returned to their publisher",
            int(tally.returned),
        ),
    ):
        page.counter(f"rabbitmq_global_messages_{metric}", text, value, protocol=name)


def _process(page: MetricsPage, node: BrokerNode) -> None:
    """What the operating system is asked, in a thread: with many descriptors it takes its time."""
    name = node.settings.node.name
    page.gauge("rabbitmq_process_open_fds", "Open file descriptors", process.open_descriptors())
    page.gauge(
        "rabbitmq_process_max_fds", "File descriptors that may be open", node.max_descriptors
    )
    page.gauge("rabbitmq_process_resident_memory_bytes", "Memory in use", process.resident_bytes())
    page.gauge(
        "rabbitmq_resident_memory_limit_bytes",
        "Memory above which publishers wait",
        node.alarm_watch.memory_limit,
    )
    if node.directory is not None:
        page.gauge(
            "rabbitmq_disk_space_available_bytes",
            "Disk space free for the data directory",
            process.free_disk_bytes(node.directory),
        )
        page.gauge(
            "rabbitmq_disk_space_available_limit_bytes",
            "Disk space below which publishers wait",
            node.alarm_watch.disk_limit,
        )
    page.gauge(
        "rabbitmq_identity_info",
        "Which broker this is",
        1,
        rabbitmq_node=f"{name}@{platform.node()}",
        rabbitmq_cluster=name,
        rabbitmq_endpoint=str(node.settings.metrics.port),
    )
    page.gauge(
        "rabbitmq_build_info",
        "What this broker is",
        1,
        rabbitmq_version=trellis.__version__,
        product_name="Trellis",
        product_version=trellis.__version__,
    )
    for alarm, name in (
        ("memory_used_watermark", "memory"),
        ("free_disk_space_watermark", "disk"),
        ("file_descriptor_limit", ""),
    ):
        page.gauge(
            f"rabbitmq_alarms_{alarm}",
            "1 while the alarm is on",
            int(name in node.broker.alarms.on),
        )
    page.gauge(
        "trellis_delayed_messages",
        "Messages that wait in exchanges that delay",
        sum(
            int(waiting.depth)
            for vhost in node.broker.vhosts.values()
            for waiting in vhost.delays.values()
        ),
    )
    page.gauge(
        "trellis_blocked_connections",
        "Connections that wait for the end of an alarm",
        len(node.broker.alarms.waiting),
    )


def _trellis(page: MetricsPage, node: BrokerNode) -> None:
    page.gauge(
        "trellis_build_info",
        "Version, and whether the hot paths are compiled",
        1,
        version=trellis.__version__,
        python=platform.python_version(),
        compiled="yes" if trellis.compiled() else "no",
    )
    page.counter("trellis_turns", "Turns of the loop that had work", node.turn.turns)
    page.gauge(
        "trellis_loop_held_seconds_max",
        "Longest turn of the loop so far",
        node.turn.longest_seconds,
    )
    page.counter(
        "trellis_gc_pause_seconds", "Time in garbage collections", node.gc_policy.paused_seconds
    )
    page.counter("trellis_gc_collections", "Garbage collections", node.gc_policy.collections)
    page.gauge(
        "trellis_gc_pause_seconds_max",
        "Longest garbage collection so far",
        node.gc_policy.longest_pause,
    )
    page.counter(
        "trellis_passwords_hashed",
        "Passwords hashed to judge a login",
        node.accounts.passwords_hashed,
    )
    page.gauge(
        "trellis_logins_waiting",
        "Different credentials that wait for a verdict",
        node.accounts.waiting,
    )
    guessing = node.accounts.login_throttle
    page.counter(
        "trellis_logins_delayed",
        "Logins that waited because of failures before them",
        guessing.throttled,
    )
    page.gauge(
        "trellis_login_failures",
        "Addresses and user names that failed to log in of late",
        len(guessing.addresses),
        by="address",
    )
    page.gauge(
        "trellis_login_failures",
        "Addresses and user names that failed to log in of late",
        len(guessing.users),
        by="user",
    )
    page.gauge(
        "trellis_logins_waiting_limit",
        "Different credentials that may wait; more are told to come again",
        node.settings.auth.queue,
    )
    _store(page, node.store_writer)
    for vhost in node.broker.vhosts.values():
        page.gauge(
            "trellis_retained_messages", "Retained messages", len(vhost.retained), vhost=vhost.name
        )
        page.gauge(
            "trellis_retained_bytes",
            "Retained messages with their topics",
            vhost.retained.octets,
            vhost=vhost.name,
        )
        page.counter(
            "trellis_retained_refused",
            "Messages not retained for lack of room",
            vhost.retained.refused,
            vhost=vhost.name,
        )


def _store(page: MetricsPage, storing: StoreWriter) -> None:
    page.counter("trellis_store_entries", "Changes of durable state", int(storing.store.position))
    if isinstance(storing, DurableStoreWriter):
        log = storing.durable.log
        page.counter(
            "trellis_store_batches", "Batches of changes written and synced", storing.batches
        )
        page.counter(
            "trellis_store_writes_refused",
            "Writes that found no room on the disk, and were tried again",
            storing.full_disk_failures,
        )
        page.gauge(
            "trellis_store_blocked",
            "1 while there is no room on the disk",
            1 if storing.blocked_reason else 0,
        )
        page.gauge(
            "trellis_store_pending_bytes",
            "Changes that wait for the disk",
            storing.durable.unwritten_bytes,
        )
        page.gauge("trellis_store_log_bytes", "The log on the disk", log.size)
        page.gauge("trellis_store_log_files", "Files of the log", len(log.files))
        page.counter("trellis_store_checkpoints", "Checkpoints made", storing.checkpoints)


def _fates(
    page: MetricsPage, vhosts: list[dict[str, IngressCounters]], censuses: list[VirtualHostTotals]
) -> None:
    every = [ingress for vhost in vhosts for ingress in vhost.values()]
    for at, fate in enumerate(FATES):
        page.counter(
            "trellis_messages",
            "Messages that came in, by what became of them",
            sum(ingress.fates[at] for ingress in every),
            fate=fate,
        )
    page.counter(
        "trellis_copies_made",
        "Copies of messages made for queues and sessions",
        sum(ingress.copies for ingress in every),
    )
    for at, fate in enumerate(COPY_FATES):
        page.counter(
            "trellis_copies",
            "Copies by how they ended",
            sum(census.fates[at] for census in censuses),
            fate=fate,
        )


def _routes(page: MetricsPage, node: BrokerNode, ingress: list[dict[str, IngressCounters]]) -> None:
    vhosts = node.broker.vhosts.values()
    routes = sum(len(context.routes) for vhost in vhosts for context in vhost.contexts)
    page.gauge("trellis_route_cache_entries", "Routes kept", routes)
    page.gauge(
        "trellis_route_cache_limit", "Routes kept at most by one user", node.broker.limits.routes
    )
    page.counter(
        "trellis_route_cache_misses",
        "Publications whose route had to be found",
        sum(one.misses for vhost in ingress for one in vhost.values()),
    )
    page.gauge("trellis_plans", "Sets of destinations kept", sum(vhost.plans for vhost in vhosts))


def _sessions(page: MetricsPage, node: BrokerNode, connected: int) -> None:
    sessions = node.mqtt.sessions
    text = "Sessions by whether their client is here"
    page.gauge("trellis_mqtt_sessions", text, connected, state="connected")
    page.gauge("trellis_mqtt_sessions", text, max(0, len(sessions) - connected), state="away")
    page.counter("trellis_mqtt_sessions_created", "Sessions created", sessions.created)
    page.counter(
        "trellis_mqtt_sessions_expired",
        "Sessions whose client stayed away too long",
        sessions.expired,
    )
