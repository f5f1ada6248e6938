"""A broker exports its spans over OTLP/HTTP, also after a failure of collector or worker."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser

from tests.broker import run_command
from tests.telemetry.collector import Receiver
from tests.telemetry.running import TracingBroker, publish
from tests.telemetry.sampling import PARENT


@pytest.fixture
def start() -> Iterator[Callable[..., TracingBroker]]:
    """Return a function that starts a broker, which is stopped at the end of the test."""
    brokers: list[TracingBroker] = []

    def begin(*arguments: str, **variables: str) -> TracingBroker:
        brokers.append(TracingBroker(*arguments, variables=variables))
        return brokers[-1]

    yield begin
    for broker in brokers:
        broker.kill()


def worker_of(broker: TracingBroker) -> int:
    """Return the process id of the broker's worker."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            words = (process / "cmdline").read_text()
        except OSError:
            continue  # The process has ended meanwhile.
        if parent == broker.process.pid and "trellis.telemetry" in words:
            return int(process.name)
    raise AssertionError("the broker has no worker")


def wait_for_metric(broker: TracingBroker, name: str, expected: float, labels: str = "") -> None:
    """Read the metric `name` again and again, until its value is at least `expected`."""
    for _ in range(3_000):
        if broker.metric(name, labels) >= expected:
            return
    raise AssertionError(f"{name}{labels} did not reach {expected}: {broker.log}")


def test_a_broker_sends_spans_headers_and_its_service_name(
    receiver: Receiver, start: Callable[..., TracingBroker], tmp_path: Path
) -> None:
    settings = tmp_path / "broker.toml"
    settings.write_text(
        """[telemetry]
headers = ["authorization= Bearer secret "]
service_name = "orders-broker"
"""
    )
    broker = start(
        receiver.url,
        "--config",
        str(settings),
        "--node-name",
        "b1",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    channel = broker.channel()
    publish(channel)
    channel.basic_get("q", auto_ack=True)
    spans = receiver.wait(3)
    assert [span.name for span in spans] == [
        "publish amq.default",
        "route amq.default",
        "deliver q",
    ]
    assert [span.kind for span in spans] == ["CONSUMER", "INTERNAL", "PRODUCER"]
    assert spans[0].parent_id == PARENT
    assert spans[2].links == [(f"{1:032x}", PARENT)]
    assert spans[0].resource["service.name"] == "orders-broker"
    assert spans[0].resource["service.instance.id"] == "b1"
    assert spans[0].resource["deployment.environment.name"] == "test"
    request = receiver.requests[0]
    assert (request["path"], request["authorization"]) == ("/v1/traces", "Bearer secret")
    assert request["content-encoding"] == "gzip"
    wait_for_metric(broker, "trellis_telemetry_exported_spans_total", 3)
    page = broker.page("application/openmetrics-text; version=1.0.0")
    read: Any = parser.text_string_to_metric_families
    families = list(read(page))
    [times] = [one for one in families if one.name == "trellis_sampled_delivery_seconds"]
    exemplars = [sample.exemplar for sample in times.samples if sample.exemplar]
    assert [one.labels for one in exemplars] == [{"trace_id": f"{1:032x}"}]
    broker.stop()


def test_the_variables_of_opentelemetry_are_honoured(
    receiver: Receiver, start: Callable[..., TracingBroker]
) -> None:
    broker = start(
        "",
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
        OTEL_EXPORTER_OTLP_HEADERS="api-key=k",
        OTEL_SERVICE_NAME="named",
        OTEL_TRACES_SAMPLER="always_on",
    )
    channel = broker.channel()
    channel.basic_publish("", "q", b"m")
    spans = receiver.wait(2)
    assert (spans[0].parent_id, spans[0].resource["service.name"]) == ("", "named")
    assert (receiver.requests[0]["path"], receiver.requests[0]["api-key"]) == ("/v1/traces", "k")
    broker.stop()


def test_a_collector_that_was_away_gets_the_spans_later(
    receiver: Receiver, start: Callable[..., TracingBroker]
) -> None:
    receiver.status = 503
    broker = start(receiver.url, OTEL_EXPORTER_OTLP_TIMEOUT="0.2")
    channel = broker.channel()
    publish(channel, 3)
    receiver.wait_for_requests(2)
    wait_for_metric(broker, "trellis_telemetry_export_failures_total", 1)
    assert broker.metric("trellis_telemetry_up") == 0
    assert broker.metric("trellis_telemetry_waiting_spans") == 6
    receiver.status = 200
    publish(channel, 1, first=4)
    spans = receiver.wait(8)
    assert {int(span.trace_id, 16) for span in spans} == {1, 2, 3, 4}
    wait_for_metric(broker, "trellis_telemetry_exported_spans_total", 8)
    assert broker.metric("trellis_telemetry_up") == 1
    events = re.findall(r"telemetry_(away|back)", broker.log)
    assert events[0] == "away" and events[-1] == "back"
    broker.stop()


def test_a_worker_that_was_killed_is_started_again(
    receiver: Receiver, start: Callable[..., TracingBroker]
) -> None:
    broker = start(receiver.url)
    channel = broker.channel()
    publish(channel)
    receiver.wait(2)
    os.kill(worker_of(broker), signal.SIGKILL)
    wait_for_metric(broker, "trellis_telemetry_workers_lost_total", 1)
    # The message was published while the first worker ran. The spans of its delivery come from the
    # second worker, and are children of the publication's span.
    channel.basic_get("q", auto_ack=True)
    publish(channel, 1, first=2)
    spans = receiver.wait(5)
    assert [span.name for span in spans[2:]] == [
        "deliver q",
        "publish amq.default",
        "route amq.default",
    ]
    assert (spans[2].trace_id, spans[2].parent_id) == (spans[0].trace_id, spans[0].span_id)
    assert "telemetry_worker_lost" in broker.log
    broker.stop()


def test_a_stop_sends_the_last_spans(
    receiver: Receiver, start: Callable[..., TracingBroker]
) -> None:
    broker = start(receiver.url)
    channel = broker.channel()
    publish(channel)
    receiver.wait(2)
    publish(channel, 20, first=2)
    broker.stop()
    assert len(receiver.wait(42)) == 42


def test_a_stop_does_not_wait_for_a_collector_that_hangs(
    start: Callable[..., TracingBroker],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = start(f"http://127.0.0.1:{server.getsockname()[1]}")
        channel = broker.channel()
        publish(channel)
        # The worker has connected, and waits up to 10 s for an answer that never comes.
        connection, _ = server.accept()
        worker = worker_of(broker)
        broker.stop()
        connection.close()
    assert not os.path.exists(f"/proc/{worker}")


def test_a_broker_without_telemetry_has_no_worker_and_no_metrics(receiver: Receiver) -> None:
    for flag, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        broker = TracingBroker(receiver.url, variables={flag: value})
        assert f"{flag}={value} overrides telemetry.enabled" in broker.log
        assert "trellis_telemetry" not in broker.page()
        with pytest.raises(AssertionError, match="no worker"):
            worker_of(broker)
        broker.stop()


@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("--telemetry-endpoint", "collector:4318", "must be a URL such as"),
        ("--telemetry-endpoint", "http://h:port", "must be a URL such as"),
        ("--telemetry-ratio", "2", "telemetry.ratio"),
        ("--telemetry-rate", "0", "telemetry.rate"),
    ],
)
def test_wrong_settings_are_named(flag: str, value: str, error: str) -> None:
    run = run_command("serve", flag, value)
    assert (run.returncode, len(run.stderr.splitlines())) == (2, 1)
    assert error in run.stderr
