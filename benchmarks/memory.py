"""How much memory does an object of the broker take? Real clients, a real broker, and its resident
memory before and after.

    python benchmarks/memory.py [SUBJECT...]     all of them without a name; each in a broker of its own
        --trellis COMMAND                        the broker [.run/bin/trellis]
        --output FILE                            results as JSON [benchmarks/results/DATE-memory.json]
        --into FILE                              the document that gets the table, between its marks [docs/performance.md]

A subject makes some objects first, so that what the broker needs once is there, then many more: the
difference of VmRSS divided by their number. That has everything in it: the event loop's transport,
the core's objects, names and keys, what the allocator could not use. What the kernel keeps for a
socket is not in it. The backlog is a queue of 500,000 messages without a consumer; then one comes,
and the peak while it reads them is compared with the moment before.

Linux only. Takes about a minute and a half.
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

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))  # trellis.bench: how to speak to a broker

from peers.brokers.trellis import Trellis  # noqa: E402  (found only now)
from peers.machine import machine  # noqa: E402
from peers.peer import Running, Tools  # noqa: E402
from peers.process import allow_files  # noqa: E402
from peers.report import between  # noqa: E402

from trellis.bench import amqp, mqtt  # noqa: E402
from trellis.bench.client import AmqpClient, MqttClient  # noqa: E402
from trellis.bench.processes import Processes  # noqa: E402
from trellis.bench.target import Target, parse  # noqa: E402

#: Octets of a message's body, and messages of a backlog.
BODY: Final = bytes(100)
BACKLOG: Final = 500_000
#: Publications that are sent before the broker is asked whether it has them.
RUN: Final = 1_000
FRAME_MAX: Final = 131_072
#: Routes that a broker remembers.
ROUTES: Final = 65_536


class Client(MqttClient):
    """An MQTT client that asks for more than a load does."""

    def round_trip(self) -> None:
        """Returns when the broker has heard all that was said before."""
        self.send(b"\xc0\x00")
        self.read(2, "PINGRESP")


class Away(Client):
    """It has a session that stays, and leaves at once."""

    def __init__(self, target: Target, name: str) -> None:
        self.sock = target.connect()
        self.target, self.where, self._held = target, name, b""
        self.send(mqtt.packet(0x10, mqtt.string("MQTT") + b"\x04\x00\x00\x00" + mqtt.string(name)))
        self.read(4, "CONNACK")
        self.subscribe(f"site/{name}/+", 1)
        self.leave()


class Broker(NamedTuple):
    """A broker that runs for one subject, and whoever is connected to it."""

    amqp: Target
    mqtt: Target
    processes: Processes
    pids: list[int]
    clients: list[MqttClient | AmqpClient]

    def mqtt_client(self) -> Client:
        client = Client(self.mqtt, "client")
        self.clients.append(client)
        return client

    def amqp_client(self) -> AmqpClient:
        client = AmqpClient(self.amqp, "client")
        self.clients.append(client)
        return client


#: Makes the objects with numbers from the first to before the second.
Make = Callable[[Broker, int, int], None]


class Subject(NamedTuple):
    name: str
    text: str
    many: int
    make: Make
    #: Octets that the design allows, if it says.
    target: int = 0


def mqtt_connections(broker: Broker, first: int, last: int) -> None:
    for _ in range(first, last):
        broker.mqtt_client()


def mqtt_subscribers(broker: Broker, first: int, last: int) -> None:
    for number in range(first, last):
        broker.mqtt_client().subscribe(f"site/s{number % 100}/device/d{number}/+", 0)


def mqtt_sessions(broker: Broker, first: int, last: int) -> None:
    for number in range(first, last):
        Away(broker.mqtt, f"device-{number:06}")


def mqtt_wildcards(broker: Broker, first: int, last: int) -> None:
    client = broker.mqtt_client()
    for number in range(first, last):
        client.subscribe(f"site/s{number % 100}/device/d{number}/+", 0)


def mqtt_plain(broker: Broker, first: int, last: int) -> None:
    client = broker.mqtt_client()
    for number in range(first, last):
        client.subscribe(f"site/s{number % 100}/device/d{number}/temp", 0)


def _publications(broker: Broker, first: int, last: int, kind: int) -> None:
    client = broker.mqtt_client()
    for at in range(first, last, RUN):
        numbers = range(at, min(at + RUN, last))
        topics = (f"site/s{number % 100}/device/d{number}/temp" for number in numbers)
        client.send(b"".join(mqtt.packet(kind, mqtt.string(topic) + BODY) for topic in topics))
        client.round_trip()


def mqtt_retained(broker: Broker, first: int, last: int) -> None:
    """The cache of routes ends up full of other topics, so that its growth is not taken for that of
    the messages.
    """
    _publications(broker, first, last, 0x31)
    _publications(broker, 10_000_000, 10_000_000 + 2 * ROUTES, 0x30)


def amqp_connections(broker: Broker, first: int, last: int) -> None:
    for _ in range(first, last):
        broker.amqp_client()


def queues(broker: Broker, first: int, last: int) -> None:
    client = broker.amqp_client()
    for number in range(first, last):
        client.ask(amqp.queue_declare(f"work-{number:06}"), amqp.QUEUE_DECLARE_OK)


def _bindings(broker: Broker, keys: list[str]) -> None:
    client = broker.amqp_client()
    client.ask(amqp.queue_declare("work"), amqp.QUEUE_DECLARE_OK)
    client.bind([("work", key, amqp.NONE) for key in keys], "amq.topic")


def patterns(broker: Broker, first: int, last: int) -> None:
    _bindings(broker, [f"site.s{number % 100}.device.d{number}.*" for number in range(first, last)])


def plain_keys(broker: Broker, first: int, last: int) -> None:
    _bindings(
        broker, [f"site.s{number % 100}.device.d{number}.temp" for number in range(first, last)]
    )


def consumers(broker: Broker, first: int, last: int) -> None:
    client = broker.amqp_client()
    client.ask(amqp.queue_declare("work"), amqp.QUEUE_DECLARE_OK)
    for number in range(first, last):
        tag = amqp.short(f"consumer-{number}")
        client.ask(
            amqp.frame(1, 1, b"\x00\x3c\x00\x14\0\0" + amqp.short("work") + tag + b"\x02\0\0\0\0"),
            amqp.CONSUME_OK,
        )


def messages(broker: Broker, first: int, last: int) -> None:
    client = broker.amqp_client()
    client.ask(amqp.queue_declare("work"), amqp.QUEUE_DECLARE_OK)
    publication = amqp.publish("", "work", BODY, FRAME_MAX)
    for at in range(first, last, RUN):
        client.send(publication * (min(at + RUN, last) - at))
        client.depth("work")


SUBJECTS: Final = (
    Subject(
        "mqtt-connection", "MQTT connection, idle, no subscription", 5_000, mqtt_connections, 6_000
    ),
    Subject("mqtt-subscriber", "MQTT connection with one subscription", 5_000, mqtt_subscribers),
    Subject(
        "mqtt-session",
        "MQTT session with one subscription, its client away",
        5_000,
        mqtt_sessions,
        2_000,
    ),
    Subject("mqtt-wildcard", "MQTT subscription with a wildcard", 20_000, mqtt_wildcards),
    Subject("mqtt-plain", "MQTT subscription without a wildcard", 20_000, mqtt_plain),
    Subject(
        "mqtt-retained",
        "retained message of 100 octets, on a topic of its own",
        50_000,
        mqtt_retained,
        500,
    ),
    Subject(
        "amqp-connection",
        "AMQP connection, idle, with one channel",
        5_000,
        amqp_connections,
        12_000,
    ),
    Subject("queue", "queue, empty", 20_000, queues, 2_000),
    Subject(
        "binding-pattern", "binding to a topic exchange with a wildcard", 20_000, patterns, 500
    ),
    Subject(
        "binding-plain", "binding to a topic exchange without a wildcard", 20_000, plain_keys, 500
    ),
    Subject("consumer", "consumer", 5_000, consumers),
    Subject("message", "message of 100 octets in a queue", 200_000, messages, 300),
)
#: Objects that are made before any is counted: one in so many.
WARMING: Final = 10
BACKLOG_NAME: Final = "backlog"
BACKLOG_TARGET: Final = 20 * 2**20


@contextmanager
def running(trellis: Path) -> Iterator[Broker]:
    """A broker of its own on free ports. Raises peers.process.Failed."""
    with tempfile.TemporaryDirectory(prefix="trellis-memory-") as directory:
        started: Running = Trellis(Tools(trellis=trellis)).start(Path(directory))
        broker = Broker(
            parse("amqp", started.amqp_url),
            parse("mqtt", f"mqtt://127.0.0.1:{started.mqtt}"),
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


def measure(subject: Subject, trellis: Path) -> float:
    """Octets an object."""
    with running(trellis) as broker:
        first = subject.many // WARMING
        subject.make(broker, 0, first)
        before = broker.processes.memory().now
        subject.make(broker, first, first + subject.many)
        return (broker.processes.memory().now - before) / subject.many


def backlog(trellis: Path) -> dict[str, int]:
    """Resident memory in octets: empty, with the backlog, and at most while it drains."""
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
    """Read the backlog, every delivery of which has the same length but for its tag; count and
    bodies are checked.
    """
    awaited = BACKLOG
    while awaited:
        kind = client.read(7, "basic.deliver")
        client.read(int.from_bytes(kind[3:]) + 1, "basic.deliver")
        head = client.read(7, "a content header")
        client.read(int.from_bytes(head[3:]) + 1, "a content header")
        body = client.read(7 + len(BODY) + 1, "a body")
        if (kind[0], head[0], body[0]) != (1, 2, 3) or body[7:-1] != BODY:
            sys.exit("memory: a delivery is not what was published")
        awaited -= 1


def table(results: dict[str, Any]) -> str:
    """For the document."""
    facts = "; ".join(f"{name} {value}" for name, value in results["machine"].items())
    lines = [
        f"Measured on {results['date']} with `{results['command']}`, Trellis {results['version']}, as the difference of resident memory.",
        f"Machine: {facts}.",
        "",
        "| object | how many | octets each | allowed |",
        "|---|---:|---:|---:|",
    ]
    for subject in SUBJECTS:
        if subject.name in results["octets"]:
            allowed = f"{subject.target:,}" if subject.target else ""
            lines.append(
                f"| {subject.text} | {subject.many:,} | {results['octets'][subject.name]:,.0f} | {allowed} |"
            )
    drained = results.get(BACKLOG_NAME)
    if drained:
        grown, held = (
            (drained["peak"] - drained["full"]) / 2**20,
            (drained["full"] - drained["empty"]) / 2**20,
        )
        lines.append(
            f"\nA backlog of {drained['messages']:,} messages takes {held:.0f} MiB; while one consumer drains it, resident "
            f"memory grows by {max(grown, 0):.1f} MiB at most (allowed: {BACKLOG_TARGET / 2**20:.0f})."
        )
    return "\n".join(lines)


def main() -> int:
    names = [*(subject.name for subject in SUBJECTS), BACKLOG_NAME]
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(
        description="Measure what the broker's objects take of memory."
    )
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(names))
    parser.add_argument(
        "--trellis",
        type=Path,
        default=ROOT / ".run" / "bin" / "trellis",
        help="the broker's command",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{today}-memory.json",
        help="results",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "performance.md",
        help="the document that gets the table",
    )
    options = parser.parse_args()
    unknown = [name for name in options.subjects if name not in names]
    if unknown:
        parser.error(f"no subject is called {unknown[0]}; there are {', '.join(names)}")
    if not options.trellis.exists():
        sys.exit(
            f"memory: there is no {options.trellis}; `make run ARGS=--help` installs it, or give --trellis"
        )
    wanted = options.subjects or names
    allow_files()
    results: dict[str, Any] = {
        "format": 1,
        "date": today,
        "command": "python benchmarks/memory.py",
        "version": Trellis(Tools(trellis=options.trellis)).version(),
        "machine": machine(),
        "octets": {},
    }
    for subject in SUBJECTS:
        if subject.name in wanted:
            results["octets"][subject.name] = measure(subject, options.trellis)
            allowed = f" (allowed: {subject.target:,})" if subject.target else ""
            print(
                f"{subject.name:18} {results['octets'][subject.name]:8,.0f} octets each{allowed}",
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
