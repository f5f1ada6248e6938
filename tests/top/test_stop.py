"""Tests of a stop: the messages that clients get, and how long it takes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pamqp.commands as spec
import pytest

from protocols.amqp.connection.handshake import GREETING
from tests.broker import BrokerProcess
from tests.clients import marshal
from tests.top.conftest import Start
from tests.top.running import PATIENCE, Amqp0, Mqtt0, Socket, parsed
from trellis.server.shutdown import ANSWER_SECONDS, POLL_SECONDS

#: The broker under test runs in another process, so one event loop for the test is enough.
in_another_process: Final = pytest.mark.asyncio(loop_factories=["asyncio"])
CLOSE_OK: Final = marshal(0, spec.Connection.CloseOk())


@contextmanager
def broker(grace: float) -> Iterator[BrokerProcess]:
    process = BrokerProcess("--shutdown-grace", str(grace))
    yield process
    if process.process.poll() is None:
        process.stop()
    assert "Traceback" not in process.log
    assert [line for line in process.log.splitlines() if line.split()[1] == "error"] == []
    process.kill()


async def connect(process: BrokerProcess, listener: str) -> Socket:
    return await Socket.connect(process.addresses[listener].port)


async def amqp(process: BrokerProcess) -> Amqp0:
    client = Amqp0(await connect(process, "amqp"))
    await client.log_in("guest", "guest")
    return client


async def mqtt(process: BrokerProcess) -> Mqtt0:
    client = Mqtt0(await connect(process, "mqtt"))
    assert await client.connect("stopped") == 0
    return client


async def ended(process: BrokerProcess) -> int:
    """Wait until the process ends; return its exit code."""
    return await asyncio.to_thread(process.process.wait, PATIENCE)


@in_another_process
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_clients_are_told_and_the_broker_ends_when_the_last_has_gone(
    signum: signal.Signals,
) -> None:
    with broker(grace=PATIENCE) as process:
        one, other = await amqp(process), await mqtt(process)
        greeted, silent = await connect(process, "amqp"), await connect(process, "mqtt")
        await greeted.send(GREETING)
        assert await greeted.read()
        process.process.send_signal(signum)
        close = await one.expect(spec.Connection.Close)
        assert (close.reply_code, close.class_id, close.method_id) == (320, 0, 0)
        assert await other.socket.read_to_end() == b""
        await silent.read_to_end()
        await greeted.read()
        await greeted.send(CLOSE_OK)
        await greeted.read_to_end()

        ready = await connect(process, "metrics")  # Health checks get 503 while the broker stops.
        await ready.send(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert parsed(await ready.read_to_end())[0] == 503
        for listener in ("amqp", "mqtt"):
            with pytest.raises(ConnectionRefusedError):
                await connect(process, listener)
        await asyncio.sleep(5 * POLL_SECONDS)  # The broker must still be waiting for its clients.
        assert process.process.poll() is None

        await one.socket.send(CLOSE_OK)
        assert await one.socket.read_to_end() == b""
        assert await ended(process) == 0
        assert "stopped aborted=0" in process.log


@pytest.mark.alone
@in_another_process
async def test_clients_that_do_not_answer_are_not_waited_for_beyond_the_grace() -> None:
    with broker(grace=0.3) as process:
        deaf = [(await amqp(process)).socket, (await mqtt(process)).socket]
        half = await connect(process, "http")
        await half.send(b"GET /api/trellis/queues HTTP/1.1\r\n")
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
        # The exit of the Python process takes up to 1.5 s.
        assert time.monotonic() - began < 0.3 + 1.5
        assert "stopped aborted=2" in process.log
        for client in deaf:
            await client.read_to_end()
        half.close()


@pytest.mark.alone
@in_another_process
async def test_clients_that_ignore_the_close_are_named_and_not_waited_for() -> None:
    with broker(grace=PATIENCE) as process:
        deaf = [(await amqp(process)).socket, (await mqtt(process)).socket]
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
        # The exit of the Python process takes up to 1.5 s.
        assert time.monotonic() - began < ANSWER_SECONDS + 1.5
        [stop_line] = [line for line in process.log.splitlines() if " stop_waits " in line]
        assert (
            "connections=2" in stop_line and "clients=amqp" in stop_line and ":guest" in stop_line
        )
        # The MQTT client's link, which has sent its last bytes, may have ended after LINGER_MS.
        assert "stopped aborted=1" in process.log or "stopped aborted=2" in process.log
        for client in deaf:
            client.close()


@in_another_process
async def test_asked_a_second_time_the_broker_does_not_wait() -> None:
    with broker(grace=PATIENCE) as process:
        client = await amqp(process)
        process.process.send_signal(signal.SIGTERM)
        await client.expect(spec.Connection.Close)
        process.process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
        assert "stopped aborted=1" in process.log
        client.socket.close()


@in_another_process
async def test_a_signal_right_behind_the_ready_line_is_a_clean_stop() -> None:
    with broker(grace=1) as process:
        process.process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0


async def test_stop_publishes_the_wills_of_clean_sessions_only(
    start: Start,
) -> None:
    running = await start()
    observer = await running.amqp()
    await observer.queue("wills", "amq.topic", "wills.#")
    staying = [
        await running.mqtt(name, clean=clean, will=(f"wills/{name}", b"gone"), will_flags=0x28)
        for name, clean in (("clean", True), ("persistent", False))
    ]
    gone = await running.mqtt("gone", will=("wills/gone", b"gone"), will_flags=0x28)
    await gone.leave()
    await running.stop()
    vhost = running.node.broker.vhosts["/"]
    assert vhost.queues["wills"].depth == 1
    assert [
        vhost.retained.get(f"wills.{name}") is not None for name in ("clean", "persistent", "gone")
    ] == [True, False, False]
    assert running.node.mqtt.closed == {"client": 1, "shutdown": len(staying)}


async def test_a_connection_that_is_just_being_accepted_is_told_too(start: Start) -> None:
    running = await start()
    clients = [
        await running.socket("amqp") for _ in range(20)
    ]  # The kernel has accepted the connections; the broker may not have accepted them yet.
    running.app.stop()
    await running.stop()
    for client in clients:
        await client.read_to_end()
    assert running.node.turn.links == {}


async def test_a_client_that_has_said_goodbye_is_not_told(start: Start) -> None:
    running = await start()
    client = await running.amqp()
    await client.socket.send(marshal(0, spec.Connection.Close(200, "bye", 0, 0)))
    await client.expect(spec.Connection.CloseOk)
    await running.until(lambda: running.node.amqp.closed == {"client": 1})
    # The broker keeps its side of the connection open for a while after close-ok.
    assert running.node.turn.links
    await running.stop()
    assert await client.socket.read_to_end() == b""
    assert running.node.amqp.closed == {"client": 1}
