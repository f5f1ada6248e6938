"""`trellis trace` and the HTTP API of traces, against a broker of the test."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest
from pamqp import commands

from tests.clients import marshal, mqtt_publish, publication
from tests.top.api_client import api, journaled, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running


@pytest.fixture
async def broker(start: Start) -> Running:
    broker = await start(**users())
    assert (await api(broker, "PUT", "queues/%2F/q"))[0] == 201
    return broker


async def publish_once_traced(broker: Running) -> None:
    """Wait for a trace; then publish to the queue q, and to a queue that does not exist."""
    vhost = broker.node.broker.vhosts["/"]
    await broker.until(lambda: bool(vhost.traces.running))
    client = await broker.amqp()
    await client.socket.send(
        publication("", "q", b"m", message_id="order-1") + publication("", "missing", b"m")
    )


async def test_a_trace_names_an_object_that_does_not_exist(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = Commands(broker, capsys, monkeypatch)
    assert (await api(broker, "PUT", "queues/%2F/orders"))[0] == 201
    vhost = broker.node.broker.vhosts["/"]

    async def declare_and_publish() -> None:
        await broker.until(lambda: bool(vhost.traces.running))
        client = await broker.amqp()
        await client.queue("ordrs")
        await client.socket.send(publication("", "ordrs", b"m"))

    publisher = asyncio.create_task(declare_and_publish())
    code, out, err = await command_line.run("trace", "--queue", "ordrs", "--count", "1")
    await publisher
    assert (code, len(out.splitlines())) == (0, 1)
    missing = "no queue 'ordrs' in vhost '/'; the nearest is 'orders'; next: trellis list queues"
    assert err == f"the trace shows nothing yet: {missing}\ntracing; end with Ctrl-C\n"


async def test_a_trace_that_does_not_start_prints_one_error(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--vhost", "nope", "--queue", "q", "--exchange", "e")
    error = await Commands(broker, capsys, monkeypatch).fails("trace", *words)
    assert error == "trellis: there is no vhost 'nope'; next: trellis vhosts list\n"


async def test_the_command_prints_the_steps_of_messages(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = Commands(broker, capsys, monkeypatch)
    publisher = asyncio.create_task(publish_once_traced(broker))
    code, out, err = await command_line.run("trace", "--exchange", "", "--count", "4")
    await publisher
    assert (code, err) == (0, "tracing; end with Ctrl-C\n")
    lines = [line.split(" ", 1)[1] for line in out.splitlines()]
    assert lines[0].startswith(
        "#1 published 'amq.default': key 'q' by user 'known' over amqp091 from client"
    )
    assert lines[0].endswith(", transient, 1 B, message_id 'order-1'")
    assert lines[1:] == [
        "#1 routed 'q': waiting messages: 0, unacknowledged: 0, consumers: 0",
        lines[2],
        "#2 unroutable: no binding matches",
    ]
    assert "key 'missing'" in lines[2]
    # The trace ends with the command.
    assert broker.node.broker.vhosts["/"].traces.running == []


async def test_json_and_a_filter_of_all_routes(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = Commands(broker, capsys, monkeypatch)
    publisher = asyncio.create_task(publish_once_traced(broker))
    words = ("--message-id", "order-1", "--count", "2", "--rate", "1", "--json")
    code, out, err = await command_line.run("trace", *words)
    await publisher
    steps = [json.loads(line) for line in out.splitlines()]
    assert (code, [step["step"] for step in steps]) == (0, ["published", "routed"])
    assert "all messages of vhost '/' take the slower path" in err


async def test_traces_over_http(broker: Running) -> None:
    path = "trellis/traces/%2F"
    assert await api(broker, "POST", path, {"topic": "a/+", "rate": 2}) == (
        200,
        {"trace": 1, "rate": 2},
    )
    _, rows = await api(broker, "GET", path)
    assert rows == [
        {
            "trace": 1,
            "filter": {"topic": "a/+"},
            "rate": 2,
            "followed": 0,
            "skipped": 0,
            "lost": 0,
            "waiting_max": 2_000,
        }
    ]
    _, row = await api(broker, "GET", f"{path}/1?after=0")
    assert row == {**rows[0], "events": []}
    assert (await api(broker, "DELETE", f"{path}/1"))[0] == 204
    status, row = await api(broker, "GET", f"{path}/1")
    assert (status, row["reason"]) == (
        404,
        "there is no trace '1' in vhost '/': a trace that is not read for 30 s ends by itself",
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"topic": "a/#/b"}, "the filter of the trace is invalid: "),
        ({"topics": "a"}, "unknown field 'topics'; known are exchange, key, topic, user, client"),
        ({"key": 3}, "the field 'key' "),
        ({"rate": -1}, "'rate' "),
    ],
)
async def test_a_wrong_filter_is_refused(
    broker: Running, body: dict[str, object], reason: str
) -> None:
    status, row = await api(broker, "POST", "trellis/traces/%2F", body)
    assert status == 400
    assert row["reason"].startswith(reason), row


async def test_only_administrators_trace(broker: Running) -> None:
    for method, path in (("POST", "%2F"), ("GET", "%2F"), ("GET", "%2F/1"), ("DELETE", "%2F/1")):
        status, _ = await api(broker, method, f"trellis/traces/{path}", {}, user="watcher")
        assert status in (401, 403), (method, path)


def without_times(text: str) -> list[str]:
    """Return the lines of a past trace without their times and offsets."""
    return [
        re.sub(r", offset \d+$", "", re.sub(r"^\S+ \S+\.\d{3} ", "", line))
        for line in text.splitlines()
    ]


async def test_a_journal_says_which_messages_came_over_http(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await start(**journaled(tmp_path))
    message = {"routing_key": "k", "payload": "x", "payload_encoding": "string", "properties": {}}
    assert (await api(broker, "POST", "exchanges/%2F/amq.topic/publish", message))[0] == 200
    client = await broker.amqp()
    await client.socket.send(publication("amq.topic", "k", b"m"))
    await broker.until(lambda: broker.durable_rows("all") == 2)
    command_line = Commands(broker, capsys, monkeypatch)
    lines = without_times(await command_line.out("trace", "--journal", "all"))
    assert [line.partition(", ")[0] for line in lines if " published " in line] == [
        "#1 published 'amq.topic': key 'k' by user 'admin' over http",
        "#2 published 'amq.topic': key 'k' by user 'known' over amqp091",
    ]
    page = await broker.scrape()
    assert page.value("rabbitmq_global_messages_received_total", protocol="amqp091") == 2


async def test_past_messages_have_their_destinations_of_then_and_their_deaths(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await start(**journaled(tmp_path))
    vhost = broker.node.broker.vhosts["/"]
    client = await broker.amqp()
    await client.queue("dead")
    arguments = {
        "x-message-ttl": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    await client.queue("orders", "amq.topic", "orders.*", arguments=arguments)
    device = await broker.mqtt("device")
    await device.subscribe("orders/#")
    await client.socket.send(publication("amq.topic", "orders.new", b"m", message_id="order-1"))
    await broker.until(lambda: vhost.queues["dead"].depth == 1)
    await client.call(commands.Queue.Delete(queue="orders"), commands.Queue.DeleteOk)
    await client.socket.send(publication("amq.topic", "orders.old", b"m", message_id="order-2"))
    await client.socket.send(publication("amq.topic", "unknown", b"m"))
    command_line = Commands(broker, capsys, monkeypatch)
    await broker.until(lambda: broker.durable_rows("all") == 4)

    lines = without_times(await command_line.out("trace", "--journal", "all"))
    by = "by user 'known' over amqp091, transient, 1 B"
    assert lines == [
        f"#1 published 'amq.topic': key 'orders.new' {by}, message_id 'order-1'",
        "#1 routed: to 2 destinations",
        "#1 routed 'orders': by binding 'orders.*' of 'amq.topic'",
        "#1 routed 'device': by subscription 'orders/#'",
        "#1 dead lettered 'orders': expired, 1 time; the message came from exchange 'amq.topic'",
        "#1 published 'amq.default': key 'dead' by the broker, 1 B, message_id 'order-1'",
        "#1 routed: to 1 destination",
        "#1 routed 'dead': by the name of the queue",
        f"#2 published 'amq.topic': key 'orders.old' {by}, message_id 'order-2'",
        "#2 routed: to 1 destination",
        "#2 routed 'device': by subscription 'orders/#'",
        f"#3 published 'amq.topic': key 'unknown' {by}",
        "#3 unroutable: no queue and no session got the message",
    ]
    for words, numbers in (
        (("--topic", "orders/+"), "1111222"),
        (("--message-id", "order-2"), "111"),
        (("--exchange", "amq.default"), "1111"),
        (("--since", "1h", "--key", "unknown"), "11"),
        (("--publisher", "known", "--count", "1"), "1"),
    ):
        steps = (await command_line.out("trace", "--journal", "all", *words, "--json")).splitlines()
        assert "".join(str(json.loads(step)["message"]) for step in steps) == numbers, words
    error = await command_line.fails("trace", "--journal", "all", "--until", "2020-01-01T00:00")
    assert error == "no row of journal 'all' matches the options\n"
    for words, text in (
        (("--queue", "q", "--journal", "all"), "a journal does not record the queue"),
        (("--since", "1h"), "give --journal NAME"),
        (("--journal", "all", "--since", "soon"), "'soon' is not a time: give an age such as 15m"),
        (("--journal", "all", "--key", "a" * 300), "the filter of the trace is invalid"),
    ):
        assert text in await command_line.fails("trace", *words, code=2)


async def test_a_message_over_http_is_traced_with_its_protocol_and_user(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = Commands(broker, capsys, monkeypatch)
    traces = broker.node.broker.vhosts["/"].traces

    async def publish() -> None:
        await broker.until(lambda: bool(traces.running))
        body = {"routing_key": "a", "payload": "x", "payload_encoding": "string", "properties": {}}
        await api(broker, "POST", "exchanges/%2F/amq.topic/publish", body)

    publishing = asyncio.create_task(publish())
    _, out, _ = await command_line.run("trace", "--key", "a", "--count", "2")
    await publishing
    assert anonymous(out).splitlines()[0] == (
        "#1 published 'amq.topic': key 'a' by user 'admin' over http from client ADDRESS, "
        "transient, 1 B"
    )


def anonymous(text: str) -> str:
    """Return the output of `trellis trace` without times, and with ADDRESS for each address."""
    text = re.sub(r"^ *\d\d:\d\d:\d\d\.\d{3} ", "", text, flags=re.MULTILINE)
    return re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", text)


async def consume_and_publish(broker: Running) -> None:
    """Wait for a trace; then consume from the queue temps, and publish to it over MQTT."""
    vhost = broker.node.broker.vhosts["/"]
    await broker.until(lambda: bool(vhost.traces.running))
    consumer = await broker.amqp()
    await consumer.queue("temps", "amq.topic", "sensors.#")
    consume = commands.Basic.Consume(queue="temps", consumer_tag="log")
    await consumer.call(consume, commands.Basic.ConsumeOk)
    kitchen = await broker.mqtt("kitchen")
    await kitchen.socket.send(mqtt_publish("sensors/kitchen/temp", b"21.5", 1, 1))
    delivered = await consumer.expect(commands.Basic.Deliver)
    await consumer.socket.send(marshal(1, commands.Basic.Ack(delivered.delivery_tag)))


async def test_the_example_of_the_page(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    example = re.search(
        r"^    \.run/bin/trellis (trace .+)\n\n((?:    .*\n)+)", page, flags=re.MULTILINE
    )
    assert example is not None
    client = asyncio.create_task(consume_and_publish(broker))
    _, out, err = await Commands(broker, capsys, monkeypatch).run(*shlex.split(example[1]))
    await client
    shown = "".join(line[4:] + "\n" for line in example[2].splitlines())
    assert anonymous(err + out).replace("'anonymous'", "'ann'").replace(
        "client test", "client logger"
    ) == anonymous(shown)
