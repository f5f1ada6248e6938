"""Tests of `trellis users`, `permissions`, `vhosts` and `policies` with a running broker."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.clients import mqtt_publish
from tests.top.commands import UNASKED
from tests.top.conftest import Start
from tests.top.running import KNOWN, Mqtt0, Running
from trellis import cli


async def trellis(
    running: Running,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    user: str = "admin",
    stdin: str = "",
    monkeypatch: pytest.MonkeyPatch | None = None,
) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command, run in a thread beside the broker."""
    if monkeypatch is not None:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    capsys.readouterr()
    asking = [
        "--url",
        f"http://127.0.0.1:{running.port('http')}",
        "--user",
        user,
        "--password",
        "known",
    ]
    code = await asyncio.to_thread(cli.main, [*words[:2], *asking, *words[2:]])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(
        users=[KNOWN, KNOWN | {"name": "admin", "administrator": True, "rules": ["allow all #"]}]
    )


async def test_a_user_is_made_given_rights_and_deleted(
    broker: Running,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    async def run(*words: str, stdin: str = "") -> str:
        code, out, err = await trellis(broker, capsys, *words, stdin=stdin, monkeypatch=monkeypatch)
        assert (code, err) == (0, ""), words
        return out

    await run("users", "add", "ann", "--tags", "management,monitoring", stdin="secret\n")
    await run("permissions", "set", "ann", "", "^amq", ".*")
    await run("permissions", "topic", "ann", "allow publish a/{username}", "deny all #", "--yes")
    assert [line.split() for line in (await run("users", "list")).splitlines()] == [
        ["name", "tags", "role", "from"],
        ["known", "settings"],
        ["admin", "administrator", "settings"],
        ["ann", "management", "monitoring", "broker"],
    ]
    rows = json.loads(await run("permissions", "list", "ann", "--json"))
    assert rows == [
        {
            "user": "ann",
            "vhost": "/",
            "configure": "",
            "write": "^amq",
            "read": ".*",
            "rules": "allow publish a/{username}; deny all #",
        }
    ]
    client = await broker.mqtt("c", user="ann/secret")
    (tmp_path / "password").write_text("other\n")
    await run("users", "change-password", "ann", "--new-password-file", str(tmp_path / "password"))
    await run("users", "tags", "ann", "--yes")
    await client.ping()
    await run("permissions", "clear", "ann", "--yes")
    assert await client.socket.read() == b""
    rows = json.loads(await run("permissions", "list", "ann", "--json"))
    assert [(row["read"], row["rules"]) for row in rows] == [
        (None, "allow publish a/{username}; deny all #")
    ]
    listed = (await run("permissions", "list", "ann")).splitlines()
    assert listed[1].split() == [
        "ann",
        "/",
        *["allow", "publish", "a/{username};", "deny", "all", "#"],
    ]
    await run("permissions", "topic", "ann", "--clear", "--yes")
    assert "no permissions" in await run("permissions", "list", "ann")
    code, _, err = await trellis(broker, capsys, "users", "delete", "ann")
    assert code == 2
    assert err.startswith(
        "user 'ann' will be deleted: 0 connections of the user will be closed, and its MQTT "
        "sessions will end\n"
    )
    await run("users", "delete", "ann", "--yes")
    assert "ann" not in await run("users", "list")


async def test_vhosts_and_policies(broker: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["vhosts", "add", "v"],
        ["policies", "set", "p", "^q", '{"max-length": 3}', "--vhost", "v", "--priority", "2"],
    ):
        assert (await trellis(broker, capsys, *words))[0] == 0
    assert "v" in (await trellis(broker, capsys, "vhosts", "list"))[1]
    listed = (await trellis(broker, capsys, "policies", "list"))[1].splitlines()
    assert listed[1].split() == ["v", "p", "^q", "all", "2", '{"max-length":3}']
    for words in (["policies", "clear", "p", "--vhost", "v"], ["vhosts", "delete", "v"]):
        assert (await trellis(broker, capsys, *words, "--yes"))[0] == 0
    assert (await trellis(broker, capsys, "policies", "list"))[1] == "no policies\n"


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["users", "add", "known"], 1, "there is a user known"),
        (
            ["users", "add", "bob", "--tags", "admin"],
            2,
            "there is no tag admin; the nearest is administrator",
        ),
        (["users", "delete", "known", "--yes"], 1, "user 'known' is defined in the settings"),
        (["users", "delete", "unknown"], 1, "there is no user 'unknown'"),
        (["permissions", "set", "unknown", ".*", ".*", ".*"], 1, "there is no user 'unknown'"),
        (["permissions", "topic", "known", "allow all #"], 1, "are defined in the settings"),
        (
            ["permissions", "set", "known", ".*", ".*", ".*", "--vhost", "none"],
            1,
            "there is no vhost 'none'",
        ),
        (["permissions", "topic", "known"], 2, "give either the rules or --clear"),
        (["permissions", "topic", "known", "allow all #", "--clear"], 2, "give either the rules"),
        (["vhosts", "delete", "/", "--yes"], 1, "cannot be deleted"),
        (["policies", "set", "p", "^q", "max-length"], 2, "is not JSON at character 1"),
        (["policies", "set", "p", "(", '{"max-length": 1}'], 1, "is not a regular expression"),
        (["policies", "set", "p", "q", "{}"], 1, "the definition is empty"),
    ],
)
async def test_refused_command_prints_one_line(
    broker: Running, capsys: pytest.CaptureFixture[str], words: list[str], code: int, error: str
) -> None:
    answered, out, err = await trellis(broker, capsys, *words)
    assert (answered, out, err.count("\n")) == (code, "", 1)
    assert error in err


