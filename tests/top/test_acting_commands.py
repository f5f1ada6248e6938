"""`trellis purge`, `pause`, `resume`, `close` and `retained`, and the questions that they ask."""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
import re
from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.commands import UNASKED, Commands
from tests.top.conftest import Start
from tests.top.running import Running
from trellis import cli
from trellis.http.management import retaining


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    assert (await api(running, "PUT", "queues/%2F/q"))[0] == 201
    return running


def queue_of(broker: Running) -> Any:
    return broker.node.broker.vhosts["/"].queues["q"]


async def test_purge_says_how_many_messages_are_discarded(
    broker: Running, commands: Commands
) -> None:
    client = await broker.amqp()
    await client.socket.send(publication("", "q", b"x") * 1_204)
    await broker.until(lambda: queue_of(broker).depth == 1_204)
    consequence = "1,204 messages in queue 'q' will be discarded\n"
    assert await commands.run("purge", "q") == (2, "", consequence + UNASKED)
    assert queue_of(broker).depth == 1_204
    assert await commands.out("purge", "q", "--yes") == "purged queue 'q'\n"
    assert queue_of(broker).depth == 0
    assert await commands.run("purge", "q") == (0, "queue 'q' has no waiting message\n", "")
    assert (
        await commands.fails("purge", "none")
        == "trellis: no queue 'none' in vhost '/'; next: trellis list queues\n"
    )


async def test_a_stream_cannot_be_purged(broker: Running, commands: Commands) -> None:
    await api(broker, "PUT", "queues/%2F/rows", {"arguments": {"x-queue-type": "stream"}})
    client = await broker.amqp()
    await client.socket.send(publication("", "rows", b"x") * 3)
    await broker.until(lambda: broker.durable_rows("rows") == 3)
    status, answer = await api(broker, "DELETE", "queues/%2F/rows/contents")
    assert (status, "is a stream, which cannot be purged" in answer["reason"]) == (400, True)
    for words in (["--yes"], []):
        error = await commands.fails("purge", "rows", *words)
        assert "is a stream, which cannot be purged" in error and "max-age" in error
    assert broker.durable_rows("rows") == 3


