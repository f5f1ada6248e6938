"""Roles over HTTP, in commands, in definitions and for connected clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Mqtt0, Running
from tests.top.test_people import trellis
from tests.wire.mqtt.client import subscribe
from trellis.auth.passwords import HASHER

GRANT: Final = {
    "configure": "",
    "write": ".*",
    "read": ".*",
    "rules": ["allow all plant/{username}/#"],
}


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    running.node.broker.users.define("ann", HASHER.hash(b"known"), [])
    return running


async def put(broker: Running, name: str, vhosts: Any) -> int:
    status, _ = await api(broker, "PUT", f"roles/{name}", {"vhosts": vhosts})
    return status


async def give(broker: Running, role: str) -> int:
    status, _ = await api(broker, "PUT", "users/ann", {"tags": [], "role": role})
    return status


async def test_a_role_is_created_given_shown_and_deleted(broker: Running) -> None:
    assert await put(broker, "devices", {"/": GRANT}) == 201
    assert await put(broker, "devices", {"/": GRANT}) == 204
    assert await give(broker, "devices") == 204
    _, role = await api(broker, "GET", "roles/devices")
    assert role == {"name": "devices", "vhosts": {"/": GRANT}, "users": 1}
    assert await api(broker, "GET", "roles") == (200, [role])
    _, ann = await api(broker, "GET", "users/ann")
    assert ann["role"] == "devices"
    _, permissions = await api(broker, "GET", "users/ann/permissions")
    assert permissions == [
        {"user": "ann", "vhost": "/", "configure": "", "write": ".*", "read": ".*"}
        | {"role": "devices"}
    ]
    assert (await api(broker, "GET", "permissions/%2F/ann")) == (200, permissions[0])
    _, rules = await api(broker, "GET", "topic-rules")
    assert {"user": "ann", "vhost": "/", "rules": GRANT["rules"], "role": "devices"} in rules
    _, without = await api(broker, "GET", "users/without-permissions")
    assert "ann" not in [row["name"] for row in without]
    status, answer = await api(broker, "DELETE", "roles/devices")
    assert (
        status == 400
        and "cannot delete role 'devices': users with this role: 1, for example 'ann'"
        in answer["reason"]
    )
    assert await give(broker, "") == 204
    assert (await api(broker, "DELETE", "roles/devices"))[0] == 204
    assert (await api(broker, "GET", "roles/devices"))[0] == 404


async def test_wrong_roles_are_refused(broker: Running) -> None:
    assert await put(broker, "r", {"none": GRANT}) == 404
    assert await put(broker, "r", {"/": GRANT | {"write": "("}}) == 400
    assert await give(broker, "none") == 400
    status, _ = await api(broker, "PUT", "roles/r", {"vhosts": {}}, user=KNOWN["name"])
    assert status == 403
    assert await api(broker, "GET", "roles") == (200, [])


async def test_a_change_of_a_role_applies_to_connected_clients(broker: Running) -> None:
    await put(broker, "devices", {"/": GRANT})
    await give(broker, "devices")
    client = await broker.mqtt("d", user="ann/known")
    await client.socket.send(subscribe(1, ("plant/ann/#", 0), ("plant/bob/#", 0)))
    assert await client.socket.exactly(6) == b"\x90\x04\x00\x01\x00\x80"
    await put(broker, "devices", {"/": GRANT | {"rules": ["allow all other/#"]}})
    assert await client.socket.read_to_end() == b""
    again = await broker.mqtt("d", user="ann/known")
    await put(broker, "devices", {})
    assert await again.socket.read_to_end() == b""
    refused = Mqtt0(await broker.socket("mqtt"))
    assert await refused.connect("d", user="ann/known") == 5


async def test_definitions_and_user_files_have_roles(
    broker: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await put(broker, "devices", {"/": GRANT})
    await give(broker, "devices")
    _, document = await api(broker, "GET", "definitions")
    assert document["roles"] == [{"name": "devices", "vhosts": {"/": GRANT}}]
    await give(broker, "")
    await api(broker, "DELETE", "roles/devices")
    status, _ = await api(broker, "POST", "definitions", document)
    assert status in (200, 204)
    assert (await api(broker, "GET", "roles/devices"))[1]["users"] == 1
    file = tmp_path / "users.csv"
    file.write_text("name,password,role\nbob,secret,devices\neve,secret,none\n")
    code, _, err = await trellis(broker, capsys, "users", "import", str(file))
    assert code == 1 and "there is no role 'none'" in err
    file.write_text("name,password,role\nbob,secret,devices\n")
    assert await trellis(broker, capsys, "users", "import", str(file)) == (
        0,
        "imported: 1 users\n",
        "",
    )
    await (await broker.mqtt("b", user="bob/secret")).ping()


async def test_the_commands_manage_roles(
    broker: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*words: str) -> str:
        code, out, err = await trellis(broker, capsys, *words)
        assert (code, err) == (0, ""), words
        return out

    rule = "allow all plant/{username}/#"
    out = await run("roles", "set", "devices", "", ".*", ".*", "--rule", rule)
    assert "Give it to users with `trellis roles assign devices USER...`" in out
    await run("roles", "assign", "devices", "ann")
    lines = (await run("roles", "list")).splitlines()
    assert lines[0].split() == ["name", "users", "vhost", "configure", "write", "read", "rules"]
    assert lines[1].split() == ["devices", "1", "/", ".*", ".*", *rule.split()]
    assert "devices" in await run("users", "list")
    assert "devices" in await run("permissions", "list", "ann")
    await run("roles", "clear", "devices", "--yes")
    assert (await api(broker, "GET", "roles/devices"))[1]["vhosts"] == {}
    code, _, err = await trellis(broker, capsys, "roles", "clear", "devices")
    assert (
        code == 1
        and "role 'devices' has no permissions in vhost '/'; next: trellis roles list" in err
    )
    code, _, err = await trellis(broker, capsys, "roles", "delete", "devices")
    assert code == 1 and "users with this role: 1, for example 'ann'" in err
    await run("roles", "assign", "--none", "ann")
    await run("roles", "delete", "devices", "--yes")
    assert json.loads(await run("roles", "list", "--json")) == []
    code, _, err = await trellis(broker, capsys, "roles", "assign", "ann")
    assert code == 2 and "give a role and at least one user" in err
