"""Metrics of messages: queues, streams, fates, routes and MQTT sessions."""

from __future__ import annotations

from broker.messages.fates import COPY_FATES, MESSAGE_FATES, ROUTED, UNROUTABLE
from broker.queues.queue import Queue
from broker.routing.publish_context import IngressCounters
from broker.stream.queue import StreamQueue
from broker.vhost.totals import VirtualHostTotals
from broker.vhost.vhost import VirtualHost
from protocols.front import Front
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import Labels, MetricsPage
from trellis.monitoring.queue_counts import ended_of
from trellis.server.node import BrokerNode


def add_depth(
    page: MetricsPage,
    ready: int,
    unacked: int,
    prefix: str = "rabbitmq_queue",
    labels: Labels | None = None,
) -> None:
    """Add to the page the number of ready messages, of unacknowledged messages, and of both.

    The names begin with `prefix`.
    """
    labels = {} if labels is None else labels
    page.listed(
        f"{prefix}_messages_ready",
        "gauge",
        "Number of messages ready to be delivered, in queues and MQTT sessions.",
        ready,
        labels,
    )
    page.listed(
        f"{prefix}_messages_unacked",
        "gauge",
        "Number of messages delivered and not acknowledged yet.",
        unacked,
        labels,
    )
    page.listed(
        f"{prefix}_messages",
        "gauge",
        "Number of ready and unacknowledged messages.",
        ready + unacked,
        labels,
    )


def add_depth_of(
    page: MetricsPage, queue: Queue, labels: Labels, prefix: str = "rabbitmq_queue"
) -> None:
    """Add to the page the numbers of messages of one queue. The names begin with `prefix`."""
    add_depth(page, int(queue.depth), int(queue.unacked), prefix, labels)


def add_consumers(
    page: MetricsPage, count: int, labels: Labels, prefix: str = "rabbitmq_queue"
) -> None:
    """Add to the page the number of consumers of one queue, or of all queues.

    The name begins with `prefix`.
    """
    text = "Number of consumers of queues."
    page.listed(f"{prefix}_consumers", "gauge", text, count, labels)


def add_ended(page: MetricsPage, queue: Queue, labels: Labels) -> None:
    """Add to the page how the messages of one queue ended, for each fate with a count above 0."""
    for fate, count in ended_of(queue).items():
        page.listed(
            "trellis_queue_ended",
            "counter",
            "Total number of messages that left a queue or MQTT session, by fate; dead letters by "
            "their reason.",
            count,
            {**labels, "fate": fate},
        )


def add_head_age(page: MetricsPage, queue: Queue, labels: Labels) -> None:
    """Add to the page the age of the first waiting message of one queue, if a message waits."""
    age = queue.head_age
    if age is not None:
        page.listed(
            "trellis_queue_head_age_seconds",
            "gauge",
            "Time for which the first waiting message of a queue or MQTT session has waited, in "
            "seconds.",
            age / 1000,
            labels,
        )


def add_unroutable(page: MetricsPage, vhost: VirtualHost) -> None:
    """Add to the page the number of unroutable messages of each exchange with such messages."""
    for exchange in list(vhost.exchanges.values()):
        if exchange.unroutable:
            page.listed(
                "trellis_exchange_unroutable",
                "counter",
                "Total number of messages published to an exchange that reached no queue and no "
                "session.",
                int(exchange.unroutable),
                {"vhost": vhost.name, "exchange": exchange.name or "amq.default"},
            )


def add_topic_groups(page: MetricsPage, node: BrokerNode) -> None:
    """Add to the page the number of unroutable messages by the filters of `metrics.topics`."""
    groups = node.broker.topic_groups
    if groups is not None:
        page.counter_by(
            "topics",
            "trellis_topic_unroutable",
            "Total number of messages that reached no queue and no session, by the filters in "
            "metrics.topics that match their topic.",
            groups.unroutable,
        )


