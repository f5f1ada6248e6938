"""Tests of links, the server's side of client connections: closing, backpressure, buffers."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from typing import Final

import pamqp.commands as spec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import trellis
from broker.agenda import Task
from broker.messages.outlet import TURN_BYTES
from protocols.amqp.codec.frames import HEARTBEAT_FRAME
from protocols.amqp.connection.connection import AmqpConnection
from protocols.amqp.connection.handshake import GREETING
from protocols.login_input import LOGIN_INPUT_MAX
from tests.clients import connect_packet, marshal, publication, start_ok, unmarshal
from tests.top.conftest import Start
from tests.top.running import Amqp0, Running, Socket
from trellis.process import resident_bytes
from trellis.server.link import LINGER_MS, Link
from trellis.server.listener_context import AMQP_BACKPRESSURE_BYTES, peer_of
from trellis.server.turn_link import TurnLink

MIB: Final = 1 << 20


# -- the last answer before a close


async def talk_on(client: Socket, data: bytes) -> bytes:
    """Send the data and 8 MiB more before reading; return the broker's whole output."""
    await client.send(data + bytes(8 * MIB))
    client.shut_down()
    return await client.read_to_end()


async def test_an_amqp_client_that_talks_on_after_a_bad_frame_reads_connection_close(
    running: Running,
) -> None:
    client = await running.amqp()
    (close,) = unmarshal(await talk_on(client.socket, b"\x08\x00\x00\x00\x00\x00\x00\x00"))
    assert close.reply_code == 501


async def test_an_mqtt_client_that_talks_on_after_it_was_refused_reads_why(
    running: Running,
) -> None:
    refused = connect_packet("", clean=False)
    assert await talk_on(await running.socket("mqtt"), refused) == b"\x20\x02\x00\x02"


async def test_a_client_whose_greeting_is_wrong_and_long_reads_the_right_one(
    running: Running,
) -> None:
    assert await talk_on(await running.socket("amqp"), b"HELO") == GREETING


async def test_a_client_that_sends_garbage_reads_the_answer(running: Running) -> None:
    request = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {8 * MIB}\r\n\r\n".encode()
    assert (await talk_on(await running.socket("metrics"), request)).startswith(b"HTTP/1.1 405 ")


async def test_the_broker_hangs_up_after_disconnect_though_there_is_nothing_to_say(
    running: Running,
) -> None:
    client = await running.mqtt("leaver")
    await client.socket.send(b"\xe0\x00")
    assert await client.socket.read() == b""
    client.socket.close()
    await running.until(lambda: not running.node.turn.links)


async def test_a_client_that_does_not_hang_up_is_cut_off(running: Running) -> None:
    client = await running.socket("mqtt")
    await client.send(b"\x00\x00")
    assert await client.read() == b""
    (link,) = running.links
    link.advance(running.node.turn.now() + LINGER_MS - 1)
    await asyncio.sleep(0)
    assert running.node.turn.links
    link.advance(running.node.turn.now() + LINGER_MS)
    await running.until(lambda: not running.node.turn.links)
    client.close()


# -- input that waits


async def test_the_clock_is_told_before_input_is_heard(running: Running) -> None:
    client = await running.amqp()
    (connection,) = running.node.amqp.connections
    first_input_at = int(connection.last_input_at)
    # No input comes in the meantime, so no turn of the event loop updates the broker's clock.
    await asyncio.sleep(0.1)
    await client.socket.send(HEARTBEAT_FRAME)
    await running.until(lambda: connection.last_input_at > first_input_at)
    # A timer may end a millisecond early, and both clocks are rounded to milliseconds.
    assert connection.last_input_at >= first_input_at + 98


async def test_leftover_input_of_a_greedy_publisher_has_one_place_in_a_turn(
    running: Running,
) -> None:
    client, turn = await running.amqp(), running.node.turn
    for number in range(300):
        await client.queue(f"q{number}", "amq.fanout", auto_delete=True)
    await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    (link,) = turn.links
    await client.socket.send(publication("amq.fanout", "", b"x") * 1_000)
    places, confirmed = set(), 0
    while confirmed < 1_000:
        places.add(turn._leftover.count(link))
        if running.node.amqp.tally.confirmed > confirmed:
            confirmed = int(running.node.amqp.tally.confirmed)
        await asyncio.sleep(0)
    assert places == {0, 1}


#: A user whose password takes a few hundred milliseconds to verify.
SLOW: Final = {
    "name": "slow",
    "password_hash": "$argon2id$v=19$m=32768,t=12,p=1"
    "$QwjEp42L0dCSMSBeYXYzDg$b+0AYgXnRyT8R6fFOTLQS1og2SfvRP8A+kihAgEwSNQ",
}


async def greeted(start: Start) -> tuple[Running, Socket, Link]:
    """Return a broker, an AMQP client's socket, and the broker's link to this client.

    The client has received connection.start, and has not logged in.
    """
    running = await start(users=[SLOW])
    client = await running.socket("amqp")
    await client.send(GREETING)
    assert await client.read()
    (link,) = running.links
    return running, client, link


