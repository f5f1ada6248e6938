"""Tests of a node of a cluster whose lease (the time in which it may act as active node) is over.

The node reads, delivers, expires and answers nothing until the lease is renewed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Final

import pytest

from broker.store.disk import StoreError
from tests.clients import publication
from tests.top.clocks import in_jumping_loop, jump
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running
from tests.top.test_pauses import KEEP_ALIVE, mqtt
from tests.wire.mqtt.client import PINGREQ, PINGRESP
from trellis.server.fence import ConnectionFence

KNOWN_USER: Final = f"Authorization: Basic {base64.b64encode(b'known:known').decode()}\r\n"


class Lease:
    """A lease of the active node that the test ends and renews.

    `checks` counts how often the broker checked the lease.
    """

    def __init__(self, running: Running) -> None:
        self.holds = True
        self.checks = 0
        self._running = running
        running.node.turn.may_act = self.may_act

    def may_act(self) -> bool:
        self.checks += 1
        return self.holds

    async def turns(self, count: int = 5) -> None:
        """Wait until the broker's loop has checked the lease `count` times."""
        wanted = self.checks + count
        await self._running.until(lambda: self.checks >= wanted)


async def test_input_is_answered_when_the_lease_is_back(running: Running) -> None:
    client, lease = await running.mqtt("c"), Lease(running)
    lease.holds = False
    await client.socket.send(PINGREQ)
    await lease.turns()
    answer = asyncio.ensure_future(client.socket.exactly(len(PINGRESP)))
    await lease.turns()
    assert not answer.done() and running.node.turn.frozen
    assert (await running.get("metrics", "/readyz"))[0] == 503
    assert (await running.get("metrics", "/healthz"))[0] == 200
    lease.holds = True
    assert await answer == PINGRESP
    assert (await running.get("metrics", "/readyz"))[0] == 200


async def test_the_http_api_answers_only_with_a_lease(start: Start) -> None:
    running = await start(users=[KNOWN | {"tags": ["administrator"]}])
    lease = Lease(running)
    assert (await running.get("http", "/api/overview", KNOWN_USER))[0] == 200
    lease.holds = False
    status, body = await running.get("http", "/api/queues", KNOWN_USER)
    assert status == 503 and b"does not answer" in body


async def test_the_http_api_sends_no_answer_after_the_end_of_the_lease(start: Start) -> None:
    running = await start(users=[KNOWN | {"tags": ["administrator"]}])
    client = await running.amqp()
    await client.queue("q")
    body = json.dumps(
        {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    )
    request = (
        f"POST /api/exchanges/%2F/amq.default/publish HTTP/1.1\r\nHost: here\r\n{KNOWN_USER}"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    queue = running.node.broker.vhosts["/"].queues["q"]
    # The lease lasts when the call begins, and ends when the message is in the queue.
    running.node.turn.may_act = lambda: queue.depth == 0
    status, _, answer = await running.ask("http", request)
    assert queue.depth == 1
    assert status == 503 and b"does not answer" in answer
    running.node.turn.may_act = None
    assert (await running.ask("http", request))[0] == 200


async def test_a_frozen_broker_reads_nothing_more(running: Running) -> None:
    client, lease = await running.mqtt("c"), Lease(running)
    lease.holds = False
    running.node.turn.schedule()
    await lease.turns(2)
    await client.socket.send(PINGREQ * 3)
    await lease.turns()
    [link] = running.links
    assert link._unread_input == PINGREQ * 3
    lease.holds = True
    assert await client.socket.exactly(3 * len(PINGRESP)) == PINGRESP * 3


async def test_the_lease_is_tested_before_each_flush(running: Running) -> None:
    clients = [await running.mqtt(f"c{n}") for n in range(6)]
    turn, left = running.node.turn, 3

    def may_act() -> bool:
        nonlocal left
        left -= 1
        return left >= 0 or left < -20

    for link in running.links:
        connection = link._connection
        assert connection is not None
        connection.receive_data(PINGREQ)
    turn.may_act = may_act
    turn.run()
    # The turn asks may_act() once before the agenda, and then before each flush: two flushes are
    # permitted.
    assert len(turn._dirty) == 4 and turn.frozen
    for client in clients:
        assert await client.socket.exactly(len(PINGRESP)) == PINGRESP


async def test_messages_expire_only_with_a_lease(running: Running) -> None:
    client, lease = await running.amqp(), Lease(running)
    await client.queue("dead")
    await client.queue(
        "q",
        arguments={
            "x-message-ttl": 100,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )
    queues = running.node.broker.vhosts["/"].queues
    await client.socket.send(publication("", "q", b"body"))
    await running.until(lambda: queues["q"].depth == 1)
    lease.holds = False
    await lease.turns(20)
    assert (queues["q"].depth, queues["dead"].depth) == (1, 0)
    lease.holds = True
    await running.until(lambda: queues["dead"].depth == 1)


def test_deadlines_are_excused_for_the_time_without_a_lease() -> None:
    async def steps(running: Running) -> None:
        client = await mqtt(running.port("mqtt"), "m", KEEP_ALIVE, "known")
        running.node.turn.may_act = lambda: False
        for _ in range(5):
            await jump(KEEP_ALIVE)
        running.node.turn.may_act = None
        await jump(0)
        await client.send(PINGREQ)
        assert await client.exactly(len(PINGRESP)) == PINGRESP
        assert running.node.mqtt.closed == {}
        client.close()

    in_jumping_loop(steps, limits={"handshake": 30.0})


async def test_a_fence_aborts_all_connections_from_a_thread(running: Running) -> None:
    client = await running.mqtt("c")
    ends: list[str] = []
    loop = asyncio.get_running_loop()
    fence = ConnectionFence(loop, running.node.turn, ends.append, running.node.abort_http)
    await asyncio.to_thread(fence.abort)
    assert await client.socket.read() == b""
    assert ends == []
    await asyncio.to_thread(fence.abort)  # There are no connections to abort any more.


async def test_a_fence_aborts_the_clients_of_the_http_api(start: Start) -> None:
    running = await start(users=[KNOWN | {"tags": ["administrator"]}])
    client = await running.socket("http")
    await client.send(f"GET /api/overview HTTP/1.1\r\nHost: here\r\n{KNOWN_USER}\r\n".encode())
    head = await client.exactly(len(b"HTTP/1.1 200"))
    assert head == b"HTTP/1.1 200"
    ends: list[str] = []
    loop = asyncio.get_running_loop()
    fence = ConnectionFence(loop, running.node.turn, ends.append, running.node.abort_http)
    await asyncio.to_thread(fence.abort)
    await client.read_to_end()
    assert (await running.get("http", "/api/overview", KNOWN_USER))[0] == 200


async def test_a_fence_ends_a_process_whose_event_loop_does_not_answer(running: Running) -> None:
    await running.mqtt("c")
    ends: list[str] = []
    stuck = asyncio.new_event_loop()
    ConnectionFence(stuck, running.node.turn, ends.append, running.node.abort_http).abort()
    assert ends == ["the lease is over, and the event loop does not answer"]
    stuck.close()


async def test_a_directory_of_a_cluster_does_not_start_without_it(
    start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    running = await start(data={"dir": str(directory)})
    running.node.store_writer.durable.catalog.write([], 0, b"state")  # type: ignore[attr-defined]
    await running.stop()
    with pytest.raises(StoreError, match="belongs to a node of a cluster"):
        await start(data={"dir": str(directory)})
