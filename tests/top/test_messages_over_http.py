"""Messages over HTTP: fetched from queues and published to exchanges with the rights of AMQP."""

from __future__ import annotations

import base64
from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    for name in ("q", "full"):
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"} if name == "full" else {}
        assert (await api(running, "PUT", f"queues/%2F/{name}", {"arguments": arguments}))[0] == 201
    return running


async def sent(broker: Running, **fields: Any) -> tuple[int, Any]:
    body = {"routing_key": "q", "payload": "hello", "payload_encoding": "string", "properties": {}}
    exchange = fields.pop("exchange", "amq.default")
    user = fields.pop("user", "admin")
    return await api(broker, "POST", f"exchanges/%2F/{exchange}/publish", body | fields, user)


async def fetched(broker: Running, queue: str = "q", **fields: Any) -> Any:
    body = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"} | fields
    status, answer = await api(broker, "POST", f"queues/%2F/{queue}/get", body)
    assert status == 200, answer
    return answer


async def test_published_message_is_fetched_with_its_properties(broker: Running) -> None:
    properties = {
        "delivery_mode": 2,
        "content_type": "text/plain",
        "headers": {"n": 1, "x": [1, "two", {"three": None}], "f": 1.5},
        "priority": 3,
        "timestamp": 1_700_000_000,
        "message_id": "m-1",
        "user_id": "admin",
    }
    assert await sent(broker, properties=properties) == (200, {"routed": True, "queues": 1})
    assert await sent(broker, routing_key="nowhere") == (200, {"routed": False, "queues": 0})
    (row,) = await fetched(broker)
    assert row == {
        "payload_bytes": 5,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 0,
        "properties": properties,
        "payload": "hello",
        "payload_encoding": "string",
    }
    # The queue has the message still, and a consumer gets it again.
    (again,) = await fetched(broker, ackmode="ack_requeue_false")
    assert again == row | {"redelivered": True}
    assert await fetched(broker) == []


async def test_payloads_are_text_or_base64_and_may_be_truncated(broker: Running) -> None:
    data = bytes(range(255, -1, -1)) * 20
    assert await sent(
        broker, payload=base64.b64encode(data).decode(), payload_encoding="base64"
    ) == (200, {"routed": True, "queues": 1})
    (row,) = await fetched(broker)
    assert (base64.b64decode(row["payload"]), row["payload_encoding"]) == (data, "base64")
    (row,) = await fetched(broker, truncate=50)
    assert (base64.b64decode(row["payload"]), row["payload_bytes"]) == (data[:50], len(data))
    (row,) = await fetched(broker, truncate="10", encoding="base64", ackmode="reject_requeue_false")
    assert base64.b64decode(row["payload"]) == data[:10]
    assert await fetched(broker) == []


async def test_messages_of_other_clients_keep_their_order_and_large_ones_come_whole(
    broker: Running,
) -> None:
    client, lamp = await broker.amqp(), await broker.mqtt("lamp", user="known/known")
    bodies = [b"%d" % number for number in range(50)] + [b"x" * 300_000]
    await client.socket.send(b"".join(publication("", "q", body) for body in bodies))
    await client.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
    for _ in range(2):
        rows = await fetched(broker, count=100)
        assert [row["payload"].encode() for row in rows] == bodies
    assert len(await fetched(broker, count=3)) == 3
    await api(broker, "POST", "bindings/%2F/e/amq.topic/q/full", {"routing_key": "a.b"})
    await lamp.socket.send(mqtt_publish("a/b", b"on"))
    await broker.until(lambda: int(broker.node.broker.vhosts["/"].queues["full"].depth) == 1)
    (row,) = await fetched(broker, "full")
    assert (row["exchange"], row["routing_key"], row["payload"]) == ("amq.topic", "a.b", "on")
    assert not broker.node.amqp.connections.keys() - {link._connection for link in broker.links}, (
        "each request closes its connection"
    )


