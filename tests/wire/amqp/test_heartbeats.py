"""Heartbeats: the broker sends them, and ends the connections of silent clients."""

from __future__ import annotations

import pamqp.commands as spec
import pytest

from tests.clients import World, marshal, unmarshal
from tests.wire.amqp.logins import OPENING
from tests.wire.amqp.speech import Raw, frame, names


def beating(seconds: int) -> Raw:
    raw = Raw(World())
    raw.say(b"".join(OPENING[:2]))
    assert names(raw.call(spec.Connection.TuneOk(0, 0, seconds), spec.Connection.Open())) == [
        "Connection.OpenOk"
    ]
    return raw


def test_we_beat_twice_an_interval() -> None:
    raw = beating(10)
    world, connection = raw.world, raw.connection
    for beat in range(1, 6):
        assert connection.deadline == 1_000 + beat * 5_000
        world.sleep(5_000)
        assert raw.say(frame(8, 0, b"")) == b""
        connection.advance(connection.deadline)
        assert raw.hear() == frame(8, 0, b"")


@pytest.mark.parametrize("life", [frame(8, 0, b""), marshal(1, spec.Channel.Open()), b"\x01"])
def test_any_bytes_are_a_sign_of_life_and_two_silent_intervals_are_the_end(life: bytes) -> None:
    raw = beating(10)
    for _ in range(4):
        raw.world.sleep(5_000)
        raw.connection.advance(raw.connection.deadline)
    raw.connection.receive_data(life)
    for _ in range(4):
        raw.world.sleep(5_000)
        raw.connection.advance(raw.connection.deadline)
        assert not raw.connection.finished
    raw.world.sleep(5_000)
    raw.connection.advance(raw.connection.deadline)
    assert raw.connection.finished and raw.connection.reason == "heartbeat_timeout"


def test_silence_is_not_held_against_a_client_that_we_do_not_hear() -> None:
    raw = beating(1)
    raw.world.slow_disk = True
    raw.call(spec.Channel.Open(), channel=1)
    assert (
        raw.call(spec.Queue.Declare(queue="q", durable=True), channel=1) == []
        and raw.connection.stalled
    )
    for _ in range(20):
        raw.world.sleep(500)
        raw.connection.advance(raw.connection.deadline)
    assert not raw.connection.finished
    raw.world.durable()
    assert names(unmarshal(raw.hear().replace(frame(8, 0, b""), b""))) == ["Queue.DeclareOk"]


def test_end_of_a_silent_client_requeues_its_deliveries() -> None:
    raw = beating(1)
    raw.call(
        spec.Channel.Open(),
        spec.Queue.Declare(queue="mine", exclusive=True),
        spec.Queue.Declare(queue="q"),
        channel=1,
    )
    other = raw.world.amqp()
    other.publish("", "q", b"x")
    raw.call(spec.Basic.Get(queue="q"), channel=1)
    for _ in range(5):
        raw.world.sleep(500)
        raw.connection.advance(raw.connection.deadline)
    assert raw.connection.finished and "mine" not in raw.world.vhost.queues
    assert (raw.world.queue("q").depth, raw.world.queue("q").unacked) == (1, 0)
