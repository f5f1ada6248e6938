"""Clients that change definitions: exchanges, queues, bindings, sessions, subscriptions, retained
messages.

A client requests each change after the reply to its last request. So a crash leaves the broker with
the definitions of the ledger, or with one further change.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pamqp.commands as spec

from tests.crash.client import Client, Ports
from tests.crash.wire import PATIENCE, Amqp, Mqtt, listing, mqtt_message, read_publish, short

Row = tuple[object, ...]
State = frozenset[Row]


class Changing(Client):
    """A client that changes definitions. Each definition is represented as a tuple, a row.

    `state` has the confirmed definitions. `ahead` has the definitions after the change that the
    client has requested, or is None if every request is answered.
    """

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.state: State = frozenset()
        self.ahead: State | None = None
        self.changes = 0

    async def read(self, ports: Ports) -> State:
        """Return the definitions of this client that the broker has, as a set of rows."""
        raise NotImplementedError

    async def check(self, ports: Ports) -> None:
        """Check that the broker, after a start, has the definitions of `state` or of `ahead`."""
        definitions = await self.read(ports)
        if definitions != self.state and definitions != self.ahead:
            raise AssertionError(
                f"{self.name}: lacks {sorted(map(repr, self.state - definitions))}, "
                f"has {sorted(map(repr, definitions - self.state))} too much; requested: "
                f"{None if self.ahead is None else sorted(map(repr, self.ahead ^ self.state))}"
            )
        self.state, self.ahead = definitions, None

    def begin(self, ahead: set[Row]) -> None:
        self.ahead = frozenset(ahead)

    def done(self) -> None:
        assert self.ahead is not None
        self.state, self.ahead = self.ahead, None
        self.changes += 1

    def of(self, kind: str) -> list[Any]:
        """Return the confirmed definitions of one kind, as sorted rows (tuples)."""
        return sorted((row for row in self.state if row[0] == kind), key=repr)


def _arguments(arguments: dict[str, Any]) -> str:
    return ",".join(f'"{name}":{json.dumps(value)}' for name, value in sorted(arguments.items()))


class Declaring(Changing):
    """A client that declares and deletes AMQP objects.

    A definition is ("exchange", name, type), ("queue", name, arguments), or ("binding", source,
    destination, key).
    """

    async def read(self, ports: Ports) -> State:
        prefix = f"{self.name}."
        rows: set[Row] = set()
        for one in await listing(ports.http, "exchanges"):
            if one["name"].startswith(prefix):
                rows.add(("exchange", one["name"], one["type"]))
        for one in await listing(ports.http, "queues"):
            if one["name"].startswith(prefix):
                rows.add(
                    (
                        "queue",
                        one["name"],
                        ",".join(sorted(one["arguments"].strip("{}").split(","))),
                    )
                )
        for one in await listing(ports.http, "bindings"):
            if one["source"].startswith(prefix):
                rows.add(("binding", one["source"], one["destination"], one["routing_key"]))
        return frozenset(rows)

    async def live(self, ports: Ports) -> None:
        client = await Amqp.connect(ports.amqp)
        while True:
            method, answer, ahead = self._draw()
            self.begin(ahead)
            await client.call(method, answer)
            self.done()

    def _draw(self) -> tuple[Any, tuple[int, int], set[Row]]:
        random, state = self.random, set(self.state)
        exchanges, queues, bindings = self.of("exchange"), self.of("queue"), self.of("binding")
        choice = random.random()
        if choice < 0.2 and len(exchanges) < 8:
            name, kind = (
                f"{self.name}.x{random.randrange(12)}",
                random.choice(("direct", "topic", "fanout", "headers")),
            )
            if not any(row[1] == name for row in exchanges):
                return (
                    spec.Exchange.Declare(exchange=name, exchange_type=kind, durable=True),
                    (40, 11),
                    state | {("exchange", name, kind)},
                )
        if choice < 0.45 and len(queues) < 12:
            name = f"{self.name}.q{random.randrange(20)}"
            arguments: dict[str, Any] = random.choice(
                (
                    {},
                    {"x-max-length": 5},
                    {"x-max-length": 7, "x-message-ttl": 1_000},
                    {
                        "x-queue-type": "stream",
                        "x-journal": True,
                        "x-max-length-bytes": 50_000,
                        "x-stream-max-segment-size-bytes": 10_000,
                    },
                )
            )
            if not any(row[1] == name for row in queues):
                declare = spec.Queue.Declare(queue=name, durable=True, arguments=dict(arguments))
                return declare, (50, 11), state | {("queue", name, _arguments(arguments))}
        if choice < 0.8 and exchanges and queues:
            source = random.choice(exchanges)[1]
            target, key = random.choice([*queues, *exchanges]), random.choice(("a.b", "#", "*.c"))
            if target[0] == "queue":
                bind: Any = spec.Queue.Bind(queue=target[1], exchange=source, routing_key=key)
                return bind, (50, 21), state | {("binding", source, target[1], key)}
            bind = spec.Exchange.Bind(destination=target[1], source=source, routing_key=key)
            return bind, (40, 31), state | {("binding", source, target[1], key)}
        if choice < 0.9 and bindings:
            _, source, target, key = row = random.choice(bindings)
            if target.startswith(f"{self.name}.q"):
                return (
                    spec.Queue.Unbind(queue=target, exchange=source, routing_key=key),
                    (50, 51),
                    state - {row},
                )
            return (
                spec.Exchange.Unbind(destination=target, source=source, routing_key=key),
                (40, 51),
                state - {row},
            )
        if choice < 0.95 and queues:
            name = random.choice(queues)[1]
            return (
                spec.Queue.Delete(queue=name),
                (50, 41),
                {row for row in state if name not in row},
            )
        if exchanges:
            name = random.choice(exchanges)[1]
            return (
                spec.Exchange.Delete(exchange=name),
                (40, 21),
                {row for row in state if name not in row},
            )
        name = f"{self.name}.x0"
        return (
            spec.Exchange.Declare(exchange=name, exchange_type="direct", durable=True),
            (40, 11),
            state | {("exchange", name, "direct")},
        )


class Subscribing(Changing):
    """A client that opens sessions and subscribes.

    A definition is ("session", client) or ("subscription", client, filter).
    """

    async def read(self, ports: Ports) -> State:
        prefix = f"{self.name}."
        rows: set[Row] = set()
        for one in await listing(ports.http, "sessions"):
            if one["client_id"].startswith(prefix):
                rows.add(("session", one["client_id"]))
        for one in await listing(ports.http, "bindings"):
            if one["destination"].startswith(prefix) and one["destination_type"] == "session":
                rows.add(("subscription", one["destination"], one["routing_key"]))
        return frozenset(rows)

    async def live(self, ports: Ports) -> None:
        random = self.random
        while True:
            name = f"{self.name}.{random.randrange(6)}"
            mine = {row for row in self.state if row[1] == name}
            clean = random.random() < 0.2
            self.begin(set(self.state) - mine if clean else set(self.state) | {("session", name)})
            client = await Mqtt.connect(ports.mqtt, name, clean)
            assert client.present == bool(mine and not clean), f"session present: {client.present}"
            self.done()
            for _ in range(0 if clean else random.randrange(4)):
                filters = [
                    f"{self.name}/{random.choice('abc+')}/{random.choice('xyz#')}"
                    for _ in range(random.randrange(1, 4))
                ]
                rows = {("subscription", name, each) for each in filters}
                if random.random() < 0.6:
                    self.begin(set(self.state) | rows)
                    await client.subscribe(*((each, random.randrange(3)) for each in filters))
                else:
                    self.begin(set(self.state) - rows)
                    await client.unsubscribe(*filters)
                self.done()
            await client.leave()


class Retaining(Changing):
    """A client that publishes retained messages, each represented as ("retained", topic, body).

    This client does not check the retained message of an ExactlyOnce client; Storm checks it.
    """

    async def read(self, ports: Ports) -> State:
        client = await Mqtt.connect(ports.mqtt, f"{self.name}-reads", True)
        await client.subscribe((f"{self.name}/#", 0))
        rows: set[Row] = set()
        # Retained messages are sent in slices, and between two slices the broker may answer a ping.
        async with asyncio.timeout(PATIENCE):
            for _ in range(5):
                await client.send(b"\xc0\x00")
                while (packet := await client.packet())[0] != 0xD0:
                    publication = read_publish(*packet)
                    rows.add(("retained", publication.topic, publication.body))
        await client.leave()
        return frozenset(rows)

    async def live(self, ports: Ports) -> None:
        random = self.random
        client = await Mqtt.connect(ports.mqtt, f"{self.name}-writes", True)
        number = 0
        while True:
            topic, number = f"{self.name}/{random.randrange(10)}", number + 1
            body = (
                b"%d" % random.randrange(1 << 40) * random.choice((1, 30))
                if random.random() < 0.8
                else b""
            )
            rows = {row for row in self.state if row[1] != topic}
            self.begin(rows | {("retained", topic, body)} if body else rows)
            await client.send(mqtt_message(topic, body, 1, number % 60_000 + 1, 1))
            assert await client.packet() == (0x40, short(0x40, number % 60_000 + 1)[2:])
            self.done()
            await asyncio.sleep(0.001)