@pytest.mark.parametrize("size", [2 * LOGIN_INPUT_MAX, 4 * LOGIN_INPUT_MAX])
async def test_a_client_that_says_more_than_64_kib_before_its_verdict_is_cut_off(
    start: Start, size: int
) -> None:
    running, client, link = await greeted(start)
    # The data is passed as one chunk, because the kernel might divide data from a socket.
    link.data_received(start_ok("slow", "slow").ljust(size, b"\0"))
    assert await client.read_to_end() == b""
    assert running.node.amqp.closed == {"too_much_before_login": 1}


async def test_a_connection_that_waits_for_its_verdict_is_not_read(start: Start) -> None:
    running, client, _ = await greeted(start)
    (connection,) = running.node.amqp.connections
    await client.send(start_ok("slow", "slow"))
    await running.until(lambda: connection.stalled)
    sending = asyncio.create_task(client.send(bytes(8 * MIB)))
    for _ in range(50):
        assert connection.bytes_in <= LOGIN_INPUT_MAX
        await asyncio.sleep(0.001)
    assert connection.stalled
    assert not sending.done()
    sending.cancel()
    await asyncio.wait([sending])
    client.close()


async def test_input_behind_the_credentials_is_handled_after_the_verdict(start: Start) -> None:
    _, client, _ = await greeted(start)
    await client.send(
        start_ok("slow", "slow")
        + marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
        + marshal(0, spec.Connection.Open())
    )
    data = b""
    while not data.endswith(marshal(0, spec.Connection.OpenOk())):
        data += await client.exactly(1)
    client.close()


