"""`GET /api/queues/VHOST/NAME/messages` returns messages of a queue, and leaves them there."""

from __future__ import annotations

import base64
import errno
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pamqp.commands as spec
import pytest

from protocols.mqtt.session.session_row import session_row
from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.disks import HandledDisk
from tests.top.running import Running


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    assert (await api(running, "PUT", "queues/%2F/q"))[0] == 201
    return running


async def publish(broker: Running, payload: str, **properties: Any) -> None:
    body = {
        "routing_key": "q",
        "payload": payload,
        "payload_encoding": "base64" if properties.pop("base64", False) else "string",
        "properties": properties,
    }
    path = "exchanges/%2F/amq.default/publish"
    assert (await api(broker, "POST", path, body))[1]["routed"]


async def peeked(broker: Running, query: str = "", queue: str = "q", user: str = "admin") -> Any:
    status, answer = await api(
        broker, "GET", f"queues/%2F/{quote(queue, safe='')}/messages?{query}", None, user
    )
    assert status == 200, answer
    return answer


async def test_a_message_is_described_and_stays_as_it_is(broker: Running) -> None:
    properties = {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "timestamp": 1_700_000_000,
        "headers": {"n": 1},
    }
    await publish(broker, "hello", **properties)
    (row,) = await peeked(broker)
    assert row == {
        "sequence": "1",
        "payload_bytes": 5,
        "redelivered": False,
        "returns": 0,
        "exchange": "",
        "routing_key": "q",
        "persistent": True,
        "expires_in_ms": None,
        "properties": properties,
        "payload": "hello",
        "payload_encoding": "string",
    }
    assert await peeked(broker) == [row]
    # The next client gets the message as if it had not been read.
    get = {"count": 1, "ackmode": "ack_requeue_true"}
    (got,) = (await api(broker, "POST", "queues/%2F/q/get", get))[1]
    assert got["redelivered"] is False
    (again,) = await peeked(broker)
    assert (again["redelivered"], again["returns"]) == (True, 1)


async def test_pages_follow_each_other_and_bodies_are_bounded(broker: Running) -> None:
    data = bytes(range(255, -1, -1))
    await publish(broker, base64.b64encode(data).decode(), base64=True)
    for number in range(4):
        await publish(broker, f"m{number}", expiration="100000")
    first = await peeked(broker, "count=2&truncate=10")
    assert (base64.b64decode(first[0]["payload"]), first[0]["payload_bytes"]) == (data[:10], 256)
    assert 0 < first[1]["expires_in_ms"] <= 100_000
    rest = await peeked(broker, f"count=1000&after={first[-1]['sequence']}&encoding=base64")
    assert [base64.b64decode(row["payload"]) for row in rest] == [b"m1", b"m2", b"m3"]
    assert await peeked(broker, f"after={rest[-1]['sequence']}") == []


async def test_priorities_have_places_of_their_own(broker: Running) -> None:
    arguments = {"arguments": {"x-max-priority": 9}}
    assert (await api(broker, "PUT", "queues/%2F/ranked", arguments))[0] == 201
    client = await broker.amqp()
    sent = [publication("", "ranked", b"%d" % rank, priority=rank) for rank in (1, 9, 0, 9, 5)]
    await client.socket.send(b"".join(sent))
    queue = broker.node.broker.vhosts["/"].queues["ranked"]
    await broker.until(lambda: queue.depth == 5)
    payloads, after = [], ""
    for _ in range(5):
        (row,) = await peeked(broker, f"count=1&after={after}", "ranked")
        payloads.append(row["payload"])
        after = row["sequence"]
    assert payloads == ["9", "9", "5", "1", "0"]
    assert await peeked(broker, f"after={after}", "ranked") == []


