"""`trellis publish` and `trellis tail` against a broker of the test."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    for name in ("q", "r"):
        assert (await api(running, "PUT", f"queues/%2F/{name}"))[0] == 201
        assert (
            await api(
                running, "POST", f"bindings/%2F/e/amq.topic/q/{name}", {"routing_key": "home.#"}
            )
        )[0] == 201
    return running


async def peeked(broker: Running, queue: str = "q") -> Any:
    return (await api(broker, "GET", f"queues/%2F/{queue}/messages?count=100"))[1]


async def test_a_message_is_published_with_its_properties(
    broker: Running, commands: Commands, tmp_path: Path
) -> None:
    out = await commands.out(
        *["publish", "amq.topic", "home.door", "--body", "open", "--persistent"],
        *["--property", "content_type=text/plain", "--property", "priority=3"],
        *["--header", "n=3", "--header", "who=ann"],
    )
    assert out == "the message reached 2 queues and sessions\n"
    (row,) = await peeked(broker)
    assert (row["payload"], row["routing_key"]) == ("open", "home.door")
    assert row["properties"] == {
        "content_type": "text/plain",
        "priority": 3,
        "delivery_mode": 2,
        "headers": {"n": 3, "who": "ann"},
    }
    (tmp_path / "body").write_bytes(b"\0\xff")
    await commands.out("publish", "amq.default", "r", "--file", str(tmp_path / "body"))
    commands.stdin = b"from stdin"
    assert await commands.out("publish", "", "r") == "the message reached 1 queue or session\n"
    assert [row["payload"] for row in await peeked(broker, "r")] == ["open", "AP8=", "from stdin"]


async def test_the_number_of_queues_is_that_of_the_cached_route_too(commands: Commands) -> None:
    for _ in range(3):
        assert await commands.out("publish", "amq.topic", "home.x", "--body", "") == (
            "the message reached 2 queues and sessions\n"
        )


@pytest.mark.parametrize("words", ["amq.topic home.x hello", "--mqtt home/x hello"])
async def test_a_body_without_its_flag_is_an_error_that_names_the_flag(
    commands: Commands, words: str
) -> None:
    code, _, err = await commands.run("publish", *words.split())
    assert code == 2 and "the body is --body TEXT, --file FILE or the standard input" in err


async def test_an_mqtt_topic_may_be_retained(broker: Running, commands: Commands) -> None:
    lamp = await broker.mqtt("lamp", user="known/known")
    await lamp.subscribe("home/+", 1)
    words = ["publish", "--mqtt", "home/door", "--retain", "--qos", "1", "--body", "shut"]
    assert await commands.out(*words) == (
        "the message reached 3 queues and sessions; later subscribers of the topic get the "
        "message, too\n"
    )
    first, data = await lamp.packet()
    assert (first & 0xF6, data[:11], data[-4:]) == (0x32, b"\0\x09home/door", b"shut")
    late = await broker.mqtt("late", user="known/known")
    await late.subscribe("home/door", 0)
    assert await late.packet() == (0x31, b"\0\x09home/doorshut")


async def test_a_retained_message_needs_no_subscriber(commands: Commands) -> None:
    words = ["publish", "--mqtt", "away/door", "--retain", "--body"]
    code, out, err = await commands.run(*words, "shut")
    assert (code, err) == (0, "")
    assert out == (
        "the message reached 0 queues and sessions; later subscribers of the topic get the "
        "message, too\n"
    )
    assert await commands.out(*words, "") == (
        "the message reached 0 queues and sessions; the topic has no retained message now\n"
    )


async def test_a_message_without_a_queue_fails_and_names_the_next_command(
    commands: Commands,
) -> None:
    code, out, err = await commands.run("publish", "amq.topic", "away.door", "--body", "x")
    assert (code, out) == (1, "the message reached 0 queues and sessions\n")
    assert err == (
        "no queue and no session got the message; to see why: trellis route amq.topic away.door\n"
    )
    words = ["publish", "--mqtt", "it's away", "--body", "x", "--json"]
    code, out, err = await commands.run(*words)
    assert (code, json.loads(out)) == (1, {"queues": 0})
    assert shlex.split(err)[-4:] == ["trellis", "route", "--mqtt", "it's away"]


async def test_the_next_command_names_the_virtual_host(broker: Running, commands: Commands) -> None:
    await api(broker, "PUT", "vhosts/v")
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    await api(broker, "PUT", "permissions/v/admin", rights)
    words = ["publish", "amq.topic", "away.door", "--body", "x", "--vhost", "v"]
    _, _, err = await commands.run(*words)
    assert err.endswith("; to see why: trellis route amq.topic away.door --vhost v\n")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["none", "k", "--body", "x"], 1, "no exchange 'none'"),
        (["amq.topic"], 2, "give EXCHANGE and KEY"),
        (["--mqtt", "a/+", "--body", ""], 2, "topic 'a/+' is not valid"),
        (["--mqtt", "$SYS/x", "--body", ""], 2, "reserved"),
        (["amq.topic", "k", "--mqtt", "a"], 2, "either EXCHANGE and KEY"),
        (["amq.topic", "k", "--qos", "1"], 2, "need --mqtt"),
        (["amq.topic", "k", "--property", "colour=red"], 2, "NAME=VALUE, with NAME one of c"),
        (["amq.topic", "k", "--property", "priority=x"], 2, "priority must be a whole number"),
        (["amq.topic", "k", "--header", "x"], 2, "--header: header 'x'"),
        (["amq.topic", "k", "--file", "/none"], 2, "--file: cannot read /none: No such file"),
        (
            ["amq.topic", "k", "--body", "x", "--file", "-"],
            2,
            "--body and --file both give the body",
        ),
        (["amq.topic", "k", "--body", "x" * 60_000], 1, "too large for the HTTP API"),
    ],
)
async def test_wrong_messages_are_refused(
    commands: Commands, words: list[str], code: int, says: str
) -> None:
    assert says in await commands.fails("publish", *words, code=code)


async def test_tail_prints_messages_while_they_come(broker: Running, commands: Commands) -> None:
    vhost = broker.node.broker.vhosts["/"]
    words = ["tail", "--mqtt", "home/+/state", "--count", "2", "--json"]
    following = asyncio.create_task(commands.run(*words))
    await broker.until(lambda: len(vhost.exchanges["amq.topic"].all_bindings()) == 3)
    sender = await broker.mqtt("sender", user="known/known")
    for topic in ("home/door/state", "home/state", "home/lamp/state"):
        await sender.socket.send(mqtt_publish(topic, topic.encode()))
    code, out, err = await following
    assert code == 0
    assert err == "following topic filter 'home/+/state'; end with Ctrl-C\n"
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["payload"] for row in rows] == ["home/door/state", "home/lamp/state"]
    assert not any(name.startswith("trellis.tail.") for name in vhost.queues)


async def test_tail_says_how_many_messages_its_queue_dropped(
    broker: Running, commands: Commands
) -> None:
    vhost = broker.node.broker.vhosts["/"]
    client = await broker.amqp()
    words = ["tail", "amq.fanout", "--count", "1", "--buffer", "1"]
    following = asyncio.create_task(commands.run(*words))
    await broker.until(lambda: bool(list(vhost.exchanges["amq.fanout"])))
    await client.socket.send(publication("amq.fanout", "k", b"m") * 10)
    code, out, err = await following
    assert code == 0
    assert out.splitlines()[1:] == ["   exchange 'amq.fanout', routing key 'k'", "   m"]
    assert "9 messages came too fast and are not shown" in err


async def test_tail_needs_the_read_permission_of_the_exchange(
    broker: Running, commands: Commands
) -> None:
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    body = {"configure": "^trellis", "write": "^trellis", "read": "^trellis"}
    await api(broker, "PUT", "permissions/%2F/ann", body)
    code, out, err = await commands.run("tail", "amq.topic", user="ann")
    assert (code, out) == (1, "")
    assert "exchange 'amq.topic'" in err
    vhost = broker.node.broker.vhosts["/"]
    assert not any(name.startswith("trellis.tail.") for name in vhost.queues)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "give EXCHANGE or --mqtt FILTER"),
        (["amq.default"], 2, "the default exchange cannot be followed"),
        (["amq.topic", "--mqtt", "a"], 2, "both choose the messages"),
        (["amq.headers", "--header", "x"], 2, "--header: header 'x'"),
        (["none"], 1, "no exchange 'none'"),
    ],
)
async def test_wrong_sources_are_refused(
    commands: Commands, words: list[str], code: int, says: str
) -> None:
    assert says in await commands.fails("tail", *words, code=code)


async def test_tail_names_the_flag_for_topics(commands: Commands) -> None:
    code, _, err = await commands.run("tail", "plant/#")
    assert code == 1
    assert err.endswith(
        "no exchange 'plant/#' in vhost '/'; for MQTT topics, use --mqtt 'plant/#'\n"
    )
