"""Metrics: the event loop copies the counters into a page, in slices.

A metric that RabbitMQ also has keeps RabbitMQ's name, so that RabbitMQ's dashboards work; all other
metrics are named `trellis_*`.
"""

from __future__ import annotations

import asyncio
import platform
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import trellis
from broker.routing.publish_context import IngressCounters
from broker.stream.queue import StreamQueue
from broker.vhost.totals import VirtualHostTotals
from protocols.connection import Connection
from trellis.monitoring import (
    channel_metrics,
    client_metrics,
    detailed,
    message_metrics,
    node_metrics,
    stream_protocol,
)
from trellis.monitoring.bridge_metrics import add_bridges
from trellis.monitoring.cluster_metrics import add_cluster
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.ingress import collect_counts, collected
from trellis.monitoring.login_metrics import add_logins
from trellis.monitoring.pace import Pace
from trellis.monitoring.page import OBJECTS_MAX, MetricsPage
from trellis.monitoring.scrape import queues_of
from trellis.server.node import BrokerNode

if TYPE_CHECKING:
    from trellis.server.durable_store_writer import DurableStoreWriter

#: Number of objects that are counted in one turn of the event loop.
COUNT_SLICE: Final = 500


def load_modules(node: BrokerNode) -> None:
    """Import the modules for settings that few brokers use. Called at the start of a broker.

    Later, an import could fail, because the process has no free file descriptor.
    """
    if node.archive is not None:
        import trellis.monitoring.archive_metrics
    if node.telemetry is not None:
        import trellis.monitoring.telemetry_metrics  # noqa: F401


async def aggregated_metrics(node: BrokerNode, http: HttpCounters) -> MetricsPage:
    """Return the metrics of /metrics, counted in slices of COUNT_SLICE objects."""
    page = MetricsPage()
    totals = await _totals(node)
    sessions = node.mqtt.sessions.all()
    connected = 0
    for at in range(0, len(sessions), COUNT_SLICE):
        connected += sum(session.outlet is not None for session in sessions[at : at + COUNT_SLICE])
        await asyncio.sleep(0)
    served, streams = await _streams(node)
    clients = channel_metrics.ClientTotals()
    await clients.count(node)
    await asyncio.sleep(0)
    client_metrics.add_connections(page, node, http)
    client_metrics.add_listeners(page, node)
    client_metrics.add_http(page, http)
    channel_metrics.add_totals(page, node, clients)
    await asyncio.sleep(0)
    _messages(page, node, collected(node.broker.vhosts.values()), totals, whole=True)
    await asyncio.sleep(0)
    message_metrics.add_queues(page, node, totals)
    message_metrics.add_streams(page, streams, served, http)
    _trellis(page, node)
    message_metrics.add_sessions(page, node, connected)
    await asyncio.sleep(0)
    seen = await asyncio.get_running_loop().run_in_executor(None, node_metrics.look, node)
    node_metrics.add_used(page, node, seen)
    node_metrics.add_limits(page, node)
    node_metrics.add_identity(page, node, node_metrics.AGGREGATED)
    node_metrics.add_alarms(page, node)
    _state(page, node)
    if node.cluster_figures is not None:
        add_cluster(page, node.cluster_figures())
    # Most brokers have neither an archive nor telemetry; `load_modules` has loaded the modules.
    if node.archive is not None:
        from trellis.monitoring.archive_metrics import add_archive

        add_archive(page, node.archive)
    add_bridges(page, node.bridges)
    if node.telemetry is not None:
        from trellis.monitoring.telemetry_metrics import add_telemetry

        add_telemetry(page, node.telemetry)
    return page


async def _totals(node: BrokerNode) -> list[VirtualHostTotals]:
    """Return the totals of each virtual host, counted in slices of COUNT_SLICE objects.

    First, the counts of the cached routes are added to the counters of the virtual hosts.
    """
    await collect_counts(node.broker.vhosts.values())
    totals = []
    for vhost in list(node.broker.vhosts.values()):
        each = vhost.totals()
        more = True
        while more:
            more = each.step(COUNT_SLICE)
            await asyncio.sleep(0)
        totals.append(each)
    return totals


