"""Tests that MQTT 3.1.1 (level 4) and MQTT 5 (level 5) handle the same publications equally.

Each test sends publications to two brokers, encoded for level 4 and, without properties, for level
5. The chunks are the same, and alarms and slow disks come at the same moments. After every chunk,
replies, copies, counters and the state of both connections must be equal.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.connection import Connection
from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import (
    PINGREQ,
    Client,
    connect,
    here,
    packets,
    pubrel,
    subscribe,
)
from tests.wire.mqtt5.client import raw_connect

#: Topics whose messages are relayed, queued for a session, both, stored in a durable AMQP queue,
#: put into a transient AMQP queue, unroutable, and forbidden to clients.
TOPICS = ["relayed", "kept", "both/x", "durable", "queued", "nowhere", "$SYS/x"]


class Publication(NamedTuple):
    """A publication, which `encoded` turns into a packet of level 4 or 5."""

    topic: str
    body: bytes
    qos: int
    packet_id: int
    retain: bool

    def encoded(self, level: int) -> bytes:
        """Return the PUBLISH packet of level 4 or 5."""
        flags = 1 if self.retain else 0
        if level == 4:
            return mqtt_publish(self.topic, self.body, self.qos, self.packet_id, flags)
        identifier = self.packet_id.to_bytes(2, "big") if self.qos else b""
        return packet(
            0x30 | self.qos << 1 | flags, text(self.topic) + identifier + b"\0" + self.body
        )


class Step(NamedTuple):
    """Publications that are sent in two chunks, with an alarm or a slow disk."""

    publications: list[Publication]
    others: bytes
    cut: int
    alarmed: bool
    slow_disk: bool


def publication(topic: str, body: bytes, qos: int, packet_id: int, retain: bool) -> Publication:
    """Return a publication; if clients must not publish to the topic, use at most QoS 1.

    With QoS 2 and such a topic, the replies of levels 4 and 5 differ.
    """
    if topic[0] == "$":
        qos = min(qos, 1)
    return Publication(topic, body, qos, packet_id if qos else 0, retain)


STEPS = st.lists(
    st.builds(
        Step,
        st.lists(
            st.builds(
                publication,
                st.sampled_from(TOPICS),
                st.sampled_from([b"", b"x", bytes(130), bytes(17_000)]),
                st.sampled_from([0, 0, 1, 1, 2]),
                st.integers(1, 4),
                st.sampled_from([False, False, False, True]),
            ),
            max_size=12,
        ),
        st.sampled_from([b"", PINGREQ, pubrel(1), pubrel(2) + PINGREQ]),
        st.integers(0, 400),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def answers(data: bytes) -> list[tuple[int, bytes]]:
    """Return (first byte, packet identifier) of each reply, without the reason code of level 5."""
    return [(one[0], one[2:4]) for one in packets(data)]


class Side:
    """A broker with subscribers to TOPICS, and one publisher, which uses MQTT level 4 or 5."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.world = World()
        amqp = self.world.amqp()
        amqp.queue("d", "amq.topic", "durable", durable=True)
        amqp.queue("q", "amq.topic", "queued")
        self.readers = [here(self.world, "r0"), Client(self.world, connect("r1", clean=False))]
        self.readers[0].send(subscribe(1, ("relayed", 0), ("both/#", 0)))
        self.readers[1].send(subscribe(1, ("kept", 1), ("both/+", 2)))
        self.connection: Connection = self.world.raw_mqtt()
        self.connection.receive_data(connect("w") if level == 4 else raw_connect("w"))
        self.world.turn()
        self.connection.data_to_send()

    def take(self, step: Step) -> object:
        """Send the publications of one step; return the state after it."""
        world, connection = self.world, self.connection
        world.slow_disk = step.slow_disk
        world.broker.alarms.set("memory", step.alarmed)
        for data in self._chunks(step):
            connection.receive_data(data)
        return self.state()

    def _chunks(self, step: Step) -> list[bytes]:
        """Return two chunks, cut at the same offset of the same packet at both levels."""
        encoded = [one.encoded(self.level) for one in step.publications] + [step.others]
        number = step.cut % len(encoded)
        inside = min(step.cut % 5, len(encoded[number]))
        before = b"".join(encoded[:number]) + encoded[number][:inside]
        return [before, encoded[number][inside:] + b"".join(encoded[number + 1 :])]

    def state(self) -> object:
        """Return the state that both levels must have in common, after one turn."""
        world, connection = self.world, self.connection
        world.turn()
        heard = [reader.read() for reader in self.readers]
        return (
            answers(connection.data_to_send()),
            heard,
            (connection.stalled, connection.behind, connection.finished, connection.persists),
            world.fates(),
            world.copies(),
            len(world.vhost.retained),
            len(world.store.state.messages),
            [int(queue.depth) for queue in world.vhost.queues.values()],
        )

    def finish(self) -> object:
        """End the alarm, let the disk answer, and handle all input; return the state after it."""
        world, connection = self.world, self.connection
        world.slow_disk = False
        world.broker.alarms.set("memory", False)
        world.settle(connection)
        return self.state()


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_both_levels_do_the_same(steps: list[Step]) -> None:
    four, five = Side(4), Side(5)
    for step in steps:
        assert four.take(step) == five.take(step)
    assert four.finish() == five.finish()
    assert four.finish() == five.finish()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [4, 5])
def test_input_stops_behind_the_publication_that_meets_an_alarm(level: int, qos: int) -> None:
    side = Side(level)
    side.world.broker.alarms.set("memory", True)
    some = [Publication("durable", b"%d" % n, qos, n if qos else 0, False) for n in range(1, 6)]
    side.connection.receive_data(b"".join(one.encoded(level) for one in some))
    side.world.turn()
    assert side.connection.stalled
    assert side.world.queue("d").depth == 1
    side.finish()
    assert side.world.queue("d").depth == 5


@pytest.mark.parametrize("qos", [0, 1])
def test_both_levels_stop_at_the_same_publication_when_the_budget_is_used_up(qos: int) -> None:
    counts = []
    for level in (4, 5):
        side = Side(level)
        for number in range(60):
            here(side.world, f"wide {number}").send(subscribe(1, ("wide", qos)))
        one = Publication("wide", b"x", qos, 1 if qos else 0, False).encoded(level)
        side.connection.receive_data(one * 1_000)
        progress = []
        while side.connection.behind:
            progress.append(sum(side.world.fates().values()))
            side.connection.resume()
        counts.append(progress)
    assert counts[0] == counts[1]
    assert len(counts[0]) > 2
