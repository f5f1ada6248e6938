"""Tests of session inboxes after a restart, with a plain list as the model.

Unsettled messages keep their order and packet identifiers. After a PUBREC, only PUBREL is sent
again. Unreadable messages are skipped and reported.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from random import Random

import pytest

from broker.definitions.restore import restore_broker
from broker.store.opening import OpenedStore, open_store
from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish
from tests.store.simulated import SimulatedDisk
from tests.wire.mqtt.client import (
    RESUMED,
    Client,
    connect,
    here,
    packets,
    puback,
    pubcomp,
    publications,
    pubrec,
    subscribe,
)
from trellis.server.recovery import codecs


class Home(World):
    """A broker with a disk, and with low limits of packets in flight and messages in memory."""

    def __init__(
        self,
        disk: SimulatedDisk,
        directory: Path,
        in_flight: int,
        window: int,
        spoiled: Collection[bytes] = (),
    ) -> None:
        """Open the store, damage the messages with a body in `spoiled`, and start the broker.

        `in_flight` is the broker's Receive Maximum. `window` is the number of messages of a queue
        that stay in memory.
        """
        options = MqttOptions()
        options.receive_maximum = in_flight
        self.reported: list[str] = []
        self.opened: OpenedStore = open_store(
            disk, str(directory), codecs(), 7, self.reported.append, lambda recovery: None, 3_000
        )
        self.opened.store.window = window
        for inode in disk.names.values():
            for body in spoiled:
                at = inode.now.find(body)
                if at >= 0:
                    inode.now[at] ^= 1
        super().__init__(mqtt=options, store=self.opened.store)
        restore_broker(self.broker, self.opened, self.mqtt_front.sessions)


def heard(client: Client) -> list[bytes]:
    """Return all packets that the client receives."""
    received_packets: list[bytes] = []
    while received := client.all():
        received_packets += packets(received)
    return received_packets


@pytest.mark.parametrize("seed", range(40))
def test_inbox_survives_a_restart(seed: int, tmp_path: Path) -> None:
    random, disk = Random(seed), SimulatedDisk()
    in_flight, window = random.choice((1, 3, 10, 1_000)), random.choice((1, 4, 50))
    world = Home(disk, tmp_path, in_flight, window)
    reader, writer = (
        Client(world, connect("r", clean=False) + subscribe(1, ("one", 1), ("two", 2))),
        here(world, "w"),
    )
    #: Packet identifier (from 1) -> body and QoS of an unsettled message.
    waiting: dict[int, tuple[bytes, int]] = {}
    #: Packet identifiers of messages for which the client sent PUBREC.
    stepped: set[int] = set()
    for number in range(1, random.choice((3, 30, 600))):
        topic, qos = random.choice(("one", "two")), random.choice((1, 2))
        body = b"message %d " % number + b"x" * random.choice((0, 50))
        writer.send(mqtt_publish(topic, body, qos, 1), b"\x62\x02\x00\x01")
        waiting[number] = (body, min(qos, 1 if topic == "one" else 2))
    sent: dict[int, int] = {}
    output = packets(reader.all())
    for _ in range(random.randrange(60)):
        for one in publications(b"".join(packet for packet in output if packet[0] >> 4 == 3)):
            assert (one.body, one.qos) == waiting[one.packet_id]
            sent[one.packet_id] = one.qos
        output = []
        if sent:
            number = random.choice(list(sent)[:5])
            if sent[number] == 2 and number not in stepped:
                stepped.add(number)
                output = packets(reader.send(pubrec(number)))
            else:
                output = packets(
                    reader.send(pubcomp(number) if number in stepped else puback(number))
                )
                stepped.discard(number)
                del sent[number], waiting[number]
    lost = random.sample(sorted(waiting), min(len(waiting), random.choice((0, 0, 1, 5))))
    world.opened.store.close()
    world = Home(
        SimulatedDisk(disk.contents()),
        tmp_path,
        random.choice((1, 3, 10, 1_000)),
        random.choice((1, 4, 50)),
        [waiting.pop(number)[0] for number in lost],
    )
    stepped -= set(lost)
    redelivered: dict[int, tuple[bytes, int]] = {}
    order: list[int] = []
    client = Client(world, connect("r", clean=False))
    answers = packets(client.greeting)
    assert answers.pop(0) == RESUMED
    while answers:
        answer = answers.pop(0)
        packet_id = int.from_bytes(answer[2:4], "big")
        if answer[0] >> 4 == 6:
            if packet_id not in redelivered:
                assert packet_id in stepped
                order.append(packet_id)
                redelivered[packet_id] = waiting[packet_id]
            more = client.send(pubcomp(packet_id))
        else:
            [one] = publications(answer)
            assert one.packet_id not in stepped
            order.append(one.packet_id)
            redelivered[one.packet_id] = (one.body, one.qos)
            more = client.send(puback(one.packet_id) if one.qos == 1 else pubrec(one.packet_id))
        answers += packets(more)
        if not answers:
            answers += heard(client)
    assert order == sorted(order) and list(redelivered.values()) == [
        waiting[number] for number in sorted(waiting)
    ]
    if not lost:
        assert redelivered == waiting, "packet identifiers are the same as before the restart"
    assert world.copies().get("unreadable", 0) == len(lost) <= len(world.reported)
    assert world.inbox("r").depth == world.inbox("r").unacked == 0
    world.fates()
    world.opened.store.close()