def _messages(
    page: MetricsPage,
    node: BrokerNode,
    ingress: list[dict[str, IngressCounters]],
    totals: list[VirtualHostTotals],
    whole: bool,
) -> None:
    """Add to the page the counters of messages.

    The page must have the numbers of publishers and consumers already. The caller must read
    `ingress` in this turn of the event loop. If `ingress` were read earlier, a metric that is the
    difference of two counters could fall from one scrape to the next. If `whole` is False, leave
    out the metrics of fates, routes and topics, and most sums over channels.
    """
    relayed = sum(each.relayed for each in totals)
    for front in node.fronts:
        mine = relayed if front is node.mqtt else 0
        message_metrics.add_messages(page, front, ingress, mine)
    stream_protocol.add_nothing_spoken(page)
    if whole:
        channel_metrics.add_messages(page, node, ingress)
        message_metrics.add_fates(page, ingress, totals)
        message_metrics.add_routes(page, node, ingress)
        message_metrics.add_topic_groups(page, node)
        message_metrics.add_topic_history(page, node)
    else:
        channel_metrics.add_undivided(page, node, ingress)


async def _streams(node: BrokerNode) -> tuple[int, list[StreamQueue]]:
    """Return the number of rows that deleted streams have delivered, and a list of all streams.

    The number and the list of all queues are read in one turn of the event loop, so that the rows
    of a stream that is deleted afterwards are counted once. The streams are then selected from all
    queues in slices.
    """
    served = int(node.broker.streams.served)
    vhosts = node.broker.vhosts.values()
    queues = list(chain.from_iterable(vhost.queues.values() for vhost in vhosts))
    streams: list[StreamQueue] = []
    for at in range(0, len(queues), COUNT_SLICE):
        some = queues[at : at + COUNT_SLICE]
        streams += [queue for queue in some if isinstance(queue, StreamQueue)]
        await asyncio.sleep(0)
    return served, streams


async def per_object_metrics(node: BrokerNode, http: HttpCounters) -> MetricsPage:
    """Return the metrics of /metrics/per-object: for each queue, session, connection and channel.

    At most OBJECTS_MAX objects are listed: first queues and sessions, then the objects of the
    families in `detailed.PER_OBJECT`. A metric has the number of queues and sessions that were left
    out. The page also has the totals that belong to no single object, as in RabbitMQ, so that
    dashboards with totals can read the page.
    """
    scrape = await detailed.begin(node, http, detailed.PER_OBJECT, (), "rabbitmq")
    page = scrape.page
    totals = await _totals(node)
    clients = channel_metrics.ClientTotals()
    await clients.count(node)
    await asyncio.sleep(0)
    channel_metrics.add_clients(page, node, clients)
    _messages(page, node, collected(node.broker.vhosts.values()), totals, whole=False)
    message_metrics.add_dead_letters(page, node)
    await asyncio.sleep(0)
    page.gauge("rabbitmq_connections", "Number of open connections.", len(_open(node)))
    page.gauge("rabbitmq_channels", "Number of open AMQP channels.", node.amqp.channels)
    page.gauge("rabbitmq_queues", "Number of queues.", sum(each.queues for each in totals))
    consumers = sum(int(each.consumers) for each in totals)
    page.gauge("rabbitmq_consumers", "Number of consumers.", consumers)
    listed = left_out = 0
    await asyncio.sleep(0)
    pace = Pace()
    for vhost in list(node.broker.vhosts.values()):
        count = len(vhost.queues) + len(vhost.inboxes)
        taken = min(count, OBJECTS_MAX - listed)
        left_out += count - taken
        for _, queue in islice(queues_of(vhost), taken):
            labels = {"vhost": vhost.name, "queue": queue.name}
            message_metrics.add_depth_of(page, queue, labels)
            message_metrics.add_consumers(page, queue.consumer_count, labels)
            message_metrics.add_ended(page, queue, labels)
            message_metrics.add_head_age(page, queue, labels)
            listed += 1
            await pace.add(1)
    for vhost in list(node.broker.vhosts.values()):
        message_metrics.add_unroutable(page, vhost)
        await asyncio.sleep(0)
    sessions = node.mqtt.sessions.all()
    taken = min(len(sessions), OBJECTS_MAX - listed)
    left_out += len(sessions) - taken
    for session in islice(sessions, taken):
        labels = {"vhost": session.vhost.name, "client_id": session.name}
        page.listed(
            "trellis_session_dropped_messages",
            "counter",
            "Total number of QoS 0 messages dropped because the client read too slowly.",
            int(session.dropped),
            labels,
        )
        page.listed(
            "trellis_session_missed_messages",
            "counter",
            "Total number of QoS 0 messages not queued because the client was disconnected.",
            int(session.missed),
            labels,
        )
        listed += 1
        await pace.add(1)
    page.gauge(
        "trellis_per_object_left_out",
        f"Number of queues and sessions that this page leaves out: it lists at most {OBJECTS_MAX}.",
        left_out,
    )
    await detailed.fill(scrape, OBJECTS_MAX - listed)
    node_metrics.add_identity(page, node, node_metrics.PER_OBJECT)
    return page


