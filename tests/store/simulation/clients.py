"""Clients that do as they like, within their protocols: they remember what they sent, and tell the ledger what they learn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import pamqp.body
import pamqp.commands as spec
import pamqp.frame

from protocols.amqp.handshake import GREETING
from protocols.connection import Connection
from tests.clients import marshal, mqtt_publish, publication
from tests.store.simulation.ledger import STRAY
from tests.wire.mqtt.octets import (
    DUP,
    RETAIN,
    Publication,
    _publication,
    connect,
    packets,
    puback,
    pubcomp,
    pubrec,
    pubrel,
    subscribe,
    unsubscribe,
)

if TYPE_CHECKING:
    from tests.store.simulation.schedule import Simulation

LOGIN = (GREETING + marshal(0, spec.Connection.StartOk(response="\0guest\0guest")) + marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
         + marshal(0, spec.Connection.Open()) + marshal(1, spec.Channel.Open()))


def named(body: bytes) -> str:
    """The message that a body belongs to."""
    return body.split(b"|", 1)[0].decode()


class Client:
    """Connects, acts, hears, and is cut off. What the broker sent waits in `pipe` until the client listens."""

    def __init__(self, world: Simulation, name: str) -> None:
        self.world = world
        self.name = name
        self.random: Random = world.random
        self.connection: Connection | None = None
        self.pipe: list[bytes] = []

    @property
    def ready(self) -> bool:
        """Whether the broker listens."""
        connection = self.connection
        return connection is not None and not connection.stalled and not connection.behind and not connection.finished

    def tell(self, octets: bytes) -> None:
        """Send, if there is somebody at the other end."""
        if self.connection is not None:
            self.connection.receive_data(octets)

    def flush(self) -> None:
        """The broker writes what it has for us."""
        connection = self.connection
        if connection is None:
            return
        if connection.behind and not connection.stalled:
            connection.resume()
        octets = connection.data_to_send()
        if octets:
            self.pipe.append(octets)

    def step(self) -> None:
        """Do something."""
        if self.connection is None:
            self.connect()
            return
        if self.pipe and self.random.random() < 0.7:
            self.listen()
        elif self.ready:
            if self.random.random() < 0.02:
                self.vanish()
            elif self.random.random() < 0.03:
                self.connection.pause_writing()
            elif self.connection.paused:
                self.connection.resume_writing()
            else:
                self.act()

    def listen(self) -> None:
        pipe, self.pipe = self.pipe, []
        self.hear(b"".join(pipe))

    def vanish(self) -> None:
        """The network is gone; what was under way is lost."""
        connection, self.connection = self.connection, None
        self.pipe.clear()
        if connection is not None:
            connection.connection_lost()
            self.cut_off()

    def crashed(self) -> None:
        """The broker is gone. What it had sent arrives, or not."""
        if self.connection is not None:
            self.connection = None
            if self.random.random() < 0.5:
                self.listen()
            self.pipe.clear()
            self.cut_off()

    def connect(self) -> None:
        raise NotImplementedError

    def act(self) -> None:
        raise NotImplementedError

    def hear(self, octets: bytes) -> None:
        raise NotImplementedError

    def cut_off(self) -> None:
        """The connection is over."""

    def finish(self) -> bool:
        """The end is near: only complete what has begun. Whether there is nothing left to do."""
        if self.connection is None:
            self.connect()
            return False
        if self.connection.paused:
            self.connection.resume_writing()
        if self.pipe:
            self.listen()
            return False
        return self.ready


# -- AMQP


class Amqp(Client):
    """On channel 1; `set_up` is said first."""

    set_up = b""

    def connect(self) -> None:
        self.connection = self.world.life.raw_amqp()
        self._rest = b""
        self._frame: Any = None
        self.tell(LOGIN + self.set_up)

    def hear(self, octets: bytes) -> None:
        octets = self._rest + octets
        while octets:
            size, _, frame = pamqp.frame.unmarshal(octets)
            octets = octets[size:]
            if isinstance(frame, pamqp.body.ContentBody):
                self.got(self._frame, frame.value)
            elif isinstance(frame, spec.Connection.Close | spec.Channel.Close):
                raise AssertionError(f"{self.name} was told {frame.reply_code} {frame.reply_text}")
            else:
                if isinstance(frame, spec.Basic.Deliver | spec.Basic.GetOk):
                    self._frame = frame
                self.told(frame)

    def told(self, frame: Any) -> None:
        """A method came."""

    def got(self, frame: Any, body: bytes) -> None:
        """A message came."""


class Publisher(Amqp):
    """Publishes with confirms."""

    set_up = marshal(1, spec.Confirm.Select())

    def connect(self) -> None:
        super().connect()
        self._published = 0
        self._waiting: dict[int, str] = {}

    def act(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 5))):
            exchange, key, targets = self.world.place(self.random.choice(self.world.places))
            message = self.world.new_message(self.name)
            self.world.ledger.sent(message, targets)
            self._published += 1
            self._waiting[self._published] = message
            properties: dict[str, Any] = {"expiration": "700"} if key == "brief" and self.random.random() < 0.3 else {}
            self.tell(publication(exchange, key, self.world.body(message), delivery_mode=2, **properties))

    def told(self, frame: Any) -> None:
        if isinstance(frame, spec.Basic.Ack | spec.Basic.Nack):
            numbers = [one for one in self._waiting if one <= frame.delivery_tag] if frame.multiple else [frame.delivery_tag]
            for number in numbers:
                message = self._waiting.pop(number)
                if isinstance(frame, spec.Basic.Ack):
                    self.world.ledger.confirmed(message)
                else:
                    self.world.ledger.refused(message)

    def finish(self) -> bool:
        return super().finish() and not self._waiting


class TxPublisher(Amqp):
    """Publishes to several places at once, or not at all."""

    set_up = marshal(1, spec.Tx.Select())

    def connect(self) -> None:
        super().connect()
        #: Message -> the place it goes to.
        self._pending: dict[str, str] = {}
        self._committing: dict[str, dict[str, int]] = {}

    def act(self) -> None:
        if self._committing:
            return
        if len(self._pending) < self.random.randrange(5):
            place = self.random.choice(("plain", "fan", "topic"))
            exchange, key, _ = self.world.place(place)
            message = self.world.new_message(self.name)
            self._pending[message] = place
            self.tell(publication(exchange, key, self.world.body(message), delivery_mode=2))
        elif self._pending and self.random.random() < 0.8:
            # Routed now.
            self._committing = {message: self.world.place(place)[2] for message, place in self._pending.items()}
            self._pending = {}
            self.world.ledger.transaction(self._committing)
            self.tell(marshal(1, spec.Tx.Commit()))
        elif self._pending:
            self._pending = {}
            self.tell(marshal(1, spec.Tx.Rollback()))

    def told(self, frame: Any) -> None:
        if isinstance(frame, spec.Tx.CommitOk):
            for message in self._committing:
                self.world.ledger.confirmed(message)
            self._committing = {}

    def finish(self) -> bool:
        return super().finish() and not self._committing


class Worker(Amqp):
    """Consumes a queue: takes, refuses, gives back. In the end it takes everything."""

    def __init__(self, world: Simulation, name: str, queue: str) -> None:
        super().__init__(world, name)
        self.queue = queue
        self._held: dict[int, str] = {}

    def connect(self) -> None:
        self._held.clear()
        self.set_up = (marshal(1, spec.Basic.Qos(prefetch_count=self.random.choice((0, 1, 3, 10))))
                       + marshal(1, spec.Basic.Consume(queue=self.queue, consumer_tag="t")))
        super().connect()

    def cut_off(self) -> None:
        self._held.clear()

    def got(self, frame: Any, body: bytes) -> None:
        message = named(body)
        self.world.ledger.delivered(self.queue, message)
        self._held[frame.delivery_tag] = message

    def act(self) -> None:
        held = list(self._held)
        if not held:
            return
        tag, choice = self.random.choice(held), self.random.random()
        if choice < 0.55:
            self._ack(tag)
        elif choice < 0.7:
            for one in held[:held.index(tag) + 1]:
                self._ack(one)
        elif choice < 0.9:
            del self._held[tag]
            self.tell(marshal(1, spec.Basic.Nack(tag, requeue=True)))
        elif f"{self.queue}.dead" in self.world.ledger.holding(self.queue).queues:
            del self._held[tag]
            self.tell(marshal(1, spec.Basic.Reject(tag, requeue=False)))

    def _ack(self, tag: int) -> None:
        message = self._held.pop(tag)
        self.tell(marshal(1, spec.Basic.Ack(tag)))
        self.world.ledger.settle(self.queue, message, self.world.life.position)

    def finish(self) -> bool:
        if not super().finish() or not self._held:
            return self.ready and not self.pipe
        for tag in list(self._held):
            self._ack(tag)
        return False


class Mover(Amqp):
    """Takes messages from one queue to another: acked there and published here in one transaction."""

    set_up = (marshal(1, spec.Basic.Qos(prefetch_count=3)) + marshal(1, spec.Tx.Select())
              + marshal(1, spec.Basic.Consume(queue="plain", consumer_tag="t")))

    def connect(self) -> None:
        super().connect()
        self._held: dict[int, bytes] = {}
        self._committing = False

    def got(self, frame: Any, body: bytes) -> None:
        self.world.ledger.delivered("plain", named(body))
        self._held[frame.delivery_tag] = body

    def told(self, frame: Any) -> None:
        if isinstance(frame, spec.Tx.CommitOk):
            self._committing = False

    def act(self) -> None:
        if self._committing or not self._held:
            return
        said = b""
        for tag, body in list(self._held.items())[:self.random.randrange(1, 4)]:
            del self._held[tag]
            if self.random.random() < 0.8:
                said += publication("", "moved", body, delivery_mode=2) + marshal(1, spec.Basic.Ack(tag))
            else:
                said += marshal(1, spec.Basic.Nack(tag, requeue=self.random.random() < 0.5))
        self._committing = True
        self.tell(said + marshal(1, spec.Tx.Commit()))

    def finish(self) -> bool:
        if not super().finish():
            return False
        if self._held and not self._committing:
            self.vanish()
        return not self._committing


class Operator(Amqp):
    """Declares, binds and deletes, one thing after the other."""

    def connect(self) -> None:
        super().connect()
        self._asked: Callable[[], None] | None = None
        self._said = False

    def ask(self, thing: str, method: Any, change: Callable[[], None]) -> None:
        """`change` is what it means for the definitions."""
        self.world.tell(f"{self.name}: {type(method).__qualname__} {thing}")
        self.tell(marshal(1, method))
        self._asked = self.world.definitions.change(thing, change)

    def told(self, frame: Any) -> None:
        if type(frame).__name__ in ("DeclareOk", "DeleteOk", "BindOk", "UnbindOk") and self._asked is not None:
            self._asked()
            self._asked = None

    def act(self) -> None:
        if self._asked is None:
            self.world.definitions.something(self)

    def finish(self) -> bool:
        return super().finish() and self._asked is None


# -- MQTT


class Mqtt(Client):
    clean = False

    def connect(self) -> None:
        self.connection = self.world.life.raw_mqtt()
        self.here = False
        self.tell(connect(self.name, clean=self.clean, keep_alive=0))
        if not self.clean:
            self.answered = self.world.definitions.change(self.name, lambda: self.world.definitions.session(self.name))

    def hear(self, octets: bytes) -> None:
        for one in packets(octets):
            kind = one[0] >> 4
            if kind == 2:
                assert one[3] == 0, one
                self.here = True
                if not self.clean:
                    self.answered()
                if self.connection is not None:
                    self.begun(one[2] == 1)
            else:
                self.told(kind, int.from_bytes(one[2:4], "big"), one)

    def begun(self, present: bool) -> None:
        """CONNACK came; whether the session was there."""

    def told(self, kind: int, packet_id: int, octets: bytes) -> None:
        """A packet came."""

    def cut_off(self) -> None:
        self.here = False

    def finish(self) -> bool:
        return super().finish() and self.here


class MqttPublisher(Mqtt):
    """Publishes with QoS 1 or 2, under few packet identifiers, each used again as soon as it is free."""

    def __init__(self, world: Simulation, name: str, quality: int) -> None:
        super().__init__(world, name)
        self.quality = quality
        self.clean = quality == 1
        #: Packet identifier -> what was sent under it, and whether the PUBREC came; in the order of sending.
        self._open: dict[int, tuple[str, str, bytes, int, bool]] = {}
        #: Retained messages that were sent again: others may have come between, and then they count no more.
        self._again: set[int] = set()

    def begun(self, present: bool) -> None:
        if self.quality == 1:
            self._open.clear()
        if not present:
            # Nobody was ever promised that it is there.
            assert not any(recorded for _, _, _, _, recorded in self._open.values()), f"the session of {self.name} is lost"
        for packet_id, (message, topic, body, flags, recorded) in self._open.items():
            if recorded:
                self.tell(pubrel(packet_id))
            else:
                if message:
                    self.world.ledger.sent(message, self.world.subscribers(topic, 2), True)
                else:
                    self.world.ledger.retain(topic, body)
                    self._again.add(packet_id)
                self.tell(mqtt_publish(topic, body, 2, packet_id, flags | DUP))

    def act(self) -> None:
        free = [one for one in (1, 2, 3) if one not in self._open]
        if not self.here or not free:
            return
        packet_id, flags = free[0], 0
        if self.random.random() < 0.15:
            topic, flags, message = f"r/{self.random.randrange(3)}", RETAIN, ""
            body = b"" if self.random.random() < 0.2 else b"R" + self.world.new_message(self.name).encode()
            self.world.ledger.retain(topic, body)
        else:
            topic, message = self.random.choice(("t/a/b", "t/a", "t/x/b")), self.world.new_message(self.name)
            body = self.world.body(message)
            self.world.ledger.sent(message, self.world.subscribers(topic, self.quality))
        self._open[packet_id] = (message, topic, body, flags, False)
        self.tell(mqtt_publish(topic, body, self.quality, packet_id, flags))

    def told(self, kind: int, packet_id: int, octets: bytes) -> None:
        if kind in (4, 5):
            message, topic, body, flags, recorded = self._open[packet_id]
            if not recorded:
                if message:
                    self.world.ledger.confirmed(message)
                elif packet_id not in self._again:
                    self.world.ledger.retain_confirmed(topic, body)
                self._again.discard(packet_id)
            if kind == 4:
                del self._open[packet_id]
            else:
                self._open[packet_id] = (message, topic, body, flags, True)
                self.tell(pubrel(packet_id))
        elif kind == 7:
            del self._open[packet_id]

    def finish(self) -> bool:
        return super().finish() and not self._open


class Subscriber(Mqtt):
    """A persistent session: it comes and goes, subscribes and unsubscribes, and holds the identifiers of QoS 2."""

    FILTERS = ("t/a/#", "t/+/b", "t/#", "t/a")

    def __init__(self, world: Simulation, name: str) -> None:
        super().__init__(world, name)
        self.session = f"session {name}"
        self._held: set[int] = set()
        #: What it will answer, when it likes: packet, and the message that is settled by it.
        self._answers: list[tuple[bytes, str]] = []
        self._asked: Callable[[], None] | None = None
        self._under: dict[int, str] = {}
        self._known = False

    def begun(self, present: bool) -> None:
        assert present or not self._known, f"the session of {self.name} is lost"
        self._known = True

    def cut_off(self) -> None:
        super().cut_off()
        self._answers.clear()
        self._asked = None

    def told(self, kind: int, packet_id: int, octets: bytes) -> None:
        if kind == 3:
            self._publication(_publication(octets))
        elif kind == 6:
            self._held.discard(packet_id)
            self._answers.append((pubcomp(packet_id), self._under.get(packet_id, "")))
        elif kind in (9, 11) and self._asked is not None:
            self._asked()
            self._asked = None

    def _publication(self, publication: Publication) -> None:
        message = named(publication.body)
        tracked = not publication.topic.startswith("r/")
        if publication.qos == 2:
            if publication.packet_id in self._held:
                if self._under.get(publication.packet_id) != message and tracked:
                    self.world.complain(STRAY, f"{message} came to {self.name} under {publication.packet_id}, "
                                               f"which is held by {self._under.get(publication.packet_id)}")
            else:
                self._held.add(publication.packet_id)
                self._under[publication.packet_id] = message if tracked else ""
                if tracked:
                    self.world.ledger.received(self.session, message, 2)
            self._answers.append((pubrec(publication.packet_id), ""))
        elif publication.qos == 1:
            if tracked:
                self.world.ledger.received(self.session, message, 1)
            self._answers.append((puback(publication.packet_id), message if tracked else ""))

    def act(self) -> None:
        if not self.here:
            return
        if self._answers and self.random.random() < 0.8:
            # In order of their kind: [MQTT-4.6.0-2], [MQTT-4.6.0-3]
            self._answer()
        elif self._asked is None and self.random.random() < (0.15 if self.world.definitions.now.sessions.get(self.name) else 0.9):
            self._resubscribe()
        elif self.random.random() < 0.05:
            self.tell(b"\xe0\x00")
            self.connection = None
            self.pipe.clear()
            self.cut_off()

    def _answer(self) -> None:
        octets, message = self._answers.pop(0)
        self.tell(octets)
        if message:
            self.world.ledger.settle(self.session, message, self.world.life.position)

    def _resubscribe(self) -> None:
        definitions, name = self.world.definitions, self.name
        topic_filter = self.random.choice((*self.FILTERS, "r/#"))
        if topic_filter in definitions.now.sessions.get(name, {}) and self.random.random() < 0.5:
            self.tell(unsubscribe(9, topic_filter))
            self._asked = definitions.change(f"{name} {topic_filter}", lambda: definitions.unsubscribe(name, topic_filter))
        else:
            quality = self.random.choice((0, 1, 2, 2))
            self.tell(subscribe(9, (topic_filter, quality)))
            self._asked = definitions.change(f"{name} {topic_filter}", lambda: definitions.subscribe(name, topic_filter, quality))

    def finish(self) -> bool:
        if not super().finish():
            return False
        if self._answers:
            self._answer()
            return False
        return self._asked is None and not self._held
