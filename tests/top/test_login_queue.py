"""Tests of the login queue: input of clients that have not logged in, and when their links read."""

from __future__ import annotations

from typing import Final, cast

import pytest

import trellis
from protocols.mqtt.codec.packets import connack
from tests.clients import connect_packet
from tests.top.clocks import StillLoop, in_still_loop, turns
from tests.top.test_link_deadlines import MemoryTransport, Served

CONNACK: Final = connack(False, 0)
PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"


class CountingTransport(MemoryTransport):
    """The transport of a client, which counts how often the link has stopped reading."""

    pauses = 0

    def pause_reading(self) -> None:
        super().pause_reading()
        self.pauses += 1


class Clients(Served):
    """A broker in the test's event loop, and MQTT clients that connect."""

    transport_kind = CountingTransport

    def answers(self) -> list[bytes]:
        return [client.sent for client in self.clients]

    def reading(self) -> list[bool]:
        return [client.reads for client in self.clients]


def test_a_link_whose_connect_is_handled_in_its_own_turn_goes_on_reading() -> None:
    async def steps(loop: StillLoop) -> None:
        served = Clients(loop)
        for number in range(3):
            served.connect("mqtt", connect_packet(f"c{number}"))
        await turns()
        assert served.answers() == [CONNACK] * 3
        assert [cast(CountingTransport, one).pauses for one in served.clients] == [0] * 3

    in_still_loop(steps)


@pytest.mark.skipif(trellis.compiled(), reason="compiled modules keep constants")
def test_links_whose_input_waits_for_a_later_turn_read_nothing_until_it_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A turn has time for the input of one client.
    monkeypatch.setattr("trellis.server.turn.LOGIN_SECONDS", -1.0)

    async def steps(loop: StillLoop) -> None:
        served = Clients(loop)
        for number in range(3):
            served.connect("mqtt", connect_packet(f"c{number}"))
        served.send(2, PINGREQ)  # The second chunk before the first one is handled.
        assert served.reading() == [True, True, False]
        served.turn.run()
        assert served.answers() == [CONNACK, b"", b""]
        assert served.reading() == [True, False, False]
        served.connect("mqtt", connect_packet("late"))
        assert served.reading() == [True, False, False, True]
        served.turn.run()
        assert served.answers() == [CONNACK, CONNACK, b"", b""]
        assert served.reading() == [True, True, False, False]
        await turns()
        assert served.answers() == [CONNACK, CONNACK, CONNACK + PINGRESP, CONNACK]
        assert served.reading() == [True] * 4

    in_still_loop(steps)
