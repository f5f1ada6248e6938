"""Random traffic over both protocols: clients that connect, publish, read slowly, reject, delete,
disconnect, and break rules.
"""

from __future__ import annotations

import random
from typing import Any

import pamqp.commands as spec

from broker.access.identity import Identity
from broker.limits import BrokerLimits
from protocols.mqtt.options import MqttOptions
from tests.clients import Amqp, World, mqtt_publish, publication
from tests.wire.mqtt.client import (
    Client,
    Will,
    connect,
    packets,
    puback,
    pubcomp,
    pubrec,
    pubrel,
    subscribe,
    unsubscribe,
)

TOPICS = ["a", "a/b", "b", "b/c.d", "$x", "$SYS/x", "t" * 300, "private", "/"]
FILTERS = ["a", "a/#", "+", "#", "+/+", "b/c.d", "$x", "t" * 300, "private", "$share/g/a"]
KEYS = ["a", "a.b", "b", "b.c/d", "", "a.+", "private", "q0", "q1", "unread"]
PATTERNS = ["a", "a.#", "*", "#", "*.*", "b.c/d", "", "private"]
EXCHANGES = ["amq.topic"] * 20 + [
    "",
    "",
    "",
    "amq.fanout",
    "amq.fanout",
    "amq.headers",
    "mine",
    "mine",
    "mine",
    "gone",
    "inner",
]
QUEUES = ["q0", "q1", "q2", "q3"]
USERS = ["guest"] * 8 + ["careful", "reader"]
#: Queue arguments by queue name.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "q0": {},
    "q1": {"x-message-ttl": 15, "x-dead-letter-exchange": "amq.topic"},
    "q2": {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q0"},
    "q3": {"x-max-length": 2, "x-overflow": "reject-publish"},
}


class Careful(Identity):
    """An identity without the permission to publish to `private`."""

    def may_publish(self, topic: bytes) -> bool:
        return topic != b"private"


