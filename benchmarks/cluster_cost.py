"""Measures what the replicated log of a cluster costs a persistent, confirmed message.

    .venv/bin/python benchmarks/cluster_cost.py
        --trellis COMMAND      the broker [.run/bin/trellis]
        --rounds N             rounds with and without a cluster, in turn [5]
        --warm N               rounds before these, in which Kafka's JVMs compile their code [4]
        --seconds S            length of a round [3]
        --rate N               messages per second of the confirms that are timed [1000]
        --times S,L,B          silence, lease and beat in seconds [3.5,2.5,0.3]
        --servers HOST:PORT    a Kafka cluster that runs; by default, three real Kafka nodes (Java)

Two brokers run at the same time: one without a cluster, and the active node of a cluster with one
standby. In each round, `trellis bench load amqp-durable` runs on each of them, one after the other.
Then a client publishes `--rate` messages per second to each of them, and each confirm is timed from
the first byte of the publication to the receipt of basic.ack; so the time contains the time from
the append to the settlement inside the broker. Afterwards, two parts of this time are timed at the
same rate, without a broker: an append of the same bytes to a topic of the same Kafka nodes, and a
write and fdatasync of the same bytes.

The program prints one line of JSON for each round, and at the end the medians: messages per second
and CPU time per message of all threads of the broker with and without the cluster, and the median
confirms. Needs the packages of the tests. Other programs on the machine raise all figures; compare
only figures of one run. See docs/high-availability.md for figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from load_figures import load
from takeover import ACK, FRAME_MAX, PATIENCE, QUEUE, ROOT, Node

from tests.cluster.conftest import cluster_on, created
from tests.cluster.programs import KafkaNodes
from trellis.bench import amqp
from trellis.bench.processes import Processes
from trellis.cluster.appender import KafkaAppender
from trellis.settings.cluster import ClusterSettings

#: Size of a message body in bytes: the size of the workload `amqp-durable`.
BODY: Final = 256
#: Kafka's settings that docs/high-availability.md recommends for the default times.
#: Options of the JVM of a Kafka node: the JVM compiles Kafka's code, as in production.
JVM: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC")
KAFKA: Final = {"broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 400}


def confirms(node: Node, rate: int, count: int) -> list[float]:
    """Publish `count` messages at `rate` per second; return the seconds that each confirm took."""
    client = node.client()
    client.ask(amqp.queue_declare(QUEUE, durable=True), amqp.QUEUE_DECLARE_OK)
    packet = amqp.publish("", QUEUE, bytes(BODY), FRAME_MAX, True)
    sent = [0.0] * count
    spent: list[float] = []

    def read() -> None:
        while len(spent) < count:
            last = int.from_bytes(client.answer(ACK, PATIENCE)[:8], "big")
            now = time.perf_counter()
            spent.extend(now - sent[number] for number in range(len(spent), last))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for number in wait_for_each(rate, count):
        sent[number] = time.perf_counter()
        client.send(packet)
    reader.join(PATIENCE)
    if len(spent) != count:
        sys.exit(
            f"cluster_cost: the broker confirmed {len(spent)} of {count} messages within "
            f"{PATIENCE} s after the last publication"
        )
    client.ask(amqp.queue_delete(QUEUE), amqp.QUEUE_DELETE_OK)
    client.disconnect()
    return spent


def syncs(directory: Path, rate: int, count: int) -> list[float]:
    """Write the bytes of a publication `count` times at `rate` per second; return the seconds of
    each write with its fdatasync.
    """
    packet = amqp.publish("", QUEUE, bytes(BODY), FRAME_MAX, True)
    spent: list[float] = []
    descriptor = os.open(directory / "beside", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        for number in wait_for_each(rate, count):
            began = time.perf_counter()
            os.pwrite(descriptor, packet, number * len(packet))
            os.fdatasync(descriptor)
            spent.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    return spent


def appends(cluster: ClusterSettings, rate: int, count: int) -> list[float]:
    """Append the bytes of a publication to a topic of Kafka, as an active node does.

    Append `count` records, one at a time, at most `rate` per second; return the seconds of each.
    """
    packet = amqp.publish("", QUEUE, bytes(BODY), FRAME_MAX, True)
    appender = KafkaAppender(cluster)
    spent: list[float] = []
    try:
        for _ in wait_for_each(rate, count):
            began = time.perf_counter()
            appender.append(packet)
            spent.append(time.perf_counter() - began)
    finally:
        appender.close()
    return spent


def wait_for_each(rate: int, count: int) -> Any:
    """Yield the numbers from 0 to `count` - 1, `rate` of them per second."""
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        yield number


def measure(
    arguments: argparse.Namespace,
    plain: Node,
    active: Node,
    others: dict[str, Processes],
    empty: ClusterSettings,
    directory: Path,
) -> dict[str, Any]:
    """Measure one round; return its figures.

    Names that begin with `plain` belong to the broker without a cluster, and names that begin with
    `cluster` to the active node. `_us` are microseconds: CPU time per message, or medians of times.
    `others` has the other processes of the cluster, whose CPU time per message is measured, too.
    `empty` names a topic that no broker uses.
    """
    figures: dict[str, Any] = {}
    for name, node in (("plain", plain), ("cluster", active)):
        before = {other: processes.cpu() for other, processes in others.items()}
        run = load(Path(arguments.trellis), node, "amqp-durable", arguments.seconds, 0)
        figures[f"{name}_rate"] = round(run["rate"])
        figures[f"{name}_cpu_us"] = round(run["us"], 2)
    for other, processes in others.items():
        spent = processes.cpu().since(before[other]).seconds
        figures[f"{other}_cpu_us"] = round(1e6 * spent / (run["rate"] * arguments.seconds), 2)
    count = int(arguments.rate * arguments.seconds)
    for name, node in (("plain", plain), ("cluster", active)):
        figures[f"{name}_confirm_us"] = round(1e6 * median(confirms(node, arguments.rate, count)))
    append = median(appends(empty, arguments.rate, count))
    figures["kafka_us"] = round(1e6 * append)
    figures["fdatasync_us"] = round(1e6 * median(syncs(directory, arguments.rate, count)))
    figures["load"] = round(os.getloadavg()[0], 1)
    return figures


def main() -> None:
    """Measure the rounds; print the figures of each round, and then the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trellis", default=str(ROOT / ".run/bin/trellis"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--times", default="3.5,2.5,0.3")
    parser.add_argument("--servers", default="")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-cost-")))
        servers = arguments.servers
        others: dict[str, Processes] = {}
        if not servers:
            kafka = KafkaNodes(directory / "kafka", 3, KAFKA, JVM)
            stack.callback(kafka.close)
            servers, others["kafka"] = kafka.servers, Processes(kafka.pids)
        times = [float(text) for text in arguments.times.split(",")]
        cluster = created(cluster_on(servers, f"cost-{os.getpid()}", *times))
        empty = created(cluster_on(servers, f"empty-{os.getpid()}", *times))
        plain = Node(arguments.trellis, None, directory / "plain")
        stack.callback(plain.process.kill)
        plain.wait_for("ready")
        active = Node(arguments.trellis, cluster, directory / "node-1")
        stack.callback(active.process.kill)
        active.wait_for("following")
        active.wait_for("ready")
        standby = Node(arguments.trellis, cluster, directory / "node-2")
        stack.callback(standby.process.kill)
        standby.wait_for("following")
        others["standby"] = standby.processes
        for _ in range(arguments.warm):
            measure(arguments, plain, active, others, empty, directory)
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append(measure(arguments, plain, active, others, empty, directory))
            print(json.dumps(rounds[-1]), flush=True)
    middle = {name: median(figures[name] for figures in rounds) for name in rounds[0]}
    print(json.dumps({"medians": middle} | summary(middle)))


def summary(middle: dict[str, float]) -> dict[str, float]:
    """Return the figures that have a bound, from the medians of all rounds."""
    return {
        "rate_share": round(middle["cluster_rate"] / middle["plain_rate"], 2),
        "cpu_above_plain_us": round(middle["cluster_cpu_us"] - middle["plain_cpu_us"], 2),
        "confirm_us": middle["cluster_confirm_us"],
        "confirm_without_kafka_us": middle["cluster_confirm_us"] - middle["kafka_us"],
        "confirm_bound_us": round(1.5 * middle["fdatasync_us"] + 1_000),
    }


if __name__ == "__main__":
    main()
