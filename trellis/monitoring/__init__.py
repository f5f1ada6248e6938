"""Monitoring: metrics for Prometheus and listings for operators.

Reading order:

    page              a page of metrics, and its text as Prometheus reads it
    ingress           collects the counts of published messages, in slices
    pace              the work of a scrape in one turn of the event loop
    metrics           all metrics of a broker, and the metrics of the store and the event loop
    node_metrics      metrics of the process, its limits and alarms
    client_metrics    metrics of connections, logins and listeners
    channel_metrics   metrics of AMQP channels
    login_metrics     metrics of passwords, tokens and waiting logins
    archive_metrics   metrics of the archive of streams
    bridge_metrics    metrics of bridges, shovels and federation links
    telemetry_metrics metrics of distributed tracing
    message_metrics   metrics of queues, streams, fates, routes and sessions
    cluster_metrics   metrics of a node of a cluster
    stream_protocol   metrics of RabbitMQ's stream protocol, which are always 0
    detailed          /metrics/detailed: metrics of single objects
    live_status       the state of the broker that the web page shows once a second
    http_counters     counters of the HTTP servers, for the metrics
    listings          the rows of `trellis list`
    client_rows       rows of channels, consumers, users and retained messages
    route_question    the question of `trellis route`
    route_rows        the rows of `trellis route`
    verdict_texts     what a queue would do with a message, as text
    trial_rows        the rows of a trial of bindings

This package counts nothing: metrics and listings read the counters of the broker, the front ends
and the servers. docs/metrics.md lists all metrics.
"""
