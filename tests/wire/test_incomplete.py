"""Incomplete messages while the memory alarm is on: clients are blocked, and closed in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pamqp.commands as spec
import pytest

from protocols.incomplete_message import INCOMPLETE_MAX, INCOMPLETE_PATIENCE
from tests.clients import World, mqtt_publish, publication

BODY = bytes(4 * INCOMPLETE_MAX)
PART = INCOMPLETE_MAX + 1_000


def amqp_message() -> bytes:
    return publication("amq.topic", "a", BODY)


def mqtt_message() -> bytes:
    return mqtt_publish("a", BODY)


Case = tuple[Callable[[World], Any], bytes]
CASES: list[Any] = [
    pytest.param((lambda world: world.amqp(), amqp_message()), id="amqp"),
    pytest.param((lambda world: world.mqtt("c"), mqtt_message()), id="mqtt"),
]


def started(case: Case, part: int = PART) -> tuple[World, Any, bytes]:
    """Raise the memory alarm, and let a client send the first `part` bytes of its message.

    Return the broker's world, the client, and the rest of the message.
    """
    world = World()
    client = case[0](world)
    world.broker.alarms.set("memory", True)
    client.connection.receive_data(case[1][:part])
    world.turn()
    return world, client, case[1][part:]


@pytest.mark.parametrize("case", CASES)
def test_an_alarm_blocks_a_client_within_a_large_message(case: Case) -> None:
    world, client, rest = started(case)
    connection = client.connection
    assert connection.stalled
    assert connection.memory_bytes() >= INCOMPLETE_MAX
    reader = world.mqtt("reader")
    reader.subscribe("a", 0)
    world.broker.alarms.set("memory", False)
    world.settle(connection)
    assert not connection.stalled
    for at in range(0, len(rest), 50_000):
        connection.receive_data(rest[at : at + 50_000])
        world.settle(connection)
    assert reader.read() == mqtt_publish("a", BODY)
    world.sleep(2 * INCOMPLETE_PATIENCE)
    assert not connection.finished


@pytest.mark.parametrize("case", CASES)
def test_an_alarm_that_begins_within_a_message_blocks_its_client_too(case: Case) -> None:
    world = World()
    client = case[0](world)
    client.connection.receive_data(case[1][:PART])
    assert not client.connection.stalled
    world.broker.alarms.set("memory", True)
    client.connection.receive_data(case[1][PART : 2 * PART])
    assert client.connection.stalled


@pytest.mark.parametrize("case", CASES)
def test_a_client_that_sends_nothing_more_after_the_start_of_an_alarm_is_closed(
    case: Case,
) -> None:
    world = World()
    client = case[0](world)
    client.connection.receive_data(case[1][:PART])
    world.broker.alarms.set("memory", True)
    world.settle(client.connection)
    assert client.connection.stalled
    world.sleep(int(INCOMPLETE_PATIENCE))
    assert client.connection.finished and client.connection.memory_bytes() == 0


def whole_frames(data: bytes, most: int) -> bytes:
    """Return as many of the AMQP frames at the beginning of `data` as fit into `most` bytes."""
    end = 0
    while (after := end + int.from_bytes(data[end + 3 : end + 7], "big") + 8) <= most:
        end = after
    return data[:end]


@pytest.mark.parametrize(
    ("connect", "part"),
    [
        pytest.param(lambda world: world.amqp(), amqp_message()[:PART], id="amqp within a frame"),
        pytest.param(
            lambda world: world.amqp(),
            whole_frames(amqp_message(), 3 * INCOMPLETE_MAX),
            id="amqp between frames",
        ),
        pytest.param(lambda world: world.mqtt("c"), mqtt_message()[:PART], id="mqtt"),
    ],
)
def test_a_client_that_was_stalled_within_a_message_when_the_alarm_began_is_closed(
    connect: Callable[[World], Any], part: bytes
) -> None:
    assert len(part) > INCOMPLETE_MAX
    world = World()
    client = connect(world)
    connection = client.connection
    connection.receive_data(part)
    connection.stall()  # The connection is stalled for another reason, such as a full queue.
    world.broker.alarms.set("memory", True)
    world.turn()
    connection.resume_input()
    world.settle(connection)
    assert connection.stalled
    world.sleep(int(INCOMPLETE_PATIENCE))
    assert connection.finished and connection.memory_bytes() == 0


def test_a_client_that_is_blocked_as_a_publisher_with_an_incomplete_message_is_closed() -> None:
    world = World()
    client = world.amqp()
    client.send(spec.Channel.Open(), channel=2)
    # The message without its last two frames.
    frame = 131_072
    last = len(BODY) - 2 * (frame - 8) + 8
    client.connection.receive_data(amqp_message()[: -frame - last])
    world.broker.alarms.set("memory", True)
    client.connection.receive_data(publication("amq.topic", "a", b"x", channel=2))
    assert client.connection.stalled
    world.sleep(int(INCOMPLETE_PATIENCE))
    assert client.connection.finished and client.connection.reason == "incomplete_message"


@pytest.mark.parametrize("case", CASES)
def test_a_short_part_of_a_message_blocks_no_client(case: Case) -> None:
    _, client, _ = started(case, 1_000)
    assert not client.connection.stalled


@pytest.mark.parametrize("case", CASES)
def test_a_client_that_keeps_a_message_incomplete_is_closed_and_its_memory_freed(
    case: Case,
) -> None:
    world, client, _ = started(case)
    connection = client.connection
    complete = world.mqtt("complete")
    complete.send(mqtt_publish("b", b"x"))
    assert complete.connection.stalled
    world.sleep(int(INCOMPLETE_PATIENCE) - 1)
    assert not connection.finished
    world.sleep(1)
    assert connection.finished
    assert connection.reason == "incomplete_message"
    connection.data_to_send()
    assert connection.memory_bytes() == 0
    assert list(world.broker.alarms.waiting) == [complete.connection]
    world.broker.alarms.set("memory", False)
    assert not complete.connection.stalled


@pytest.mark.parametrize("case", CASES)
def test_only_the_time_of_one_alarm_counts(case: Case) -> None:
    world, client, rest = started(case)
    world.sleep(int(INCOMPLETE_PATIENCE) // 2)
    world.broker.alarms.set("memory", False)
    world.settle(client.connection)
    world.broker.alarms.set("memory", True)
    client.connection.receive_data(rest[:100])
    world.settle(client.connection)
    assert client.connection.stalled
    world.sleep(int(INCOMPLETE_PATIENCE) // 2)
    assert not client.connection.finished
    world.sleep(int(INCOMPLETE_PATIENCE) // 2)
    assert client.connection.finished


@pytest.mark.parametrize("case", CASES)
def test_the_disk_alarm_alone_closes_no_client(case: Case) -> None:
    world, client, _ = started(case)
    world.broker.alarms.set("disk", True)
    world.broker.alarms.set("memory", False)
    world.sleep(2 * int(INCOMPLETE_PATIENCE))
    assert client.connection.stalled and not client.connection.finished
    world.broker.alarms.set("memory", True)
    world.sleep(int(INCOMPLETE_PATIENCE))
    assert client.connection.finished
