"""Tests that each panel of RabbitMQ's dashboards has data if it reads the metrics of Trellis.

A broker is scraped three times under a load that uses every feature that a panel shows. A program
(tests/go/dashboards) stores the pages as Prometheus does, with times 15 s apart, and evaluates the
queries of the panels.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.broker import BrokerProcess
from tests.foreign import require
from tests.interop import dashboards
from tests.interop.dashboards import HEARD, INSTANCE, NAMESPACE, POLLED, QUEUE, Panel
from tests.interop.test_toolchains import BUILT, HERE, build

FAMILIES: Final = (
    "queue_coarse_metrics",
    "queue_consumer_count",
    "queue_delivery_metrics",
    "queue_exchange_metrics",
    "connection_coarse_metrics",
    "connection_metrics",
    "channel_metrics",
    "channel_exchange_metrics",
    "channel_queue_metrics",
)
SCRAPES: Final = 3
#: Milliseconds between the times that Prometheus stores for two scrapes.
INTERVAL: Final = 15_000
#: The two pages of metrics with which the dashboards of totals must work; an operator scrapes one.
PAGES: Final = ("/metrics", "/metrics/per-object")


class Load:
    """Clients that use every feature that a panel shows."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.url = pika.URLParameters(broker.amqp_url)
        self.connection = pika.BlockingConnection(self.url)
        self.publisher, self.worker, self.listener = (self.connection.channel() for _ in range(3))
        self.publisher.confirm_delivery()
        self.publisher.exchange_declare("events", "topic", durable=True)
        for queue, arguments in (
            (QUEUE, {}),
            (HEARD, {}),
            (POLLED, {}),
            ("history", {"x-queue-type": "stream"}),
        ):
            self.publisher.queue_declare(queue, durable=True, arguments=arguments)
            self.publisher.queue_bind(queue, "events", f"{queue}.#")
        self.taken: list[int] = []
        self.worker.basic_qos(prefetch_count=50)
        self.worker.basic_consume(QUEUE, self._work)
        self.worker.basic_consume(
            "history",
            lambda channel, method, *_: channel.basic_ack(method.delivery_tag),
            arguments={"x-stream-offset": "first"},
        )
        self.heard = 0
        self.listener.basic_consume(HEARD, self._hear, auto_ack=True)
        self.device = paho.Client(CallbackAPIVersion.VERSION2, "device")
        self.device.username_pw_set("guest", "guest")
        self.device.connect(*broker.mqtt)
        self.device.loop_start()
        self.device.subscribe("events/#", 1)

    def _work(self, channel: Any, method: Any, *_: object) -> None:
        """Requeue or acknowledge a delivery, or leave it unsettled.

        Of each ten deliveries, the first is requeued, the second stays unsettled, and the others
        are acknowledged.
        """
        self.taken.append(method.delivery_tag)
        if method.redelivered:
            channel.basic_ack(method.delivery_tag)
        elif len(self.taken) % 10 == 1:
            channel.basic_nack(method.delivery_tag, requeue=True)
        elif len(self.taken) % 10 > 2:
            channel.basic_ack(method.delivery_tag)

    def _hear(self, *_: object) -> None:
        self.heard += 1

    def run(self) -> None:
        """Use every feature once, and wait until the messages of this round are delivered."""
        publish, seen, heard = self.publisher.basic_publish, len(self.taken), self.heard
        for number in range(20):
            publish("", QUEUE, b"order")
            for key in (f"{HEARD}.a", f"{POLLED}.a", "history.a"):
                publish("events", key, b"event %d" % number)
        publish("events", "nowhere", b"dropped")
        with pytest.raises(pika.exceptions.UnroutableError):
            publish("events", "nowhere", b"returned", mandatory=True)
        for auto_ack in (True, False):
            method, _, _ = self.publisher.basic_get(POLLED, auto_ack=auto_ack)
            assert method is not None
        self.publisher.basic_ack(method.delivery_tag)
        self.publisher.queue_declare("empty", auto_delete=True)
        for auto_ack in (True, False):
            assert self.publisher.basic_get("empty", auto_ack=auto_ack)[0] is None
        self.publisher.queue_delete("empty")
        other = pika.BlockingConnection(self.url)
        other.channel().close()
        other.close()
        self.device.publish("events/device", b"x", 1).wait_for_publish(10)
        self.connection.process_data_events(0)
        while len(self.taken) < seen + 20 or self.heard < heard + 20:
            self.connection.process_data_events(0.05)

    def close(self) -> None:
        self.device.disconnect()
        self.device.loop_stop()
        self.connection.close()


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Load]]:
    broker = BrokerProcess("--data-dir", str(tmp_path))
    load = Load(broker)
    yield broker, load
    load.close()
    broker.stop()


@pytest.fixture(scope="module")
def engine() -> str:
    """Build the program that evaluates queries, and return its path."""
    program = BUILT / "go-dashboards"
    build([require("go"), "build", "-o", str(program), "."], HERE / "go" / "dashboards")
    return str(program)


def page(broker: BrokerProcess, path: str) -> str:
    host, port = broker.addresses["metrics"]
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def scrape(broker: BrokerProcess, path: str, time: int) -> list[dict[str, Any]]:
    """Scrape the page `path` and /metrics/detailed; return both, as two jobs of one Prometheus.

    `time` is the time of the scrape in ms that the result contains.
    """
    detailed = "/metrics/detailed?" + "&".join(f"family={name}" for name in FAMILIES)
    return [
        {
            "time": time,
            "labels": {"job": job, "instance": INSTANCE, "namespace": NAMESPACE},
            "text": page(broker, place),
        }
        for job, place in (("rabbitmq", path), ("rabbitmq-detailed", detailed))
    ]


def evaluated(
    engine: str, scrapes: list[dict[str, Any]], panels: list[Panel]
) -> dict[str, dict[str, Any]]:
    """Return panel name -> {"values": ..., "error": ...} of the panel's query."""
    answers: dict[str, dict[str, Any]] = {}
    for job in ("", "rabbitmq"):
        queries = {panel.name: panel.query for panel in panels if panel.job == job}
        seen = [one for one in scrapes if not job or one["labels"]["job"] == job]
        request = {"scrapes": seen, "queries": queries, "at": scrapes[-1]["time"]}
        done = subprocess.run(
            [engine],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not done.returncode, done.stderr
        answers |= json.loads(done.stdout)
    assert len(answers) == len(panels)
    return answers


@pytest.mark.long
def test_every_panel_has_data(busy: tuple[BrokerProcess, Load], engine: str) -> None:
    broker, load = busy
    scrapes: dict[str, list[dict[str, Any]]] = {path: [] for path in PAGES}
    for number in range(SCRAPES):
        load.run()
        for path, seen in scrapes.items():
            seen += scrape(broker, path, 1_700_000_000_000 + number * INTERVAL)
    for path, seen in scrapes.items():
        endpoint = "aggregated" if path == "/metrics" else "per-object"
        panels = [*dashboards.overview(endpoint), *dashboards.stream(), *dashboards.queues()]
        answers = evaluated(engine, seen, panels)
        without = {
            panel.name: (panel.query, answer)
            for panel in panels
            if (answer := answers[panel.name])["error"]
            or not answer["values"]
            or not panel.may_be_zero
            and not max(map(float, answer["values"])) > 0
        }
        assert not without, f"{path}: {json.dumps(without, indent=1)}"
        assert len(panels) > 150
