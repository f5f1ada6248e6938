"""Sends spans with OpenTelemetry's exporter. The only module that imports OpenTelemetry."""

from __future__ import annotations

import logging
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from trellis.telemetry.assembly import FinishedSpan
from trellis.telemetry.contract import OpenExport

#: The service name if neither the settings nor the environment name one.
SERVICE: Final = "trellis"
#: Longest reason of a failure, in characters.
_REASON_MAX: Final = 300
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class _FirstWarning(logging.Handler):
    """A log handler that stores the first warning of OpenTelemetry about a request.

    The first warning gives the reason of a failure. Later warnings are about repetitions, and the
    last warning only says that there is no further repetition.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Store the text of the first warning; ignore all later warnings."""
        self.text = self.text or record.getMessage()[:_REASON_MAX]


class CollectorClient:
    """The connection to a collector.

    The environment variables of OpenTelemetry's exporter apply: endpoint, headers, timeout,
    compression, certificates, and attributes of the resource.
    """

    def __init__(self, opened: OpenExport) -> None:
        attributes = {"service.instance.id": opened.instance, "service.version": opened.version}
        if opened.service:
            attributes["service.name"] = opened.service
        resource = Resource.create(attributes)
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE}))
        self._resource = resource
        self._scope = InstrumentationScope(SERVICE, opened.version)
        self._exporter = OTLPSpanExporter(
            endpoint=opened.endpoint or None, headers=opened.headers or None
        )
        self._warning = _FirstWarning()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._warning)
        logger.propagate = False

    def export(self, spans: list[FinishedSpan]) -> str:
        """Send spans; return "", or the reason why the request failed."""
        try:
            readable = [self._readable(span) for span in spans]
            self._warning.text = ""
            result = self._exporter.export(readable)
        except Exception as error:  # noqa: BLE001 - the broker logs it; the spans are sent again
            return f"{type(error).__name__}: {error}"[:_REASON_MAX]
        if result is SpanExportResult.SUCCESS:
            return ""
        return self._warning.text or "the collector did not accept the spans, and gave no reason"

    def _readable(self, span: FinishedSpan) -> ReadableSpan:
        state = TraceState.from_header([span.state]) if span.state else TraceState()
        trace_id = int(span.trace_id, 16)

        def context(span_id: str, remote: bool) -> SpanContext:
            return SpanContext(trace_id, int(span_id, 16), remote, _SAMPLED, state)

        return ReadableSpan(
            name=span.name,
            context=context(span.span_id, False),
            parent=context(span.parent_id, span.remote) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(context(span.link, True))] if span.link else [],
            kind=SpanKind[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )
