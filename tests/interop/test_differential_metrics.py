"""Comparison of the metrics of Trellis and of RabbitMQ 3.10 under the same load.

Names, types, labels and values must be equal, except for the differences that
docs/moving-from-rabbitmq.md lists (tools/rabbitmq_metrics.py).
"""

from __future__ import annotations

import importlib.util
import time
import urllib.request
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pika
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.broker import BrokerProcess
from tests.rabbitmq import RabbitMq
from trellis.monitoring.detailed import FAMILIES

#: Seconds until RabbitMQ must have updated its statistics, which it does every 5 s.
PATIENCE: Final = 40.0
DETAILED: Final = "/metrics/detailed?" + "&".join(f"family={name}" for name in FAMILIES)
#: Metrics without time, memory and other properties of the machine: their sums must be equal. The
#: number of closed connections is not among them, because the test connects to find out if RabbitMQ
#: has started. Nor is rabbitmq_global_publishers: RabbitMQ 3.10 decrements it when a channel that
#: only consumed ends.
EQUAL: Final = (
    "rabbitmq_channels*",
    "rabbitmq_connections",
    "rabbitmq_connections_opened_total",
    "rabbitmq_consumers",
    "rabbitmq_queues*",
    "rabbitmq_queue_consumers",
    "rabbitmq_queue_messages",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queue_messages_published_total",
    "rabbitmq_channel_*",
    "rabbitmq_consumer_prefetch",
    "rabbitmq_connection_channels",
    "rabbitmq_global_messages_*",
    "rabbitmq_global_consumers",
    "rabbitmq_auth_attempts_succeeded_total",
    "rabbitmq_alarms_*",
)
#: Metrics whose single samples must be equal, with all labels.
SAME: Final = (
    "rabbitmq_cluster_*",
    "rabbitmq_detailed_queue_messages",
    "rabbitmq_detailed_queue_messages_ready",
    "rabbitmq_detailed_queue_messages_unacked",
    "rabbitmq_detailed_queue_consumers",
)


