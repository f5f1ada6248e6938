"""Metrics: the event loop copies the counters, and renders them as text, both in slices.

A metric that RabbitMQ has too keeps its name, so that RabbitMQ's dashboards work; all others are
named `trellis_*`. Rendering takes 3 us for each series.
"""

from __future__ import annotations

import asyncio
import platform
from typing import Any, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.utils import floatToGoString

import trellis
from broker.messages.fates import COPY_FATES, MESSAGE_FATES, ROUTED, UNROUTABLE
from broker.routing.publish_context import IngressCounters
from broker.stream.queue import StreamQueue
from broker.vhost.totals import VirtualHostTotals
from protocols.front import Front
from trellis import process
from trellis.monitoring.http_counters import HttpCounters
from trellis.server.node import BrokerNode
from trellis.server.store_writer import DurableStoreWriter, StoreWriter

#: Objects that are counted, or listed by name, in one turn of the event loop.
COUNT_SLICE: Final = 1_000
NAMED_SLICE: Final = 200

Labels = dict[str, str]
#: The text of a value, as Prometheus writes it.
_text_of: Final[Any] = floatToGoString


class MetricFamily:
    """One metric: name without `_total`, kind (gauge or counter), help text, and samples."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.samples: list[tuple[Labels, float]] = []


class MetricsPage:
    """The metrics of one scrape, in order, each with all its samples."""

    def __init__(self) -> None:
        self.families: dict[str, MetricFamily] = {}

    def add(self, name: str, kind: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to a metric; `text` is the help text of the metric."""
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = MetricFamily(name, kind, text)
        family.samples.append((labels, value))

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to a gauge."""
        self.add(name, "gauge", text, value, **labels)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to a counter."""
        self.add(name, "counter", text, value, **labels)

    async def render(self) -> bytes:
        """Return the text that Prometheus scrapes, and empty the page.

        The text is made in slices of NAMED_SLICE samples, with a turn of the event loop after each.
        (A thread would hold the interpreter lock for 5 ms at a time.)
        """
        slices: list[bytes] = []
        parts: list[str] = []
        made = 0
        for family in self.families.values():
            name = family.name + ("_total" if family.kind == "counter" else "")
            text = family.text.replace("\\", "\\\\").replace("\n", "\\n")
            parts.append(f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n")
            samples, family.samples = family.samples, []
            samples.reverse()
            while samples:
                taken = samples[: -NAMED_SLICE - 1 : -1]
                del samples[-NAMED_SLICE:]
                parts += [_line(name, labels, value) for labels, value in taken]
                made += len(taken)
                if made >= NAMED_SLICE:
                    made = 0
                    slices.append("".join(parts).encode())
                    parts = []
                    await asyncio.sleep(0)
        return b"".join([*slices, "".join(parts).encode()])


def _line(name: str, labels: Labels, value: float) -> str:
    """Return the line of one sample."""
    listed = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
    return f"{name}{{{listed}}} {_text_of(value)}\n" if listed else (f"{name} {_text_of(value)}\n")


def _escaped(value: str) -> str:
    """Return the value of a label, escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


async def aggregated_metrics(node: BrokerNode, http: HttpCounters) -> MetricsPage:
    """Return the metrics of /metrics, counted in slices of COUNT_SLICE objects."""
    page = MetricsPage()
    totals = []
    for vhost in list(node.broker.vhosts.values()):
        each = vhost.totals()
        more = True
        while more:
            more = each.step(COUNT_SLICE)
            await asyncio.sleep(0)
        totals.append(each)
    sessions = node.mqtt.sessions.all()
    connected = 0
    for at in range(0, len(sessions), COUNT_SLICE):
        connected += sum(session.outlet is not None for session in sessions[at : at + COUNT_SLICE])
        await asyncio.sleep(0)
    ingress = [vhost.contexts.ingress_counters() for vhost in node.broker.vhosts.values()]
    _connections(page, node, http)
    _listeners(page, node)
    _http(page, http)
    _queues(page, node, totals)
    _streams(page, node, http)
    for front in node.fronts:
        _messages(
            page,
            front,
            ingress,
            sum(each.relayed for each in totals) if front is node.mqtt else 0,
        )
    _trellis(page, node)
    _fates(page, ingress, totals)
    _routes(page, node, ingress)
    _sessions(page, node, connected)
    await asyncio.get_running_loop().run_in_executor(None, _process, page, node)
    return page


async def per_object_metrics(node: BrokerNode) -> MetricsPage:
    """Return the metrics of /metrics/per-object: queues and sessions by name."""
    page = MetricsPage()
    done = 0
    for vhost in list(node.broker.vhosts.values()):
        for queue in [*vhost.queues.values(), *vhost.inboxes.values()]:
            labels = {"vhost": vhost.name, "queue": queue.name}
            ready, unacked = int(queue.depth), int(queue.unacked)
            page.gauge(
                "rabbitmq_queue_messages_ready",
                "Number of messages ready to be delivered.",
                ready,
                **labels,
            )
            page.gauge(
                "rabbitmq_queue_messages_unacked",
                "Number of messages delivered and not acknowledged yet.",
                unacked,
                **labels,
            )
            page.gauge(
                "rabbitmq_queue_messages",
                "Number of ready and unacknowledged messages.",
                ready + unacked,
                **labels,
            )
            page.gauge(
                "rabbitmq_queue_consumers",
                "Number of consumers of the queue.",
                queue.consumer_count,
                **labels,
            )
            done += 1
            if done % NAMED_SLICE == 0:
                await asyncio.sleep(0)
    for session in node.mqtt.sessions.all():
        labels = {"vhost": session.vhost.name, "client_id": session.name}
        page.counter(
            "trellis_session_dropped_messages",
            "Total number of QoS 0 messages dropped because the client read too slowly.",
            int(session.dropped),
            **labels,
        )
        page.counter(
            "trellis_session_missed_messages",
            "Total number of QoS 0 messages not queued because the client was disconnected.",
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
        "Number of open connections.",
        sum(len(front.connections) for front in fronts),
    )
    page.counter(
        "rabbitmq_connections_opened",
        "Total number of connections opened.",
        sum(front.opened for front in fronts),
    )
    page.counter(
        "rabbitmq_connections_closed",
        "Total number of connections closed.",
        sum(sum(front.closed.values()) for front in fronts),
    )
    page.gauge("rabbitmq_channels", "Number of open AMQP channels.", node.amqp.channels)
    page.counter(
        "rabbitmq_channels_opened",
        "Total number of AMQP channels opened.",
        int(node.amqp.tally.channels_opened),
    )
    page.counter(
        "rabbitmq_channels_closed",
        "Total number of AMQP channels closed.",
        int(node.amqp.tally.channels_closed),
    )
    for front in fronts:
        page.gauge(
            "trellis_connections",
            "Number of open connections, by protocol.",
            len(front.connections),
            protocol=front.name,
        )
        for reason, count in sorted(front.closed.items()):
            page.counter(
                "trellis_connections_closed",
                "Total number of connections closed, by protocol and reason.",
                count,
                protocol=front.name,
                reason=reason,
            )
    for name, counted in [*node.logins.items(), ("http", http.logins)]:
        logins = {outcome: counted.get(outcome, 0) for outcome in ("accepted", "refused", "busy")}
        for outcome, count in logins.items():
            page.counter(
                "trellis_logins",
                "Total number of logins, by protocol and outcome.",
                count,
                protocol=name,
                outcome=outcome,
            )
        page.counter(
            "rabbitmq_auth_attempts",
            "Total number of authentication attempts.",
            sum(logins.values()),
            protocol=name,
        )
        page.counter(
            "rabbitmq_auth_attempts_succeeded",
            "Total number of authentication attempts that succeeded.",
            logins["accepted"],
            protocol=name,
        )
        page.counter(
            "rabbitmq_auth_attempts_failed",
            "Total number of authentication attempts that failed.",
            logins["refused"] + logins["busy"],
            protocol=name,
        )
    for reason, count in node.admission.refused.items():
        page.counter(
            "trellis_connections_refused",
            "Total number of connections refused before their login, by reason. "
            "With reason descriptors, number of pauses in accepting connections.",
            count,
            reason=reason,
        )
    for limit in node.rates.limits:
        page.counter(
            "trellis_rate_waits",
            "Number of times that a client was throttled, by rate limit.",
            node.rates.throttled[limit],
            limit=limit,
        )
        page.counter(
            "trellis_rate_refused",
            "Number of clients disconnected for exceeding a rate limit, by rate limit.",
            node.rates.disconnected[limit],
            limit=limit,
        )
    page.gauge(
        "trellis_connections_limit",
        "Maximum number of open connections.",
        node.admission.connections,
    )


def _listeners(page: MetricsPage, node: BrokerNode) -> None:
    for listener, context in node.listener_contexts.items():
        if context.tls_context is not None:
            for version, count in sorted(context.tls.handshakes.items()):
                page.counter(
                    "trellis_tls_handshakes",
                    "Total number of TLS handshakes completed, by TLS version.",
                    count,
                    listener=listener,
                    version=version,
                )
            for reason, count in sorted(context.tls.failures.items()):
                page.counter(
                    "trellis_tls_failures",
                    "Total number of failed TLS connections, by reason.",
                    count,
                    listener=listener,
                    reason=reason,
                )
            page.counter(
                "trellis_tls_resumed",
                "Total number of TLS handshakes that resumed an earlier TLS session.",
                context.tls.resumed,
                listener=listener,
            )
        if context.is_websocket:
            page.counter(
                "trellis_websocket_upgrades",
                "Total number of WebSockets opened.",
                context.websocket.upgrades,
                listener=listener,
            )
            for reason, count in sorted(context.websocket.refused.items()):
                page.counter(
                    "trellis_websocket_refused",
                    "Total number of WebSocket requests refused, by reason.",
                    count,
                    listener=listener,
                    reason=reason,
                )
    for file, ends in node.certificates.expirations.items():
        page.gauge(
            "trellis_tls_certificate_end_seconds",
            "Expiration of a TLS certificate, in seconds since 1970.",
            ends,
            file=file,
        )


def _http(page: MetricsPage, http: HttpCounters) -> None:
    for listener, counters in http.listeners.items():
        for status, count in sorted(counters.responses.items()):
            page.counter(
                "trellis_http_responses",
                "Total number of HTTP responses, by status.",
                count,
                listener=listener,
                status=str(status),
            )
        for reason, count in counters.closed.items():
            page.counter(
                "trellis_http_closed",
                "Total number of HTTP connections closed without a response, by reason.",
                count,
                listener=listener,
                reason=reason,
            )
    gateway = http.listeners.get("http")
    if gateway is not None:
        page.counter(
            "trellis_http_gateway_starts",
            "Total number of processes started to serve the HTTP API.",
            gateway.gateway_starts,
        )
        page.counter(
            "trellis_http_gateway_lost",
            "Total number of processes serving the HTTP API that ended unexpectedly.",
            gateway.gateways_lost,
        )


def _queues(page: MetricsPage, node: BrokerNode, totals: list[VirtualHostTotals]) -> None:
    vhosts = node.broker.vhosts.values()
    ready = sum(int(each.ready + each.inbox_ready) for each in totals)
    unacked = sum(int(each.unacked + each.inbox_unacked) for each in totals)
    page.gauge("rabbitmq_queues", "Number of queues.", sum(each.queues for each in totals))
    page.gauge(
        "rabbitmq_exchanges", "Number of exchanges.", sum(len(vhost.exchanges) for vhost in vhosts)
    )
    page.gauge(
        "rabbitmq_consumers", "Number of consumers.", sum(int(each.consumers) for each in totals)
    )
    page.gauge(
        "rabbitmq_queue_messages_ready",
        "Number of messages ready to be delivered, in queues and MQTT sessions.",
        ready,
    )
    page.gauge(
        "rabbitmq_queue_messages_unacked",
        "Number of messages delivered and not acknowledged yet.",
        unacked,
    )
    page.gauge(
        "rabbitmq_queue_messages", "Number of ready and unacknowledged messages.", ready + unacked
    )
    page.counter(
        "rabbitmq_queues_declared",
        "Total number of queue declarations, of new and existing queues.",
        sum(vhost.declarations.queues_declared for vhost in vhosts),
    )
    page.counter(
        "rabbitmq_queues_created",
        "Total number of queues created.",
        sum(vhost.declarations.queues_created for vhost in vhosts),
    )
    page.counter(
        "rabbitmq_queues_deleted",
        "Total number of queues deleted.",
        sum(vhost.declarations.queues_deleted for vhost in vhosts),
    )
    for reason in ("expired", "maxlen", "rejected", "delivery_limit"):
        page.counter(
            f"rabbitmq_global_messages_dead_lettered_{reason}",
            f"Total number of messages dead-lettered, reason {reason}.",
            sum(vhost.dead_letters.get(reason, 0) for vhost in vhosts),
        )
    page.gauge(
        "trellis_dead_letters_waiting",
        "Number of messages that left a queue, as dead letters or because their delay is over, and "
        "wait to be published again.",
        sum(moves.waiting for vhost in vhosts for moves in vhost.moves.values()),
    )


def _streams(page: MetricsPage, node: BrokerNode, http: HttpCounters) -> None:
    streams = [
        queue
        for vhost in node.broker.vhosts.values()
        for queue in vhost.queues.values()
        if isinstance(queue, StreamQueue)
    ]
    page.gauge("trellis_streams", "Number of streams.", len(streams))
    page.gauge(
        "trellis_stream_rows",
        "Number of durable rows in all streams.",
        sum(int(stream.archive.rows) for stream in streams),
    )
    page.gauge(
        "trellis_stream_bytes",
        "Total size of all stream segments in bytes.",
        sum(int(stream.archive.size) for stream in streams),
    )
    page.gauge(
        "trellis_stream_segments",
        "Number of stream segments.",
        sum(len(stream.archive.segments) for stream in streams),
    )
    page.gauge(
        "trellis_stream_readers",
        "Number of consumers that read streams.",
        sum(len(stream.readers) for stream in streams),
    )
    page.counter(
        "trellis_stream_rows_served",
        "Total number of stream rows delivered to consumers.",
        int(node.broker.streams.served) + sum(int(stream.served) for stream in streams),
    )
    page.counter(
        "trellis_stream_bytes_sent",
        "Total size of stream segments sent over HTTP in bytes.",
        http.segment_bytes_sent,
    )


def _messages(
    page: MetricsPage, front: Front, vhosts: list[dict[str, IngressCounters]], relayed: int
) -> None:
    """Add the message counters of one protocol.

    `relayed` is the number of message copies sent to connections directly, not through a queue.
    """
    name, tally = front.name, front.tally
    counters = [ingress[way] for ingress in vhosts for way in front.context_names if way in ingress]
    received = sum(ingress.received for ingress in counters)
    routed = sum(ingress.fates[ROUTED] for ingress in counters)
    unroutable = sum(ingress.fates[UNROUTABLE] for ingress in counters)
    auto, manual = int(tally.delivered_auto) + relayed, int(tally.delivered_manual)
    gets = int(tally.get_auto + tally.get_manual)
    for metric, text, value in (
        ("received", "Total number of messages received from publishers.", received),
        (
            "received_confirm",
            "Total number of messages received from publishers that use confirms.",
            int(tally.received_confirm),
        ),
        ("routed", "Total number of messages routed to a queue or MQTT session.", routed),
        ("confirmed", "Total number of messages confirmed to publishers.", int(tally.confirmed)),
        ("delivered", "Total number of messages delivered to consumers.", auto + manual + gets),
        (
            "delivered_consume_auto_ack",
            "Total number of messages delivered to consumers with automatic acknowledgement.",
            auto,
        ),
        (
            "delivered_consume_manual_ack",
            "Total number of messages delivered to consumers with manual acknowledgement.",
            manual,
        ),
        (
            "delivered_get_auto_ack",
            "Total number of messages fetched with automatic acknowledgement.",
            int(tally.get_auto),
        ),
        (
            "delivered_get_manual_ack",
            "Total number of messages fetched with manual acknowledgement.",
            int(tally.get_manual),
        ),
        ("get_empty", "Total number of fetches from empty queues.", int(tally.get_empty)),
        ("redelivered", "Total number of messages redelivered.", int(tally.redelivered)),
        (
            "acknowledged",
            "Total number of messages acknowledged by consumers.",
            int(tally.acknowledged),
        ),
        (
            "unroutable_dropped",
            "Total number of unroutable messages dropped.",
            unroutable - int(tally.returned),
        ),
        (
            "unroutable_returned",
            "Total number of unroutable messages returned to their publisher.",
            int(tally.returned),
        ),
    ):
        page.counter(f"rabbitmq_global_messages_{metric}", text, value, protocol=name)


def _process(page: MetricsPage, node: BrokerNode) -> None:
    """Add the metrics of the process. Slow with many file descriptors: run it in a thread."""
    name = node.settings.node.name
    page.gauge(
        "rabbitmq_process_open_fds", "Number of open file descriptors.", process.open_descriptors()
    )
    page.gauge(
        "rabbitmq_process_max_fds", "Maximum number of open file descriptors.", node.max_descriptors
    )
    page.gauge(
        "rabbitmq_process_resident_memory_bytes",
        "Resident memory in use, in bytes.",
        process.resident_bytes(),
    )
    page.gauge(
        "rabbitmq_resident_memory_limit_bytes",
        "Memory above which publishers are blocked, in bytes.",
        node.alarm_watch.memory_limit,
    )
    if node.directory is not None:
        page.gauge(
            "rabbitmq_disk_space_available_bytes",
            "Free disk space for the data directory, in bytes.",
            process.free_disk_bytes(node.directory),
        )
        page.gauge(
            "rabbitmq_disk_space_available_limit_bytes",
            "Free disk space below which publishers are blocked, in bytes.",
            node.alarm_watch.disk_limit,
        )
    page.gauge(
        "rabbitmq_identity_info",
        "Names of this node and its cluster.",
        1,
        rabbitmq_node=f"{name}@{platform.node()}",
        rabbitmq_cluster=name,
        rabbitmq_endpoint=str(node.settings.metrics.port),
    )
    page.gauge(
        "rabbitmq_build_info",
        "Product name and version of this broker.",
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
            f"1 while the alarm {alarm} is on, else 0.",
            int(name in node.broker.alarms.on),
        )
    page.gauge(
        "trellis_delayed_messages",
        "Number of messages that wait in delayed exchanges.",
        sum(
            int(waiting.depth)
            for vhost in node.broker.vhosts.values()
            for waiting in vhost.delays.values()
        ),
    )
    watch = node.alarm_watch
    page.gauge(
        "trellis_memory_accounted_bytes",
        "Estimated memory of messages, output, input and bindings when it was last counted, in "
        "bytes. It is counted while resident memory is above the limit.",
        watch.account.accounted,
    )
    page.counter(
        "trellis_heap_trims",
        "Total number of times that freed memory was given back to the operating system.",
        watch.heap.trims,
    )
    page.counter(
        "trellis_heap_trim_seconds",
        "Total duration of looking for freed memory and giving it back, in seconds. Large"
        " allocations wait meanwhile.",
        watch.heap.trim_seconds,
    )
    page.gauge(
        "trellis_heap_trim_longest_seconds",
        "Longest duration of looking for freed memory or giving it back, in seconds.",
        watch.heap.longest_trim,
    )
    if node.reserve is not None:
        page.gauge(
            "trellis_disk_reserve_bytes",
            "Size of the disk reserve in bytes; 0 while it is given up, or if there is none.",
            node.reserve.held,
        )
        page.counter(
            "trellis_disk_reserve_given_up",
            "Total number of times that the disk reserve was given up because the disk was full.",
            node.reserve.given_up,
        )
    page.gauge(
        "trellis_blocked_connections",
        "Number of publishing connections blocked by an alarm.",
        len(node.broker.alarms.waiting),
    )


def _trellis(page: MetricsPage, node: BrokerNode) -> None:
    page.gauge(
        "trellis_build_info",
        "Version of Trellis and Python, and whether the hot paths are compiled.",
        1,
        version=trellis.__version__,
        python=platform.python_version(),
        compiled="yes" if trellis.compiled() else "no",
    )
    page.counter("trellis_turns", "Total number of event loop turns with work.", node.turn.turns)
    page.gauge(
        "trellis_loop_held_seconds_max",
        "Longest time that one turn has blocked the event loop, in seconds.",
        node.turn.longest_seconds,
    )
    page.gauge(
        "trellis_loop_held_cpu_seconds_max",
        "Most CPU time that the thread of the event loop used in one turn longer than 10 ms, in "
        "seconds.",
        node.turn.longest_cpu_seconds,
    )
    for spent, count in (
        ("working", node.turn.long_turns_working),
        ("waiting", node.turn.long_turns_waiting),
    ):
        page.counter(
            "trellis_long_turns",
            "Total number of turns longer than 10 ms. `working`: the thread of the event loop used "
            "10 ms of CPU time. `waiting`: it used less, because the machine did not run it or a "
            "call waited.",
            count,
            spent=spent,
        )
    page.counter(
        "trellis_gc_pause_seconds",
        "Total time of garbage collections in seconds.",
        node.gc_policy.paused_seconds,
    )
    page.counter(
        "trellis_gc_collections", "Total number of garbage collections.", node.gc_policy.collections
    )
    page.gauge(
        "trellis_gc_pause_seconds_max",
        "Longest garbage collection so far, in seconds.",
        node.gc_policy.longest_pause,
    )
    page.gauge(
        "trellis_gc_pause_cpu_seconds_max",
        "CPU time of the longest garbage collection so far, in seconds.",
        node.gc_policy.longest_pause_cpu,
    )
    page.counter(
        "trellis_gc_collected_objects",
        "Total number of objects that garbage collections found in reference cycles. If it grows "
        "with the number of clients, memory leaks.",
        node.gc_policy.collected,
    )
    page.counter(
        "trellis_passwords_hashed",
        "Total number of passwords hashed for logins.",
        node.accounts.passwords_hashed,
    )
    page.gauge(
        "trellis_logins_waiting",
        "Number of different credentials that wait for a verdict.",
        node.accounts.waiting,
    )
    throttle = node.accounts.login_throttle
    page.counter(
        "trellis_logins_delayed",
        "Total number of logins throttled because of earlier failures.",
        throttle.throttled,
    )
    page.gauge(
        "trellis_login_failures",
        "Number of addresses and of user names with recent login failures.",
        len(throttle.addresses),
        by="address",
    )
    page.gauge(
        "trellis_login_failures",
        "Number of addresses and of user names with recent login failures.",
        len(throttle.users),
        by="user",
    )
    page.gauge(
        "trellis_logins_waiting_limit",
        "Maximum number of different credentials that wait; further logins are answered busy.",
        node.settings.auth.queue,
    )
    _store(page, node.store_writer)
    for vhost in node.broker.vhosts.values():
        page.gauge(
            "trellis_retained_messages",
            "Number of retained messages.",
            len(vhost.retained),
            vhost=vhost.name,
        )
        page.gauge(
            "trellis_retained_bytes",
            "Size of the retained messages with their topics in bytes.",
            vhost.retained.size,
            vhost=vhost.name,
        )
        page.counter(
            "trellis_retained_refused",
            "Total number of messages not retained because the limit was reached.",
            vhost.retained.refused,
            vhost=vhost.name,
        )


def _store(page: MetricsPage, store_writer: StoreWriter) -> None:
    page.counter(
        "trellis_store_entries",
        "Total number of entries appended to the store.",
        int(store_writer.store.position),
    )
    if isinstance(store_writer, DurableStoreWriter):
        log = store_writer.durable.log
        page.counter(
            "trellis_store_batches",
            "Total number of batches of entries written and synced.",
            store_writer.batches,
        )
        page.counter(
            "trellis_store_writes_refused",
            "Total number of writes that found the disk full, or no file descriptor left, and "
            "were retried.",
            store_writer.full_disk_failures,
        )
        page.gauge(
            "trellis_store_blocked",
            "1 while writes of the store are retried, else 0.",
            1 if store_writer.blocked_reason else 0,
        )
        page.gauge(
            "trellis_store_pending_bytes",
            "Size of the entries that wait to be written, in bytes.",
            store_writer.durable.unwritten_bytes,
        )
        page.gauge("trellis_store_log_bytes", "Size of the store's log in bytes.", log.size)
        page.gauge("trellis_store_log_files", "Number of files of the store's log.", len(log.files))
        page.counter(
            "trellis_store_checkpoints",
            "Total number of checkpoints made.",
            store_writer.checkpoints,
        )
        page.counter(
            "trellis_store_log_dropped_bytes",
            "Total size of the dead files of the store's log that were dropped unread, in bytes.",
            store_writer.dropped_bytes,
        )
        page.gauge(
            "trellis_store_log_throttled",
            "1 while publishers wait until a checkpoint has made the store's log smaller, else 0.",
            1 if store_writer.log_throttled else 0,
        )


def _fates(
    page: MetricsPage, vhosts: list[dict[str, IngressCounters]], totals: list[VirtualHostTotals]
) -> None:
    every = [ingress for vhost in vhosts for ingress in vhost.values()]
    for at, fate in enumerate(MESSAGE_FATES):
        page.counter(
            "trellis_messages",
            "Total number of messages published, by fate.",
            sum(ingress.fates[at] for ingress in every),
            fate=fate,
        )
    page.counter(
        "trellis_copies_made",
        "Total number of message copies made for queues and MQTT sessions.",
        sum(ingress.copies for ingress in every),
    )
    for at, fate in enumerate(COPY_FATES):
        page.counter(
            "trellis_copies",
            "Total number of message copies removed, by fate.",
            sum(each.fates[at] for each in totals),
            fate=fate,
        )


def _routes(page: MetricsPage, node: BrokerNode, ingress: list[dict[str, IngressCounters]]) -> None:
    vhosts = node.broker.vhosts.values()
    routes = sum(len(context.routes) for vhost in vhosts for context in vhost.contexts)
    page.gauge("trellis_route_cache_entries", "Number of cached routes.", routes)
    page.gauge(
        "trellis_route_cache_limit",
        "Maximum number of cached routes of one user.",
        node.broker.limits.routes,
    )
    page.counter(
        "trellis_route_cache_misses",
        "Total number of messages published whose route was not cached.",
        sum(one.misses for vhost in ingress for one in vhost.values()),
    )
    page.gauge(
        "trellis_plans",
        "Number of cached sets of destinations.",
        sum(vhost.plans for vhost in vhosts),
    )
    page.counter(
        "trellis_route_searches_paused",
        "Total number of searches for destinations that took more than one turn of the event loop.",
        sum(vhost.paused_searches for vhost in vhosts),
    )
    page.counter(
        "trellis_bindings_refused",
        "Total number of bindings and subscriptions refused because of limits.pattern_nodes.",
        sum(vhost.bindings.refused for vhost in vhosts),
    )


def _sessions(page: MetricsPage, node: BrokerNode, connected: int) -> None:
    sessions = node.mqtt.sessions
    text = "Number of MQTT sessions, by whether their client is connected (connected, away)."
    page.gauge("trellis_mqtt_sessions", text, connected, state="connected")
    page.gauge("trellis_mqtt_sessions", text, max(0, len(sessions) - connected), state="away")
    page.counter(
        "trellis_mqtt_sessions_created", "Total number of MQTT sessions created.", sessions.created
    )
    page.counter(
        "trellis_mqtt_sessions_expired",
        "Total number of MQTT sessions expired.",
        sessions.expired,
    )
