"""Metrics of clients: connections, logins, listeners and HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from trellis import logs
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import MetricsPage
from trellis.server.node import BrokerNode


def add_churn(page: MetricsPage, node: BrokerNode, prefix: str = "rabbitmq") -> None:
    """Add to the page the number of opened and closed connections and channels.

    The metric names begin with `prefix`.
    """
    fronts = node.fronts
    page.counter(
        f"{prefix}_connections_opened",
        "Total number of connections opened.",
        sum(front.opened for front in fronts),
    )
    page.counter(
        f"{prefix}_connections_closed",
        "Total number of connections closed.",
        sum(sum(front.closed.values()) for front in fronts),
    )
    page.counter(
        f"{prefix}_channels_opened",
        "Total number of AMQP channels opened.",
        int(node.amqp.tally.channels_opened),
    )
    page.counter(
        f"{prefix}_channels_closed",
        "Total number of AMQP channels closed.",
        int(node.amqp.tally.channels_closed),
    )


def add_auth_attempts(
    page: MetricsPage, node: BrokerNode, http: HttpCounters, prefix: str = "rabbitmq"
) -> None:
    """Add to the page the number of logins by protocol, with names that begin with `prefix`."""
    for name, logins in _logins(node, http):
        page.counter(
            f"{prefix}_auth_attempts",
            "Total number of authentication attempts.",
            sum(logins.values()),
            protocol=name,
        )
        page.counter(
            f"{prefix}_auth_attempts_succeeded",
            "Total number of authentication attempts that succeeded.",
            logins["accepted"],
            protocol=name,
        )
        page.counter(
            f"{prefix}_auth_attempts_failed",
            "Total number of authentication attempts that failed.",
            logins["refused"] + logins["busy"],
            protocol=name,
        )


def _logins(node: BrokerNode, http: HttpCounters) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the name of each protocol, and the number of its logins by outcome."""
    for name, counted in [*node.logins.items(), ("http", http.logins)]:
        outcomes = ("accepted", "refused", "busy")
        yield name, {outcome: counted.get(outcome, 0) for outcome in outcomes}


def add_connections(page: MetricsPage, node: BrokerNode, http: HttpCounters) -> None:
    """Add to the page the metrics of connections, channels, logins and rate limits."""
    fronts = node.fronts
    page.gauge(
        "rabbitmq_connections",
        "Number of open connections.",
        sum(len(front.connections) for front in fronts),
    )
    page.gauge("rabbitmq_channels", "Number of open AMQP channels.", node.amqp.channels)
    add_churn(page, node)
    page.counter(
        "trellis_acknowledgement_timeouts",
        "Total number of AMQP channels closed because a delivery was not acknowledged in time.",
        int(node.amqp.tally.acknowledgements_expired),
    )
    for front in fronts:
        page.gauge(
            "trellis_connections",
            "Number of open connections, by protocol.",
            len(front.connections),
            protocol=front.name,
        )
        page.counter_by(
            "reason",
            "trellis_connections_closed",
            "Total number of connections closed, by protocol and reason.",
            front.closed,
            protocol=front.name,
        )
    for name, logins in _logins(node, http):
        page.counter_by(
            "outcome",
            "trellis_logins",
            "Total number of logins, by protocol and outcome.",
            logins,
            protocol=name,
        )
    add_auth_attempts(page, node, http)
    page.counter_by(
        "reason",
        "trellis_connections_refused",
        "Total number of connections refused before their login, by reason. The value for the "
        "reason `descriptors` is the number of pauses in accepting connections.",
        node.admission.refused,
    )
    page.counter_by(
        "event",
        "trellis_refusals",
        "Total number of refusals that the log reports, by event: logins, connections, channels, "
        "requests over HTTP, subscriptions and publications that were refused, and sessions that "
        "another connection took over.",
        dict(node.refusals.counts),
    )
    page.counter(
        "trellis_refusals_left_out",
        "Total number of refusals that the log does not report, because too many different "
        "refusals came within a minute.",
        node.refusals.left_out,
    )
    page.gauge(
        "trellis_log_events_kept",
        "Number of the last events of the log that are kept in memory for `trellis list log`.",
        len(logs.recent),
    )
    if node.audit is not None:
        page.counter(
            "trellis_audit_lines", "Total number of lines of the audit log.", node.audit.written
        )
        page.counter(
            "trellis_audit_lines_lost",
            "Total number of lines of the audit log that were lost, because the file could not be "
            "written.",
            node.audit.lost,
        )
        page.gauge(
            "trellis_audit_waiting_bytes",
            "Size of the lines of the audit log that wait to be written; the limit is 4 MiB.",
            node.audit.waiting_bytes,
        )
    for limit in node.rates.limits:
        page.counter(
            "trellis_rate_waits",
            "Total number of times that a client was throttled, by rate limit.",
            node.rates.throttled[limit],
            limit=limit,
        )
        page.counter(
            "trellis_rate_refused",
            "Total number of clients disconnected for exceeding a rate limit, by rate limit.",
            node.rates.disconnected[limit],
            limit=limit,
        )
    page.gauge(
        "trellis_connections_limit",
        "Maximum number of open connections.",
        node.admission.connections,
    )


def add_listeners(page: MetricsPage, node: BrokerNode) -> None:
    """Add to the page the metrics of TLS and WebSockets by listener, and of certificates."""
    for listener, context in node.listener_contexts.items():
        if context.tls_context is not None:
            page.counter_by(
                "version",
                "trellis_tls_handshakes",
                "Total number of TLS handshakes completed, by TLS version.",
                context.tls.handshakes,
                listener=listener,
            )
            page.counter_by(
                "reason",
                "trellis_tls_failures",
                "Total number of failed TLS connections, by reason.",
                context.tls.failures,
                listener=listener,
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
            page.counter_by(
                "reason",
                "trellis_websocket_refused",
                "Total number of WebSocket requests refused, by reason.",
                context.websocket.refused,
                listener=listener,
            )
    for file, ends in node.certificates.expirations.items():
        page.gauge(
            "trellis_tls_certificate_end_seconds",
            "Expiration of a TLS certificate, in seconds since 1970.",
            ends,
            file=file,
        )


def add_http(page: MetricsPage, http: HttpCounters) -> None:
    """Add to the page the metrics of HTTP responses, and of the process that serves the API."""
    for listener, counters in http.listeners.items():
        page.counter_by(
            "status",
            "trellis_http_responses",
            "Total number of HTTP responses, by status.",
            counters.responses,
            listener=listener,
        )
        page.counter_by(
            "reason",
            "trellis_http_closed",
            "Total number of HTTP connections closed without a response, by reason.",
            counters.closed,
            listener=listener,
        )
    page.gauge(
        "trellis_http_rated_objects",
        "Number of objects whose counters the HTTP API remembers, to compute rates.",
        http.rated_objects,
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
