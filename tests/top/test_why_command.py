"""Tests of the command `trellis why`, and of its answers about topics, also over HTTP."""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any
from urllib.parse import quote

import pytest

from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running
from tests.top.why_answers import parsed, publish, why
from trellis.cli import main


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


@pytest.fixture
def command(broker: Running, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs `trellis` beside the broker, and returns code and output."""
    monkeypatch.setenv("TRELLIS_HTTP_PORT", str(broker.port("http")))
    login = ("--user", "admin", "--password", "known")

    async def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*words, *login])
        return code, capsys.readouterr().out

    return run


async def test_the_command_prints_problems_and_the_next_command(
    broker: Running, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await broker.amqp()
    await client.queue("q")
    capsys.readouterr()
    code, output = await command(capsys, "why", "queue", "q", "--seconds", "0")
    assert code == 0 and output.splitlines() == [
        "classic queue 'q' in vhost '/': 0 ready, 0 unacknowledged, consumers: 0",
        "no problem found",
        "  next: trellis list queues --filter name=q --watch",
    ]
    await publish(broker, "q")
    code, output = await command(capsys, "why", "queue", "q", "--seconds", "0")
    assert code == 1 and output.splitlines()[1:] == [
        "- no consumer is connected, and 1 message waits",
        "  next: trellis list connections",
    ]
    code, output = await command(capsys, "why", "client", "known", "--json")
    answer = json.loads(output)
    assert code == 0 and answer["client"]["connections"] == 1
    parsed(answer["next"])


@pytest.mark.parametrize(
    ("words", "reason", "lists"),
    [
        (("queue", "absent"), "no queue 'absent' in vhost '/'", "list queues"),
        (("queue", "q", "--vhost", "absent"), "there is no vhost 'absent'", "vhosts list"),
        (("client", "absent"), "no client is known as 'absent'", "list connections"),
        (("topic", "t", "--vhost", "absent"), "there is no vhost 'absent'", "vhosts list"),
        (("topic", "t", "--publisher", "absent"), "there is no user 'absent'", "users list"),
    ],
)
async def test_the_error_about_an_unknown_object_names_the_command_that_lists_the_known_ones(
    command: Any,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    reason: str,
    lists: str,
) -> None:
    code = await asyncio.to_thread(main, ["why", *words, "--user", "admin", "--password", "known"])
    error = capsys.readouterr().err.strip()
    assert code == 1 and error.startswith(f"trellis: {reason}")
    assert error.endswith(f"; next: trellis {lists}")
    parsed(f"trellis {lists}")


async def test_a_topic_without_a_subscription_and_one_that_is_denied(
    broker: Running, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    device = await broker.mqtt("device", user="known/known")
    await device.subscribe("plant/+/temp")
    capsys.readouterr()
    code, output = await command(capsys, "why", "topic", "plant/7/temp")
    assert code == 0 and output.splitlines() == [
        "topic 'plant/7/temp' in vhost '/': queues and sessions reached: 1",
        "no problem found",
        "  next: trellis tail --mqtt plant/7/temp",
    ]
    code, output = await command(capsys, "why", "topic", "plant/7/Temp")
    assert code == 1
    assert "- no subscription and no binding matches topic 'plant/7/Temp'" in output
    assert "  next: trellis list bindings --filter source=amq.topic\n" in output
    assert "- 'plant/+/temp' of session 'device' almost matches: " in output
    assert output.endswith("  next: trellis why client device\n")
    _, output = await command(capsys, "why", "topic", "firmware/v1.2")
    assert (
        "- no subscription and no binding matches topic 'firmware/v1.2', routing key "
        "'firmware.v1/2' (the key has '.' for the topic's '/', and '/' for its '.')\n" in output
    )
    assert (await api(broker, "PUT", "users/eve", {"password_hash": "", "tags": ""}))[0] == 201
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    assert (await api(broker, "PUT", "permissions/%2F/eve", everything))[0] == 201
    rules = {"rules": ["deny publish plant/#", "allow all #"]}
    assert (await api(broker, "PUT", "topic-rules/%2F/eve", rules))[0] in (201, 204)
    code, output = await command(capsys, "why", "topic", "plant/7/temp", "--publisher", "eve")
    assert code == 1 and "- the broker refuses the message: " in output
    assert "  next: trellis permissions list eve" in output
    # A refused message reaches no queue: the heading says which queues match.
    assert output.startswith(
        "topic 'plant/7/temp' in vhost '/': queues and sessions that would get the message if the "
        "broker accepted it: 1\n"
    )
    assert "reached" not in output and "takes the message" not in output
    rules = {"rules": ["allow all #"]}
    assert (await api(broker, "PUT", "topic-rules/%2F/eve", rules))[0] in (201, 204)
    code, output = await command(capsys, "why", "topic", "plant/7/temp", "--publisher", "eve")
    assert code == 0 and "queues and sessions reached: 1\n" in output


async def test_the_command_after_a_topic_without_a_subscription_shows_or_makes_one(
    broker: Running, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (await api(broker, "PUT", "vhosts/plant"))[0] == 201
    client = await broker.amqp()
    await client.queue("q")
    none = (
        "- no subscription and no binding matches topic 'a/b'; exchange 'amq.topic' has no "
        "binding at all: subscribe an MQTT client to the topic, or bind a queue to the exchange\n"
        "  next: trellis bindings declare amq.topic QUEUE a.b"
    )
    _, output = await command(capsys, "why", "topic", "a/b", "--vhost", "plant")
    assert output.endswith(f"{none} --vhost plant\n")
    _, output = await command(capsys, "why", "topic", "a/b")
    assert output.endswith(f"{none}\n")
    # The operator follows the command, with the name of a queue.
    words = shlex.split(output.rpartition("next: trellis ")[2].replace("QUEUE", "q"))
    assert (await command(capsys, *words))[0] == 0
    code, output = await command(capsys, "why", "topic", "a/b")
    assert code == 0 and "queues and sessions reached: 1\n" in output
    _, output = await command(capsys, "why", "topic", "a/c")
    assert output.endswith(
        "- no subscription and no binding matches topic 'a/c'\n"
        "  next: trellis list bindings --filter source=amq.topic\n"
    )
    words = shlex.split(output.rpartition("next: trellis ")[2])
    _, output = await command(capsys, *words)
    assert "a.b" in output


async def test_a_topic_over_http_with_its_rights(broker: Running) -> None:
    device = await broker.mqtt("device", user="known/known")
    await device.subscribe("plant/#")
    answer, findings = await why(broker, "topics/%2F/plant%2F7%2Ftemp?user=known")
    assert findings == {} and answer["topic"] == "plant/7/temp" and answer["vhost"] == "/"
    assert answer["reached"] == 1 and answer["verdicts"] == {"takes": 1}
    assert [row["name"] for row in answer["queues"]] == ["device"]
    for user, status in (("known", 403), ("admin", 404)):
        question = "why/topics/%2F/plant?user=absent"
        assert (await api(broker, "GET", question, user=user))[0] == status


async def test_a_session_cannot_get_a_topic_with_a_wildcard(broker: Running) -> None:
    device = await broker.mqtt("device", user="known/known")
    await device.subscribe("plant/#")
    _, findings = await why(broker, "topics/%2F/plant%2F%2B%2Ftemp")
    assert findings["cannot_represent"] == (
        "session 'device' could not get the message, even if the broker accepted it: its protocol "
        "cannot represent this routing key"
    )
    assert findings["refused"].startswith("the broker refuses the message: topic 'plant/+/temp'")


async def test_an_invalid_topic_leads_neither_to_permissions_nor_to_near_misses(
    broker: Running,
) -> None:
    client = await broker.amqp()
    await client.queue("q", "amq.topic", "a.b")
    for topic, after in (
        ("a/#", "trellis tail --mqtt 'a/#'"),
        ("a/+/c", "trellis tail --mqtt a/+/c"),
        ("$SYS/x", "trellis list bindings --filter source=amq.topic"),
        ("a/" * 300, "trellis list settings --filter name=mqtt.max_levels"),
    ):
        answer, findings = await why(broker, f"topics/%2F/{quote(topic, safe='')}?user=known")
        assert list(findings) == ["refused"] and answer["next"] == after
        assert findings["refused"] == f"the broker refuses the message: {answer['refusal']}"