async def test_refused_user_is_named_in_the_error(
    broker: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = await trellis(broker, capsys, "users", "list", user="known")
    assert code == 1
    assert err == (
        "trellis: user 'known' lacks the tag 'administrator', which this request requires; "
        "logged in as known: give --user and --password, or set TRELLIS_USER and "
        "TRELLIS_PASSWORD\n"
    )


@pytest.mark.parametrize("action", ["add", "change-password"])
async def test_a_password_of_the_login_is_not_the_new_password(
    broker: Running, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    code, _, err = await trellis(broker, capsys, "users", action, "zed", "--password", "new")
    assert code == 1
    assert "unknown user or wrong password" in err
    assert "the new password of zed comes from a prompt" in err


async def test_a_session_is_deleted_and_its_identifier_is_free(
    broker: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    squatter = await broker.mqtt("dev 7", user="known/known")
    other = Mqtt0(await broker.socket("mqtt"))
    assert await other.connect("dev 7", user="admin/known") == 2
    words = ["sessions", "delete", "dev 7"]
    consequence = (
        "session 'dev 7' will end: its client will be disconnected, 0 subscriptions will end, and "
        "0 messages will be discarded\n"
    )
    code, out, err = await trellis(broker, capsys, *words)
    assert (code, out) == (2, "")
    assert err == consequence + UNASKED
    code, out, err = await trellis(broker, capsys, *words, "--yes")
    assert (code, out, err) == (0, "ended session 'dev 7'\n", "")
    await broker.until(lambda: len(broker.node.mqtt.sessions) == 0)
    assert await squatter.socket.read_to_end() == b""
    await broker.mqtt("dev 7", user="admin/known")
    code, _, err = await trellis(broker, capsys, "sessions", "delete", "dev 8")
    assert code == 1 and "client identifier 'dev 8' has no session in vhost '/'" in err
    code, _, err = await trellis(broker, capsys, *words, "--yes", user="known")
    assert code == 1 and "lacks the tag 'administrator'" in err


async def test_the_example_of_the_readme_works_as_written(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    example = text.partition("As an operator:")[2].partition("## ")[0]
    lines = [line for line in example.splitlines() if "/trellis " in line]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert [words[1:3] for words in commands] == [
        ["list", "queues"],
        ["list", "sessions"],
        ["route", "amq.topic"],
        ["users", "add"],
        ["permissions", "topic"],
        ["permissions", "set"],
    ]
    for words in commands[3:]:
        code, _, err = await trellis(
            broker, capsys, *words[1:], stdin="secret\n", monkeypatch=monkeypatch
        )
        assert (code, err) == (0, ""), words
    (published,) = [shlex.split(line) for line in example.splitlines() if "mosquitto_pub" in line]
    user, topic = published[published.index("-u") + 1], published[published.index("-t") + 1]
    client = await broker.mqtt("c", user=f"{user}/secret")
    await client.subscribe(topic, 1)
    await client.socket.send(mqtt_publish(topic, b"21.5", 1, 1))
    packets = [await client.packet(), await client.packet()]
    assert sorted(first >> 4 for first, _ in packets) == [3, 4]


async def test_a_user_without_permissions_is_told_so_in_one_log_line(
    broker: Running,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added = await trellis(
        broker, capsys, "users", "add", "ann", stdin="secret\n", monkeypatch=monkeypatch
    )
    assert added[0] == 0
    caplog.set_level("INFO")
    client = Mqtt0(await broker.socket("mqtt"))
    assert await client.connect("c", user="ann/secret") == 5
    (line,) = [one for one in caplog.messages if one.startswith("login_refused")]
    assert "user=ann " in line and "has no permissions in the vhost '/'" in line
    assert " cause=access note=" in line
    assert "trellis permissions set" in line
    caplog.clear()
    assert await Mqtt0(await broker.socket("mqtt")).connect("c", user="ann/wrong") == 4
