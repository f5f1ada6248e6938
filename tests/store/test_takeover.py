"""MQTT sessions after a node of a cluster has taken the log over from another node."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.replication.records import ClusterState
from broker.store.durable_batch import BatchShipping, DurableBatch
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session import restoring
from tests.clients import mqtt_publish
from tests.store.homes import Home
from tests.store.test_restart_wills import mortal, published_will
from tests.wire.mqtt.client import (
    RESUMED,
    Client,
    connect,
    here,
    publications,
    pubrec,
    subscribe,
)
from tests.wire.mqtt5.client import Client5

IN_FLIGHT = 5
GRACE_MS = 30_000


class AcknowledgingLog(BatchShipping):
    """A replicated log that acknowledges each batch."""

    def ship(self, batch: DurableBatch) -> bytes:
        return ClusterState("broker", epoch=2).encode()

    def written(self) -> None:
        """Do nothing when the batch is on this node's disk."""


def options(grace_ms: int = 0) -> MqttOptions:
    mqtt_options = MqttOptions()
    mqtt_options.receive_maximum = IN_FLIGHT
    mqtt_options.will_grace_ms = grace_ms
    return mqtt_options


def taken_over(world: Home, wall: float = 1_700_000_010.0) -> Home:
    """Crash the broker; start another on its directory, as the node that takes over."""
    world.turn()
    world.crash()
    return Home(world.directory, mqtt=options(GRACE_MS), wall=wall, shipping=AcknowledgingLog())


def reader(world: Home, more: bytes = b"") -> Client:
    return Client(world, connect("reader", clean=False) + more)


def publish(world: Home, bodies: range) -> None:
    writer = here(world, "writer")
    for number in bodies:
        writer.send(
            mqtt_publish("a", b"%d" % number, 2, number), b"\x62\x02" + number.to_bytes(2, "big")
        )


def identifiers(data: bytes) -> dict[int, int]:
    """Return message number -> packet identifier of the PUBLISH packets in these bytes."""
    return {int(one.body): one.packet_id for one in publications(data)}


@pytest.mark.parametrize("waiting", [0, 3, IN_FLIGHT, 12])
def test_new_messages_have_identifiers_that_the_former_owner_cannot_have_used(
    tmp_path: Path, waiting: int
) -> None:
    world = Home(tmp_path / "d", mqtt=options())
    client = reader(world, subscribe(1, ("a", 2)))
    publish(world, range(1, waiting + 1))
    before = identifiers(client.read())
    assert before == {number: number for number in range(1, min(waiting, IN_FLIGHT) + 1)}
    world = taken_over(world)
    client = reader(world)
    assert client.greeting.startswith(RESUMED)
    resent = identifiers(client.greeting)
    assert before.items() <= resent.items()
    publish(world, range(waiting + 1, waiting + 2))
    later = identifiers(settle_all(client))
    new = later.pop(waiting + 1)
    assert new > waiting + IN_FLIGHT
    assert all(later[number] == number for number in later)

    world.turn()
    world.crash()
    world = Home(tmp_path / "d", mqtt=options())
    packet_ids = identifiers(settle_all(reader(world)))
    assert packet_ids.get(waiting + 1, new) == new


def settle_all(client: Client) -> bytes:
    """Acknowledge messages by PUBREC and PUBCOMP until none waits, and return all publications."""
    output, data = b"", client.greeting[len(RESUMED) :] + client.read()
    while data:
        output += data
        answers = b"".join(
            pubrec(one.packet_id) + b"\x70\x02" + one.packet_id.to_bytes(2, "big")
            for one in publications(data)
        )
        data = b"" if not answers else client.send(answers)
    return output


@pytest.mark.long
def test_identifiers_behind_a_long_tail_are_those_of_the_store(tmp_path: Path) -> None:
    world = Home(tmp_path / "d", mqtt=options())
    reader(world, subscribe(1, ("a", 1))).vanish()
    count = restoring.SKIPPED_TAIL + IN_FLIGHT + 1
    writer = here(world, "writer")
    for number in range(1, count + 1):
        writer.send(mqtt_publish("a", b"%d" % number, 1, 1))
    world = taken_over(world)
    session = world.inbox("reader")
    assert session.next_sequence() == count + 1
    assert session.depth == count


def test_wills_wait_until_the_grace_is_over(tmp_path: Path) -> None:
    world = Home(tmp_path / "d")
    mortal(world, 0)
    world = taken_over(world)
    world.sleep(GRACE_MS - 1)
    assert published_will(world) == []
    world.sleep(1)
    assert published_will(world) == [b"gone"]


def test_will_of_a_client_that_connects_within_the_grace_is_not_published(tmp_path: Path) -> None:
    world = Home(tmp_path / "d")
    mortal(world, 0)
    world = taken_over(world)
    world.sleep(GRACE_MS - 1)
    back = Client5(world, "mortal", clean=False, session_expiry_interval=1_000)
    world.sleep(GRACE_MS)
    assert published_will(world) == []
    back.connection.on_closed()
    world.sleep(GRACE_MS)
    assert published_will(world) == []


def test_will_with_a_delay_waits_for_grace_and_delay(tmp_path: Path) -> None:
    world = Home(tmp_path / "d")
    mortal(world, 10)
    world = taken_over(world)
    world.sleep(GRACE_MS + 9_999)
    assert published_will(world) == []
    world.sleep(1)
    assert published_will(world) == [b"gone"]
