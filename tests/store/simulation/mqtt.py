"""MQTT clients: publishers with few packet identifiers, subscribers with persistent sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.clients import mqtt_publish
from tests.store.simulation.clients import Client, named
from tests.store.simulation.ledger import STRAY
from tests.wire.mqtt.client import (
    DUP,
    RETAIN,
    Publication,
    connect,
    packets,
    puback,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    subscribe,
    unsubscribe,
)

if TYPE_CHECKING:
    from tests.store.simulation.schedule import Simulation


class Mqtt(Client):
    clean = False

    def connect(self) -> None:
        self.connection = self.world.life.raw_mqtt()
        self.here = False
        self.tell(connect(self.name, clean=self.clean, keep_alive=0))
        if not self.clean:
            self.answered = self.world.definitions.change(
                self.name, lambda: self.world.definitions.session(self.name)
            )

    def hear(self, data: bytes) -> None:
        for one in packets(data):
            kind = one[0] >> 4
            if kind == 2:
                assert one[3] == 0, one
                self.here = True
                if not self.clean:
                    self.answered()
                if self.connection is not None:
                    self.begun(one[2] == 1)
            else:
                self.on_packet(kind, int.from_bytes(one[2:4], "big"), one)

    def begun(self, present: bool) -> None:
        """Handle CONNACK with its session-present flag."""

    def on_packet(self, kind: int, packet_id: int, data: bytes) -> None:
        """Handle a packet from the broker, other than CONNACK."""

    def cut_off(self) -> None:
        self.here = False

    def finish(self) -> bool:
        return super().finish() and self.here


class MqttPublisher(Mqtt):
    """A publisher with QoS 1 or 2 and few packet identifiers, each reused as soon as it is free."""

    def __init__(self, world: Simulation, name: str, quality: int) -> None:
        super().__init__(world, name)
        self.quality = quality
        self.clean = quality == 1
        #: Packet identifier -> the message sent under it, and True after its PUBREC; in the order
        #: of sending.
        self._open: dict[int, tuple[str, str, bytes, int, bool]] = {}
        #: Packet identifiers of retained messages that were sent again. The broker may hold
        #: another message published in between, so the checks leave these messages out.
        self._again: set[int] = set()

    def begun(self, present: bool) -> None:
        if self.quality == 1:
            self._open.clear()
        if not present:
            # A session may be missing only if no PUBREC was received in it.
            assert not any(recorded for _, _, _, _, recorded in self._open.values()), (
                f"the session of {self.name} is lost"
            )
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
            body = (
                b""
                if self.random.random() < 0.2
                else b"R" + self.world.new_message(self.name).encode()
            )
            self.world.ledger.retain(topic, body)
        else:
            topic, message = (
                self.random.choice(("t/a/b", "t/a", "t/x/b")),
                self.world.new_message(self.name),
            )
            body = self.world.body(message)
            self.world.ledger.sent(message, self.world.subscribers(topic, self.quality))
        self._open[packet_id] = (message, topic, body, flags, False)
        self.tell(mqtt_publish(topic, body, self.quality, packet_id, flags))

    def on_packet(self, kind: int, packet_id: int, data: bytes) -> None:
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
    """A subscriber with a persistent session, which connects, disconnects, subscribes and
    unsubscribes, and holds packet identifiers of QoS 2.
    """

    FILTERS = ("t/a/#", "t/+/b", "t/#", "t/a")

    def __init__(self, world: Simulation, name: str) -> None:
        super().__init__(world, name)
        self.session = f"session {name}"
        self._held: set[int] = set()
        #: Replies to send later: packet, and the message that it settles.
        self._answers: list[tuple[bytes, str]] = []
        self._on_confirm: Callable[[], None] | None = None
        self._under: dict[int, str] = {}
        self._known = False

    def begun(self, present: bool) -> None:
        assert present or not self._known, f"the session of {self.name} is lost"
        self._known = True

    def cut_off(self) -> None:
        super().cut_off()
        self._answers.clear()
        self._on_confirm = None

    def on_packet(self, kind: int, packet_id: int, data: bytes) -> None:
        if kind == 3:
            self._publication(publications(data)[0])
        elif kind == 6:
            self._held.discard(packet_id)
            self._answers.append((pubcomp(packet_id), self._under.get(packet_id, "")))
        elif kind in (9, 11) and self._on_confirm is not None:
            self._on_confirm()
            self._on_confirm = None

    def _publication(self, publication: Publication) -> None:
        message = named(publication.body)
        tracked = not publication.topic.startswith("r/")
        if publication.qos == 2:
            if publication.packet_id in self._held:
                if self._under.get(publication.packet_id) != message and tracked:
                    self.world.complain(
                        STRAY,
                        f"{message} came to {self.name} under {publication.packet_id}, "
                        f"which is held by {self._under.get(publication.packet_id)}",
                    )
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
            # Replies of each kind are sent in order: [MQTT-4.6.0-2], [MQTT-4.6.0-3]
            self._answer()
        elif self._on_confirm is None and self.random.random() < (
            0.15 if self.world.definitions.now.sessions.get(self.name) else 0.9
        ):
            self._resubscribe()
        elif self.random.random() < 0.05:
            self.tell(b"\xe0\x00")
            self.connection = None
            self.pipe.clear()
            self.cut_off()

    def _answer(self) -> None:
        packet, message = self._answers.pop(0)
        self.tell(packet)
        if message:
            self.world.ledger.settle(self.session, message, self.world.life.position)

    def _resubscribe(self) -> None:
        definitions, name = self.world.definitions, self.name
        topic_filter = self.random.choice((*self.FILTERS, "r/#"))
        if topic_filter in definitions.now.sessions.get(name, {}) and self.random.random() < 0.5:
            self.tell(unsubscribe(9, topic_filter))
            self._on_confirm = definitions.change(
                f"{name} {topic_filter}", lambda: definitions.unsubscribe(name, topic_filter)
            )
        else:
            quality = self.random.choice((0, 1, 2, 2))
            self.tell(subscribe(9, (topic_filter, quality)))
            self._on_confirm = definitions.change(
                f"{name} {topic_filter}", lambda: definitions.subscribe(name, topic_filter, quality)
            )

    def finish(self) -> bool:
        if not super().finish():
            return False
        if self._answers:
            self._answer()
            return False
        return self._on_confirm is None and not self._held
