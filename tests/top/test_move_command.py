"""`trellis move` and `trellis redrive`, and the HTTP routes of moves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import publication
from tests.top.api_client import api, users
from tests.top.commands import UNASKED, Commands
from tests.top.conftest import Start
from tests.top.running import Running


@pytest.fixture
async def broker(start: Start, tmp_path: Path) -> Running:
    running = await start(**users(), data={"dir": str(tmp_path / "data")})
    for name in ("q", "r"):
        assert (await api(running, "PUT", f"queues/%2F/{name}"))[0] == 201
    client = await running.amqp()
    await client.socket.send(publication("", "q", b"m", delivery_mode=2) * 300)
    await running.until(lambda: depth(running, "q") == 300)
    return running


def depth(broker: Running, name: str) -> int:
    return int(broker.node.broker.vhosts["/"].queues[name].depth)


async def test_move_says_what_it_does_and_does_it(broker: Running, commands: Commands) -> None:
    assert (
        await commands.out("move", "q", "--to", "r", "--dry-run")
        == "300 messages go to queue 'r'\n"
    )
    assert depth(broker, "q") == 300
    assert await commands.out("move", "q", "--to", "r", "--count", "100", "--yes") == (
        "moved 100 messages to queue 'r'\n"
    )
    assert (depth(broker, "q"), depth(broker, "r")) == (200, 100)
    out = await commands.out("move", "r", "--exchange", "amq.default", "--key", "q", "--yes")
    assert out == "moved 100 messages to exchange 'amq.default' with key 'q'\n"
    assert (depth(broker, "q"), depth(broker, "r")) == (300, 0)
    assert await commands.out("move", "r", "--to", "q") == "queue 'r' has no waiting message\n"


async def test_without_a_terminal_move_needs_yes(broker: Running, commands: Commands) -> None:
    code, out, err = await commands.run("move", "q", "--to", "r")
    assert (code, out) == (2, "")
    assert err == "300 messages go to queue 'r'\n" + UNASKED
    assert depth(broker, "q") == 300


async def test_a_dry_run_names_transient_queues_and_messages_that_stay(
    broker: Running, commands: Commands
) -> None:
    await api(broker, "PUT", "queues/%2F/t", {"durable": False})
    assert await commands.out("move", "q", "--to", "t", "--dry-run") == (
        "300 messages go to queue 't'; the queue is transient: a restart of the broker deletes "
        "these messages\n"
    )
    reason = "no queue is bound to exchange 'amq.direct' in vhost '/' for routing key 'k'"
    words = ["move", "q", "--exchange", "amq.direct", "--key", "k"]
    for flag in ("--dry-run", "--yes"):  # No message can be moved: the exit code of a failure.
        code, out, _ = await commands.run(*words, flag)
        assert (code, out) == (1, f"300 messages stay in queue 'q': {reason}\n"), flag
    code, out, _ = await commands.run(*words, "--dry-run", "--json")
    row = json.loads(out)
    assert code == 1
    assert (row["messages"], row["examined"], row["queues"]) == (300, 300, [])
    assert row["refused"] == {reason: 300}


async def test_a_full_queue_stops_a_move_with_exit_code_1(
    broker: Running, commands: Commands
) -> None:
    await api(broker, "PUT", "queues/%2F/small", {"arguments": {"x-max-length": 10}})
    reason = "queue 'small' is full: 10 of 10 messages wait"
    assert await commands.out("move", "q", "--to", "small", "--dry-run") == (
        f"10 messages go to queue 'small'\n290 messages stay in queue 'q': {reason}\n"
    )
    code, out, _ = await commands.run("move", "q", "--to", "small", "--yes")
    assert code == 1
    assert out.splitlines() == [
        "moved 10 messages to queue 'small'",
        f"290 messages stay in queue 'q': {reason}",
        f"the move stopped: {reason}",
    ]
    assert (depth(broker, "small"), depth(broker, "q")) == (10, 290)


async def test_redrive_shows_the_origins_first(broker: Running, commands: Commands) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name in ("a", "b"):
        await api(broker, "PUT", f"queues/%2F/{name}", {"arguments": arguments})
    await api(broker, "PUT", "queues/%2F/dead")
    client = await broker.amqp()
    await client.socket.send(
        publication("", "a", b"1") + publication("", "b", b"2") + publication("", "a", b"3")
    )
    await broker.until(lambda: depth(broker, "a") + depth(broker, "b") == 3)
    for name in ("a", "b"):
        rejected = {"count": 9, "ackmode": "reject_requeue_false"}
        assert (await api(broker, "POST", f"queues/%2F/{name}/get", rejected))[0] == 200
    await broker.until(lambda: depth(broker, "dead") == 3)
    code, _, err = await commands.run("redrive", "dead")
    assert code == 2
    assert err.startswith(
        "2 messages go to queue 'a'\n1 message goes to queue 'b'\ntrellis: nothing was changed"
    )
    assert await commands.out("redrive", "dead", "--yes") == (
        "moved 3 messages to the queue in which each message died\n"
    )
    assert [depth(broker, name) for name in ("a", "b", "dead")] == [2, 1, 0]


async def test_a_move_over_http_is_listed_and_can_be_cancelled(broker: Running) -> None:
    body = {"queue": "r", "rate": 5}
    status, row = await api(broker, "POST", "queues/%2F/q/move", body)
    assert status == 200
    assert (row["id"], row["state"], row["messages"], row["user"]) == (1, "running", 300, "admin")
    status, answer = await api(broker, "POST", "queues/%2F/q/move", body)
    assert (status, answer["error"]) == (409, "conflict")
    assert answer["reason"].startswith("move 1 of queue 'q' is running")
    await broker.until(lambda: depth(broker, "r") > 0)
    assert [one["id"] for one in (await api(broker, "GET", "moves"))[1]] == [1]
    assert (await api(broker, "DELETE", "moves/1", None, "known"))[0] == 403
    assert (await api(broker, "DELETE", "moves/1"))[0] == 204
    row = (await api(broker, "GET", "moves/1"))[1]
    while row["state"] == "ending":
        row = (await api(broker, "GET", "moves/1"))[1]
    assert row["state"] == "cancelled"
    assert depth(broker, "r") == row["moved"] < 300
    assert depth(broker, "q") + depth(broker, "r") == 300
    assert (await api(broker, "GET", "moves/2"))[0] == 404


async def test_a_user_whose_rights_end_moves_no_further(broker: Running) -> None:
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    rights = {"configure": "", "write": "^amq.default$", "read": "^q$"}
    await api(broker, "PUT", "permissions/%2F/ann", rights)
    status, row = await api(broker, "POST", "queues/%2F/q/move", {"queue": "r", "rate": 20}, "ann")
    assert status == 200
    await broker.until(lambda: depth(broker, "r") > 0)
    await api(broker, "PUT", "permissions/%2F/ann", rights | {"write": ""})

    async def ended() -> Any:
        while True:
            row = (await api(broker, "GET", "moves/1"))[1]
            if row["state"] == "stopped":
                return row

    row = await asyncio.wait_for(ended(), 20)
    assert row["reason"].startswith("write access to exchange 'amq.default' in vhost '/' refused")
    assert depth(broker, "q") + depth(broker, "r") == 300


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("q/move", {}, 400, "give either 'queue', or 'exchange'"),
        ("q/move", {"queue": "r", "exchange": "amq.topic"}, 400, "give either"),
        ("q/move", {"queue": "q"}, 400, "queue 'q' is the source of the move"),
        ("q/move", {"queue": "none"}, 404, "no queue 'none'"),
        ("q/move", {"exchange": "none"}, 404, "no exchange 'none'"),
        ("none/move", {"queue": "r"}, 404, "no queue 'none'"),
        ("rows/move", {"queue": "r"}, 400, "the queue is a stream"),
        ("q/move", {"queue": "r", "rate": -1}, 400, "'rate' must be a number"),
        ("q/move", {"queue": "r", "count": "x"}, 400, "'count' must be a whole number from 0 to"),
        ("q/redrive", {"dry_run": 3}, 400, "the field 'dry_run' must be true or false"),
    ],
)
async def test_wrong_moves_are_refused(
    broker: Running, path: str, body: Any, status: int, says: str
) -> None:
    await api(broker, "PUT", "queues/%2F/rows", {"arguments": {"x-queue-type": "stream"}})
    got, answer = await api(broker, "POST", f"queues/%2F/{path}", body)
    assert (got, says in answer["reason"]) == (status, True), answer


async def test_a_move_needs_the_rights_to_read_and_to_publish(broker: Running) -> None:
    for name, write, read in (("reader", "", "^q$"), ("writer", "^amq.default$", "")):
        await api(broker, "PUT", f"users/{name}", {"password": "known", "tags": "management"})
        rights = {"configure": "", "write": write, "read": read}
        await api(broker, "PUT", f"permissions/%2F/{name}", rights)
        for action in ({"queue": "r"}, {"queue": "r", "dry_run": True}, {"exchange": ""}):
            path = "queues/%2F/q/move"
            assert (await api(broker, "POST", path, action, name))[0] == 403, (name, action)
        assert (await api(broker, "POST", "queues/%2F/q/redrive", {}, name))[0] == 403


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give either --to QUEUE, or --exchange NAME"),
        (["--to", "r", "--exchange", "e"], "give either"),
        (["--to", "r", "--key", "k"], "--key needs --exchange"),
        (["--to", "r", "--count", "0"], "must be a whole number of at least 1"),
    ],
)
async def test_wrong_arguments_have_exit_code_2(
    commands: Commands, words: list[str], says: str
) -> None:
    assert says in await commands.fails("move", "q", *words, code=2)
