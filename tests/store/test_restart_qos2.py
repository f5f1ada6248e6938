"""QoS 2 over crashes at any packet: each message arrives once, under one packet identifier.

    publisher -- PUBLISH, PUBREL --> broker -- PUBLISH, PUBREL --> subscriber
              <-- PUBREC, PUBCOMP --        <-- PUBREC, PUBCOMP --

Both clients follow [MQTT-4.3.3] and [MQTT-4.4.0-1]. The broker crashes when a client sends a
packet.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from tests.clients import mqtt_publish
from tests.store.homes import Home
from tests.wire.mqtt.client import (
    ACCEPTED,
    DUP,
    RESUMED,
    Client,
    connect,
    here,
    packets,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    suback,
    subscribe,
)

PUBLISHER, SUBSCRIBER = "publisher", "subscriber"
#: The number of packets that the clients send for one message.
PACKETS: Final = 4
#: The publisher's first packet identifier. It differs from all packet identifiers of the broker.
FIRST: Final = 500


class Crash(NamedTuple):
    """A crash of the broker, at the moment when the clients send packet number `number`."""

    number: int
    #: True if the packet reaches the broker.
    arrives: bool
    #: True if the effect of the packet is durable.
    written: bool
    #: The clients that still receive output that the broker sent before the crash.
    hear: tuple[str, ...]


KINDS: Final = [
    (False, False, ()),
    (True, False, (PUBLISHER, SUBSCRIBER)),
    *((True, True, hear) for hear in ((), (PUBLISHER,), (SUBSCRIBER,), (PUBLISHER, SUBSCRIBER))),
]


class Publisher:
    """A publisher of QoS 2 messages, all with the same packet identifier.

    It sends PUBLISH again until it gets PUBREC, and then PUBREL until it gets PUBCOMP.
    """

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies
        self._sent = self._recorded = False

    def next(self) -> list[bytes]:
        """Return the packet to send on a new connection, or after the PUBCOMP of a message."""
        if not self.bodies:
            return []
        if self._recorded:
            return [pubrel(FIRST)]
        flags, self._sent = DUP if self._sent else 0, True
        return [mqtt_publish("t", self.bodies[0], 2, FIRST, flags)]

    def answer(self, packet: bytes) -> list[bytes]:
        assert packet[2:] == FIRST.to_bytes(2, "big")
        if packet[0] >> 4 == 5:
            self._recorded = True
            return [pubrel(FIRST)]
        assert packet[0] >> 4 == 7 and self._recorded, packet
        self.bodies = self.bodies[1:]
        self._sent = self._recorded = False
        return self.next()


class Subscriber:
    """A subscriber that accepts each QoS 2 message once.

    It drops a PUBLISH whose packet identifier waits for a PUBREL.
    """

    def __init__(self) -> None:
        self.accepted: list[bytes] = []
        self.held: dict[int, bytes] = {}

    def answer(self, packet: bytes) -> list[bytes]:
        packet_id = int.from_bytes(packet[2:4], "big")
        if packet[0] >> 4 == 6:
            self.held.pop(packet_id, None)
            return [pubcomp(packet_id)]
        [one] = publications(packet)
        assert one.qos == 2
        if one.packet_id in self.held:
            assert one.dup and one.body == self.held[one.packet_id], one
        else:
            self.held[one.packet_id] = one.body
            self.accepted.append(one.body)
        return [pubrec(one.packet_id)]


class Lives:
    """The two clients, and a broker that crashes and starts again."""

    def __init__(self, directory: Path, bodies: list[bytes], crashes: list[Crash]) -> None:
        self.publisher, self.subscriber = Publisher(bodies), Subscriber()
        self.crashes = list(crashes)
        self._directory = directory
        #: Packets that the clients have still to send.
        self._waiting: list[tuple[str, bytes]] = []
        #: Number of packets that the clients have sent.
        self._sent = 0
        self.world = Home(directory)
        assert here(self.world, SUBSCRIBER, clean=False).send(subscribe(1, ("t", 2))) == suback(
            1, 2
        )
        assert here(self.world, PUBLISHER, clean=False).greeting == ACCEPTED

    def run(self) -> None:
        """Exchange packets until the clients have none left to send."""
        self.start()
        while self._waiting:
            name, data = self._waiting.pop(0)
            self._sent += 1
            if self.crashes and self._sent == self.crashes[0].number:
                self._crash(self.crashes.pop(0), name, data)
                self.start()
            else:
                self._hear({name: self.clients[name].send(data)})

    def start(self) -> None:
        """Start the broker again, and continue the sessions of the clients."""
        self.world.crash()
        self.world = Home(self._directory)
        assert self.world.complaints == [] and self.world.report.refused == []
        self.clients = {
            name: Client(self.world, connect(name, clean=False)) for name in (PUBLISHER, SUBSCRIBER)
        }
        self._waiting = [(PUBLISHER, packet) for packet in self.publisher.next()]
        greetings = {name: client.greeting for name, client in self.clients.items()}
        assert all(greeting.startswith(RESUMED) for greeting in greetings.values())
        self._hear({name: greeting[len(RESUMED) :] for name, greeting in greetings.items()})

    def _crash(self, crash: Crash, name: str, data: bytes) -> None:
        if not crash.arrives:
            return
        self.world.slow_disk = not crash.written
        replies = {name: self.clients[name].send(data)}
        self._hear(replies, crash.hear)

    def _hear(
        self, replies: dict[str, bytes], hear: tuple[str, ...] = (PUBLISHER, SUBSCRIBER)
    ) -> None:
        """Pass the output of the broker to each client in `hear`, and queue the answers."""
        for name, client in self.clients.items():
            data = replies.get(name, b"") + client.all()
            if name in hear:
                party = self.publisher if name == PUBLISHER else self.subscriber
                for one in packets(data):
                    self._waiting += [(name, packet) for packet in party.answer(one)]


def once(directory: Path, count: int, crashes: list[Crash]) -> None:
    """Publish messages through a broker that crashes, and check that each arrives once."""
    bodies = [b"message %d" % number for number in range(count)]
    lives = Lives(directory, bodies, crashes)
    lives.run()
    assert not lives.crashes, "the broker crashed as often as planned"
    assert lives.subscriber.accepted == bodies
    assert not lives.publisher.bodies and not lives.subscriber.held
    inbox = lives.world.inbox(SUBSCRIBER)
    assert (inbox.depth, inbox.unacked) == (0, 0)
    lives.world.fates()
    lives.world.crash()


@pytest.mark.parametrize(("number", "kind"), list(product(range(1, PACKETS + 1), KINDS)))
def test_a_message_arrives_once_whichever_packet_the_crash_meets(
    number: int, kind: tuple[bool, bool, tuple[str, ...]], tmp_path: Path
) -> None:
    once(tmp_path, 2, [Crash(number, *kind)])


@pytest.mark.parametrize("seed", range(20))
def test_messages_arrive_once_over_any_crashes(seed: int, tmp_path: Path) -> None:
    random, number = Random(seed), 0
    crashes: list[Crash] = []
    for _ in range(random.randint(2, 5)):
        number += random.randint(1, 3)
        crashes.append(Crash(number, *random.choice(KINDS)))
    once(tmp_path, 3 + number // PACKETS, crashes)


def test_a_publication_that_follows_its_release_is_another_message(tmp_path: Path) -> None:
    """Check that a PUBLISH after the durable PUBREL of its packet identifier is a new message.

    [MQTT-4.3.3-6] forbids to send the PUBLISH again after the PUBREL. So a publisher that sends the
    PUBLISH again after a crash publishes the message twice.
    """
    lives = Lives(tmp_path, [], [])
    lives.start()
    publication = mqtt_publish("t", b"x", 2, FIRST)
    assert lives.clients[PUBLISHER].send(publication) == pubrec(FIRST)
    lives.clients[PUBLISHER].send(pubrel(FIRST))  # The broker's PUBCOMP is lost.
    lives.start()
    assert lives.clients[PUBLISHER].send(publication) == pubrec(FIRST)
    [first] = lives.subscriber.held
    skipped = lives.world.mqtt_front.options.receive_maximum  # See session/restoring.py.
    assert [(one.packet_id, one.body) for one in publications(lives.clients[SUBSCRIBER].all())] == [
        (first + skipped + 1, b"x")
    ]
    assert lives.clients[PUBLISHER].send(pubrel(FIRST)) == pubcomp(FIRST)
    lives.world.crash()
