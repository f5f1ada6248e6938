"""One trace through clients that OpenTelemetry instruments, the broker and a collector."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.addresses import free_port
from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build
from tests.telemetry.collector import ReceivedSpan, Receiver
from tests.telemetry.running import TracingBroker, publish, run_example
from trellis.parent_process import end_with_parent

ROOT: Final = Path(__file__).parents[2]
#: The name of each span of the example, and the name of its parent.
EXPECTED: Final = {
    "send orders/new": "",
    "publish amq.topic": "send orders/new",
    "route amq.topic": "publish amq.topic",
    "deliver orders": "publish amq.topic",
    "settle orders": "deliver orders",
    # pika's instrumentation: the consumer's span is a child of the publisher's span.
    "amq.topic receive": "send orders/new",
}


def expect_one_trace(spans: list[ReceivedSpan], trace_id: str) -> None:
    names = {span.span_id: span.name for span in spans}
    assert {span.name: names.get(span.parent_id, "") for span in spans} == EXPECTED
    assert {span.trace_id for span in spans} == {trace_id}
    services = {span.name: span.resource["service.name"] for span in spans}
    assert services["deliver orders"] == "trellis"
    assert services["amq.topic receive"] == services["send orders/new"] == "shop"
    [deliver] = [span for span in spans if span.name == "deliver orders"]
    [send] = [span for span in spans if span.name == "send orders/new"]
    assert deliver.links == [(trace_id, send.span_id)]


def expect_the_example_at(url: str, receiver: Receiver) -> None:
    """Run the example on a broker, and check the trace that `receiver` gets.

    The example and the broker export their spans to the collector at `url`, which sends them to
    `receiver`.
    """
    broker = TracingBroker(url)
    try:
        trace_id = run_example(broker, url)
        expect_one_trace(receiver.wait(len(EXPECTED)), trace_id)
        broker.stop()
    finally:
        broker.kill()


def test_the_example_is_one_trace(receiver: Receiver) -> None:
    expect_the_example_at(receiver.url, receiver)


# --- OpenTelemetry's collector


@cache
def _program() -> str:
    """Build the collector; return its path. Several test processes may build it at once."""
    program = BUILT / "otelcol"
    built = f"{program}-{os.getpid()}"
    build([require("go"), "build", "-o", built, "."], ROOT / "tests" / "go" / "otelcol")
    os.replace(built, program)
    return str(program)


class Collector:
    """A process of OpenTelemetry's Collector, which sends all spans on to a receiver."""

    def __init__(self, receiver: Receiver, directory: Path, port: int) -> None:
        configuration = directory / "collector.yaml"
        configuration.write_text(
            f"""receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  otlp_http:
    endpoint: {receiver.url}
    encoding: json
    compression: none
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [otlp_http]
"""
        )
        self._log = directory / "collector.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [_program(), "--config", str(configuration)],
                preexec_fn=end_with_parent,
                stdout=log,
                stderr=log,
            )
        self.url = f"http://127.0.0.1:{port}"

    @property
    def log(self) -> str:
        return self._log.read_text()[-3_000:]

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


@pytest.mark.long
def test_the_example_is_one_trace_in_a_collector(receiver: Receiver, tmp_path: Path) -> None:
    collector = Collector(receiver, tmp_path, free_port())
    try:
        expect_the_example_at(collector.url, receiver)
    finally:
        collector.close()


@pytest.mark.long
def test_a_collector_that_is_killed_and_started_gets_all_spans(
    receiver: Receiver, tmp_path: Path
) -> None:
    port = free_port()
    # The broker starts while no collector listens.
    broker = TracingBroker(
        f"http://127.0.0.1:{port}", variables={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    )
    collector = None
    try:
        channel = broker.channel()
        publish(channel, 5)
        while broker.metric("trellis_telemetry_up"):
            pass
        collector = Collector(receiver, tmp_path, port)
        assert len(receiver.wait(10)) == 10, collector.log
        collector.close()
        # Meanwhile the first connection was idle, and may have missed heartbeats.
        publish(broker.channel(), 5, first=6)
        while broker.metric("trellis_telemetry_up"):
            pass
        assert broker.metric("trellis_telemetry_waiting_spans") == 10
        collector = Collector(receiver, tmp_path, port)
        spans = receiver.wait(20)
        assert {int(span.trace_id, 16) for span in spans} == set(range(1, 11))
        broker.stop()
    finally:
        broker.kill()
        if collector is not None:
            collector.close()
