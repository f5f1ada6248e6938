"""A small OTLP/HTTP receiver in the test's process; it decodes spans with opentelemetry-proto."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: Longest wait for spans in seconds. A test that waits so long fails.
PATIENCE = 60.0


class ReceivedSpan:
    """A span, with its ids in hexadecimal and its attributes as a dict."""

    def __init__(self, span: Span, resource: dict[str, Any]) -> None:
        self.name: str = span.name
        self.kind = Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_")
        self.trace_id = span.trace_id.hex()
        self.span_id = span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.start: int = span.start_time_unix_nano
        self.end: int = span.end_time_unix_nano
        self.attributes = values(span.attributes)
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.error: str = span.status.message if span.status.code == 2 else ""
        self.state: str = span.trace_state
        self.resource = resource


def values(pairs: Any) -> dict[str, Any]:
    """Return the attributes of a protobuf message as a dict."""
    attributes = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        attributes[pair.key] = (
            [each.string_value for each in value.values] if kind == "array_value" else value
        )
    return attributes


class Receiver:
    """A server that gets spans, on the port `port` of the loopback address (0: a free one).

    `status` is the status of its answers.
    """

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.spans: list[ReceivedSpan] = []
        self.requests: list[dict[str, str]] = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.take(self.path, dict(self.headers.items()), body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL for the setting telemetry.endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Keep the spans of a request, if the answer is 200; return the status of the answer."""
        lower = {name.lower(): value for name, value in headers.items()}
        if lower.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest()
        if lower["content-type"] == "application/json":
            Parse(_with_base64_ids(body), request)
        else:
            request.ParseFromString(body)
        with self._changed:
            self.requests.append({"path": path, **lower})
            if self.status == 200:
                for each in request.resource_spans:
                    resource = values(each.resource.attributes)
                    for scope in each.scope_spans:
                        self.spans += [ReceivedSpan(span, resource) for span in scope.spans]
            self._changed.notify_all()
            return self.status

    def wait(self, count: int) -> list[ReceivedSpan]:
        """Return all spans, once there are at least `count`."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.spans) >= count, PATIENCE)
            assert arrived, [span.name for span in self.spans]
            return list(self.spans)

    def wait_for_requests(self, count: int) -> None:
        """Wait until the receiver has got at least `count` requests."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, PATIENCE)

    def close(self) -> None:
        """Stop the server, and free its port."""
        self._server.shutdown()
        self._server.server_close()


def _with_base64_ids(body: bytes) -> str:
    """Return OTLP's JSON with ids in base64, as protobuf's JSON encodes bytes.

    OTLP's JSON has the ids in hexadecimal (OTLP specification, JSON protobuf encoding).
    """
    import base64
    import json

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            name: base64.b64encode(bytes.fromhex(each)).decode()
            if name in ("traceId", "spanId", "parentSpanId")
            else changed(each)
            for name, each in value.items()
        }

    return json.dumps(changed(json.loads(body)))