# -- output that waits


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_slow_reader_with_a_long_backlog_costs_a_buffer_and_others_are_served(
    running: Running,
) -> None:
    backlog, body = 200_000, bytes(200)
    publisher, queue = await running.amqp(), "backlog"
    await publisher.queue(queue)
    chunk = publication("", queue, body) * 1_000
    for _ in range(backlog // 1_000):
        await publisher.socket.send(chunk)
    await publisher.queue(queue)
    assert running.node.broker.vhosts["/"].queues[queue].depth == backlog

    reader = await running.amqp()
    before = resident_bytes()
    await reader.socket.send(
        marshal(1, spec.Basic.Consume(queue=queue, no_ack=True, consumer_tag="r"))
    )
    (link,) = [
        link
        for link in running.links
        if link._connection is not None and link._connection.peer.port == port(reader)
    ]
    transport = link._transport
    assert transport is not None
    await running.until(lambda: transport.get_write_buffer_size() >= AMQP_BACKPRESSURE_BYTES)
    for number in range(20):
        await publisher.queue(f"other-{number}")
        assert transport.get_write_buffer_size() < AMQP_BACKPRESSURE_BYTES + 2 * TURN_BYTES
    assert resident_bytes() - before < 16 * MIB  # The backlog is 50 MiB on the wire.

    delivery = len(marshal(1, spec.Basic.Deliver("r", 1, False, "", queue))) + len(chunk) // 1_000
    delivery -= len(marshal(1, spec.Basic.Publish(0, "", queue)))
    assert isinstance(await reader.frame(), spec.Basic.ConsumeOk)
    left = backlog * delivery
    while left:
        left -= len(await reader.socket.read(min(left, MIB)))
    assert running.node.broker.vhosts["/"].queues[queue].depth == 0


async def test_a_client_that_asks_and_asks_and_reads_no_answer_is_cut_off(start: Start) -> None:
    running = await start(limits={"message": 1 << 18})
    client = await running.amqp()
    await client.queue("large")
    for _ in range(64):
        await client.socket.send(publication("", "large", bytes(1 << 18)))
    await client.queue("large")
    await client.socket.send(marshal(1, spec.Basic.Get(queue="large", no_ack=True)) * 64)
    await running.until(lambda: running.node.amqp.closed == {"reads_nothing": 1})
    await running.until(lambda: not running.node.turn.links)
    client.socket.close()


def port(client: Amqp0) -> int:
    number: int = client.socket._sock.getsockname()[1]
    return number


# -- accepting


async def test_out_of_descriptors_accepting_pauses_and_goes_on(running: Running) -> None:
    clients = [socket.socket() for _ in range(8)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(client.fileno() for client in clients) + 3, hard)
    )
    try:
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", running.port("mqtt")))
        await running.until(lambda: running.node.admission.refused["descriptors"] > 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await running.until(lambda: running.node.mqtt.opened == len(clients))
    for client in clients:
        client.close()
    page = await running.scrape()
    assert page.value("trellis_connections_refused_total", reason="descriptors") >= 1


# -- the clients that are connected


@pytest.mark.parametrize(
    ("name", "address", "local"),
    [
        (("127.0.0.1", 5), "127.0.0.1", True),
        (("127.8.8.8", 5), "127.8.8.8", True),
        (("::1", 5, 0, 0), "::1", True),
        (("::ffff:127.0.0.1", 5, 0, 0), "127.0.0.1", True),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1", False),
        (("fe80::1%eth0", 5, 0, 2), "fe80::1", False),
        (("10.0.0.1", 5), "10.0.0.1", False),
        (None, "unknown", False),
        ("", "unknown", False),
        (("nonsense", 5), "nonsense", False),
    ],
)
def test_a_peer_is_local_when_its_address_is_a_loopback_one(
    name: object, address: str, local: bool
) -> None:
    peer = peer_of(name)
    assert (peer.address, peer.local) == (address, local)


@given(
    st.one_of(
        st.ip_addresses().map(str),
        st.lists(st.integers(0, 300).map(str) | st.text("0123456789", max_size=4)).map(".".join),
    )
)
@example("127.0.0.256")
@example("127.0.0.01")
@example("127.0.0.1\n")
def test_the_address_of_a_peer_is_as_ipaddress_reads_it(host: str) -> None:
    peer = peer_of((host, 5))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        assert (peer.address, peer.local) == (host, False)
        return
    address = getattr(address, "ipv4_mapped", None) or address
    assert (peer.address, peer.local) == (str(address), address.is_loopback)


@pytest.mark.skipif(trellis.compiled(), reason="compiled modules keep constants")
async def test_leftover_input_of_a_turn_is_handled_in_order_in_later_turns(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every chunk and every close waits for the next turn.
    monkeypatch.setattr("trellis.server.turn.INPUT_SECONDS", -1.0)
    clients = [await running.amqp() for _ in range(3)]
    for number, client in enumerate(clients):
        await client.queue(f"q{number}")
        for body in range(100):
            await client.socket.send(publication("", f"q{number}", b"%d" % body))
        await client.call(spec.Basic.Qos(), spec.Basic.QosOk)
    vhost = running.node.broker.vhosts["/"]
    for number in range(3):
        queue = vhost.queues[f"q{number}"]
        assert [
            message.content.endswith(b"%d\xce" % body)
            for body, message in enumerate(queue._waiting.memory.items())
        ] == [True] * 100
    for client in clients:
        client.socket.close()
    await running.until(lambda: not running.node.amqp.connections)
    assert not running.node.turn.links


# -- unexpected exceptions


@pytest.mark.parametrize("method", ["resume", "receive_data"])
async def test_an_exception_in_the_work_of_one_client_closes_only_its_connection(
    running: Running, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    failing, other = await running.amqp(), await running.amqp()
    for number in range(300):
        await other.queue(f"q{number}", "amq.fanout", auto_delete=True)
    (connection,) = (
        one for one in running.node.amqp.connections if one.bytes_in < 1_000 and one.admitted
    )
    real = getattr(AmqpConnection, method)
    error = RuntimeError("the work fails")

    def fail(self: AmqpConnection, *arguments: bytes) -> None:
        if self is connection and not reported:
            raise error
        real(self, *arguments)

    monkeypatch.setattr(AmqpConnection, method, fail)
    # A thousand publications to 300 queues are the work of several turns, so they need `resume`.
    await failing.socket.send(publication("amq.fanout", "", b"x") * 1_000)
    close = await failing.expect(spec.Connection.Close)
    assert close.reply_code == 541 and reported == [error]
    await other.queue("after", "amq.fanout", auto_delete=True)
    await failing.socket.send(marshal(0, spec.Connection.CloseOk()))
    await running.until(lambda: len(running.node.turn.links) == 1)
    assert running.node.amqp.closed == {"internal_error": 1}
    loop.set_exception_handler(handler)


async def test_the_output_of_other_clients_is_sent_in_a_turn_in_which_a_task_fails(
    running: Running,
) -> None:
    class FailingTask(Task):
        def run(self) -> None:
            raise error

    reported: list[object] = []
    error = RuntimeError("the task fails")
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    client = await running.amqp()
    await client.socket.send(marshal(1, spec.Queue.Declare(queue="q")))
    running.node.broker.agenda.add(FailingTask())
    await client.expect(spec.Queue.DeclareOk)
    assert reported == [error]
    loop.set_exception_handler(handler)


async def test_the_output_of_other_clients_is_sent_in_a_turn_in_which_a_send_fails(
    running: Running,
) -> None:
    class FailingLink(TurnLink):
        aborted = False
        label = "the failing client"

        def flush(self) -> None:
            raise error

        def abort(self) -> None:
            self.aborted = True

    reported: list[object] = []
    error = RuntimeError("sending fails")
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    client, failing = await running.amqp(), FailingLink()
    await client.socket.send(marshal(1, spec.Queue.Declare(queue="q")))
    running.node.turn.add_dirty(failing)
    await client.expect(spec.Queue.DeclareOk)
    assert reported == [error] and failing.aborted
    loop.set_exception_handler(handler)