class Terminal(io.StringIO):
    """A text input that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("Yes\n", 0), ("n\n", 1), ("", 1)])
async def test_on_a_terminal_the_command_asks(
    broker: Running,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    code: int,
) -> None:
    client = await broker.amqp()
    await client.socket.send(publication("", "q", b"x"))
    await broker.until(lambda: queue_of(broker).depth == 1)
    commands.terminal = Terminal(answer)
    got, out, err = await commands.run("purge", "q")
    assert (got, queue_of(broker).depth) == (code, code)
    assert err.startswith("1 message in queue 'q' will be discarded\nContinue? [y/N] ")
    assert ("nothing was changed" in err) == bool(code)
    assert out == ("" if code else "purged queue 'q'\n")


async def test_pause_and_resume_a_queue(broker: Running, commands: Commands) -> None:
    client = await broker.amqp()
    await client.call(spec.Basic.Consume(queue="q", no_ack=True), spec.Basic.ConsumeOk)
    consequence = "queue 'q' will stop delivering messages to 1 consumer\n0 messages wait\n"
    assert await commands.run("pause", "q") == (2, "", consequence + UNASKED)
    assert await commands.out("pause", "q", "--yes") == (
        "paused queue 'q'; to resume its deliveries: trellis resume q\n"
    )
    assert (await broker.scrape()).value("trellis_queues_paused") == 1
    assert (await api(broker, "GET", "queues/%2F/q"))[1]["paused"] is True
    sender = await broker.amqp()
    await sender.socket.send(publication("", "q", b"later"))
    await broker.until(lambda: queue_of(broker).depth == 1)
    assert await commands.out("pause", "q", "--yes") == "queue 'q' is paused already\n"
    assert await commands.out("resume", "q") == "resumed queue 'q'\n"
    await client.expect(spec.Basic.Deliver)
    assert await commands.out("resume", "q") == "queue 'q' is not paused\n"


async def test_the_command_to_resume_names_the_virtual_host(
    broker: Running, commands: Commands
) -> None:
    await api(broker, "PUT", "vhosts/v")
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    await api(broker, "PUT", "permissions/v/admin", rights)
    assert (await api(broker, "PUT", "queues/v/q"))[0] == 201
    assert await commands.out("pause", "q", "--vhost", "v", "--yes") == (
        "paused queue 'q'; to resume its deliveries: trellis resume q --vhost v\n"
    )


async def test_the_question_names_the_rate_of_the_messages_that_come(
    broker: Running, commands: Commands
) -> None:
    client = await broker.amqp()
    queue = queue_of(broker)

    async def send() -> None:
        for sent in itertools.count(5, 5):
            await client.socket.send(publication("", "q", b"x") * 5)
            await broker.until(functools.partial(lambda depth: queue.depth == depth, sent))

    sending = asyncio.create_task(send())
    code, _, question = await commands.run("pause", "q")
    sending.cancel()
    assert code == 2
    rate = re.search(r"wait, and ([0-9.,]+) messages/s arrive\n", question)
    assert rate is not None and 0 < float(rate[1].replace(",", "")) <= queue.depth


async def test_a_stream_and_a_session_cannot_be_paused(broker: Running) -> None:
    await api(broker, "PUT", "queues/%2F/rows", {"arguments": {"x-queue-type": "stream"}})
    status, answer = await api(broker, "PUT", "queues/%2F/rows/pause")
    assert (status, "is a stream, which cannot be paused" in answer["reason"]) == (400, True)
    lamp = await broker.mqtt("lamp", user="known/known")
    await lamp.subscribe("a", 1)
    path = "queues/%2F/mqtt-subscription-lampqos1/pause"
    assert (await api(broker, "PUT", path))[0] == 400


async def test_pausing_needs_the_configure_permission(broker: Running) -> None:
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    rights = {"configure": "^r$", "write": ".*", "read": ".*"}
    await api(broker, "PUT", "permissions/%2F/ann", rights)
    for method in ("PUT", "DELETE"):
        assert (await api(broker, method, "queues/%2F/q/pause", None, "ann"))[0] == 403
    await api(broker, "PUT", "permissions/%2F/ann", rights | {"configure": "^q$"})
    assert (await api(broker, "PUT", "queues/%2F/q/pause", None, "ann"))[0] == 204
    assert queue_of(broker).paused


async def test_close_ends_the_connections_of_a_client(broker: Running, commands: Commands) -> None:
    lamp = await broker.mqtt("lamp", user="known/known")
    code, _, err = await commands.run("close", "lamp")
    assert code == 2
    assert "the broker will publish the will message of MQTT client 'lamp', if " in err
    out = await commands.out("close", "lamp", "--yes")
    assert out.startswith("closed connection 127.0.0.1:") and out.endswith(" -> mqtt\n")
    assert await lamp.socket.read_to_end() == b""

    client = await broker.amqp()
    await client.socket.send(publication("", "q", b"x") * 2)
    await client.call(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
    await broker.until(lambda: queue_of(broker).unacked == 2)
    (row,) = (await api(broker, "GET", "connections"))[1]
    code, out, err = await commands.run("close", row["name"])
    assert code == 2
    assert "of user 'known' (AMQP 0-9-1) will be closed: 1 consumer will end, " in err
    assert "2 unacknowledged messages will return to their queues" in err
    assert (await commands.run("close", row["name"], "--yes"))[0] == 0
    await broker.until(lambda: queue_of(broker).depth == 2)
    assert "no client 'lamp' is connected" in (await commands.fails("close", "lamp", "--yes"))


async def retain(broker: Running, *topics: str) -> None:
    sender = await broker.mqtt("sender", user="known/known")
    for topic in topics:
        await sender.socket.send(mqtt_publish(topic, topic.encode(), flags=1))
    held = broker.node.broker.vhosts["/"].retained
    await broker.until(lambda: len(held) == len(topics))


async def test_retained_messages_are_listed_and_cleared(
    broker: Running, commands: Commands
) -> None:
    await retain(broker, "home/door", "home/lamp", "plant/1", "a.b/c")
    assert (await commands.out("retained", "list", "home/+")).splitlines() == [
        "topic      qos  size  expires  payload",
        "home/door    0  9 B            home/door",
        "home/lamp    0  9 B            home/lamp",
    ]
    rows = await commands.json("retained", "list", "--count", "2")
    assert [row["topic"] for row in rows] == ["home/door", "home/lamp"]
    out = await commands.out("retained", "list", "--count", "2")
    assert out.endswith("\nthe first 2 of 4 retained messages are shown; --count N shows more\n")
    assert "are shown" not in await commands.out("retained", "list", "home/#", "--count", "2")
    (row,) = await commands.json("retained", "list", "a.b/#")
    assert (row["topic"], row["routing_key"], row["payload"]) == ("a.b/c", "a/b.c", "a.b/c")
    consequence = "2 retained messages will be removed\n"
    assert await commands.run("retained", "clear", "home/#") == (2, "", consequence + UNASKED)
    assert await commands.out("retained", "clear", "home/#", "--yes") == (
        "removed 2 retained messages\n"
    )
    assert await commands.out("retained", "clear", "home/#") == (
        "no retained message has a topic that matches 'home/#'\n"
    )
    assert await commands.out("retained", "list", "none") == (
        "no retained message has a topic that matches 'none'\n"
    )
    assert len(broker.node.broker.vhosts["/"].retained) == 2
    assert "the filter 'a/#/b' is not valid" in await commands.fails("retained", "list", "a/#/b")


async def test_retained_messages_need_the_rights_of_their_topics(broker: Running) -> None:
    await retain(broker, "ann/1", "bob/1")
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    rights = {"configure": "", "write": ".*", "read": ".*"}
    await api(broker, "PUT", "permissions/%2F/ann", rights)
    rules = {"rules": ["allow all ann/#", "deny all #"]}
    assert (await api(broker, "PUT", "topic-rules/%2F/ann", rules))[0] in (201, 204)
    status, rows = await api(broker, "GET", "retained/%2F", None, "ann")
    assert (status, [row["topic"] for row in rows]) == (200, ["ann/1"])
    assert (await api(broker, "GET", "retained/%2F?filter=bob/%23", None, "ann"))[0] == 403
    assert (await api(broker, "DELETE", "retained/%2F?filter=bob/%23", None, "ann"))[0] == 403
    assert (await api(broker, "DELETE", "retained/%2F", None, "ann"))[0] == 400
    assert (await api(broker, "DELETE", "retained/%2F?filter=%23", None, "ann"))[1] == {
        "removed": 1,
        "refused": 1,
    }
    await api(broker, "PUT", "permissions/%2F/ann", rights | {"read": "", "write": ""})
    assert (await api(broker, "GET", "retained/%2F", None, "ann"))[0] == 403
    assert (await api(broker, "DELETE", "retained/%2F?filter=%23", None, "ann"))[0] == 403


async def test_retained_topics_are_counted_up_to_a_bound(
    broker: Running, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    await retain(broker, "ann/1", "ann/2", "bob/1")
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    rights = {"configure": "", "write": ".*", "read": ".*"}
    await api(broker, "PUT", "permissions/%2F/ann", rights)
    rules = {"rules": ["allow all ann/#", "deny all #"]}
    assert (await api(broker, "PUT", "topic-rules/%2F/ann", rules))[0] in (201, 204)
    for user, query, topics in (("admin", "", 3), ("admin", "?filter=bob/%23", 1), ("ann", "", 2)):
        answer = await api(broker, "GET", f"retained/%2F/count{query}", None, user)
        assert answer == (200, {"topics": topics, "more": False}), (user, query)
    assert (await api(broker, "GET", "retained/%2F/count?filter=bob/%23", None, "ann"))[0] == 403
    monkeypatch.setattr(retaining, "COUNTED_MAX", 2)
    assert (await api(broker, "GET", "retained/%2F/count"))[1] == {"topics": 2, "more": True}
    out = await commands.out("retained", "list", "--count", "1")
    assert "the first 1 of more than 2 retained messages are shown" in out


def test_an_unknown_action_names_the_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["retained", "remove"]) == 2
    assert "clear" in capsys.readouterr().err
