"""Tests of pauses of the broker: the process is stopped, or a turn of the event loop is long.

The broker must not mistake its own pause for silence of its clients: they must stay connected.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

import pytest

from protocols.amqp.codec.frames import HEARTBEAT_FRAME
from tests.broker import BrokerProcess
from tests.clients import World
from tests.top.clocks import in_jumping_loop, jump
from tests.top.running import Amqp0, Running, Socket
from tests.wire.mqtt.client import ACCEPTED, PINGREQ, PINGRESP, Client, connect

KEEP_ALIVE: Final = 10
#: Turns of the event loop after which a check of all deadlines has ended.
#: Seconds of the pause of a real process: longer than the limits of its clients.
STOPPED_SECONDS: Final = 6


async def mqtt(port: int, name: str, keep_alive: int, user: str) -> Socket:
    """Connect an MQTT client with this keep-alive, and return it."""
    client = await Socket.connect(port)
    await client.send(connect(name, keep_alive=keep_alive, user=user, password=user.encode()))
    assert await client.exactly(4) == ACCEPTED
    return client


async def amqp(port: int, heartbeat: int, user: str) -> Amqp0:
    """Connect an AMQP client with this heartbeat, open a channel, and return the client."""
    client = Amqp0(await Socket.connect(port))
    await client.log_in(user, user, heartbeat)
    return client


def test_a_long_pause_disconnects_no_client_and_silence_after_it_does() -> None:
    async def steps(running: Running) -> None:
        one = await mqtt(running.port("mqtt"), "m", KEEP_ALIVE, "known")
        other = await amqp(running.port("amqp"), KEEP_ALIVE, "known")
        silent = await running.socket("mqtt")
        await running.until(lambda: len(running.links) == 3)
        node = running.node
        await jump(100)
        assert node.mqtt.closed == {} and node.amqp.closed == {}
        assert (await other.frame()).name == "Heartbeat"
        # After the pause, each client may be silent for KEEP_ALIVE seconds, but not for four times
        # as long.
        for _ in range(KEEP_ALIVE):
            await jump(0)
        assert node.mqtt.closed == {} and node.amqp.closed == {}
        for _ in range(3 * KEEP_ALIVE):
            await jump(0)
        assert node.mqtt.closed == {"keep_alive_timeout": 1, "handshake_timeout": 1}
        assert node.amqp.closed == {"heartbeat_timeout": 1}
        for client in (one, other.socket, silent):
            client.close()

    in_jumping_loop(steps, limits={"handshake": 30.0})


def test_a_broker_that_pauses_again_and_again_still_disconnects_a_silent_client() -> None:
    async def steps(running: Running) -> None:
        client = await mqtt(running.port("mqtt"), "m", KEEP_ALIVE, "known")
        for _ in range(4 * KEEP_ALIVE):
            await jump(5)
        assert running.node.mqtt.closed == {"keep_alive_timeout": 1}
        client.close()

    in_jumping_loop(steps, limits={"handshake": 30.0})


def test_the_clocks_of_a_connection_are_set_back_and_not_into_the_future() -> None:
    world = World()
    client = Client(world, connect(keep_alive=KEEP_ALIVE))
    connection = client.connection
    deadline, heard_at = int(connection.deadline), int(connection.last_input_at)
    world.sleep(100_000)
    connection.excuse(90_000)
    assert (connection.deadline, connection.last_input_at) == (deadline + 90_000, heard_at + 90_000)
    connection.excuse(90_000)
    assert connection.last_input_at == world.broker.agenda.now
    assert client.send(PINGREQ) == PINGRESP
    endless = Client(world, connect("other", keep_alive=0)).connection
    endless.excuse(1_000)
    assert endless.deadline == 0


async def talk_through_a_pause(process: BrokerProcess) -> None:
    """Stop the broker for longer than its clients may be silent; check that they stay connected.

    The clients continue to send. They must send every 1.5 s, so no other test may run beside this
    one.
    """
    clients = [await mqtt(process.mqtt.port, f"c{n}", 1, "guest") for n in range(400)]
    talkers = [(client, PINGREQ, PINGRESP) for client in clients]
    for _ in range(100):
        client = (await amqp(process.amqp.port, 1, "guest")).socket
        talkers.append((client, HEARTBEAT_FRAME, HEARTBEAT_FRAME))

    async def talk(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for client, request, _ in talkers:
                await client.send(request)
            await asyncio.sleep(0.2)

    await talk(1)
    process.process.send_signal(signal.SIGSTOP)
    await talk(STOPPED_SECONDS)
    process.process.send_signal(signal.SIGCONT)
    await talk(3)
    for client, _, answer in talkers:
        assert set(await client.read()) <= set(answer), "the broker ended the connection"
        await client.send(PINGREQ if answer == PINGRESP else HEARTBEAT_FRAME)
        client.close()


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_clients_that_talk_to_a_stopped_process_stay_connected() -> None:
    process = BrokerProcess()
    try:
        await talk_through_a_pause(process)
        process.stop()
    finally:
        process.kill()
