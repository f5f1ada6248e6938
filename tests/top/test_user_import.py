"""`trellis users import FILE`: many users from CSV or JSON, and files that are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running
from trellis.cli import main

Import = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


@pytest.fixture
def run(
    broker: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Import:
    """Return a function that imports a text and returns (exit code, output, errors)."""
    monkeypatch.setenv("TRELLIS_HTTP_PORT", str(broker.port("http")))

    async def run(text: str, *flags: str) -> tuple[int, str, str]:
        path = tmp_path / "users"
        path.write_text(text)
        capsys.readouterr()
        words = ["users", "import", str(path), *flags, "--user", "admin", "--password", "known"]
        code = await asyncio.to_thread(main, words)
        return code, *capsys.readouterr()

    return run


async def test_users_of_a_csv_file_can_connect(broker: Running, run: Import) -> None:
    code, output, errors = await run(
        "name,password,tags,configure,write,read,rules\n"
        "ann,secret,management monitoring,^ann,.*,.*,\n"
        '"pump 7",drip,,,,,deny publish plant/8/#;allow all plant/#\n'
        "away,x,,,,,\n"
    )
    assert (code, output) == (0, "imported: 3 users, 2 permissions, 1 topic_rules\n")
    assert errors == (
        "note: users that cannot connect yet: 1, such as away; the file has no permissions and no "
        "rules for them\n"
    )
    await (await broker.mqtt("a", user="pump 7/drip")).ping()
    await (await broker.amqp("ann", "secret")).queue("ann-1")
    stored = (await api(broker, "GET", "users/ann"))[1]
    assert stored["tags"] == ["management", "monitoring"]
    rules = (await api(broker, "GET", "topic-rules"))[1]
    assert {row["user"]: row["rules"] for row in rules}["pump 7"] == [
        "deny publish plant/8/#",
        "allow all plant/#",
    ]


async def test_users_of_a_json_file_and_hashes(broker: Running, run: Import) -> None:
    document: list[dict[str, Any]] = [
        {"name": "eve", "password_hash": KNOWN["password_hash"], "read": ".*", "tags": []},
        {"name": "rob", "password": "rob", "rules": ["allow all #"]},
    ]
    code, output, errors = await run(json.dumps(document), "--dry-run")
    assert (code, output, errors) == (
        0,
        "would import: 2 users, 2 permissions, 1 topic_rules\n",
        "",
    )
    assert (await api(broker, "GET", "users/eve"))[0] == 404
    code, output, errors = await run(json.dumps(document), "--dry-run", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output) == {
        "imported": {"users": 2, "permissions": 2, "topic_rules": 1},
        "refused": [],
        "notes": [],
        "changed": False,
        "changes": [],
        "more_changes": 0,
        "cannot_connect": [],
    }
    assert (await run(json.dumps(document)))[0] == 0
    await broker.amqp("eve", "known")
    await broker.mqtt("r", user="rob/rob")
    # A second import changes the users.
    document[1]["password"] = "other"
    assert (await run(json.dumps(document), "--yes"))[0] == 0
    await broker.mqtt("r", user="rob/other")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name,pasword\nann,x\n", "user 1: unknown field 'pasword'; the nearest is password"),
        ("name,password\n,x\n", "user 1: the name is missing"),
        ("name,tags\nann,\n", "user 1 (ann): give one of the fields password and password_hash"),
        (
            "name,password\nann,x\nann,y\n",
            "user 2: user 1 of the file has the name 'ann', too; remove one",
        ),
        ("name,password\nann,x,y\n", "line 2: too many fields"),
        ('name,password\n"ann,x\n', "unexpected end of data"),
        ('[{"name": "ann", "password": ""}]', "user 1 (ann): the password is empty"),
        (
            '[{"name": "ann", "password": 1234}]',
            "user 1 (ann): the password must be text in quotation marks",
        ),
        ('{"name": "ann"}', "is not a JSON list of objects"),
    ],
)
async def test_a_wrong_file_is_refused_and_changes_nothing(
    broker: Running, run: Import, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    code, output, errors = await run(text)
    assert code == 2 and output == "" and problem in errors and errors.count("\n") == 1
    assert {row["name"] for row in (await api(broker, "GET", "users"))[1]} == {
        "known",
        "admin",
        "watcher",
        "plain",
        "polly",
    }


async def test_a_dry_run_and_a_refused_file_hash_no_password(
    broker: Running, run: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rows: object) -> None:
        raise AssertionError("a password is hashed")

    monkeypatch.setattr("trellis.cli.user_import.password_hashes", refuse)
    assert (await run("name,password,read\nann,x,.*\n", "--dry-run"))[0] == 0
    assert (await run("name,password,rules\nann,x,perhaps all #\n"))[0] == 1
    monkeypatch.setenv("TRELLIS_HTTP_PORT", "1")
    assert (await run("name,password,read\nann,x,.*\n"))[0] == 1


async def test_users_that_the_broker_refuses_are_named(broker: Running, run: Import) -> None:
    code, output, errors = await run("name,password,rules\nann,x,perhaps all #\n")
    assert code == 1 and output == "would import: 1 users, 1 permissions\n"
    assert errors.startswith("refused: topic_rules") and "perhaps" in errors
    assert errors.endswith(
        "nothing was imported, because the broker would refuse some definitions\n"
    )
    assert (await api(broker, "GET", "users/ann"))[0] == 404


@pytest.mark.long
async def test_5000_users_with_hashes_are_imported_in_one_command(
    broker: Running, run: Import
) -> None:
    count = 5_000
    document: list[dict[str, Any]] = [
        {
            "name": f"pump-{number}",
            "password_hash": KNOWN["password_hash"],
            "rules": [f"allow all plant/{number}/#"],
        }
        for number in range(count)
    ]
    code, output, errors = await run(json.dumps(document))
    assert (code, errors) == (0, "")
    assert output == f"imported: {count} users, {count} permissions, {count} topic_rules\n"
    known = broker.node.broker.users.by_name
    assert sum(name.startswith("pump-") for name in known) == count
    device = await broker.mqtt("a", user=f"pump-{count - 1}/known")
    await device.ping()
    rules = (await api(broker, "GET", "topic-rules"))[1]
    assert {row["user"]: row["rules"] for row in rules if row["user"].startswith("pump-")} == {
        f"pump-{number}": [f"allow all plant/{number}/#"] for number in range(count)
    }