def add_topic_history(page: MetricsPage, node: BrokerNode) -> None:
    """Add to the page the numbers of topics and queues in the topic history.

    The topic history has the topics of the last hour, and the queues to which messages were
    published by name, each with its number of messages. Also add the number of messages that the
    history does not contain.
    """
    history = node.broker.history
    page.gauge(
        "trellis_topic_history_topics",
        "Number of topics in the history of the last hour, each counted once in every slot of 10 "
        "minutes (`trellis list topics`).",
        len(history),
    )
    page.gauge(
        "trellis_topic_history_queues",
        "Number of queues to which messages were published by name (through the default exchange) "
        "in the last hour, each counted once in every slot of 10 minutes (`trellis queues "
        "delete`).",
        history.queues,
    )
    page.counter(
        "trellis_topic_history_left_out_messages",
        "Total number of messages that the history of the last hour does not count by topic or "
        "queue, because a slot of 10 minutes was full or the routing key is too long.",
        int(history.left_out),
    )


def add_queue_churn(page: MetricsPage, node: BrokerNode, prefix: str = "rabbitmq") -> None:
    """Add to the page the number of queues declared, created and deleted.

    The names begin with `prefix`.
    """
    vhosts = node.broker.vhosts.values()
    page.counter(
        f"{prefix}_queues_declared",
        "Total number of queue declarations, of new and existing queues.",
        sum(vhost.declarations.queues_declared for vhost in vhosts),
    )
    page.counter(
        f"{prefix}_queues_created",
        "Total number of queues created.",
        sum(vhost.declarations.queues_created for vhost in vhosts),
    )
    page.counter(
        f"{prefix}_queues_deleted",
        "Total number of queues deleted.",
        sum(vhost.declarations.queues_deleted for vhost in vhosts),
    )


def add_dead_letters(page: MetricsPage, node: BrokerNode) -> None:
    """Add to the page the number of dead-lettered messages by reason."""
    vhosts = node.broker.vhosts.values()
    for reason in ("expired", "maxlen", "rejected", "delivery_limit"):
        page.counter(
            f"rabbitmq_global_messages_dead_lettered_{reason}",
            f"Total number of messages dead-lettered for the reason {reason}.",
            sum(vhost.dead_letters.get(reason, 0) for vhost in vhosts),
        )


def add_queues(page: MetricsPage, node: BrokerNode, totals: list[VirtualHostTotals]) -> None:
    """Add to the page the metrics of queues, exchanges, consumers and dead letters."""
    vhosts = node.broker.vhosts.values()
    ready = sum(int(each.ready + each.inbox_ready) for each in totals)
    unacked = sum(int(each.unacked + each.inbox_unacked) for each in totals)
    page.gauge("rabbitmq_queues", "Number of queues.", sum(each.queues for each in totals))
    page.gauge(
        "trellis_queues_paused",
        "Number of queues that an operator has paused.",
        sum(each.paused for each in totals),
    )
    page.gauge(
        "rabbitmq_exchanges", "Number of exchanges.", sum(len(vhost.exchanges) for vhost in vhosts)
    )
    page.gauge(
        "trellis_parameters",
        "Number of parameters and operator policies; at most 10,000 in each virtual host.",
        sum(len(vhost.parameters.values) for vhost in vhosts),
    )
    consumers = sum(int(each.consumers) for each in totals)
    page.gauge("rabbitmq_consumers", "Number of consumers.", consumers)
    add_consumers(page, consumers, {})
    add_depth(page, ready, unacked)
    add_queue_churn(page, node)
    add_dead_letters(page, node)
    page.gauge(
        "trellis_dead_letters_waiting",
        "Number of messages that left a queue, as dead letters or because their delay is over, and "
        "wait to be published again.",
        sum(moves.waiting for vhost in vhosts for moves in vhost.moves.values()),
    )


