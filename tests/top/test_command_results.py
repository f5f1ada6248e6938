"""Every command that changes a running broker prints one line that says what changed, or JSON."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.clients import mqtt_publish
from tests.test_completion import commands as declared
from tests.top.api_client import users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running

#: Commands that change the objects named X, in an order that works, each with the line that it
#: prints. The commands `move`, `redrive` and `cluster switch` have tests of their own.
CHANGES: Final = [
    ("vhosts add X", "vhost 'X' is added"),
    ("users add X --tags monitoring --new-password-file PASSWORD", "user X is added. It cannot"),
    ("users change-password X --new-password-file PASSWORD", "changed the password of user 'X'"),
    ("users tags X --yes", "user 'X' has no tags now, instead of the tag monitoring"),
    (
        "permissions set X a b .* --vhost X",
        "user 'X' may use vhost 'X': configure 'a', write 'b', read '.*'",
    ),
    ("permissions topic X 'allow all #' --vhost X", "user 'X' in vhost 'X' has 1 topic rule now"),
    ("permissions clear X --vhost X --yes", "user 'X' may not use vhost 'X' any more"),
    ("roles set X a b c", "role X is created. Give it to users with `trellis roles assign X"),
    ("roles set X a b c", "role 'X' has new permissions in vhost '/'"),
    ("roles assign X X", "1 user has role 'X' now"),
    ("roles assign --none X --yes", "1 user has no role any more"),
    ("roles clear X --yes", "role 'X' has no permissions in vhost '/' any more"),
    ("roles delete X --yes", "deleted role 'X'"),
    ("policies set X ^x '{\"max-length\": 1}'", "set policy 'X' in vhost '/'"),
    ("policies clear X --yes", "deleted policy 'X' in vhost '/'"),
    ("exchanges declare X", "exchange 'X' is declared"),
    ("queues declare X", "queue 'X' is declared"),
    ("bindings declare X X k", "binding 'k' of 'X' to 'X' is declared"),
    ("bindings delete X X k --yes", "deleted binding 'k' of 'X' to 'X'"),
    ("pause X --yes", "paused queue 'X'; to resume its deliveries: trellis resume X"),
    ("resume X", "resumed queue 'X'"),
    ("publish amq.default X --body x", "the message reached 1 queue or session"),
    ("purge X --yes", "purged queue 'X'"),
    ("queues delete X --yes", "deleted queue 'X' with 0 messages"),
    ("exchanges delete X --yes", "deleted exchange 'X'"),
    ("retained clear X --yes", "removed 1 retained message"),
    ("close X --yes", "closed connection 127.0.0.1:"),
    ("sessions delete X --yes", "ended session 'X'"),
    ("users delete X --yes", "deleted user 'X' and closed 0 connections"),
    ("vhosts delete X --yes", "deleted vhost 'X' with 0 queues and 0 messages"),
    ("users import USERS", "imported: 1 users"),
    ("definitions import DEFINITIONS", "imported: 1 queues"),
]


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


@pytest.mark.parametrize("name", ["text", "json"])
async def test_each_change_is_reported(
    broker: Running,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    commands = Commands(broker, capsys, monkeypatch)
    files = {
        "PASSWORD": "secret\n",
        "USERS": f"name,password,read\n{name},secret,.*\n",
        "DEFINITIONS": json.dumps({"queues": [{"name": "q", "vhost": "/", "arguments": {}}]}),
    }
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    sender = await broker.mqtt(name, user="known/known", clean=False)
    await sender.socket.send(mqtt_publish(name, b"x", flags=1))
    await broker.until(lambda: len(broker.node.broker.vhosts["/"].retained) == 1)
    for command, line in CHANGES:
        words = [
            str(tmp_path / word) if word in files else word.replace("X", name)
            for word in shlex.split(command)
        ]
        if name == "json":
            answer = await commands.json(*words)
            assert isinstance(answer, dict) and answer.get("changed") is not False, command
        else:
            out = await commands.out(*words)
            assert out.startswith(line.replace("X", name)), command
            assert out.count("\n") == 1, command


def test_the_walk_has_every_command_that_changes_a_running_broker() -> None:
    changing = {
        command.path.removeprefix("trellis ")
        for command in declared()
        if any(flag.dest == "login_user" for flag in command.flags)
        and any(flag.help == "print the result as a JSON object" for flag in command.flags)
    }
    walked = {" ".join(shlex.split(command)[:2]) for command, _ in CHANGES}
    walked |= {shlex.split(command)[0] for command, _ in CHANGES}
    # A switch and a replay need another node or a stream; an export changes nothing.
    assert changing - walked == {"cluster switch", "replay", "stream export"}