class Traffic:
    """Random traffic from one seed to a broker whose limits are small enough to be reached."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        limits, options = BrokerLimits(), MqttOptions()
        limits.message, limits.retained, limits.retained_bytes = 2_000, 5, 3_000
        limits.contexts, limits.routes = (
            self.chance.choice([0, 1, 1_000]),
            self.chance.choice([4, 1_000]),
        )
        options.max_packet, options.receive_maximum, options.session_backlog = 2_500, 3, 4
        options.session_expiry_s, options.sessions = 60, 6
        self.world = World(limits, mqtt=options)
        self.world.guests.identities["careful"] = Careful("careful")
        self.world.guests.identities["reader"] = Identity("reader", write="q.*")
        self.mqtt: dict[str, Client] = {}
        self.amqp: list[Consumer] = []
        self.serial = 0
        self._furnish()

    def _furnish(self) -> None:
        """Declare queues and exchanges, which clients may delete and declare again."""
        client = self.world.amqp()
        client.send(
            spec.Exchange.Declare(
                exchange="mine",
                exchange_type="topic",
                durable=True,
                arguments={"alternate-exchange": "amq.fanout"},
            ),
            spec.Exchange.Declare(exchange="inner", exchange_type="fanout", internal=True),
        )
        for queue in QUEUES:
            client.send(
                declaration(queue),
                spec.Queue.Bind(
                    queue=queue, exchange="amq.topic", routing_key=self.chance.choice(PATTERNS)
                ),
            )
        client.connection.on_closed()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.45:
            self._mqtt_step()
        elif kind < 0.95:
            self._amqp_step()
        else:
            self.world.sleep(self.chance.choice([0, 1, 20, 1_000, 70_000]))

    def settle(self) -> None:
        """Run turns until no client and no task has more work."""
        connections = [client.connection for client in self.mqtt.values()] + [
            one.client.connection for one in self.amqp
        ]
        self.world.settle(*connections)
        for client in self.mqtt.values():
            client.read()
        for one in self.amqp:
            one.read()
        self.world.settle(*connections)

    def _body(self) -> bytes:
        self.serial += 1
        return b"%d:" % self.serial + bytes(self.chance.choice([0, 0, 10, 700]))

    # -- MQTT

    def _mqtt_step(self) -> None:
        chance = self.chance
        name = f"c{chance.randrange(5)}"
        client = self.mqtt.get(name)
        if client is None or client.closed or chance.random() < 0.04:
            self.mqtt[name] = self._come(name)
            return
        what = chance.random()
        if what < 0.45:
            client.send(*[self._publish() for _ in range(chance.choice([1, 1, 3]))])
        elif what < 0.60:
            client.send(
                subscribe(
                    1,
                    *[
                        (chance.choice(FILTERS), chance.randrange(3))
                        for _ in range(chance.choice([1, 1, 2]))
                    ],
                )
            )
        elif what < 0.65:
            client.send(unsubscribe(2, chance.choice(FILTERS[:-1])))
        elif what < 0.88:
            self._answer(client)
        elif what < 0.91:
            client.connection.pause_writing()
        elif what < 0.94:
            client.connection.resume_writing()
        elif what < 0.96:
            client.send(b"\xe0\x00")
        elif what < 0.98:
            client.vanish()
        else:
            client.send(
                chance.choice(
                    [
                        b"\xf0\x00",
                        mqtt_publish("a", bytes(3_000)),
                        b"\x30\x00",
                        mqtt_publish("a", b"x") + b"\x82\x00",
                    ]
                )
            )

    def _come(self, name: str) -> Client:
        chance = self.chance
        user = chance.choice(USERS)
        will = (
            Will(chance.choice(TOPICS), self._body(), chance.randrange(3), chance.random() < 0.3)
            if chance.random() < 0.4
            else None
        )
        client = Client(
            self.world,
            connect(name, clean=chance.random() < 0.5, will=will, user=user, password=b"guest"),
        )
        for number in range(1, chance.choice([1, 4])):
            client.send(subscribe(number, (chance.choice(FILTERS), chance.randrange(3))))
        return client

    def _publish(self) -> bytes:
        chance = self.chance
        qos = chance.randrange(3)
        flags = (1 if chance.random() < 0.2 else 0) | (8 if qos and chance.random() < 0.2 else 0)
        body = b"" if chance.random() < 0.1 else self._body()
        return mqtt_publish(
            chance.choice(TOPICS), body, qos, chance.randrange(1, 6) if qos else 0, flags
        )

    def _answer(self, client: Client) -> None:
        """Acknowledge most deliveries, and sometimes a random packet identifier."""
        chance = self.chance
        for packet in packets(client.read()):
            kind, packet_id = packet[0] >> 4, int.from_bytes(packet[2:4], "big")
            if chance.random() < 0.2:
                continue
            if kind == 3 and packet[0] & 6:
                at = 1
                while packet[at] >= 128:
                    at += 1
                topic = int.from_bytes(packet[at + 1 : at + 3], "big")
                packet_id = int.from_bytes(packet[at + 3 + topic : at + 5 + topic], "big")
                client.connection.receive_data((puback if packet[0] & 2 else pubrec)(packet_id))
            elif kind == 5:
                client.connection.receive_data(pubrel(packet_id))
            elif kind == 6:
                client.connection.receive_data(pubcomp(packet_id))
        if chance.random() < 0.1:
            client.connection.receive_data(
                chance.choice([puback, pubrec, pubrel, pubcomp])(chance.randrange(1, 9))
            )

    # -- AMQP

    def _amqp_step(self) -> None:
        chance = self.chance
        if len(self.amqp) < 3:
            self.amqp.append(Consumer(self.world, chance))
        one = chance.choice(self.amqp)
        one.step(self._body())
        if one.gone:
            self.amqp.remove(one)


class Consumer:
    """One AMQP connection with one channel, which is opened again when it is closed."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.chance = chance
        self.client: Amqp = world.amqp(user=chance.choice(USERS))
        self.gone = False
        self.tags: list[int] = []
        self._serial = 0
        self._keeps = False
        if chance.random() < 0.5:
            self.client.send(spec.Confirm.Select())

    def read(self) -> None:
        self._hear(self.client.read())

    def _hear(self, frames: list[Any]) -> None:
        for frame in frames:
            if (
                frame.name == "Basic.GetOk"
                and self._keeps
                or frame.name == "Basic.Deliver"
                and frame.consumer_tag[0] == "k"
            ):
                self.tags.append(frame.delivery_tag)
            elif frame.name == "Channel.Close":
                self.tags.clear()
                self.client.send(spec.Channel.CloseOk(), spec.Channel.Open())
            elif frame.name == "Connection.Close":
                self.client.connection.on_closed()
                self.gone = True

    def step(self, body: bytes) -> None:
        chance = self.chance
        what = chance.random()
        queue = chance.choice(QUEUES)
        if what < 0.40:
            self.client.connection.receive_data(
                b"".join(self._publication(body) for _ in range(chance.choice([1, 1, 4])))
            )
        elif what < 0.48:
            self._send(declaration(queue, other=chance.random() < 0.02))
        elif what < 0.56:
            self._send(
                spec.Queue.Bind(
                    queue=queue,
                    exchange=chance.choice(
                        ["amq.topic", "amq.topic", "amq.fanout", "amq.headers", "mine"]
                    ),
                    routing_key=chance.choice(PATTERNS),
                )
            )
        elif what < 0.58:
            self._send(
                spec.Queue.Unbind(
                    queue=queue, exchange="amq.topic", routing_key=chance.choice(PATTERNS)
                )
            )
        elif what < 0.60:
            self._send(
                chance.choice(
                    [
                        spec.Exchange.Declare(
                            exchange="mine",
                            exchange_type="topic",
                            durable=True,
                            arguments={"alternate-exchange": "amq.fanout"},
                        ),
                        spec.Exchange.Bind(
                            destination="mine",
                            source="amq.topic",
                            routing_key=chance.choice(PATTERNS),
                        ),
                        spec.Exchange.Declare(
                            exchange="inner", exchange_type="fanout", internal=True
                        ),
                        spec.Exchange.Delete(exchange="mine"),
                    ]
                )
            )
        elif what < 0.72:
            self._serial += 1
            kind = chance.choice("kka")  # a: no_ack; k: the consumer acknowledges.
            self._send(
                spec.Basic.Qos(
                    prefetch_count=chance.choice([0, 1, 3]), global_=chance.random() < 0.2
                ),
                spec.Basic.Consume(
                    queue=queue, consumer_tag=f"{kind}{self._serial}", no_ack=kind == "a"
                ),
            )
        elif what < 0.74:
            self._send(spec.Basic.Cancel(consumer_tag=f"k{chance.randrange(1, self._serial + 2)}"))
        elif what < 0.88:
            self._settle()
        elif what < 0.90:
            self._keeps = chance.random() < 0.5
            self._send(spec.Basic.Get(queue=queue, no_ack=not self._keeps))
        elif what < 0.915:
            self._send(
                chance.choice(
                    [
                        spec.Queue.Purge(queue=queue),
                        spec.Queue.Delete(queue=queue),
                        spec.Basic.Recover(requeue=True),
                    ]
                )
            )
        elif what < 0.93:
            self.client.connection.pause_writing()
        elif what < 0.96:
            self.client.connection.resume_writing()
        elif what < 0.97:
            self._send(spec.Channel.Close(0, "", 0, 0), spec.Channel.Open())
            self.tags.clear()
        elif what < 0.98:
            self.client.connection.on_closed()
            self.gone = True
        if not self.gone:
            self.read()

    def _send(self, *methods: Any) -> None:
        self.read()
        if not self.gone:
            self._hear(self.client.send(*methods))

    def _settle(self) -> None:
        self.read()
        if not self.tags:
            return
        chance = self.chance
        tag, many = chance.choice(self.tags), chance.random() < 0.2
        kind = chance.random()
        method = (
            spec.Basic.Ack(tag, many)
            if kind < 0.5
            else spec.Basic.Nack(tag, many, requeue=kind < 0.75)
        )
        self.tags = [one for one in self.tags if one != tag and not (many and one < tag)]
        self._send(method)

    def _publication(self, body: bytes) -> bytes:
        chance = self.chance
        properties: dict[str, Any] = {}
        if chance.random() < 0.5:
            properties["delivery_mode"] = 2
        if chance.random() < 0.2:
            properties["expiration"] = chance.choice(
                ["0", "10", "100000", "nonsense" if chance.random() < 0.1 else "5"]
            )
        if chance.random() < 0.05:
            body = bytes(2_500)
        return publication(
            chance.choice(EXCHANGES),
            chance.choice(KEYS),
            body,
            mandatory=chance.random() < 0.2,
            **properties,
        )


def declaration(queue: str, other: bool = False) -> spec.Queue.Declare:
    """Return the declaration of a queue; with `other`, one that fails if the queue exists."""
    return spec.Queue.Declare(
        queue=queue, durable=(queue in ("q0", "q1")) != other, arguments=ARGUMENTS[queue]
    )
