"""The four ways to end an MQTT connection (close, abort, reject, on_closed): the packet that each
one sends in each state, and the state afterwards."""

from __future__ import annotations

import pytest

from protocols.end_reasons import EXPELLED
from protocols.mqtt.codec.reasons import PROTOCOL_ERROR
from protocols.mqtt.connection.closing import (
    AUTHENTICATING,
    AWAITING_CONNECT,
    CLOSED,
    CLOSING,
    CONNECTED,
    OPENING,
)
from protocols.mqtt.connection.connection import MqttConnection
from tests.clients import World
from tests.wire.mqtt.client import Will, connect
from tests.wire.mqtt5.client import raw_connect

STATES = [AWAITING_CONNECT, AUTHENTICATING, OPENING, CONNECTED]
#: The will of every client: it is published if the session is released.
WILL = Will("gone", b"x")


def in_state(world: World, state: int, level: int) -> MqttConnection:
    """Return a connection in this state, whose output so far has been read."""
    connection = world.raw_mqtt()
    assert isinstance(connection, MqttConnection)
    world.guests.hold = state == AUTHENTICATING
    world.slow_disk = state == OPENING
    if state != AWAITING_CONNECT:
        connection.receive_data(
            connect("c", clean=False, will=WILL)
            if level == 4
            else raw_connect("c", 4, b"\x11\x00\x00\x00\x05", payload=b"\x00\x00\x04gone\x00\x01x")
        )
    world.turn()
    connection.data_to_send()
    assert connection.state == state
    return connection


def end(connection: MqttConnection, verb: str) -> bytes:
    """End the connection by the method `verb` (close, abort, reject or on_closed); return what the
    client receives."""
    if verb == "close":
        connection.close(EXPELLED, "why")
    elif verb == "abort":
        connection.abort("reads_nothing")
    elif verb == "reject":
        connection.reject(2, PROTOCOL_ERROR, "protocol_error", "why")
    else:
        connection.on_closed()
    return connection.data_to_send()


#: State -> method that ends the connection -> first byte of the packet that the client receives. At
#: level 4, the client receives no DISCONNECT (0xE0).
PACKETS = {
    AWAITING_CONNECT: {"close": b"", "abort": b"", "reject": b"\x20", "on_closed": b""},
    AUTHENTICATING: {"close": b"", "abort": b"", "reject": b"\x20", "on_closed": b""},
    OPENING: {"close": b"", "abort": b"", "reject": b"\x20", "on_closed": b""},
    CONNECTED: {"close": b"\xe0", "abort": b"", "reject": b"\xe0", "on_closed": b""},
}


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", ["close", "abort", "reject", "on_closed"])
def test_every_verb_in_every_state(state: int, verb: str, level: int) -> None:
    world = World()
    connection = in_state(world, state, level)
    expected = PACKETS[state][verb]
    if level == 4 and expected == b"\xe0":
        expected = b""  # At level 4, a broker cannot send DISCONNECT.
    assert end(connection, verb)[:1] == expected
    assert (connection.state, connection.finished) == (CLOSED, True)
    assert (connection.session, connection.context, connection.will) == (None, None, None)
    world.slow_disk = False
    world.guests.decide()
    world.settle()
    assert world.fates() == ({"unroutable": 1} if state in (OPENING, CONNECTED) else {})
    assert len(world.mqtt_front.connections) == 0


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", ["close", "abort", "reject", "on_closed"])
def test_a_closed_connection_sends_nothing_and_keeps_its_reason(state: int, verb: str) -> None:
    world = World()
    connection = in_state(world, state, 5)
    end(connection, "abort")
    assert end(connection, verb) == b""
    assert connection.reason == "reads_nothing"
    world.settle()
    assert world.mqtt_front.closed == {"reads_nothing": 1}


def test_every_state_has_its_row() -> None:
    assert set(CLOSING) == {*STATES, CLOSED}
