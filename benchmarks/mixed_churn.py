"""Measures whether the broker's memory grows under mixed churn, and falls after a backlog.

    python benchmarks/mixed_churn.py
        --trellis COMMAND       the broker [.run/bin/trellis]
        --minutes MINUTES       duration of the churn [20]
        --backlog MIB           size of the backlog [700]

Churn means: MQTT clients that connect, subscribe, publish with QoS 0 and 1, retain and disconnect;
AMQP queues that are declared, bound, filled with persistent messages of 100 bytes to 64 KB, and
deleted; a backlog that grows to 20 MB and is deleted. Names repeat after a minute, so that caches
are full at the first measurement.

The resident memory (RSS) after a quarter of the time is compared with the RSS at the end: growth by
5 % plus 8 MiB is allowed. Before each measurement the clients pause for QUIET seconds, in which the
broker gives freed memory back. Then a backlog of transient messages is published and deleted: after
QUIET seconds, the RSS may be 10 % of the backlog plus 8 MiB above its value before the backlog. The
exit code is 1 if a limit is exceeded.

Linux only.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Add the root, where Python finds trellis.bench, the load tool with its protocol code.
sys.path.insert(1, str(ROOT))

from trellis.bench import amqp, mqtt  # noqa: E402
from trellis.bench.client import AmqpClient, MqttClient  # noqa: E402
from trellis.bench.target import BrokerTarget, parse  # noqa: E402

#: Seconds without load before a measurement: more than the broker's least time between two calls
#: of malloc_trim.
QUIET: Final = 13.0
#: Allowed growth: this share of the first measurement, plus this number of bytes.
GROWTH_SHARE: Final = 0.05
GROWTH_BYTES: Final = 8 << 20
#: Number of different names of queues and topics.
NAMES: Final = 500
SIZES: Final = (100, 500, 1_000, 5_000, 20_000, 64_000)
FRAME_MAX: Final = 131_072
FLAGS: Final = (
    *("--config", os.devnull, "--log-level", "warning"),
    *("--amqp-port", "0", "--mqtt-port", "0", "--metrics-port", "0", "--http-port", "0"),
)


class Churn:
    """The clients of the churn: they connect to a broker, publish, and disconnect again."""

    def __init__(self, broker: subprocess.Popen[str], directory: str) -> None:
        assert broker.stdout is not None
        ready = broker.stdout.readline().split()
        addresses = dict(word.split("=") for word in ready[1:])
        self._amqp: BrokerTarget = parse("amqp", f"amqp://guest:guest@{addresses['amqp']}")
        self._mqtt: BrokerTarget = parse("mqtt", f"mqtt://guest:guest@{addresses['mqtt']}")
        self._pid = broker.pid
        self._random = Random(1)
        self._backlog = 0
        self._round = 0
        self._client = AmqpClient(self._amqp, "backlog")
        self._client.ask(amqp.queue_declare("backlog"), amqp.QUEUE_DECLARE_OK)

    def resident(self) -> int:
        """Return the resident memory of the broker in bytes."""
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def run(self, seconds: float) -> None:
        """Connect and disconnect clients for `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._round += 1
            self._mqtt_round(self._round % NAMES)
            self._amqp_round(self._round % NAMES)

    def _mqtt_round(self, number: int) -> None:
        clients = [MqttClient(self._mqtt, "client") for _ in range(5)]
        for each, client in enumerate(clients):
            client.subscribe(f"site/{number}/device/{each}/+", each % 2)
        client = clients[0]
        for each in range(len(clients)):
            topic = f"site/{number}/device/{each}/temp"
            body = bytes(self._random.choice(SIZES))
            client.send(mqtt.publish(topic, body))
            client.send(mqtt.packet(0x31, mqtt.string(topic) + body[:500]))
            client.send(mqtt.publish(topic, body, 1, each + 1))
        client.send(b"\xc0\x00")
        for client in clients:
            client.disconnect()

    def _amqp_round(self, number: int) -> None:
        client = AmqpClient(self._amqp, "client")
        queue = f"queue-{number}"
        client.ask(amqp.queue_declare(queue, durable=True), amqp.QUEUE_DECLARE_OK)
        client.bind([(queue, f"key.{number}.#", {})], "amq.topic")
        for _ in range(20):
            body = bytes(self._random.choice(SIZES))
            client.send(amqp.publish("amq.topic", f"key.{number}.a", body, FRAME_MAX, True))
            client.send(amqp.publish("", "backlog", body, FRAME_MAX, False))
            self._backlog += len(body)
        client.depth(queue)
        client.ask(amqp.queue_delete(queue), amqp.QUEUE_DELETE_OK)
        client.disconnect()
        if self._backlog > 20_000_000:
            self._delete_backlog()

    def _delete_backlog(self) -> None:
        self._backlog = 0
        self._client.ask(amqp.queue_delete("backlog"), amqp.QUEUE_DELETE_OK)
        self._client.ask(amqp.queue_declare("backlog"), amqp.QUEUE_DECLARE_OK)

    def fill(self, size: int) -> None:
        """Publish a backlog of transient messages of `size` bytes altogether."""
        self._delete_backlog()
        body = bytes(5_000)
        some = amqp.publish("", "backlog", body, FRAME_MAX, False) * 100
        for _ in range(size // (len(body) * 100)):
            self._client.send(some)
        self._client.depth("backlog")

    def empty(self) -> None:
        """Delete the queues of the backlog."""
        self._delete_backlog()


def main() -> int:
    """Start a broker, run the churn, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trellis", default=str(ROOT / ".run/bin/trellis"))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--backlog", type=int, default=700)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = subprocess.Popen(
            [*shlex.split(arguments.trellis), "serve", *FLAGS, "--data-dir", directory],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            return measure(Churn(broker, directory), arguments.minutes, arguments.backlog << 20)
        finally:
            broker.terminate()
            broker.wait(30)


def measure(churn: Churn, minutes: float, backlog: int) -> int:
    """Measure and print memory; return 0, or 1 if a limit is exceeded.

    `backlog` is the size of the backlog after the churn, in bytes.
    """

    def measured(text: str) -> int:
        resident = churn.resident()
        print(f"{text:44}{resident / 1e6:9.1f} MB", flush=True)
        return resident

    def settled(text: str) -> int:
        time.sleep(QUIET)
        return measured(text)

    churn.run(minutes * 15)
    first = settled(f"after {minutes / 4:g} minutes of churn")
    churn.run(minutes * 45)
    last = settled(f"after {minutes:g} minutes of churn")
    limit = int(first * (1 + GROWTH_SHARE)) + GROWTH_BYTES
    print(f"{f'allowed after {minutes:g} minutes':44}{limit / 1e6:9.1f} MB")
    churn.fill(backlog)
    measured(f"with a backlog of {backlog >> 20} MiB")
    churn.empty()
    after = settled(f"{QUIET:g} s after the backlog is deleted")
    return int(last > limit or after > last + backlog // 10 + GROWTH_BYTES)


if __name__ == "__main__":
    sys.exit(main())
