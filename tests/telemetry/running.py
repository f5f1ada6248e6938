"""A broker process that exports spans, and its clients."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker import BrokerProcess
from tests.telemetry.sampling import PARENT

ROOT: Final = Path(__file__).parents[2]
#: Longest wait in seconds. A test that waits so long fails.
PATIENCE: Final = 60.0


class TracingBroker(BrokerProcess):
    """A broker that sends spans to the collector at `url`."""

    def __init__(self, url: str, *flags: str, variables: Mapping[str, str] | None = None) -> None:
        super().__init__(
            "--telemetry-enabled", "true", "--telemetry-endpoint", url, *flags, variables=variables
        )

    def channel(self) -> BlockingChannel:
        """Return a channel of a new AMQP client, in confirm mode, which has declared queue q."""
        channel = pika.BlockingConnection(pika.ConnectionParameters(*self.amqp)).channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        return channel

    def metric(self, name: str, labels: str = "") -> float:
        """Return the value of a metric of the page /metrics."""
        for line in self.page().splitlines():
            if line.startswith(f"{name}{labels} "):
                return float(line.split()[1])
        raise AssertionError(f"/metrics has no {name}{labels}")

    def page(self, accept: str = "text/plain") -> str:
        """Return the text of the page /metrics."""
        host, port = self.addresses["metrics"]
        request = urllib.request.Request(
            f"http://{host}:{port}/metrics", headers={"accept": accept}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return str(answer.read().decode())


def publish(channel: BlockingChannel, count: int = 1, first: int = 1) -> None:
    """Publish messages to queue q; the trace id of each is its number, from `first` on."""
    for number in range(first, first + count):
        headers = {"traceparent": f"00-{number:032x}-{PARENT}-01"}
        channel.basic_publish("", "q", b"m", pika.BasicProperties(headers=headers))


def run_example(broker: BrokerProcess, endpoint: str) -> str:
    """Run examples/tracing.py, and return the id of its trace."""
    host, port = broker.mqtt
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "tracing.py")],
        env=os.environ
        | {
            "AMQP_URL": broker.amqp_url,
            "MQTT_HOST": host,
            "MQTT_PORT": str(port),
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        },
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert run.returncode == 0, run.stderr
    order, trace = run.stdout.splitlines()
    assert order == "order: 1 lamp"
    return trace.removeprefix("trace: ")
