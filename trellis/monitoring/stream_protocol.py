"""Metrics of RabbitMQ's stream protocol, which Trellis does not speak: each of them is 0.

RabbitMQ's dashboard for streams sums up these metrics; if one is missing, the sum is empty. The
streams of Trellis are used over AMQP 0-9-1 and HTTP, and have the metrics `trellis_stream_...`.
"""

from __future__ import annotations

from typing import Final

from trellis.monitoring.page import MetricsPage

#: The value of the label `protocol` that RabbitMQ gives to its stream protocol.
STREAM: Final = "stream"
#: The errors of RabbitMQ's stream protocol, under RabbitMQ's names.
ERRORS: Final = (
    "access_refused",
    "authentication_failure",
    "frame_too_large",
    "internal_error",
    "precondition_failed",
    "publisher_does_not_exist",
    "sasl_authentication_failure_loopback",
    "sasl_challenge",
    "sasl_error",
    "sasl_mechanism_not_supported",
    "stream_already_exists",
    "stream_does_not_exist",
    "stream_not_available",
    "subscription_id_already_exists",
    "subscription_id_does_not_exist",
    "unknown_frame",
    "vhost_access_failure",
)


def add_nothing_spoken(page: MetricsPage) -> None:
    """Add to the page the metrics of the stream protocol, all 0.

    The page must already have the same metrics of the other protocols: the help texts are copied.
    """
    for name in ("rabbitmq_global_publishers", "rabbitmq_global_consumers"):
        page.gauge(name, page.families[name].text, 0, protocol=STREAM)
    for name in ("received", "confirmed", "delivered"):
        name = f"rabbitmq_global_messages_{name}"
        page.counter(name, page.families[name].text, 0, protocol=STREAM)
    for error in ERRORS:
        page.counter(
            f"rabbitmq_global_stream_error_{error}",
            "Always 0: Trellis does not speak RabbitMQ's stream protocol.",
            0,
            protocol=STREAM,
        )
