"""The metrics of distributed tracing."""

from __future__ import annotations

from broker.messages.sampled import STEPS_MAX
from trellis.monitoring.page import MetricsPage
from trellis.telemetry.assembly import MESSAGES_MAX, PLACES_MAX
from trellis.telemetry.service import TelemetryService
from trellis.telemetry.span_queue import ATTEMPTS_MAX, SPANS_MAX


def add_telemetry(page: MetricsPage, telemetry: TelemetryService) -> None:
    """Add to the page the metrics of sampled messages and of their spans."""
    sampler, counters = telemetry.sampler, telemetry.counters
    page.gauge(
        "trellis_telemetry_up",
        "1 if the last request to the collector succeeded, or if no request was made yet; 0 while "
        "the collector does not accept spans.",
        telemetry.up,
    )
    page.counter(
        "trellis_telemetry_sampled_messages",
        "Total number of messages whose steps become spans.",
        sampler.sampled,
    )
    page.counter(
        "trellis_telemetry_skipped_messages",
        "Total number of messages that were not sampled because of the setting telemetry.rate.",
        sampler.skipped,
    )
    page.counter(
        "trellis_telemetry_dropped_steps",
        f"Total number of steps of sampled messages that were dropped, because {STEPS_MAX:,} steps "
        "waited for the telemetry worker.",
        sampler.steps.dropped,
    )
    page.counter(
        "trellis_telemetry_exported_spans",
        "Total number of spans that the collector accepted.",
        counters.exported,
    )
    page.counter_by(
        "reason",
        "trellis_telemetry_dropped_spans",
        "Total number of spans that were dropped: the queue of spans was full, "
        f"{ATTEMPTS_MAX} requests with them failed, or their worker ended.",
        {
            "queue_full": counters.dropped_full,
            "refused": counters.dropped_refused,
            "worker_lost": counters.dropped_with_worker,
        },
    )
    page.gauge(
        "trellis_telemetry_waiting_spans",
        f"Number of spans that wait for the collector; beyond {SPANS_MAX:,}, the oldest one is "
        "dropped.",
        counters.waiting,
    )
    page.counter(
        "trellis_telemetry_export_failures",
        "Total number of requests to the collector that failed.",
        counters.failures,
    )
    page.gauge(
        "trellis_telemetry_remembered_messages",
        f"Number of messages whose steps are connected to one trace. Beyond {MESSAGES_MAX:,} "
        f"messages, or {PLACES_MAX:,} queues and sessions of these messages, the worker forgets "
        "the message that was sampled first.",
        counters.remembered,
    )
    page.counter(
        "trellis_telemetry_unknown_messages",
        "Total number of messages whose publication the worker did not know, for example because "
        "the worker had forgotten them. The spans of these messages lack attributes and have no "
        "duration.",
        counters.unknown,
    )
    page.counter(
        "trellis_telemetry_workers_lost",
        "Total number of worker processes of the telemetry that ended unexpectedly.",
        0 if telemetry.worker is None else telemetry.worker.lost,
    )
    page.histogram(
        "trellis_sampled_delivery_seconds",
        "Time from the publication of a sampled message to each of its deliveries, in seconds. In "
        "the OpenMetrics format, each bucket has the trace of its last delivery as an exemplar.",
        sampler.steps.times,
    )
