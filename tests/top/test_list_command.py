"""`trellis list` against a broker of the test: kinds, conditions, order, and readable cells."""

from __future__ import annotations

import sys
from typing import TextIO

import pamqp.commands as spec
import pytest

from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running
from trellis.cli.list_columns import COLUMNS
from trellis.cli.readable import count_text, rate_text, size_text, time_text


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def filled(broker: Running) -> None:
    """Declare queues with 0, 3 and 10 messages in two virtual hosts."""
    await api(broker, "PUT", "vhosts/a")
    client = await broker.amqp()
    for name, messages in (("orders", 3), ("orders.dead", 10), ("empty", 0)):
        await api(broker, "PUT", f"queues/%2F/{name}")
        await client.socket.send(publication("", name, b"x") * messages)
    await api(broker, "PUT", "queues/a/other")
    queue = broker.node.broker.vhosts["/"].queues["orders.dead"]
    await broker.until(lambda: queue.depth == 10)


async def names(commands: Commands, *words: str) -> list[str]:
    rows = await commands.json("list", "queues", *words)
    return [row["name"] for row in rows]


async def test_rows_are_filtered_sorted_and_limited(broker: Running, commands: Commands) -> None:
    await filled(broker)
    assert await names(commands) == ["orders", "orders.dead", "empty", "other"]
    assert await names(commands, "--vhost", "a") == ["other"]
    assert await commands.out("list", "policies", "--vhost", "a") == "no policies in vhost 'a'\n"
    for kind in ("queues", "policies", "delayed"):
        assert await commands.fails("list", kind, "--vhost", "aa") == (
            "trellis: there is no vhost 'aa'; the nearest is 'a'; next: trellis vhosts list\n"
        )
    assert await commands.fails("list", "users", "--vhost", "a", code=2) == (
        "trellis: the objects of kind users belong to no virtual host: leave out --vhost\n"
    )
    assert await names(commands, "--filter", "name=orders*") == ["orders", "orders.dead"]
    assert await names(commands, "--filter", "name!=orders*") == ["empty", "other"]
    assert await names(commands, "--filter", "messages_ready>0") == ["orders", "orders.dead"]
    assert await names(commands, "--filter", "messages_ready<10", "--filter", "order") == ["orders"]
    assert await names(commands, "--filter", "dead") == ["orders.dead"]
    assert await names(commands, "--filter", "durable=yes", "--limit", "1") == ["orders"]
    assert await names(commands, "--sort", "messages_ready", "--reverse", "--limit", "2") == [
        "orders.dead",
        "orders",
    ]
    assert await names(commands, "--sort", "name") == ["empty", "orders", "orders.dead", "other"]
    assert await commands.out("list", "queues", "--filter", "none") == (
        "no queues satisfy the conditions of --filter\n"
    )
    lines = await commands.out("list", "queues", "--columns", "name,messages_ready", "--limit", "1")
    assert lines.splitlines() == ["name    messages_ready", "orders               3"]


async def test_dead_letters_are_listed_by_reason(broker: Running, commands: Commands) -> None:
    dead = {"x-dead-letter-exchange": "dead", "x-max-length": 3}
    await api(broker, "PUT", "exchanges/%2F/dead", {"type": "fanout"})
    for name, arguments in (("q", dead), ("r", dead), ("plain", {})):
        await api(broker, "PUT", f"queues/%2F/{name}", {"arguments": arguments})
    client = await broker.amqp()
    for name, messages in (("q", 5), ("r", 4)):
        await client.socket.send(publication("", name, b"x") * messages)
    vhost = broker.node.broker.vhosts["/"]
    await broker.until(lambda: vhost.queues["q"].depth == vhost.queues["r"].depth == 3)
    rejected = {"count": 1, "ackmode": "reject_requeue_false"}
    assert (await api(broker, "POST", "queues/%2F/q/get", rejected))[0] == 200
    await broker.until(lambda: vhost.queues["q"].depth == 2)
    columns = "name,dead_lettered_maxlen,dead_lettered_rejected,dead_lettered_expired"
    assert [
        row.split()
        for row in (await commands.out("list", "queues", "--columns", columns)).splitlines()
    ] == [
        columns.split(","),
        ["q", "2", "1", "0"],
        ["r", "1", "0", "0"],
        ["plain", "0", "0", "0"],
    ]
    (row,) = await commands.json("list", "exchanges", "--filter", "name=dead")
    assert (row["dead_letters_maxlen"], row["dead_letters_rejected"]) == (3, 1)
    for kind in ("queues", "exchanges"):
        short = (await commands.out("list", kind)).splitlines()[0].split()
        wide = (await commands.out("list", kind, "--wide")).splitlines()[0].split()
        further = [name for name in wide if name not in short]
        assert [name.rpartition("_")[2] for name in further] == [
            *("expired", "maxlen", "rejected", "limit")
        ]