def _open(node: BrokerNode) -> list[Connection]:
    return list(chain.from_iterable(front.connections for front in node.fronts))


def _state(page: MetricsPage, node: BrokerNode) -> None:
    """Add to the page further metrics: delays, memory, the disk reserve, blocked clients."""
    page.gauge(
        "trellis_delayed_messages",
        "Number of messages that wait in delayed exchanges.",
        sum(
            int(waiting.depth)
            for vhost in node.broker.vhosts.values()
            for waiting in vhost.delays.values()
        ),
    )
    page.gauge(
        "trellis_deduplication_entries",
        "Number of header values that deduplication exchanges and queues remember.",
        sum(vhost.declarations.deduplication_entries for vhost in node.broker.vhosts.values()),
    )
    watch = node.alarm_watch
    page.gauge(
        "trellis_memory_accounted_bytes",
        "Estimated memory of messages, output, input and bindings at the last count, in bytes. The "
        "broker counts while resident memory is above the limit.",
        watch.account.accounted,
    )
    page.counter(
        "trellis_heap_trims",
        "Total number of times that freed memory was given back to the operating system.",
        watch.heap.trims,
    )
    page.counter(
        "trellis_heap_trim_seconds",
        "Total time spent on looking for freed memory and giving it back, in seconds. Large "
        "allocations of memory wait meanwhile.",
        watch.heap.trim_seconds,
    )
    page.gauge(
        "trellis_heap_trim_longest_seconds",
        "Longest time spent at once on looking for freed memory or giving it back, in seconds.",
        watch.heap.longest_trim,
    )
    if node.reserve is not None:
        page.gauge(
            "trellis_disk_reserve_bytes",
            "Size of the disk reserve in bytes; 0 while the reserve is missing because the disk is "
            "full, or if there is no reserve.",
            node.reserve.held,
        )
        page.counter(
            "trellis_disk_reserve_given_up",
            "Total number of times that the file of the disk reserve was removed because the disk "
            "was full.",
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
            "Total number of event loop turns longer than 10 ms. `working`: the thread used 10 ms "
            "of CPU time. `waiting`: the thread used less, because the machine did not run it or a "
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
        "Total number of objects that garbage collections found in reference cycles. If this "
        "number grows with the number of clients, code of the broker makes such cycles, and memory "
        "leaks.",
        node.gc_policy.collected,
    )
    add_logins(page, node)
    _store(page, node)
    for vhost in node.broker.vhosts.values():
        page.gauge(
            "trellis_parameter_bytes",
            "Size of the runtime parameters as ASCII JSON in bytes.",
            vhost.parameters.size,
            vhost=vhost.name,
        )
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


def _store(page: MetricsPage, node: BrokerNode) -> None:
    page.counter(
        "trellis_store_entries",
        "Total number of entries appended to the store.",
        int(node.store_writer.store.position),
    )
    if node.directory is not None:
        # Imported here, because a broker in memory does not need the module; this one has loaded it
        # at its start.
        from trellis.server.durable_store_writer import DurableStoreWriter

        assert isinstance(node.store_writer, DurableStoreWriter)
        _durable_store(page, node.store_writer)


def _durable_store(page: MetricsPage, store_writer: DurableStoreWriter) -> None:
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
    page.counter(
        "trellis_store_unmarked_deliveries",
        "Total number of messages delivered before the store could record the delivery, "
        "because the disk was slow or full. After a crash, these messages may be delivered "
        "again without the flag `redelivered`.",
        int(store_writer.durable.unmarked_deliveries),
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
        "Total size of the files of the store's log that were removed unread, because they had "
        "no live entries, in bytes.",
        store_writer.dropped_bytes,
    )
    page.gauge(
        "trellis_store_log_throttled",
        "1 while publishers wait until a checkpoint has made the store's log smaller, else 0.",
        1 if store_writer.log_throttled else 0,
    )
