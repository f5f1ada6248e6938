"""Tests of the rows of a stream over HTTP: return them as JSON, and publish them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mqtt5
import pytest

from tests.clients import mqtt_publish
from tests.top.api_client import api, journaled, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running
from tests.wire.mqtt5.client import publish
from trellis.http.management import stream_rows


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert (await api(running, "PUT", "queues/%2F/rows", stream))[0] == 201
    assert (await api(running, "PUT", "queues/%2F/copies", {"durable": True}))[0] == 201
    for number in range(7):
        body = {
            "routing_key": "rows",
            "payload": f"row {number}",
            "payload_encoding": "string",
            "properties": {"message_id": f"m{number}", "headers": {"n": number}},
        }
        assert (await api(running, "POST", "exchanges/%2F/amq.default/publish", body))[0] == 200
    return running


async def rows(broker: Running, query: str, user: str = "admin") -> tuple[int, Any]:
    return await api(broker, "GET", f"streams/rows?queue=rows&{query}", user=user)


async def test_rows_are_read_from_an_offset_and_from_a_time(broker: Running) -> None:
    status, read_rows = await rows(broker, "offset=2&count=3")
    assert status == 200
    assert [(row["offset"], row["payload"]) for row in read_rows] == [
        (number, f"row {number}") for number in (2, 3, 4)
    ]
    first = read_rows[0]
    assert (first["exchange"], first["routing_key"], first["publisher"]) == ("", "rows", "admin")
    assert first["properties"] == {"message_id": "m2", "headers": {"n": 2}}
    assert (first["payload_encoding"], first["payload_bytes"]) == ("string", 5)
    began = int(first["published_at"])
    for query, offsets in (
        ("", [0, 1, 2, 3, 4, 5, 6]),
        ("offset=first&count=2", [0, 1]),
        ("offset=next", []),
        ("offset=7", []),
        ("offset=1h&count=1", [0]),
        (f"time={began - 60}&count=1", [0]),
        (f"time={began + 3600}", []),
    ):
        assert [row["offset"] for row in (await rows(broker, query))[1]] == offsets, query
    _, (cut,) = await rows(broker, "offset=6&truncate=3&encoding=base64")
    assert (cut["payload"], cut["payload_bytes"]) == ("cm93", 5)


async def test_rows_are_read_with_read_permission_only(broker: Running) -> None:
    for query, status, reason in (
        ("offset=yesterday", 400, "'offset' is 'yesterday': give a number from 0"),
        ("count=5000", 400, "'count' must be a whole number from 0 to 1000"),
        ("time=soon", 400, "'time' must be a whole number from 0 to"),
        ("encoding=hex", 400, "'encoding' must be auto or base64, not 'hex'"),
    ):
        code, answer = await rows(broker, query)
        assert (code, reason in answer["reason"]) == (status, True), answer
    assert (await api(broker, "GET", "streams/rows?queue=copies"))[0] == 404
    assert (await api(broker, "GET", "streams/rows?queue=absent"))[0] == 404
    ann = {"password": "known", "tags": "management"}
    await api(broker, "PUT", "users/ann", ann)
    for pattern, expected in (("^copies$", 403), ("^rows$", 200)):
        rights = {"configure": "", "write": "", "read": pattern}
        await api(broker, "PUT", "permissions/%2F/ann", rights)
        assert (await rows(broker, "", user="ann"))[0] == expected


async def replay(broker: Running, **body: Any) -> tuple[int, Any]:
    return await api(broker, "POST", "streams/replay", {"queue": "rows", **body})


async def test_rows_are_published_again(broker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_rows, "WINDOW", 2)
    await api(broker, "PUT", "exchanges/%2F/again", {"type": "fanout"})
    await api(broker, "POST", "bindings/%2F/e/again/q/copies", {"routing_key": ""})
    status, answer = await replay(broker, **{"from": 1, "to": 6, "exchange": "again"})
    assert (status, answer) == (200, {"published": 5, "refused": 0, "next": 6})
    _, copies = await api(broker, "GET", "queues/%2F/copies/messages")
    assert [(one["payload"], one["routing_key"]) for one in copies] == [
        (f"row {number}", "rows") for number in range(1, 6)
    ]
    assert copies[0]["properties"] == {"message_id": "m1", "headers": {"n": 1}}
    # Without an exchange, the rows go to the exchange that they came from: here, into the stream.
    # The new rows are not published again.
    assert (await replay(broker, **{"from": 5}))[1] == {"published": 2, "refused": 0, "next": 7}
    assert [row["payload"] for row in (await rows(broker, "offset=7"))[1]] == ["row 5", "row 6"]
    monkeypatch.setattr(stream_rows, "REPLAYED_MAX", 3)
    assert (await replay(broker, exchange="again"))[1]["next"] == 3


async def test_a_replay_that_cannot_publish_says_so(broker: Running) -> None:
    status, answer = await replay(broker, exchange="absent")
    assert (status, "no exchange 'absent'" in answer["reason"]) == (404, True)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await api(broker, "PUT", "queues/%2F/full", {"arguments": arguments})
    await api(broker, "POST", "bindings/%2F/e/amq.fanout/q/full", {"routing_key": ""})
    _, answer = await replay(broker, exchange="amq.fanout")
    assert answer == {"published": 1, "refused": 6, "next": 7}
    await api(broker, "PUT", "exchanges/%2F/inside", {"type": "fanout", "internal": True})
    status, answer = await replay(broker, exchange="inside")
    assert (status, "rows that were published before this error: 0" in answer["reason"]) == (
        403,
        True,
    )


async def test_a_topic_that_is_too_long_for_amqp_is_not_replayed_under_another_name(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a replay refuses a row whose topic has more than 255 bytes.

    A routing key has at most 255 bytes, and a cut key would lead to other queues.
    """
    broker = await start(**journaled(tmp_path))
    await api(broker, "PUT", "queues/%2F/copies", {"durable": True})
    await api(broker, "POST", "bindings/%2F/e/amq.fanout/q/copies", {"routing_key": ""})
    device = await broker.mqtt("device")
    topics = ["a/b", "/".join(["x" * 63] * 4), "/".join(["x" * 63] * 4 + ["end"])]
    assert [len(topic) <= 255 for topic in topics] == [True, True, False]
    for topic in topics:
        await device.socket.send(mqtt_publish(topic, b"m"))
    await broker.until(lambda: broker.durable_rows("all") == 3)
    status, answer = await replay(broker, queue="all", exchange="amq.fanout")
    assert (status, answer) == (200, {"published": 2, "refused": 1, "next": 3})
    place = ("--amqp", f"127.0.0.1:{broker.port('amqp')}", "--exchange", "amq.fanout")
    words = ("replay", "all", *place, "--to", "3", "--json")
    code, out, _ = await Commands(broker, capsys, monkeypatch).run(*words)
    assert (code, json.loads(out)) == (1, {"confirmed": 2, "refused": 0, "too_long": 1})
    _, copies = await api(broker, "GET", "queues/%2F/copies/messages")
    assert [one["routing_key"] for one in copies] == 2 * [
        topic.replace("/", ".") for topic in topics[:2]
    ]