async def test_the_counts_of_sessions_include_messages_of_qos_0(
    broker: Running, commands: Commands
) -> None:
    device = await broker.mqtt("device", user="known/known", clean=False)
    await device.subscribe("a/#", 1)
    sender = await broker.mqtt("sender", user="known/known")
    # One message with QoS 1 and two with QoS 0, also over the relay of equal packets.
    await sender.socket.send(mqtt_publish("a/b", b"x", 1, 1) + mqtt_publish("a/b", b"x") * 2)
    (session,) = (one for one in broker.node.mqtt.sessions.all() if one.name == "device")
    await broker.until(lambda: session.relayed == 2 and session.in_flight.count == 1)
    device.socket.close()
    await broker.until(lambda: session.connection is None)
    await sender.socket.send(mqtt_publish("a/b", b"x"))
    await broker.until(lambda: session.missed == 1)
    (row,) = await commands.json("list", "sessions", "--filter", "client_id=device")
    names = ("published", "delivered", "delivered_qos0", "acknowledged", "missed", "in_flight")
    assert {name: row[name] for name in names} == {
        "published": 4,
        "delivered": 3,
        "delivered_qos0": 2,
        "acknowledged": 0,
        "missed": 1,
        "in_flight": 1,
    }
    assert {name for name in row if name.startswith("dead_lettered")} > {"dead_lettered_expired"}
    short = (await commands.out("list", "sessions")).splitlines()[0].split()
    assert {"delivered", "dropped"} < {*short} and not {"redelivered", "published"} & {*short}
    wide = (await commands.out("list", "sessions", "--wide")).splitlines()[0].split()
    assert {*wide} == {*row}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--filter", "nam=x"], "--filter: the rows have no column nam; the nearest is name"),
        (["--filter", "messages_ready>x"], "--filter: 'x' in 'messages_ready>x' is not a number"),
        (["--sort", "depth"], "`trellis list queues` has no column depth; the nearest is"),
        (["--limit", "0"], "must be a whole number of at least 1"),
    ],
)
async def test_wrong_conditions_are_refused(
    broker: Running, commands: Commands, words: list[str], says: str
) -> None:
    await filled(broker)
    assert says in await commands.fails("list", "queues", *words, code=2)


@pytest.mark.parametrize(
    ("kind", "noun"),
    [
        ("queues", "queues"),
        ("bridges", "bridges"),
        ("cluster", "cluster nodes"),
        ("retained", "retained messages"),
        ("topic_groups", "topic groups"),
    ],
)
async def test_wrong_columns_of_an_empty_list_are_refused(
    broker: Running, commands: Commands, kind: str, noun: str
) -> None:
    column = next(iter(COLUMNS[kind]))
    for words, says in (
        (["--filter", f"{column}x=1"], f"--filter: the rows have no column {column}x; the nearest"),
        (
            ["--sort", f"{column}x"],
            f"list {kind}` has no column {column}x; the nearest is {column}",
        ),
        (
            ["--columns", f"{column}x"],
            f"list {kind}` has no column {column}x; the nearest is {column}",
        ),
    ):
        assert says in await commands.fails("list", kind, *words, code=2)
    words = ["--filter", f"{column}=1", "--sort", column, "--columns", column]
    assert await commands.out("list", kind, *words) == (
        f"no {noun} satisfy the conditions of --filter\n"
    )


