"""Builds a data directory with data of every kind, as a killed broker leaves it.

A Home starts a broker on such a directory, and returns the contents that the broker has.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pamqp.commands as spec

from broker.definitions.restore import restore_broker
from broker.store.checkpoint import Checkpointing
from broker.store.disk import Disk, RealDisk
from broker.store.opening import open_store
from broker.stream.queue import StreamQueue
from tests.clients import Amqp, World, mqtt_publish, packet, text
from tests.store.homes import listing
from tests.wire.mqtt.client import publications
from trellis.server.recovery import codecs

#: Size of a segment in bytes; a segment holds a few dozen messages.
SEGMENT = 2_500
#: Number of MQTT topics, some with a retained message.
TOPICS = 5


class Home(World):
    """A broker on a directory; `reports` has the texts of all problems that its start found."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.reports: list[str] = []
        opened = open_store(
            disk or RealDisk(),
            str(directory),
            codecs(),
            7,
            self.reports.append,
            lambda recovery: None,
            SEGMENT,
        )
        store: Any = opened.store
        super().__init__(store=store)
        self.log = opened.store.log
        self.catalog = opened.store.catalog
        restored = restore_broker(self.broker, opened, self.mqtt_front.sessions)
        self.reports += [str(finding) for finding in opened.recovery.findings]
        self.reports += [str(finding) for finding in self.broker.streams.findings]
        self.reports += [
            f"not restored: {refused.kind} {refused.name}" for refused in restored.refused
        ]

    def checkpoint(self) -> None:
        Checkpointing(self.log, self.log.sealed(), set(self.store.holder_numbers)).run()

    def leave(self) -> None:
        """Close the files of the directory."""
        self.catalog.close()

    def contents(self) -> dict[str, object]:
        """Return all contents: definitions, messages by queue and session, retained messages.

        The broker cannot be used afterwards.
        """
        # Reading changes the broker's state, but no change needs to reach the disk.
        self.slow_disk = True
        there: dict[str, object] = dict(listing(self))
        reader = self.amqp()
        for name in sorted(self.vhost.queues):
            if isinstance(self.vhost.queues[name], StreamQueue):
                there[f"messages of {name}"] = self._rows(name)
                continue
            # Permit the delivery of all messages now; usually a durable delivery mark comes first.
            self.vhost.queues[name].set_delivery_limit(1 << 60)
            bodies = reader.bodies(reader.send(spec.Basic.Consume(queue=name, consumer_tag=name)))
            while more := reader.bodies():
                bodies += more
            there[f"messages of {name}"] = bodies
        for session in self.mqtt_front.sessions.all():
            client = self.mqtt(session.name, clean=False)
            there[f"messages of session {session.name}"] = [
                one.body for one in publications(client.greeting)
            ]
            held = session.in_flight.received.identifiers()
            there[f"identifiers of session {session.name}"] = held
        kept = {f"to.{topic}": self.vhost.retained.get(f"to.{topic}") for topic in range(TOPICS)}
        there["retained"] = [
            (key, message.body) for key, message in kept.items() if message is not None
        ]
        return there

    def _rows(self, name: str) -> list[bytes]:
        """Return the rows of a stream from its first offset on.

        If the stream is damaged, report the error that the reader gets, and continue at the next
        available offset, if the error names one.
        """
        rows: list[bytes] = []
        offset: int | str = "first"
        while True:
            reader = self.amqp()
            reader.send(spec.Basic.Qos(prefetch_count=1_000))
            frames = reader.send(
                spec.Basic.Consume(
                    queue=name, consumer_tag=name, arguments={"x-stream-offset": offset}
                )
            )
            rows += reader.bodies(frames)
            if not isinstance(frames[-1], spec.Channel.Close):
                return rows
            text = str(frames[-1].reply_text)
            self.reports.append(text)
            goes_on = re.search(r"the next available offset is (\d+)", text)
            if goes_on is None:
                return rows
            offset = int(goes_on[1])


def build(directory: Path, image: Path) -> None:
    """Run a broker that fills `directory` with data of every kind.

    `image` gets a copy of the directory as a kill of the broker would leave it.

    The log has a checkpoint, full segments and an active segment; the catalog has a long
    write-ahead log.
    """
    world = Home(directory)
    client = world.amqp()
    client.send(spec.Exchange.Declare(exchange="x", exchange_type="topic", durable=True))
    for name in ("one", "two"):
        client.queue(name, "x", f"{name}.#", durable=True)
    client.send(
        spec.Queue.Declare(
            queue="tape",
            durable=True,
            arguments={"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 12_000},
        )
    )
    client.send(spec.Queue.Bind(queue="tape", exchange="x", routing_key="one.#"))
    client.send(spec.Queue.Declare(queue="limited", durable=True, arguments={"x-max-length": 50}))
    keeper = world.mqtt("keeper", clean=False)
    keeper.subscribe("to/+", 2)
    for number in range(30):
        _work(world, client, number)
    world.checkpoint()
    for number in range(30, 60):
        _work(world, client, number)
    client.queue("last", "x", "last", durable=True)
    for number in range(3):
        client.publish("x", "last", b"last %d" % number, delivery_mode=2)
    # A further definition makes the broker write the position of the log to the catalog.
    client.queue("empty", durable=True)
    shutil.copytree(directory, image)
    world.leave()


def _work(world: World, client: Amqp, number: int) -> None:
    body = b"%04d " % number * 30
    client.publish("x", "one.a", b"one " + body, delivery_mode=2)
    client.publish("x", "two.a", b"two " + body, delivery_mode=2)
    sensor = world.mqtt(f"sensor{number % 3}", clean=False)
    sensor.send(
        mqtt_publish(
            f"to/{number % TOPICS}", b"sent " + body, 1 + number % 2, number + 1, number % 4 == 0
        )
    )
    if number % 7:
        sensor.send(b"\x62\x02" + (number + 1).to_bytes(2, "big"))
    if number % 10 == 0:
        sensor.send(packet(0x82, b"\x00\x01" + text(f"other/{number}") + b"\x01"))
        client.queue(f"extra{number}", "x", f"extra.{number}", durable=True)
    sensor.send(b"\xe0\x00")
    for queue, every in (("one", 2), ("two", 3)):
        if number % every == 0:
            client.send(spec.Basic.Get(queue=queue, no_ack=True))