@pytest.fixture(scope="module")
def moving() -> ModuleType:
    """Return the module tools/rabbitmq_metrics.py, which lists the accepted differences of
    metrics."""
    path = Path(__file__).parents[2] / "tools" / "rabbitmq_metrics.py"
    spec = importlib.util.spec_from_file_location("rabbitmq_metrics", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Side:
    """One broker with the load of the test, and its pages of metrics."""

    def __init__(self, amqp: int, metrics: int) -> None:
        self.metrics = metrics
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp))
        self.run()

    def run(self) -> None:
        publisher, worker, listener = (self.connection.channel() for _ in range(3))
        publisher.confirm_delivery()
        publisher.exchange_declare("events", "topic", durable=True)
        publisher.exchange_declare("hidden", "fanout", internal=True)
        for queue, arguments in (
            ("orders", {}),
            ("logs", {}),
            ("copies", {"x-queue-type": "quorum"}),
            ("history", {"x-queue-type": "stream"}),
        ):
            publisher.queue_declare(queue, durable=True, arguments=arguments)
            publisher.queue_bind(queue, "events", queue)
            for _ in range(10):
                publisher.basic_publish("events", queue, b"x")
        publisher.queue_declare("gone")
        publisher.queue_delete("gone")
        publisher.basic_publish("events", "nowhere", b"dropped")
        with pytest.raises(pika.exceptions.UnroutableError):
            publisher.basic_publish("events", "nowhere", b"returned", mandatory=True)
        assert publisher.basic_get("orders", auto_ack=True)[0] is not None
        method, _, _ = publisher.basic_get("orders")
        publisher.basic_ack(method.delivery_tag)
        publisher.queue_declare("empty")
        assert publisher.basic_get("empty")[0] is None
        taken: list[int] = []
        worker.basic_qos(prefetch_count=5)
        worker.basic_consume("orders", lambda _, method, *rest: taken.append(method.delivery_tag))
        heard: list[object] = []
        listener.basic_consume("logs", lambda *delivery: heard.append(delivery), auto_ack=True)
        while len(taken) < 5 or len(heard) < 10:
            self.connection.process_data_events(0.05)
        worker.basic_nack(taken[0], requeue=True)
        worker.basic_ack(taken[1])
        while len(taken) < 7:
            self.connection.process_data_events(0.05)
        other = pika.BlockingConnection(self.connection._impl.params)
        other.channel().close()
        other.close()

    def page(self, path: str) -> dict[str, Metric]:
        address = f"http://127.0.0.1:{self.metrics}{path}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return {one.name: one for one in text_string_to_metric_families(answer.read().decode())}

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Start both brokers, and return RabbitMQ and Trellis under the load."""
    theirs = RabbitMq(tmp_path_factory.mktemp("rabbitmq"), ("rabbitmq_prometheus",))
    ours = BrokerProcess("--data-dir", str(tmp_path_factory.mktemp("trellis")))
    both = Side(theirs.port, theirs.metrics), Side(ours.amqp.port, ours.addresses["metrics"].port)
    yield both
    for side in both:
        side.close()
    ours.stop()
    theirs.stop()


def name_of(metric: Metric) -> str:
    return metric.name + ("_total" if metric.type == "counter" else "")


def fits(name: str, patterns: Any) -> bool:
    plain = name.replace("_detailed_", "_", 1)
    return any(fnmatchcase(name, one) or fnmatchcase(plain, one) for one in patterns)


def sums(page: dict[str, Metric], patterns: tuple[str, ...]) -> dict[str, float]:
    return {
        name_of(metric): sum(sample.value for sample in metric.samples)
        for metric in page.values()
        if fits(name_of(metric), patterns)
    }


def samples(page: dict[str, Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in page.values()
        if any(fnmatchcase(name_of(metric), one) for one in SAME)
        for sample in metric.samples
    }


@pytest.mark.long
@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", DETAILED])
def test_metric_names_types_and_labels_equal_those_of_rabbitmq(
    sides: tuple[Side, Side], moving: ModuleType, path: str
) -> None:
    theirs, ours = (side.page(path) for side in sides)
    missing = [name for name, instead in moving.METRICS if instead]
    unknown = [
        name_of(metric)
        for name, metric in theirs.items()
        if name not in ours and not fits(name_of(metric), missing)
    ]
    assert not unknown
    for name in theirs.keys() & ours.keys():
        metric, mine = theirs[name], ours[name]
        assert mine.type == ("gauge" if metric.type == "unknown" else metric.type), name
        lost = {label for sample in metric.samples for label in sample.labels}
        lost -= {label for sample in mine.samples for label in sample.labels}
        listed = {label for label, names, _ in moving.LOST_LABELS if fits(name_of(metric), [names])}
        assert lost <= listed, f"{path}: {name_of(metric)}"


@pytest.mark.long
@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", DETAILED])
def test_metric_values_equal_those_of_rabbitmq(sides: tuple[Side, Side], path: str) -> None:
    ends = time.monotonic() + PATIENCE
    different: dict[str, tuple[float | None, float | None]] = {"": (None, None)}
    while different and time.monotonic() < ends:
        theirs, ours = (side.page(path) for side in sides)
        expected, actual = sums(theirs, EQUAL), sums(ours, EQUAL)
        different = {
            name: (expected[name], actual[name])
            for name in expected.keys() & actual.keys()
            if expected[name] != actual[name]
        }
        sides[0].connection.process_data_events(0.2)
    assert not different
    assert samples(ours) == samples(theirs)


@pytest.mark.long
def test_unknown_families_and_virtual_hosts_are_ignored(sides: tuple[Side, Side]) -> None:
    for query in (
        "",
        "?family=bogus",
        "?other=1",
        "?family=queue_coarse_metrics&vhost=bogus",
        "?family=queue_coarse_metrics&family=bogus&vhost=%2F&vhost=bogus",
    ):
        # RabbitMQ updates the values every few seconds.
        ends = time.monotonic() + PATIENCE
        equal = False
        while not equal and time.monotonic() < ends:
            theirs, ours = (side.page(f"/metrics/detailed{query}") for side in sides)
            equal = samples(ours) == samples(theirs)
            sides[0].connection.process_data_events(0.0 if equal else 0.2)
        assert samples(ours) == samples(theirs), query
        for page in (theirs, ours):
            assert {"rabbitmq_identity_info", "rabbitmq_build_info"} <= page.keys()
