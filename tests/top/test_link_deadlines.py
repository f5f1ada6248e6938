"""Tests of the deadlines of links, compared with a model that examines all links in each check.

The tests set the clock of the event loop, so that a check comes when a test wants it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import pamqp.commands as spec
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from protocols.amqp.codec.frames import HEARTBEAT_FRAME
from protocols.amqp.connection.handshake import GREETING
from protocols.connection import Connection
from tests.clients import World, marshal, start_ok
from tests.top.clocks import StillLoop, in_still_loop, turns
from tests.top.running import settings
from tests.wire.mqtt.client import PINGREQ, connect
from trellis.auth.rates import PublishRates
from trellis.server.admission import Admission
from trellis.server.layered_link import LayeredLink
from trellis.server.link import Link
from trellis.server.listener_context import ListenerContext
from trellis.server.store_writer import StoreWriter
from trellis.server.turn import DEADLINE_INTERVAL, PAUSE_SECONDS, READ_TURNS, LoopTurn
from trellis.server.turn_link import TurnLink

#: Milliseconds between two checks.
CHECK_MS: Final = int(DEADLINE_INTERVAL * 1000)


class MemoryTransport(asyncio.Transport):
    """The transport of a client in the memory of the test."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.link: Link | None = None
        self.reads = True
        self.sent = b""

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, parts: Any) -> None:
        self.sent += b"".join(parts)

    def write_eof(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.link is not None:
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)
            self.link = None

    def is_closing(self) -> bool:
        return self.link is None

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Served:
    """A broker in the test's event loop, without sockets."""

    #: The class of the clients' transports.
    transport_kind: type[MemoryTransport] = MemoryTransport

    def __init__(self, loop: StillLoop, **given: Any) -> None:
        world = self.world = World()
        self.turn = LoopTurn(loop, world.broker, StoreWriter(world.store))
        chosen = settings(limits={"handshake": 3.0}, **given)
        world.mqtt_front.options.handshake_ms = 3_000
        world.amqp_front.options.handshake_ms = 3_000
        self._contexts = {
            name: ListenerContext(
                name,
                chosen.protocol_listeners[name],
                chosen,
                front,
                self.turn,
                Admission(1_000, 1_000),
                None,
                PublishRates(chosen.rates),
            )
            for name, front in (("mqtt", world.mqtt_front), ("amqp", world.amqp_front))
        }
        self.clients: list[MemoryTransport] = []
        #: The connections of the clients, None before a PROXY header.
        self.connections: list[Connection | None] = []

    def connect(self, listener: str, data: bytes, kind: type[Link] = Link) -> None:
        """Connect a client that sends these bytes first."""
        link, transport = kind(self._contexts[listener]), self.transport_kind()
        transport.link = link
        link.connection_made(transport)
        self.clients.append(transport)
        self.connections.append(link._connection)
        self.send(-1, data)

    def send(self, number: int, data: bytes) -> None:
        client = self.clients[number]
        if client.link is not None and client.reads and data:
            client.link.data_received(data)

    @property
    def closed(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return two dictionaries (MQTT, AMQP): reason -> number of connections closed for it."""
        return self.world.mqtt_front.closed, self.world.amqp_front.closed

    async def walk(self, loop: StillLoop) -> None:
        """Model `check_deadlines`: examine all links in each check."""
        turn = self.turn
        while True:
            due = loop.time() + DEADLINE_INTERVAL
            await asyncio.sleep(DEADLINE_INTERVAL)
            pause = loop.time() - due
            if pause > PAUSE_SECONDS:
                turn.update_clock()
                for link in list(turn.links):
                    link.excuse(int(pause * 1000) + 1)
                await turns(1 + READ_TURNS)
            turn.set_clocks()
            for link in list(turn.links):
                link.advance(turn.now())


def waiting(turn: LoopTurn) -> list[TurnLink]:
    """Return the links that wait for a check of their deadlines."""
    return [link for group in turn.deadlines._slots.values() for link in group]


def amqp_login(heartbeat: int) -> bytes:
    return (
        GREETING
        + start_ok("guest", "guest")
        + marshal(0, spec.Connection.TuneOk(2047, 131_072, heartbeat))
        + marshal(0, spec.Connection.Open("/"))
    )


#: One step of a random history: its kind, the number of a client, and a number of 0.1 s.
CLIENT_STEP: Final = st.tuples(
    st.sampled_from(
        ["mqtt", "amqp", "silent", "talk", "talk", "stall", "resume", "lost", "jump", "jump"]
    ),
    st.integers(0, 20),
    st.integers(1, 50),
)


def do_step(served: Served, step: tuple[str, int, int], at: int) -> None:
    """Do one step (see CLIENT_STEP), except `jump`, for the clients of one broker.

    `at` is the index of the step in the history, which names a new client.
    """
    kind, number, _ = step
    if kind == "mqtt":
        served.connect("mqtt", connect(f"c{at}", keep_alive=number % 4))
    elif kind == "amqp":
        served.connect("amqp", amqp_login(number % 3))
    elif kind == "silent":
        served.connect(("mqtt", "amqp")[number % 2], b"")
    elif served.clients:
        number %= len(served.clients)
        connection = cast(Connection, served.connections[number])
        talk = PINGREQ if connection.front is served.world.mqtt_front else HEARTBEAT_FRAME
        if not connection.admitted or connection.finished:
            talk = b""
        if kind == "talk":
            served.send(number, talk)
        elif kind == "stall" and talk:
            connection.stall()
            served.send(number, talk)
        elif kind == "resume" and connection.stalled:
            connection.resume_input()
        elif kind == "lost":
            served.clients[number].abort()


@examples(max_examples=30, deadline=None)
@given(st.lists(CLIENT_STEP, max_size=40))
def test_clients_are_disconnected_as_by_a_walk_over_all_links(
    steps: list[tuple[str, int, int]],
) -> None:
    async def compare(loop: StillLoop) -> None:
        real, model = Served(loop), Served(loop)
        checks = [
            loop.create_task(real.turn.check_deadlines()),
            loop.create_task(model.walk(loop)),
        ]
        await turns()
        for at, step in enumerate(steps):
            if step[0] == "jump":
                loop.now += step[2] / 10
            else:
                for served in (real, model):
                    do_step(served, step, at)
            await turns()
            assert real.closed == model.closed
            assert [one.sent for one in real.clients] == [one.sent for one in model.clients]
            assert set(waiting(real.turn)) <= set(real.turn.links)
        for check in checks:
            check.cancel()

    in_still_loop(compare)


async def wait_seconds(loop: StillLoop, seconds: float) -> None:
    """Let `seconds` pass, with one check every DEADLINE_INTERVAL seconds."""
    for _ in range(round(seconds / DEADLINE_INTERVAL)):
        loop.now += DEADLINE_INTERVAL
        await turns()


def test_a_keep_alive_and_an_expiry_before_the_end_of_the_login_time_are_enforced() -> None:
    async def steps(loop: StillLoop) -> None:
        served = Served(loop)
        check = loop.create_task(served.turn.check_deadlines())
        served.connect("mqtt", connect("short", keep_alive=1))
        served.connect("mqtt", connect("token", keep_alive=0))
        served.connect("mqtt", connect("endless", keep_alive=0))
        await turns()
        token = served.connections[1]
        assert token is not None and token.admitted
        token.set_expiry(token.agenda.now + 1_000)
        served.world.guests.identities.clear()  # The credentials are not renewed.
        await wait_seconds(loop, 1.0)
        assert served.closed[0] == {"expelled": 1}
        await wait_seconds(loop, 0.5)
        assert served.closed[0] == {"expelled": 1, "keep_alive_timeout": 1}
        await wait_seconds(loop, 10)
        assert sum(served.closed[0].values()) == 2
        assert waiting(served.turn) == []  # The deadline of the login has passed.
        assert len(served.turn.links) == 1
        check.cancel()

    in_still_loop(steps)


def test_a_client_that_was_not_read_may_be_silent_for_its_full_time_afterwards() -> None:
    async def steps(loop: StillLoop) -> None:
        served = Served(loop)
        check = loop.create_task(served.turn.check_deadlines())
        served.connect("mqtt", connect("c", keep_alive=4))
        await turns()
        (connection,) = served.connections
        assert connection is not None
        await wait_seconds(loop, 1)
        connection.stall()
        served.send(0, PINGREQ)
        assert not served.clients[0].reads
        await wait_seconds(loop, 4)
        connection.resume_input()
        await turns()
        assert served.clients[0].reads
        await wait_seconds(loop, 5.5)
        assert served.closed[0] == {}
        await wait_seconds(loop, 0.5)
        assert served.closed[0] == {"keep_alive_timeout": 1}
        check.cancel()

    in_still_loop(steps)


def test_a_proxy_header_that_does_not_come_ends_the_link() -> None:
    async def steps(loop: StillLoop) -> None:
        served = Served(loop, mqtt={"proxies": "127.0.0.1"})
        check = loop.create_task(served.turn.check_deadlines())
        served.connect("mqtt", b"PROXY TCP4 ", LayeredLink)
        served.connect("mqtt", b"PROXY TCP4 192.0.2.7 192.0.2.9 7 9\r\n", LayeredLink)
        await wait_seconds(loop, 2.5)
        assert len(served.turn.links) == len(waiting(served.turn)) == 2
        await wait_seconds(loop, 0.5)
        assert served.closed[0] == {"handshake_timeout": 1}
        await wait_seconds(loop, 0.5)
        assert not served.turn.links and not waiting(served.turn)
        check.cancel()

    in_still_loop(steps)
