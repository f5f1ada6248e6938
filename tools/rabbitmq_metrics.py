"""The tables and texts that compare the metrics and dashboards of RabbitMQ and Trellis."""

from __future__ import annotations

#: RabbitMQ's metrics, each with "" if Trellis has the metric, otherwise with the metric to use
#: instead, or with the reason why Trellis has none. In a name, `*` matches any text. A test
#: compares both brokers (tests/interop/test_differential_metrics.py).
METRICS = [
    ("rabbitmq_connections", ""),
    ("rabbitmq_connections_opened_total", ""),
    ("rabbitmq_connections_closed_total", ""),
    ("rabbitmq_channels", ""),
    ("rabbitmq_channels_opened_total", ""),
    ("rabbitmq_channels_closed_total", ""),
    ("rabbitmq_consumers", ""),
    ("rabbitmq_queues", ""),
    ("rabbitmq_queues_declared_total", ""),
    ("rabbitmq_queues_created_total", ""),
    ("rabbitmq_queues_deleted_total", ""),
    ("rabbitmq_queue_messages", ""),
    ("rabbitmq_queue_messages_ready", ""),
    ("rabbitmq_queue_messages_unacked", ""),
    ("rabbitmq_queue_consumers", ""),
    ("rabbitmq_queue_messages_published_total", ""),
    ("rabbitmq_queue_messages_bytes", "no count of bytes by queue"),
    ("rabbitmq_queue_messages_*_bytes", "no count of bytes by queue"),
    ("rabbitmq_queue_messages_persistent", "no count of persistent messages by queue"),
    (
        "rabbitmq_queue_messages_*ram",
        "`rabbitmq_detailed_queue_messages_paged_out` counts the messages that are not in memory",
    ),
    ("rabbitmq_queue_messages_paged_out", "by queue only: `/metrics/detailed`"),
    ("rabbitmq_queue_process_memory_bytes", "by queue only: `/metrics/detailed`"),
    ("rabbitmq_queue_process_reductions_total", "no Erlang processes"),
    ("rabbitmq_queue_consumer_capacity", "no measurement of idle consumers"),
    ("rabbitmq_queue_consumer_utilisation", "no measurement of idle consumers"),
    ("rabbitmq_queue_head_message_timestamp", "the head may be on disk only"),
    ("rabbitmq_queue_disk_*", "one log for all queues: `trellis_store_...`"),
    ("rabbitmq_queue_get_empty_total", "`rabbitmq_channel_get_empty_total`, of all queues"),
    ("rabbitmq_global_messages_received_total", ""),
    ("rabbitmq_global_messages_received_confirm_total", ""),
    ("rabbitmq_global_messages_routed_total", ""),
    ("rabbitmq_global_messages_confirmed_total", ""),
    ("rabbitmq_global_messages_delivered_total", ""),
    ("rabbitmq_global_messages_delivered_consume_manual_ack_total", ""),
    ("rabbitmq_global_messages_delivered_consume_auto_ack_total", ""),
    ("rabbitmq_global_messages_delivered_get_manual_ack_total", ""),
    ("rabbitmq_global_messages_delivered_get_auto_ack_total", ""),
    ("rabbitmq_global_messages_get_empty_total", ""),
    ("rabbitmq_global_messages_redelivered_total", ""),
    ("rabbitmq_global_messages_acknowledged_total", ""),
    ("rabbitmq_global_messages_unroutable_dropped_total", ""),
    ("rabbitmq_global_messages_unroutable_returned_total", ""),
    ("rabbitmq_global_messages_dead_lettered_expired_total", ""),
    ("rabbitmq_global_messages_dead_lettered_maxlen_total", ""),
    ("rabbitmq_global_messages_dead_lettered_rejected_total", ""),
    ("rabbitmq_global_messages_dead_lettered_delivery_limit_total", ""),
    ("rabbitmq_global_messages_dead_lettered_confirmed_total", "one way to publish dead letters"),
    ("rabbitmq_global_publishers", ""),
    ("rabbitmq_global_consumers", ""),
    ("rabbitmq_global_stream_error_access_refused_total", ""),
    ("rabbitmq_channel_consumers", ""),
    ("rabbitmq_channel_messages_published_total", ""),
    ("rabbitmq_channel_messages_confirmed_total", ""),
    ("rabbitmq_channel_messages_delivered_total", ""),
    ("rabbitmq_channel_messages_delivered_ack_total", ""),
    ("rabbitmq_channel_messages_acked_total", ""),
    ("rabbitmq_channel_get_empty_total", ""),
    ("rabbitmq_detailed_channel_get_empty_total", "the total of all channels is in `/metrics`"),
    (
        "rabbitmq_detailed_channel_messages_unroutable_dropped_total",
        "the total of all channels is in `/metrics`",
    ),
    ("rabbitmq_channel_process_reductions_total", "no Erlang processes"),
    ("rabbitmq_connection_channels", ""),
    ("rabbitmq_connection_incoming_bytes_total", ""),
    ("rabbitmq_connection_outgoing_bytes_total", ""),
    ("rabbitmq_connection_*_packets*", "no count of packets"),
    ("rabbitmq_connection_process_reductions_total", "no Erlang processes"),
    ("rabbitmq_message_size_bytes*", "no count of sizes: it would slow down each message"),
    ("rabbitmq_auth_attempts_total", ""),
    ("rabbitmq_auth_attempts_detailed_*", "no series by address and user; the log has them"),
    ("rabbitmq_erlang_uptime_seconds", ""),
    ("rabbitmq_erlang_*", "no Erlang: `trellis_gc_...`, `trellis_turns_total`"),
    ("rabbitmq_io_*", "`trellis_store_...`"),
    ("rabbitmq_msg_store_*", "`trellis_store_entries_total`"),
    ("rabbitmq_queue_index_*", "no index files"),
    ("rabbitmq_schema_db_*", "no schema database"),
    ("rabbitmq_process_open_fds", ""),
    ("rabbitmq_process_max_fds", ""),
    ("rabbitmq_process_resident_memory_bytes", ""),
    ("rabbitmq_process_open_tcp_sockets", "`trellis_connections`"),
    ("rabbitmq_process_max_tcp_sockets", "`trellis_connections_limit`"),
    ("rabbitmq_resident_memory_limit_bytes", ""),
    ("rabbitmq_disk_space_available_bytes", ""),
    ("rabbitmq_disk_space_available_limit_bytes", ""),
    ("rabbitmq_alarms_memory_used_watermark", ""),
    ("rabbitmq_alarms_free_disk_space_watermark", ""),
    ("rabbitmq_alarms_file_descriptor_limit", ""),
    ("rabbitmq_build_info", ""),
    ("rabbitmq_identity_info", ""),
    ("rabbitmq_raft_*", "no replicas, so no Raft"),
    ("rabbitmq_memory_*", "`/metrics/memory-breakdown` does not exist"),
    ("erlang_vm_memory_*", "`rabbitmq_process_resident_memory_bytes`"),
    ("erlang_*", "no Erlang"),
    ("process_start_time_seconds", "the present time minus `rabbitmq_erlang_uptime_seconds`"),
    ("telemetry_scrape_*", "Prometheus measures each scrape itself"),
]
#: Labels that RabbitMQ's metrics have and Trellis's metrics lack; for each label, the metrics and
#: the reason. In a name, `*` matches any text, and `detailed_` is omitted.
LOST_LABELS = [
    ("queue_type", "rabbitmq_global_messages_*", "counted by protocol only"),
    ("queue_type", "rabbitmq_global_messages_dead_lettered_*", "counted for all queues"),
    ("dead_letter_strategy", "rabbitmq_global_messages_dead_lettered_*", "there is one strategy"),
    ("exchange", "rabbitmq_channel_messages_*", "counted by channel only"),
    ("queue", "rabbitmq_channel_*", "counted by channel only"),
    ("channel", "rabbitmq_channel_get_empty_total", "the total of all channels"),
    ("vhost", "rabbitmq_channel_get_empty_total", "the total of all channels"),
    ("channel", "rabbitmq_channel_messages_unroutable_dropped_total", "the total of all channels"),
    ("vhost", "rabbitmq_channel_messages_unroutable_dropped_total", "the total of all channels"),
    ("channel", "rabbitmq_queue_messages_published_total", "counted by queue only"),
    ("exchange", "rabbitmq_queue_messages_published_total", "counted by queue only"),
    ("exchange_vhost", "rabbitmq_queue_messages_published_total", "counted by queue only"),
    ("erlang_version", "rabbitmq_build_info", "no Erlang"),
    ("prometheus_client_version", "rabbitmq_build_info", "no plugins"),
    ("prometheus_plugin_version", "rabbitmq_build_info", "no plugins"),
    ("rabbitmq_cluster_permanent_id", "rabbitmq_identity_info", "nodes have no such number"),
]
#: RabbitMQ's dashboards, and the panels that have no data, with the reason.
DASHBOARDS = [
    (
        "RabbitMQ-Overview (10991)",
        "all panels; in RabbitMQ 4.1's version, all panels except message sizes",
    ),
    ("RabbitMQ-Stream (14798)", "all panels show 0: no stream protocol; see `trellis_stream_...`"),
    (
        "dashboards of queues, channels and connections",
        "all panels, except polls of an empty queue, which have no count by queue",
    ),
    ("RabbitMQ-PerfTest (6566)", "reads the metrics of the load tool PerfTest, not of the broker"),
    ("RabbitMQ-Quorum-Queues-Raft (11340)", "no data: no replicas, so no Raft"),
    ("Erlang-Memory-Allocators (11350)", "no data: Python's memory has no allocators to show"),
    ("Erlang-Distribution (11352), -Distributions-Compare", "no data: no cluster of Erlang nodes"),
    ("Erlang-BEAM", "no data: no Erlang schedulers, processes, ports and atoms"),
]
METRICS_TEXT = """\
The metrics also differ in these points:

- On `/metrics/detailed`, connections and channels have the label `vhost`, too, and the parameter
  `vhost` selects all kinds of objects, not only queues.
- A page lists at most 100,000 objects. `trellis_detailed_families_cut` and
  `trellis_per_object_left_out` count the families and objects that a page leaves out.
  `trellis_detailed_families_unknown` is the number of families in the query that do not exist;
  RabbitMQ ignores such families, too.
- The label of a connection or channel is its protocol and number; in RabbitMQ, the label is an
  Erlang process. The metrics of queues include the queues of MQTT sessions.
- The label `protocol` of MQTT clients is `mqtt`. In RabbitMQ, it is `amqp091` (up to 3.11), or a
  name such as `mqtt311`. `rabbitmq_global_publishers` does not count publishers that use MQTT. In
  RabbitMQ 3.10, this metric also falls when a channel that never published ends.
- The totals in `/metrics` include the counters of channels and connections that have ended. In
  RabbitMQ these totals fall when a channel or a connection ends.
- `rabbitmq_build_info`, `rabbitmq_identity_info` and `rabbitmq_alarms_...` are of type gauge; in
  RabbitMQ they have no type.
"""
DASHBOARDS_TEXT = """\
RabbitMQ's dashboards for Grafana work with the metrics of Trellis. tests/interop/test_dashboards.py
evaluates their panels with the engine of Prometheus. With the dashboards up to version 3.13, let
Prometheus scrape only one page of each broker (`/metrics`, for example), because these dashboards
cannot distinguish two pages. With RabbitMQ, too, these dashboards need a single page.
"""