@pytest.mark.parametrize("over_http", [True, False])
async def test_a_replay_to_another_exchange_reaches_no_further_queue(
    start: Start,
    over_http: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a replay to another exchange removes the headers CC and BCC.

    Their routing keys were meant for the exchange of the row.
    """
    broker = await start(**users(), data={"dir": str(tmp_path / "data")})
    commands = Commands(broker, capsys, monkeypatch)

    async def replayed(*exchange: str) -> None:
        if over_http:
            more = {"exchange": exchange[0]} if exchange else {}
            _, answer = await replay(broker, to=1, **more)
            assert answer == {"published": 1, "refused": 0, "next": 1}
            return
        place = ("--amqp", f"127.0.0.1:{broker.port('amqp')}", "--to", "1")
        flags = ("--exchange", exchange[0]) if exchange else ()
        code, _, error = await commands.run("replay", "rows", *place, *flags)
        assert code == 0, error

    async def taken(queue: str) -> list[Any]:
        body = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
        return [one["properties"] for one in (await api(broker, "POST", queue, body))[1]]

    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    await api(broker, "PUT", "queues/%2F/rows", stream)
    for queue in ("copies", "other"):
        await api(broker, "PUT", f"queues/%2F/{queue}", {"durable": True})
    for queue, key in (("copies", "rows"), ("other", "copies")):
        path = f"bindings/%2F/e/amq.direct/q/{queue}"
        await api(broker, "POST", path, {"routing_key": key})
    row = {
        "routing_key": "rows",
        "payload": "x",
        "payload_encoding": "string",
        "properties": {"headers": {"CC": ["copies"], "kept": 1}},
    }
    await api(broker, "POST", "exchanges/%2F/amq.default/publish", row)
    await broker.until(lambda: broker.durable_rows("rows") == 1)
    copies, other = (f"queues/%2F/{name}/get" for name in ("copies", "other"))
    assert len(await taken(copies)) == 1
    await replayed("amq.direct")
    assert await taken(copies) == [{"headers": {"kept": 1}}]
    assert await taken(other) == []
    # At the exchange of the row, the row has all its routing keys.
    await replayed()
    assert [one["headers"] for one in await taken(copies)] == [{"CC": ["copies"], "kept": 1}]


async def test_a_user_property_with_the_name_of_a_header_does_not_end_a_replay(
    start: Start, tmp_path: Path
) -> None:
    """Check that a replay removes a header CC that is no list, which the broker would refuse.

    A User Property of MQTT with the name CC becomes such a header.
    """
    broker = await start(**journaled(tmp_path))
    device = await broker.socket("mqtt")
    await device.send(mqtt5.ConnectPacket(client_id="device").write())
    await device.send(publish("a", b"m", 0, user_properties=[("CC", "x"), ("kept", "1")]))
    await broker.until(lambda: broker.durable_rows("all") == 1)
    status, answer = await replay(broker, queue="all", to=1)
    assert (status, answer) == (200, {"published": 1, "refused": 0, "next": 1})
