"""Compares confluent-kafka with aiokafka on real Kafka: appends of one record after another.

Usage: python benchmarks/kafka_clients.py [--nodes N] [--rounds N], with both packages installed,
and with Java and Maven. Each measurement is a process of its own; the rounds alternate. The results
are in docs/decisions/0019-the-kafka-client.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cluster.programs import KafkaNodes
from trellis.cluster.appender import KafkaAppender
from trellis.cluster.topic import KafkaTopic
from trellis.settings.cluster import ClusterSettings

#: Size of a record in bytes -> number of appends.
SIZES: Final = {1_000: 4_000, 100_000: 1_500, 1_000_000: 300, 8_000_000: 60}
#: Number of appends at the start that are not measured.
WARM: Final = 30
CLIENTS: Final = ("confluent-kafka", "aiokafka")


def cpu_seconds(scope: int) -> float:
    """Return the user and system time of `scope` in seconds: RUSAGE_SELF or RUSAGE_THREAD."""
    used = resource.getrusage(scope)
    return used.ru_utime + used.ru_stime


class Measurement:
    """The times of appends, and the CPU time that they took."""

    def __init__(self, size: int) -> None:
        self.data = bytes(size)
        self.appends = SIZES[size]
        self.times: list[float] = []
        self._cpu = self._thread = 0.0

    def add(self, seconds: float) -> None:
        """Add the time of an append in seconds; `result` ignores the first WARM appends."""
        self.times.append(seconds)
        if len(self.times) == WARM:
            self._cpu = cpu_seconds(resource.RUSAGE_SELF)
            self._thread = cpu_seconds(resource.RUSAGE_THREAD)

    def result(self) -> dict[str, float]:
        """Return the figures: p50 and p99 in ms per append, CPU times, and MB per second."""
        times = sorted(self.times[WARM:])
        megabytes = len(times) * len(self.data) / 1e6
        cpu = cpu_seconds(resource.RUSAGE_SELF) - self._cpu
        thread = cpu_seconds(resource.RUSAGE_THREAD) - self._thread
        return {
            "p50": statistics.median(times) * 1000,
            "p99": times[int(len(times) * 0.99)] * 1000,
            "cpu_us": cpu / len(times) * 1e6,
            "thread_us": thread / len(times) * 1e6,
            "cpu_ms_per_mb": cpu / megabytes * 1000,
            "mb_per_s": megabytes / sum(times),
        }


def confluent(servers: str, topic: str, size: int) -> dict[str, float]:
    """Return the figures of confluent-kafka, Trellis' client, with records of `size` bytes."""
    cluster = ClusterSettings(name="bench", servers=servers, topic=topic)
    appender = KafkaAppender(cluster)
    measurement = Measurement(size)
    for _ in range(WARM + measurement.appends):
        begin = time.perf_counter()
        appender.append(measurement.data)
        measurement.add(time.perf_counter() - begin)
    appender.close()
    return measurement.result()


async def aio(servers: str, topic: str, size: int) -> dict[str, float]:
    """Return the figures of aiokafka, alone in its event loop, with records of `size` bytes."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        max_request_size=size + 4096,
    )
    await producer.start()
    send: Callable[..., Awaitable[Any]] = producer.send_and_wait
    measurement = Measurement(size)
    for _ in range(WARM + measurement.appends):
        begin = time.perf_counter()
        await send(topic, measurement.data, partition=0)
        measurement.add(time.perf_counter() - begin)
    await producer.stop()
    return measurement.result()


def measured(client: str, servers: str, topic: str, size: int) -> dict[str, float]:
    """Run the measurement of a client in a process of its own, and return its figures."""
    command = [sys.executable, __file__, "--client", client, servers, topic, str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Start Kafka, measure, and print a table of medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", nargs=4, metavar=("NAME", "SERVERS", "TOPIC", "SIZE"))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.client:
        name, servers, topic, size = arguments.client
        run = confluent(servers, topic, int(size)) if name == "confluent-kafka" else None
        print(json.dumps(run or asyncio.run(aio(servers, topic, int(size)))))
        return
    with tempfile.TemporaryDirectory() as directory:
        nodes = KafkaNodes(Path(directory), arguments.nodes)
        try:
            compare(nodes.servers, arguments.nodes, arguments.rounds)
        finally:
            nodes.close()


def compare(servers: str, nodes: int, rounds: int) -> None:
    """Measure both clients with each size in `rounds` rounds, and print their figures."""
    print(
        f"{'bytes':>9} {'client':16} {'p50 ms':>7} {'p99 ms':>7} {'CPU us':>7} {'thread':>7} "
        f"{'ms/MB':>6} MB/s"
    )
    for size in SIZES:
        runs_by_client: dict[str, list[dict[str, float]]] = {client: [] for client in CLIENTS}
        for number in range(rounds):
            for client in CLIENTS:
                topic = f"bench-{size}-{number}-{client}"
                cluster = ClusterSettings(name="bench", servers=servers, topic=topic)
                KafkaTopic(cluster).create(nodes)
                runs_by_client[client].append(measured(client, servers, topic, size))
        for client, runs in runs_by_client.items():
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            print(
                f"{size:>9} {client:16} {row['p50']:7.2f} {row['p99']:7.2f} {row['cpu_us']:7.0f} "
                f"{row['thread_us']:7.0f} {row['cpu_ms_per_mb']:6.2f} {row['mb_per_s']:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
