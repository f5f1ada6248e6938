"""Monitoring: metrics for Prometheus and listings for operators.

Reading order:

    metrics         all metrics of a broker, as Prometheus reads them
    http_counters   counters of the HTTP servers, for the metrics
    listings        the rows of `trellis list`

Nothing is counted here: metrics and listings read the counters of the broker, the front ends and
the servers. docs/metrics.md lists all metrics.
"""