async def test_consumers_channels_users_and_retained_messages_are_listed(
    broker: Running, commands: Commands
) -> None:
    await api(broker, "PUT", "queues/%2F/q")
    client = await broker.amqp()
    await client.call(spec.Basic.Qos(prefetch_count=5), spec.Basic.QosOk)
    await client.call(
        spec.Basic.Consume(queue="q", consumer_tag="c", arguments={"x-priority": 2}),
        spec.Basic.ConsumeOk,
    )
    (consumer,) = await commands.json("list", "consumers")
    peer = consumer.pop("peer")
    assert consumer == {
        "vhost": "/",
        "queue": "q",
        "consumer_tag": "c",
        "user": "known",
        "channel": 1,
        "prefetch": 5,
        "acknowledges": True,
        "exclusive": False,
        "priority": 2,
        "active": True,
    }
    (channel,) = await commands.json("list", "channels")
    assert channel == {
        "vhost": "/",
        "peer": peer,
        "number": 1,
        "user": "known",
        "consumers": 1,
        "prefetch": 5,
        "messages_unacknowledged": 0,
        "messages_unconfirmed": 0,
        "confirms": False,
        "transactional": False,
    }
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    rows = await commands.json("list", "users")
    assert [
        (row["name"], row["from"], row["connections"]) for row in rows if row["connections"]
    ] == [("known", "settings", 1)]
    assert rows[-1] == {
        "name": "ann",
        "tags": "management",
        "from": "broker",
        "role": "",
        "loopback_only": False,
        "connections": 0,
    }
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("home/door", b"open", flags=1))
    await broker.until(lambda: len(broker.node.broker.vhosts["/"].retained) == 1)
    assert await commands.json("list", "retained") == [
        {"vhost": "/", "topic": "home/door", "qos": 0, "bytes": 4, "expires_in_ms": None}
    ]


async def test_users_and_all_retained_topics_need_a_tag(broker: Running) -> None:
    assert (await api(broker, "GET", "trellis/users", None, "watcher"))[0] == 403
    assert (await api(broker, "GET", "trellis/retained", None, "watcher"))[0] == 200
    assert (await api(broker, "GET", "trellis/retained", None, "plain"))[0] == 403
    assert (await api(broker, "GET", "trellis/consumers", None, "plain"))[0] == 200


async def test_sessions_are_no_queues(broker: Running, commands: Commands) -> None:
    lamp = await broker.mqtt("lamp", clean=False, user="known/known")
    await lamp.subscribe("a", 1)
    assert await names(commands) == []
    assert [row["client_id"] for row in await commands.json("list", "sessions")] == ["lamp"]


class Screen:
    """A terminal that passes its text on to another output.

    After the screen was cleared `clears` times, the next clear raises KeyboardInterrupt, as if the
    user pressed Ctrl-C.
    """

    def __init__(self, target: TextIO, clears: int) -> None:
        self._target = target
        self._clears = clears

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "\x1b[2J" in text:
            self._clears -= 1
            if self._clears < 0:
                raise KeyboardInterrupt
        return self._target.write(text)

    def flush(self) -> None:
        self._target.flush()


async def test_a_terminal_gets_readable_sizes_and_ages(
    broker: Running, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await broker.amqp()
    columns = ("--columns", "since,unsent")
    plain = (await commands.out("list", "connections", *columns)).splitlines()[1].split()
    assert [cell.isdecimal() for cell in plain] == [True, True]
    monkeypatch.setattr("sys.stdout", Screen(sys.stdout, 9))
    line = (await commands.out("list", "connections", *columns)).splitlines()[1]
    assert line.endswith(" 0 B")
    assert " ago " in line
    client.socket.close()


async def test_watch_prints_the_list_again_until_it_is_interrupted(
    broker: Running, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(broker)
    monkeypatch.setattr("sys.stdout", Screen(sys.stdout, 2))
    words = ("list", "queues", "--columns", "name", "--limit", "1", "--watch", "0.1")
    code, out, _ = await commands.run(*words)
    assert code == 130
    assert out.count("\x1b[H\x1b[2Jname\norders\n") == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size_text(0), "0 B"),
        (size_text(1023), "1023 B"),
        (size_text(1536), "1.5 KiB"),
        (size_text(5 << 40), "5.0 TiB"),
        (size_text(5 << 50), "5120.0 TiB"),
        (time_text(0.04), "40 ms"),
        (time_text(1.5), "1 s"),
        (time_text(119), "119 s"),
        (time_text(120), "2 min"),
        (time_text(7200), "2 h"),
        (time_text(3 * 86_400), "3 d"),
        (count_text(1, "message"), "1 message"),
        (count_text(1204, "message"), "1,204 messages"),
        (count_text(2, "entry"), "2 entries"),
        (rate_text(14.4, "message"), "14 messages/s"),
        (rate_text(0.44, "message"), "0.4 messages/s"),
    ],
)
def test_numbers_are_readable(text: str, expected: str) -> None:
    assert text == expected