async def test_the_total_size_of_an_answer_is_bounded(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.http.management.peeking.FETCHED_BYTES_MAX", 3_000)
    client = await broker.amqp()
    await client.socket.send(publication("", "q", b"x" * 1_000) * 20)
    queue = broker.node.broker.vhosts["/"].queues["q"]
    await broker.until(lambda: queue.depth == 20)
    assert len(await peeked(broker, "count=20")) == 3
    assert len(await peeked(broker, "count=20&truncate=100")) == 20


async def test_a_session_shows_its_messages_to_administrators(broker: Running) -> None:
    lamp = await broker.mqtt("lamp", clean=False, user="known/known")
    await lamp.subscribe("home/#", 1)
    lamp.socket.close()
    await broker.until(lambda: not session_row(broker.node.mqtt.sessions.all()[0])["connected"])
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("home/door", b"open", qos=1, packet_id=1))
    inbox = "mqtt-subscription-lampqos1"
    await broker.until(lambda: broker.node.broker.vhosts["/"].inboxes[inbox].depth == 1)
    (row,) = await peeked(broker, queue=inbox)
    assert (row["routing_key"], row["payload"], row["exchange"]) == (
        "home.door",
        "open",
        "amq.topic",
    )
    status, answer = await api(broker, "GET", f"queues/%2F/{inbox}/messages", None, "known")
    assert status == 403
    assert "administrator" in answer["reason"]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("queues/%2F/none/messages", 404, "no queue 'none'"),
        ("queues/none/q/messages", 404, "there is no vhost 'none'"),
        ("queues/%2F/q/messages?count=1001", 400, "'count' must be a whole number from 0 to 1000"),
        ("queues/%2F/q/messages?count=x", 400, "'count' must be a whole number"),
        (
            "queues/%2F/q/messages?after=9:9:9",
            400,
            "'after' must be the 'sequence' of a message, not '9:9:9'",
        ),
        ("queues/%2F/q/messages?after=9999999999999999999", 400, "'after' must be the 'sequence'"),
        ("queues/%2F/q/messages?encoding=no", 400, "'encoding' must be auto or base64, not 'no'"),
        ("queues/%2F/rows/messages", 400, "the queue is a stream"),
    ],
)
async def test_invalid_questions_are_refused(
    broker: Running, path: str, status: int, says: str
) -> None:
    await api(broker, "PUT", "queues/%2F/rows", {"arguments": {"x-queue-type": "stream"}})
    got, answer = await api(broker, "GET", path)
    assert got == status
    assert says in answer["reason"]


async def test_reading_needs_the_read_permission(broker: Running) -> None:
    for name, read in {"reader": "^q$", "other": "^r$"}.items():
        await api(broker, "PUT", f"users/{name}", {"password": "known", "tags": "management"})
        body = {"configure": "", "write": "", "read": read}
        await api(broker, "PUT", f"permissions/%2F/{name}", body)
    assert await peeked(broker, user="reader") == []
    assert (await api(broker, "GET", "queues/%2F/q/messages", None, "other"))[0] == 403


async def test_without_a_free_file_descriptor_the_answer_says_so(
    start: Start, tmp_path: Path
) -> None:
    disk = HandledDisk()
    running = await start(
        **users(), data={"dir": str(tmp_path / "data")}, store={"segment": 65_536}, disk=disk
    )
    running.node.broker.store.window = 2
    await api(running, "PUT", "queues/%2F/q")
    for number in range(5):
        await publish(running, f"{number}" * 30_000, delivery_mode=2)
    disk.refuse = lambda operation, path: errno.EMFILE if operation == "open" else 0
    status, answer = await api(running, "GET", "queues/%2F/q/messages")
    assert status == 503
    assert "no free file descriptor" in answer["reason"]
    disk.refuse = lambda operation, path: 0
    assert len(await peeked(running)) == 5


async def test_a_queue_that_is_deleted_meanwhile_ends_the_answer(broker: Running) -> None:
    client = await broker.amqp()
    await client.socket.send(publication("", "q", b"x") * 100)
    queue = broker.node.broker.vhosts["/"].queues["q"]
    await broker.until(lambda: queue.depth == 100)
    await client.call(spec.Queue.Delete(queue="q"), spec.Queue.DeleteOk)
    assert (await api(broker, "GET", "queues/%2F/q/messages"))[0] == 404