def add_streams(
    page: MetricsPage, streams: list[StreamQueue], served: int, http: HttpCounters
) -> None:
    """Add to the page the metrics of streams.

    `streams` are the present streams. `served` is the number of rows that streams had delivered
    before they were deleted.
    """
    page.gauge("trellis_streams", "Number of streams.", len(streams))
    page.gauge(
        "trellis_stream_rows",
        "Number of durable rows in all streams.",
        sum(int(stream.local.rows) for stream in streams),
    )
    page.gauge(
        "trellis_stream_bytes",
        "Total size of all stream segments in bytes.",
        sum(int(stream.local.size) for stream in streams),
    )
    page.gauge(
        "trellis_stream_segments",
        "Number of stream segments.",
        sum(len(stream.local.segments) for stream in streams),
    )
    page.gauge(
        "trellis_stream_readers",
        "Number of consumers that read streams.",
        sum(len(stream.readers) for stream in streams),
    )
    page.counter(
        "trellis_stream_rows_served",
        "Total number of stream rows delivered to consumers.",
        served + sum(int(stream.served) for stream in streams),
    )
    page.counter(
        "trellis_stream_bytes_sent",
        "Total size of stream segments sent over HTTP in bytes.",
        http.segment_bytes_sent,
    )


def add_messages(
    page: MetricsPage, front: Front, vhosts: list[dict[str, IngressCounters]], relayed: int
) -> None:
    """Add to the page the message counters of one protocol.

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


def add_fates(
    page: MetricsPage, vhosts: list[dict[str, IngressCounters]], totals: list[VirtualHostTotals]
) -> None:
    """Add to the page the number of messages and of copies by fate."""
    every = [ingress for vhost in vhosts for ingress in vhost.values()]
    page.counter_by(
        "fate",
        "trellis_messages",
        "Total number of messages published, by fate.",
        {fate: sum(one.fates[at] for one in every) for at, fate in enumerate(MESSAGE_FATES)},
    )
    page.counter(
        "trellis_copies_made",
        "Total number of message copies made for queues and MQTT sessions.",
        sum(ingress.copies for ingress in every),
    )
    page.counter_by(
        "fate",
        "trellis_copies",
        "Total number of message copies removed, by fate.",
        {fate: sum(each.fates[at] for each in totals) for at, fate in enumerate(COPY_FATES)},
    )


def add_routes(
    page: MetricsPage, node: BrokerNode, ingress: list[dict[str, IngressCounters]]
) -> None:
    """Add to the page the metrics of the route caches."""
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
        "Total number of published messages whose route was not cached.",
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
    page.gauge(
        "trellis_traces",
        "Number of traces of messages that run, at most 8 in each virtual host.",
        sum(len(vhost.traces.running) for vhost in vhosts),
    )
    page.counter(
        "trellis_trace_steps_lost",
        "Total number of steps of traced messages that were removed because no client read them.",
        sum(vhost.traces.lost for vhost in vhosts),
    )
    page.counter(
        "trellis_bindings_refused",
        "Total number of bindings and subscriptions refused because of limits.pattern_nodes.",
        sum(vhost.bindings.refused for vhost in vhosts),
    )


def add_sessions(page: MetricsPage, node: BrokerNode, connected: int) -> None:
    """Add to the page the metrics of MQTT sessions, of which `connected` have a client."""
    sessions = node.mqtt.sessions
    text = "Number of MQTT sessions, by state of the client: connected, or away (not connected)."
    page.gauge("trellis_mqtt_sessions", text, connected, state="connected")
    page.gauge("trellis_mqtt_sessions", text, max(0, len(sessions) - connected), state="away")
    page.counter(
        "trellis_mqtt_sessions_created", "Total number of MQTT sessions created.", sessions.created
    )
    page.counter(
        "trellis_mqtt_subscriptions_refused",
        "Total number of MQTT subscriptions refused because of mqtt.subscriptions or "
        "mqtt.shared_subscriptions.",
        sessions.refused_subscriptions,
    )
    page.counter(
        "trellis_mqtt_topics_refused",
        "Total number of topics of publications that were refused because of mqtt.max_levels. A "
        "topic is counted again when its route is no longer cached.",
        node.mqtt.topics.too_deep,
    )
    page.counter(
        "trellis_mqtt_sessions_expired",
        "Total number of MQTT sessions expired.",
        sessions.expired,
    )
