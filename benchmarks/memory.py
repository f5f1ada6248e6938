"""Measures how much memory each object of the broker takes, with real clients and a real broker.

    python benchmarks/memory.py [SUBJECT...]     all subjects, if none is named
        --trellis COMMAND       the broker [.run/bin/trellis]
        --output FILE           results as JSON [benchmarks/results/DATE-memory.json]
        --into FILE             the document whose marked part gets the table [docs/performance.md]

Each subject (a kind of object) is measured with a broker of its own. The program first creates as
many objects as it measures, so that one-time allocations are done, such as the page cache of
SQLite. Then it creates the same number again: the result is the growth of VmRSS in this second
step, divided by the number. A dict doubles its memory when its number of entries reaches certain
values. In the second step each dict doubles once, so the result has the mean memory of an entry.
The result includes everything: the event loop's transport, the core's objects, names and keys, and
memory that the allocator cannot use, but not the kernel's socket buffers. The subject `backlog`
is a queue of 500,000 messages: a consumer drains the queue, and the peak is compared with the
memory just before.

Linux only. Takes about three minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import trustme

ROOT: Final = Path(__file__).resolve().parent.parent
# Add the root, where Python finds trellis.bench, the load tool with its protocol code.
sys.path.insert(1, str(ROOT))

from memory_clients import DetachedClient, RoundTripClient, TlsTarget  # noqa: E402
from peers.brokers.trellis import TrellisPeer, parsed  # noqa: E402  (needs the new path)
from peers.machine import machine  # noqa: E402
from peers.peer import Running, Tools  # noqa: E402
from peers.process import allow_files, free_ports  # noqa: E402
from peers.report import between  # noqa: E402

from trellis.bench import amqp, mqtt  # noqa: E402
from trellis.bench.client import AmqpClient, MqttClient  # noqa: E402
from trellis.bench.processes import Processes  # noqa: E402
from trellis.bench.target import BrokerTarget, parse  # noqa: E402

#: The body of each message, and the number of messages in the subject `backlog`.
BODY: Final = bytes(100)
BACKLOG: Final = 500_000
#: Publications sent before the client waits for the broker to process them.
RUN: Final = 1_000
FRAME_MAX: Final = 131_072
#: The number of routes that the broker's cache holds.
ROUTES: Final = 65_536


class MeasuredBroker(NamedTuple):
    """A running broker, its addresses and processes, and the clients connected to it."""

    amqp: BrokerTarget
    mqtt: BrokerTarget
    mqtts: TlsTarget
    processes: Processes
    pids: list[int]
    clients: list[MqttClient | AmqpClient]

    def mqtt_client(self) -> RoundTripClient:
        """Connect and return an MQTT client."""
        client = RoundTripClient(self.mqtt, "client")
        self.clients.append(client)
        return client

    def amqp_client(self) -> AmqpClient:
        """Connect and return an AMQP client."""
        client = AmqpClient(self.amqp, "client")
        self.clients.append(client)
        return client


#: A function of (broker, first, last) that creates the objects numbered `first` to `last` - 1.
Make = Callable[[MeasuredBroker, int, int], None]


class MemorySubject(NamedTuple):
    """A kind of object to measure.

    `name` is its name on the command line, `text` its name in tables. `make` creates the objects;
    `many` is the number of objects that are measured.
    """

    name: str
    text: str
    many: int
    make: Make
    #: The most bytes per object that the design permits; 0 if the design states no limit.
    target: int = 0


def mqtt_connections(broker: MeasuredBroker, first: int, last: int) -> None:
    """Open the MQTT connections numbered `first` to `last` - 1."""
    for _ in range(first, last):
        broker.mqtt_client()


def mqtts_connections(broker: MeasuredBroker, first: int, last: int) -> None:
    """Open the MQTT connections numbered `first` to `last` - 1, over TLS."""
    for _ in range(first, last):
        broker.clients.append(RoundTripClient(broker.mqtts, "client"))


def mqtt_subscribers(broker: MeasuredBroker, first: int, last: int) -> None:
    """Open MQTT connections numbered `first` to `last` - 1, each with one subscription."""
    for number in range(first, last):
        broker.mqtt_client().subscribe(f"site/s{number % 100}/device/d{number}/+", 0)


def mqtt_sessions(broker: MeasuredBroker, first: int, last: int) -> None:
    """Create `last` - `first` persistent MQTT sessions with a subscription, then disconnect."""
    for number in range(first, last):
        DetachedClient(broker.mqtt, f"device-{number:06}")


def mqtt_wildcards(broker: MeasuredBroker, first: int, last: int) -> None:
    """Create `last` - `first` MQTT subscriptions with a wildcard, for different devices."""
    client = broker.mqtt_client()
    for number in range(first, last):
        client.subscribe(f"site/s{number % 100}/device/d{number}/+", 0)


def mqtt_plain(broker: MeasuredBroker, first: int, last: int) -> None:
    """Create `last` - `first` MQTT subscriptions without a wildcard, for different devices."""
    client = broker.mqtt_client()
    for number in range(first, last):
        client.subscribe(f"site/s{number % 100}/device/d{number}/temp", 0)


def _publications(broker: MeasuredBroker, first: int, last: int, kind: int) -> None:
    client = broker.mqtt_client()
    for at in range(first, last, RUN):
        numbers = range(at, min(at + RUN, last))
        topics = (f"site/s{number % 100}/device/d{number}/temp" for number in numbers)
        client.send(b"".join(mqtt.packet(kind, mqtt.string(topic) + BODY) for topic in topics))
        client.round_trip()


def mqtt_retained(broker: MeasuredBroker, first: int, last: int) -> None:
    """Publish `last` - `first` retained messages, each to a topic of its own.

    Afterwards publish to 2 * ROUTES other topics, whose routes fill the route cache. So the cache
    is equally full after both steps of the measurement, and its growth is not counted.
    """
    _publications(broker, first, last, 0x31)
    _publications(broker, 10_000_000, 10_000_000 + 2 * ROUTES, 0x30)


def amqp_connections(broker: MeasuredBroker, first: int, last: int) -> None:
    """Open the AMQP connections numbered `first` to `last` - 1, each with one channel."""
    for _ in range(first, last):
        broker.amqp_client()


def queues(broker: MeasuredBroker, first: int, last: int) -> None:
    """Declare the queues numbered `first` to `last` - 1."""
    client = broker.amqp_client()
    for number in range(first, last):
        client.ask(amqp.queue_declare(f"work-{number:06}"), amqp.QUEUE_DECLARE_OK)


def _bindings(broker: MeasuredBroker, keys: list[str]) -> None:
    client = broker.amqp_client()
    client.ask(amqp.queue_declare("work"), amqp.QUEUE_DECLARE_OK)
    client.bind([("work", key, amqp.NONE) for key in keys], "amq.topic")


def patterns(broker: MeasuredBroker, first: int, last: int) -> None:
    """Add `last` - `first` bindings to a topic exchange, each key with a wildcard."""
    _bindings(broker, [f"site.s{number % 100}.device.d{number}.*" for number in range(first, last)])


def plain_keys(broker: MeasuredBroker, first: int, last: int) -> None:
    """Add `last` - `first` bindings to a topic exchange, each key without a wildcard."""
    _bindings(
        broker, [f"site.s{number % 100}.device.d{number}.temp" for number in range(first, last)]
    )


def consumers(broker: MeasuredBroker, first: int, last: int) -> None:
    """Start the consumers numbered `first` to `last` - 1."""
    client = broker.amqp_client()
    client.ask(amqp.queue_declare("work"), amqp.QUEUE_DECLARE_OK)
    for number in range(first, last):
        tag = amqp.short_string(f"consumer-{number}")
        method = b"\x00\x3c\x00\x14\0\0" + amqp.short_string("work") + tag + b"\x02\0\0\0\0"
        client.ask(amqp.frame(1, 1, method), amqp.CONSUME_OK)


def messages(broker: MeasuredBroker, first: int, last: int) -> None:
    """Publish `last` - `first` messages to a queue without a consumer."""
    client = broker.amqp_client()
    client.ask(amqp.queue_declare("work"), amqp.QUEUE_DECLARE_OK)
    publication = amqp.publish("", "work", BODY, FRAME_MAX)
    for at in range(first, last, RUN):
        client.send(publication * (min(at + RUN, last) - at))
        client.depth("work")


SUBJECTS: Final = (
    MemorySubject(
        "mqtt-connection", "MQTT connection, idle, no subscription", 5_000, mqtt_connections, 2_000
    ),
    MemorySubject(
        "mqtts-connection",
        "MQTT connection over TLS, idle, no subscription",
        2_000,
        mqtts_connections,
        12_000,
    ),
    MemorySubject(
        "mqtt-subscriber", "MQTT connection with one subscription", 5_000, mqtt_subscribers
    ),
    MemorySubject(
        "mqtt-session",
        "MQTT session with one subscription, client disconnected",
        5_000,
        mqtt_sessions,
        2_000,
    ),
    MemorySubject("mqtt-wildcard", "MQTT subscription with a wildcard", 20_000, mqtt_wildcards),
    MemorySubject("mqtt-plain", "MQTT subscription without a wildcard", 20_000, mqtt_plain),
    MemorySubject(
        "mqtt-retained",
        "retained message of 100 bytes, on a topic of its own",
        50_000,
        mqtt_retained,
        500,
    ),
    MemorySubject(
        "amqp-connection",
        "AMQP connection, idle, with one channel",
        5_000,
        amqp_connections,
        12_000,
    ),
    MemorySubject("queue", "queue, empty", 20_000, queues, 2_000),
    MemorySubject(
        "binding-pattern", "binding to a topic exchange with a wildcard", 20_000, patterns, 500
    ),
    MemorySubject(
        "binding-plain", "binding to a topic exchange without a wildcard", 20_000, plain_keys, 500
    ),
    MemorySubject("consumer", "consumer", 5_000, consumers),
    MemorySubject("message", "message of 100 bytes in a queue", 200_000, messages, 300),
)
BACKLOG_NAME: Final = "backlog"
BACKLOG_TARGET: Final = 20 * 2**20


@contextmanager
def running(trellis: Path) -> Iterator[MeasuredBroker]:
    """Yield a broker on free ports; at the end, stop the broker and close its clients.

    Raises peers.process.Failed.
    """
    with tempfile.TemporaryDirectory(prefix="trellis-memory-") as directory:
        certificate = Path(directory) / "certificate.pem"
        issued = trustme.CA().issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))
        [port] = free_ports(1)
        peer = TrellisPeer(Tools(trellis=trellis))
        peer.flags = (
            *("--mqtts-enabled", "true", "--mqtts-port", str(port)),
            *("--tls-certificate", str(certificate)),
        )
        started: Running = peer.start(Path(directory))
        broker = MeasuredBroker(
            parse("amqp", started.amqp_url),
            parse("mqtt", f"mqtt://127.0.0.1:{started.mqtt}"),
            TlsTarget("mqtts", "127.0.0.1", port, None, None),
            Processes(started.roots),
            list(started.roots),
            [],
        )
        try:
            yield broker
        finally:
            for client in broker.clients:
                client.close()
            started.stop()


def measure(subject: MemorySubject, trellis: Path) -> float:
    """Return the resident memory in bytes that each object of a subject takes."""
    with running(trellis) as broker:
        subject.make(broker, 0, subject.many)
        before = broker.processes.memory().now
        subject.make(broker, subject.many, 2 * subject.many)
        return (broker.processes.memory().now - before) / subject.many


def backlog(trellis: Path) -> dict[str, int]:
    """Return the number of messages, and the broker's resident memory in bytes.

    `empty` is the memory before the messages are published, `full` the memory with all messages in
    the queue, and `peak` the largest memory while a consumer drains the queue.
    """
    with running(trellis) as broker:
        client = broker.amqp_client()
        empty = broker.processes.memory().now
        messages(broker, 0, BACKLOG)
        full = broker.processes.memory().now
        broker.processes.reset_peak()
        client.ask(amqp.consume("work", True), amqp.CONSUME_OK)
        _read_all(client)
        return {
            "messages": BACKLOG,
            "empty": empty,
            "full": full,
            "peak": broker.processes.memory().peak,
        }


def _read_all(client: AmqpClient) -> None:
    """Consume the backlog; exit with an error unless each message arrives with the published
    body."""
    awaited = BACKLOG
    while awaited:
        kind = client.read(7, "basic.deliver")
        client.read(int.from_bytes(kind[3:]) + 1, "basic.deliver")
        head = client.read(7, "a content header")
        client.read(int.from_bytes(head[3:]) + 1, "a content header")
        body = client.read(7 + len(BODY) + 1, "a body")
        if (kind[0], head[0], body[0]) != (1, 2, 3) or body[7:-1] != BODY:
            sys.exit("memory: a delivered message differs from the published one")
        awaited -= 1


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table, for the page that --into names."""
    facts = "; ".join(f"{name} {value}" for name, value in results["machine"].items())
    lines = [
        (
            f"Measured on {results['date']} with `{results['command']}`, Trellis "
            f"{results['version']}, "
            "as the difference of resident memory."
        ),
        f"Machine: {facts}.",
        "",
        "| object | number | bytes each | allowed |",
        "|---|---:|---:|---:|",
    ]
    for subject in SUBJECTS:
        if subject.name in results["bytes"]:
            allowed = f"{subject.target:,}" if subject.target else ""
            figure = f"{results['bytes'][subject.name]:,.0f}"
            if 0 < subject.target < results["bytes"][subject.name]:
                figure = f"**{figure}, missed**"
            lines.append(f"| {subject.text} | {subject.many:,} | {figure} | {allowed} |")
    drained = results.get(BACKLOG_NAME)
    if drained:
        grown, held = (
            (drained["peak"] - drained["full"]) / 2**20,
            (drained["full"] - drained["empty"]) / 2**20,
        )
        lines.append(
            f"\nA backlog of {drained['messages']:,} messages takes {held:.0f} MiB; while one "
            "consumer drains it, resident "
            f"memory grows by {max(grown, 0):.1f} MiB at most (allowed: "
            f"{BACKLOG_TARGET / 2**20:.0f})."
        )
    return "\n".join(lines)