async def test_a_full_queue_and_an_alarm_refuse_until_they_are_over(broker: Running) -> None:
    assert await sent(broker, routing_key="full") == (200, {"routed": True, "queues": 1})
    status, answer = await sent(broker, routing_key="full")
    assert status == 400
    assert answer["reason"] == (
        "a full queue refused the message with routing key 'full' to exchange ''"
    )
    await fetched(broker, "full", ackmode="ack_requeue_false")
    assert await sent(broker, routing_key="full") == (200, {"routed": True, "queues": 1})
    alarms = broker.node.broker.alarms
    alarms.set("memory", True)
    status, answer = await sent(broker)
    assert status == 503 and "memory" in answer["reason"]
    alarms.set("memory", False)
    assert await sent(broker) == (200, {"routed": True, "queues": 1})


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"exchange": "none"}, 404, "no exchange 'none'"),
        ({"user": "known", "properties": {"user_id": "admin"}}, 400, "user_id property set to"),
        ({"properties": {"odd": 1}}, 400, "unknown property 'odd'"),
        (
            {"properties": {"priority": "high"}},
            400,
            "'priority' must be a number from 0 to 255, not 'high'",
        ),
        ({"properties": {"timestamp": 1 << 80}}, 400, "must be a number of seconds since 1970"),
        ({"properties": {"expiration": "soon"}}, 400, "invalid expiration"),
        ({"payload": "!", "payload_encoding": "base64"}, 400, "'payload' must be base64"),
        ({"payload_encoding": "rot13"}, 400, "must be string or base64"),
        ({"payload": 7}, 400, "the field 'payload' of the body must be a string"),
        ({"user": "plain"}, 403, "lacks the tag"),
    ],
)
async def test_invalid_publication_is_refused(
    broker: Running, fields: dict[str, Any], status: int, says: str
) -> None:
    got, answer = await sent(broker, **fields)
    assert got == status
    assert says in answer["reason"]
    assert await sent(broker) == (200, {"routed": True, "queues": 1})


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("queues/%2F/none/get", {}, 404, "no queue 'none'"),
        ("queues/%2F/q/get", {"ackmode": "keep"}, 400, "'ackmode' must be one of"),
        ("queues/%2F/q/get", {"count": -1}, 400, "'count' must be a whole number from 0 to"),
        ("queues/%2F/q/get", {"encoding": "hex"}, 400, "must be auto or base64"),
        ("queues/none/q/get", {}, 404, "there is no vhost"),
        ("queues/%2F/rows/get", {}, 400, "not supported by stream queues"),
    ],
)
async def test_invalid_fetch_is_refused(
    broker: Running, path: str, body: Any, status: int, says: str
) -> None:
    await api(broker, "PUT", "queues/%2F/rows", {"arguments": {"x-queue-type": "stream"}})
    got, answer = await api(broker, "POST", path, body)
    assert got == status
    assert says in answer["reason"]


async def test_http_messages_need_the_permissions_of_amqp(broker: Running) -> None:
    for name, grants in {"reader": ("", "", "^q$"), "writer": ("", "^amq.default$", "")}.items():
        await api(broker, "PUT", f"users/{name}", {"password": "known", "tags": "management"})
        configure, write, read = grants
        body = {"configure": configure, "write": write, "read": read}
        await api(broker, "PUT", f"permissions/%2F/{name}", body)
    assert (await sent(broker, user="reader"))[0] == 403
    assert (await sent(broker, user="writer"))[0] == 200
    get = {"count": 1}
    assert (await api(broker, "POST", "queues/%2F/q/get", get, "writer"))[0] == 403
    assert (await api(broker, "POST", "queues/%2F/q/get", get, "reader"))[0] == 200
    assert (await api(broker, "POST", "queues/%2F/full/get", get, "reader"))[0] == 403


async def test_a_long_request_lets_other_clients_have_their_turns(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.http.slices.SLICE_SECONDS", 0.0)
    client = await broker.amqp()
    bodies = [b"%d" % number for number in range(300)] + [bytes(range(256)) * 8_000]
    await client.socket.send(b"".join(publication("", "q", body) for body in bodies))
    queue = broker.node.broker.vhosts["/"].queues["q"]
    await broker.until(lambda: int(queue.depth) == len(bodies))
    before = broker.node.turn.turns
    rows = await fetched(broker, count=10_000, ackmode="ack_requeue_false")
    assert broker.node.turn.turns - before > len(bodies)
    assert [base64.b64decode(row["payload"]) for row in rows[-1:]] == bodies[-1:]
    assert [row["payload"].encode() for row in rows[:-1]] == bodies[:-1]
    # The settlement took effect before the answer.
    assert int(queue.depth) == 0 and int(queue.unacked) == 0


async def test_properties_count_to_the_size_of_fetched_messages(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trellis.http.management.messages.FETCHED_BYTES_MAX", 3_000)
    for _ in range(5):
        await sent(broker, payload="", properties={"headers": {"large": "x" * 1_400}})
    assert len(await fetched(broker, ackmode="ack_requeue_false")) == 3
    assert len(await fetched(broker, ackmode="ack_requeue_false")) == 2


async def test_http_messages_accept_names_as_long_as_amqp_does(broker: Running) -> None:
    name = "x" * 255
    assert (await api(broker, "PUT", f"exchanges/%2F/{name}", {"type": "direct"}))[0] == 201
    assert (await api(broker, "PUT", f"queues/%2F/{name}"))[0] == 201
    bindings = f"bindings/%2F/e/{name}/q/{name}"
    assert (await api(broker, "POST", bindings, {"routing_key": name}))[0] == 201
    assert await sent(broker, exchange=name, routing_key=name) == (
        200,
        {"routed": True, "queues": 1},
    )
    (row,) = await fetched(broker, name)
    assert (row["exchange"], row["routing_key"]) == (name, name)
    for fields in ({"exchange": name + "x"}, {"routing_key": "x" * 256}):
        status, answer = await sent(broker, **fields)
        assert status == 400, answer
