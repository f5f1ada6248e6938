"""Tests of `trellis ask` and `trellis report` over HTTP, on a broker with a journal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra [arrow] is not installed")

from tests.clients import publication
from tests.top.api_client import journaled
from tests.top.commands import Commands
from tests.top.conftest import Start


async def test_questions_are_answered_from_the_journal_of_a_running_broker(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await start(**journaled(tmp_path))
    client = await broker.amqp()
    await client.queue("orders", "amq.topic", "orders.*")
    device = await broker.mqtt("device")
    await device.subscribe("orders/#")
    await device.subscribe("never/+")
    for key in ("orders.new", "orders.a.b", "ordres.new"):
        await client.socket.send(publication("amq.topic", key, b"m"))
    await broker.until(lambda: broker.durable_rows("all") == 3)
    command_line = Commands(broker, capsys, monkeypatch)

    text = await command_line.out("ask", "traffic", "--by", "exchange")
    assert text.startswith("3 messages of 3 topics, ")
    assert text.splitlines()[-1].split() == ["/", "amq.topic", "3", "3", "3", "1"]
    answer = json.loads(await command_line.out("ask", "unroutable", "--json", "-"))
    assert answer["rows"] == [
        {
            "vhost": "/",
            "exchange": "amq.topic",
            "topic": "ordres.new",
            "messages": 1,
            "unroutable": 1,
            "now": "nowhere",
            "nearest": "orders.#",
            "words": 1,
        }
    ]
    answer = json.loads(await command_line.out("ask", "audit", "--json", "-"))
    assert [(each["destination"], each["key"]) for each in answer["dead"]] == [
        ("device", "never/+")
    ]
    (tmp_path / "new.json").write_text(json.dumps({"queues": [{"name": "orders"}]}))
    words = ("ask", "whatif", "--definitions", str(tmp_path / "new.json"), "--json", "-")
    code, out, _ = await command_line.run(*words)
    changes = {each["name"]: (each["before"], each["after"]) for each in json.loads(out)["queues"]}
    assert code == 1
    assert changes == {"all": (0, None), "orders": (1, 0), "device": (2, 2)}
    text = await command_line.out("report", "--keep", str(tmp_path / "kept"))
    assert "first report: " in text

    error = await command_line.fails("ask", "traffic", "--stream", "none", code=1)
    answered = (
        f"http://127.0.0.1:{broker.port('http')} answered a request of user 'admin' with status 404"
    )
    assert error == f"trellis: {answered}: there is no stream 'none' in vhost '/'\n"
    code, _, error = await command_line.run("asyncapi", "--stream", "all", user="stranger")
    assert code == 1 and "answered a request of user 'stranger' with status 401" in error
    code, _, error = await command_line.run("ask", "traffic", user="stranger")
    assert code == 1 and "refused user stranger" in error


async def test_a_journal_with_an_unusual_name_is_found(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "plant/all, 100%"
    settings = journaled(tmp_path)
    broker = await start(**{**settings, "stream": {"journals": [f"/={name}"]}})
    client = await broker.amqp()
    await client.socket.send(publication("amq.topic", "orders.new", b"m"))
    await broker.until(lambda: broker.durable_rows(name) == 1)
    command_line = Commands(broker, capsys, monkeypatch)
    # By default, a report ends at the beginning of the present second.
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    report = ("report", "--keep", str(tmp_path / "kept"), "--until", later)
    for words in (("ask", "traffic"), report):
        assert "1 message" in await command_line.out(*words)
    arguments = {"x-queue-type": "stream", "x-journal": True}
    await client.queue("j/2", durable=True, arguments=arguments)
    error = await command_line.fails("ask", "traffic", code=2)
    assert error.endswith("name one with --stream: plant%2Fall%2C 100%25, j%2F2\n")
    named = await command_line.out("ask", "traffic", "--stream", "plant%2Fall%2C 100%25")
    assert named.startswith("1 messages of 1 topics")