def main() -> int:
    """Measure the chosen subjects, write results and table; return the exit code."""
    names = [*(subject.name for subject in SUBJECTS), BACKLOG_NAME]
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description="Measure the memory of the broker's objects.")
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="SUBJECT",
        help=f"objects to measure: {', '.join(names)} [all]",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{today}-memory.json",
        help="write the figures to this JSON file [benchmarks/results/DATE-memory.json]",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "performance.md",
        help="write the table into the marked part of this document [docs/performance.md]",
    )
    options = parsed(parser)
    unknown = [name for name in options.subjects if name not in names]
    if unknown:
        parser.error(f"unknown object {unknown[0]}; the objects are {', '.join(names)}")
    wanted = options.subjects or names
    allow_files()
    results: dict[str, Any] = {
        "format": 1,
        "date": today,
        "command": "python benchmarks/memory.py",
        "version": TrellisPeer(Tools(trellis=options.trellis)).version(),
        "machine": machine(),
        "bytes": {},
    }
    for subject in SUBJECTS:
        if subject.name in wanted:
            results["bytes"][subject.name] = measure(subject, options.trellis)
            allowed = f" (allowed: {subject.target:,})" if subject.target else ""
            print(
                f"{subject.name:18} {results['bytes'][subject.name]:8,.0f} bytes each{allowed}",
                flush=True,
            )
    if BACKLOG_NAME in wanted:
        results[BACKLOG_NAME] = backlog(options.trellis)
        print(
            f"{BACKLOG_NAME:18} "
            + ", ".join(f"{name} {value:,}" for name, value in results[BACKLOG_NAME].items())
        )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    if wanted == names:
        options.into.write_text(
            between(options.into.read_text(), table(results), options.into.name, "memory")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
