"""A change over the HTTP API is answered when the store has written it, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.disks import HandledDisk
from tests.top.running import PATIENCE, Running

#: Number of requests that are answered while another request must stay open.
LATER_REQUESTS: Final = 10
#: The queue of the messages whose syncs make the disk wait.
HELD: Final = "held"
PERMISSION: Final = {"configure": "", "write": "", "read": ".*"}
LIMIT: Final = {"pattern": "^q", "definition": {"max-length": 5}}
#: Requests that create an object, in this order. Each is sent a second time while the first one
#: waits for the disk.
CHANGES: Final[tuple[tuple[str, Any], ...]] = (
    ("vhosts/new", {"description": "d"}),
    ("users/ann", {"password_hash": "", "tags": ""}),
    ("permissions/new/ann", PERMISSION),
    ("roles/device", {"vhosts": {"new": PERMISSION | {"rules": []}}}),
    ("policies/new/p", LIMIT),
    ("operator-policies/new/p", LIMIT),
    ("parameters/component/new/p", {"value": 1}),
    ("global-parameters/p", {"value": 1}),
    ("queues/new/q", {}),
    ("exchanges/new/x", {}),
)


@pytest.fixture
def disk() -> HandledDisk:
    return HandledDisk()


@pytest.fixture
async def broker(start: Start, tmp_path: Path, disk: HandledDisk) -> Running:
    admin = ADMIN | {"vhosts": ("/", "new", "gone")}
    broker = await start(users=[admin], disk=disk, data={"dir": str(tmp_path)})
    broker.node.broker.vhosts["/"].declare_queue(HELD, durable=True)
    return broker


@asynccontextmanager
async def slow(broker: Running, disk: HandledDisk) -> Any:
    """Make the disk write nothing during the `with` body.

    The disk waits in the sync of a message, which is published first. Everything that the store
    gets later is written behind this message.
    """
    message = {"properties": {"delivery_mode": 2}, "routing_key": HELD, "payload": "x"}
    publish = "exchanges/%2F/amq.default/publish"
    queue = broker.node.broker.vhosts["/"].queues[HELD]
    before = queue.depth
    disk.open_for_syncs.clear()
    held = asyncio.create_task(api(broker, "POST", publish, message))
    try:
        await broker.until(lambda: queue.depth > before)
        yield
    finally:
        disk.open_for_syncs.set()
        assert (await held)[0] == 200


async def stays_open(
    broker: Running, request: asyncio.Task[tuple[int, Any]], is_changed: Callable[[], bool]
) -> None:
    """Wait until a request has made its change, and check that the request stays open."""
    await broker.until(is_changed)
    for _ in range(LATER_REQUESTS):
        assert (await api(broker, "GET", "whoami"))[0] == 200
    assert not request.done()


async def test_an_equal_change_waits_for_the_first_one(broker: Running, disk: HandledDisk) -> None:
    for path, body in CHANGES:
        async with slow(broker, disk):
            first = asyncio.create_task(api(broker, "PUT", path, body))
            async with asyncio.timeout(PATIENCE):
                while (await api(broker, "GET", path))[0] != 200:
                    assert not first.done(), path
            second = asyncio.create_task(api(broker, "PUT", path, body))
            await stays_open(broker, second, lambda: True)
        assert (path, (await first)[0], (await second)[0]) == (path, 201, 204)


async def test_a_vhost_is_gone_for_good_when_its_deletion_is_answered(
    broker: Running, disk: HandledDisk
) -> None:
    assert (await api(broker, "PUT", "vhosts/gone"))[0] == 201
    async with slow(broker, disk):
        deletion = asyncio.create_task(api(broker, "DELETE", "vhosts/gone"))
        await stays_open(broker, deletion, lambda: "gone" not in broker.node.broker.vhosts)
    assert await deletion == (204, None)


async def test_a_purge_is_answered_when_the_messages_are_gone_for_good(
    broker: Running, disk: HandledDisk
) -> None:
    assert (await api(broker, "PUT", "queues/%2F/q"))[0] == 201
    message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x"}
    assert (await api(broker, "POST", "exchanges/%2F/amq.default/publish", message))[0] == 200
    queue = broker.node.broker.vhosts["/"].queues["q"]
    assert queue.depth == 1
    async with slow(broker, disk):
        purge = asyncio.create_task(api(broker, "DELETE", "queues/%2F/q/contents"))
        await stays_open(broker, purge, lambda: queue.depth == 0)
    assert await purge == (204, None)


async def test_the_cancellation_of_a_delayed_message_is_answered_when_it_holds(
    broker: Running, disk: HandledDisk
) -> None:
    body = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "fanout"}}
    assert (await api(broker, "PUT", "exchanges/%2F/later", body))[0] == 201
    assert (await api(broker, "PUT", "queues/%2F/q"))[0] == 201
    assert (await api(broker, "POST", "bindings/%2F/e/later/q/q", {}))[0] == 201
    message = {
        "properties": {"delivery_mode": 2, "headers": {"x-delay": 3_600_000}},
        "routing_key": "",
        "payload": "x",
    }
    assert (await api(broker, "POST", "exchanges/%2F/later/publish", message))[0] == 200
    ((row,),) = [(await api(broker, "GET", "trellis/delayed"))[1]]
    wanted = f"trellis/delayed?vhost=%2F&exchange=later&id={quote(str(row['id']))}"
    waiting = broker.node.broker.vhosts["/"].delays["later"]
    async with slow(broker, disk):
        cancellation = asyncio.create_task(api(broker, "DELETE", wanted))
        await stays_open(broker, cancellation, lambda: waiting.depth == 0)
    assert await cancellation == (200, [])
    assert (await api(broker, "DELETE", wanted))[0] == 404
    assert (await api(broker, "DELETE", wanted + "0" * 5_000))[0] == 404
