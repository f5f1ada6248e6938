"""The steps of one turn of the event loop, for the largest work that one client can ask for.

A step is one call of a function of the broker or of a protocol, as the profiler counts it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pamqp.commands as spec
import pytest

from protocols.amqp.channel.commit import PARTS_PER_SLICE
from protocols.mqtt.connection.subscribing import READ_SLICE, SLICE
from tests.clients import Amqp, World, marshal, packet, publication, text
from tests.store.homes import Home
from tests.wire.mqtt.client import ACCEPTED, PINGREQ, PINGRESP, connect

CONNECT_5 = packet(0x10, text("MQTT") + b"\5\2\0\x3c\0" + text("c"))


def steps(work: Callable[[], object], part: str = "") -> int:
    """Do the work, and return its steps in files whose path contains `part`."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        name = frame.f_code.co_filename
        if event == "call" and part in name and ("/broker/" in name or "/protocols/" in name):
            count += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def turns(world: World, part: str = "") -> list[int]:
    """Run turns until the agenda is idle; return the steps of each turn."""
    counts = []
    while not world.broker.agenda.idle:
        counts.append(steps(world.broker.agenda.turn, part))
        assert len(counts) < 5_000, "no end"
    return counts


def begin(client: Amqp, *methods: Any) -> int:
    """Send methods in one chunk, and return the steps of their input alone."""
    data = b"".join(marshal(1, method) for method in methods)
    return steps(lambda: client.connection.receive_data(data))


# -- tx.commit


def test_the_turn_that_applies_a_commit_encodes_no_publication(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("d", durable=True)
    client.send(spec.Tx.Select())
    many = 3 * PARTS_PER_SLICE // 2
    for number in range(many):
        client.connection.receive_data(publication("", "d", b"%d" % number, delivery_mode=2))
        world.settle(client.connection)
    begin(client, spec.Tx.Commit())
    applying = 0
    while not world.queue("d").depth:
        applying = steps(world.broker.agenda.turn, "/store/records.py")
    # Of each record, only the figures for checkpoints are counted.
    assert world.queue("d").depth == many and applying < 3 * many + 100
    world.durable()
    world.crash()
    again = Home(tmp_path)
    reader = again.amqp()
    for number in range(3):
        assert reader.send(spec.Basic.Get(queue="d"))[2].value == b"%d" % number
    assert again.queue("d").depth == many - 3


# -- MQTT: topic filters


def filters(count: int) -> list[str]:
    return [f"f/{number}" for number in range(count)]


@pytest.mark.parametrize("level", [4, 5])
def test_a_packet_of_very_many_topic_filters_is_read_and_carried_out_in_slices(level: int) -> None:
    world = World()
    connection = world.raw_mqtt()
    connection.receive_data(connect("c", level=level) if level == 4 else CONNECT_5)
    world.answer(connection)
    properties = b"\0" if level == 5 else b""
    many = 2 * READ_SLICE + 100
    names = filters(many)
    chosen = b"".join(text(name) + b"\1" for name in [*names, "f/0"])
    listed = b"".join(text(name) for name in [*names, "none"])
    for first, body, codes in (
        (0x82, chosen, b"\1" * (many + 1)),
        (0xA2, listed, b"\0" * many + b"\x11"),
    ):
        data = packet(first, b"\0\7" + properties + body) + PINGREQ
        counts = [steps(lambda data=data: connection.receive_data(data))]  # type: ignore[misc]
        # Reading takes about ten steps a filter, a change of a subscription about fifty.
        assert connection.stalled and len(world.vhost.exchanges["amq.topic"].bindings) <= 1
        counts += turns(world)
        assert max(counts) < 100 * SLICE + 15 * READ_SLICE and len(counts) > many / SLICE
        world.durable()
        answer = world.answer(connection)
        reply = b"\0\7" + (properties + codes if first == 0x82 or level == 5 else b"")
        assert answer == packet(first + 0xE, reply) + PINGRESP
    assert not world.vhost.exchanges["amq.topic"].bindings


def test_a_malformed_end_of_a_long_subscribe_closes_the_client_and_changes_nothing() -> None:
    world = World()
    connection = world.raw_mqtt()
    connection.receive_data(connect("c", clean=False))
    world.answer(connection)
    good = b"".join(text(name) + b"\1" for name in filters(2 * READ_SLICE))
    connection.receive_data(packet(0x82, b"\0\7" + good + text("a/#/b") + b"\1"))
    assert not connection.finished
    turns(world)
    assert connection.finished and connection.data_to_send() == b""
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None and len(session.subscriptions) == 0


def test_a_few_very_long_topic_filters_are_read_in_several_turns_too() -> None:
    world = World()
    connection = world.raw_mqtt()
    connection.receive_data(connect("c"))
    world.answer(connection)
    names = [chr(97 + number) * 60_000 for number in range(12)]
    connection.receive_data(packet(0x82, b"\0\7" + b"".join(text(one) + b"\0" for one in names)))
    assert connection.stalled and not world.broker.agenda.idle
    turns(world)
    assert world.answer(connection) == packet(0x90, b"\0\7" + bytes(12))


@pytest.mark.parametrize("shared", [False, True])
def test_a_clean_start_ends_a_session_of_very_many_subscriptions_in_slices(shared: bool) -> None:
    world = World()
    client = world.raw_mqtt()
    client.receive_data(connect("c", clean=False))
    world.answer(client)
    many = 4_000
    names = [f"$share/{name}" if shared else name for name in filters(many)]
    client.receive_data(packet(0x82, b"\0\7" + b"".join(text(one) + b"\1" for one in names)))
    turns(world)
    world.durable()
    client.on_closed()
    world.settle()
    state = world.store.state
    assert len(state.definitions) >= many
    again = world.raw_mqtt()
    counts = [steps(lambda: again.receive_data(connect("c")))]
    while state.definitions or not world.broker.agenda.idle:
        counts.append(steps(world.broker.agenda.turn))
        counts.append(steps(world.store.sync))
        assert len(counts) < 1_000
    assert world.answer(again) == ACCEPTED and len(counts) > 6
    assert 4 * max(counts) < sum(counts)
    assert not world.vhost.exchanges["amq.topic"].bindings and not len(
        world.mqtt_front.sessions.groups
    )
