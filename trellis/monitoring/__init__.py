"""Monitoring: metrics for Prometheus and listings for operators.

Reading order:

    page            a page of metrics, and its text as Prometheus reads it
    metrics         all metrics of a broker: those of the process and the store, and
    client_metrics  those of connections, logins and listeners
    message_metrics those of queues, streams, fates, routes and sessions
    http_counters   counters of the HTTP servers, for the metrics
    listings        the rows of `trellis list`
    route_rows      the rows of `trellis route`

Nothing is counted here: metrics and listings read the counters of the broker, the front ends and
the servers. docs/metrics.md lists all metrics.
"""
