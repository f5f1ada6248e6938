"""The messages between the broker and the telemetry worker: one JSON object per line.

    broker -> worker                            worker -> broker
    OpenExport  the collector; sent once        ExporterReady  the worker makes spans
    Steps       steps of sampled messages       SpanProgress   numbers of sent and dropped spans

Times are Unix times in nanoseconds, ids are in hexadecimal.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct


class OpenExport(Struct, tag=True):
    """The collector, and the attributes of all spans.

    `endpoint` is a URL, and `service` the service name; "" means the value in the environment
    variables of OpenTelemetry. `instance` is the name of the node, and `version` the version of the
    broker.
    """

    endpoint: str
    headers: dict[str, str]
    service: str
    instance: str
    version: str


class StepOrigin(Struct, array_like=True):
    """The publication of a sampled message, with the fields of SampledOrigin.

    The trace context of SampledOrigin is divided into `parent_span` and `state`.
    """

    parent_span: str
    state: str
    vhost: str
    exchange: str
    key: str
    user: str
    protocol: str
    client: tuple[str, ...]
    size: int
    message_id: str
    correlation_id: str


class Step(Struct, array_like=True):
    """A step of a sampled message, with the fields of SampledStep."""

    trace_id: str
    span_id: str
    time: int
    step: str
    place: str
    detail: str
    client: tuple[str, ...]
    origin: StepOrigin | None


class Steps(Struct, tag=True):
    """Steps of sampled messages, sent to the worker in the order in which the steps happened."""

    steps: list[Step]


class ExporterReady(Struct, tag=True):
    """The notice that the worker has loaded the exporter, and makes spans."""


class SpanProgress(Struct, tag=True):
    """Numbers of spans since the last SpanProgress, and the number that wait now.

    `failures` is the number of requests that failed; `reason` is the last failure, "" if the last
    request succeeded. `remembered` and `unknown` are the present numbers of this worker's
    SpanAssembler.
    """

    exported: int
    dropped_full: int
    dropped_refused: int
    failures: int
    waiting: int
    reason: str
    remembered: int
    unknown: int


ToWorker = OpenExport | Steps
FromWorker = ExporterReady | SpanProgress

_encoder: Final = msgspec.json.Encoder()
to_worker: Final = msgspec.json.Decoder(ToWorker)
from_worker: Final = msgspec.json.Decoder(FromWorker)


def line(message: ToWorker | FromWorker) -> bytes:
    """Return a message as one line of JSON."""
    return _encoder.encode(message) + b"\n"
