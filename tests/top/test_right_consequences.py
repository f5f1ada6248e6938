"""Commands that set permissions, rules, tags, roles and definitions ask if a user loses a right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from tests.top.api_client import api, users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running
from tests.top.test_consequences import consequences, put, user_with_clients
from trellis.cli.consequences import SHOWN
from trellis.http.management.right_changes import permits_all, selects_all
from trellis.http.management.right_consequences import NAMES_SHOWN

NO_CLIENTS = (
    "clients whose rights will be checked again: 0 open connections, "
    "0 MQTT sessions with 0 messages"
)
ONE_OF_EACH = (
    "clients whose rights will be checked again: 1 open connection, 1 MQTT session with 1 message"
)


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("a", "a"),
        ("a", ""),
        (".*", "^a$"),
        ("^.+$", "[a-z"),
        ("^a|^b", "^a"),
        ("^b|^a", "^a|^b"),
        ("^(a|b|c)$", "^(c|a)$"),
        (r"a\||b", r"a\|"),
        ("[|]|b", "[|]"),
        ("[]|]|b", "[]|]"),
        ("(?:a|b)|c", "(?:a|b)"),
    ],
)
def test_a_pattern_that_is_known_to_select_as_much(new: str, old: str) -> None:
    assert selects_all(new, old)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("", "a"),
        ("^a", "a"),
        ("^a$", "^a"),
        ("^b", "^a|^b"),
        ("(a|b)", "a"),
        ("^(a)|(b)$", "^(a)$"),
        ("^(a|b)$", "^(b|c)$"),
        ("(?i)a|b", "(?i)b"),
        (r"(b)(a)\1|(a)\1", r"(a)\1"),
        ("a[b|c]", "a[b"),
        ("[[:alpha:]|]", "]"),
        ("a)|b", "b"),
    ],
)
def test_a_pattern_that_may_select_less(new: str, old: str) -> None:
    assert not selects_all(new, old)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ([], []),
        ([], ["deny all #", "allow publish a"]),
        (["allow all #"], []),
        (["allow   all #", "deny all b"], ["allow publish a", "deny all c"]),
        (["allow publish a", "allow publish b"], ["allow publish a"]),
        (["allow publish b", "deny all a", "allow all #"], ["deny all a", "allow all #"]),
        (["allow publish b"], ["deny all a", "allow publish b"]),
        (["reserve client x", "allow all #"], ["reserve client x"]),
        (["reserve client x"], []),
    ],
)
def test_rules_that_permit_as_much(new: list[str], old: list[str]) -> None:
    assert permits_all(new, old)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (["deny all #"], []),
        (["allow publish a"], []),
        (["deny all b", "allow all #"], ["allow all #"]),
        (["allow publish b"], ["allow publish a"]),
        (["deny all b", "allow publish a"], ["allow publish a", "deny all b"]),
        ([], ["reserve client x"]),
        (["allow all #"], ["reserve client {username}-*", "allow all #"]),
    ],
)
def test_rules_that_may_permit_less(new: list[str], old: list[str]) -> None:
    assert not permits_all(new, old)


async def test_permissions_that_take_nothing_away_ask_nothing(
    broker: Running, commands: Commands
) -> None:
    await put(broker, "users/ann", {"password": "secret", "tags": ""})
    for words in (
        ("set", "ann", "", "^a", ".*"),
        ("set", "ann", "", "^a", ".*"),
        ("set", "ann", "^b", "^b|^a", ".*"),
        ("topic", "ann", "allow all #"),
        ("topic", "ann", "--clear"),
    ):
        await commands.out("permissions", *words)


async def test_permissions_name_the_patterns_and_the_present_names_that_are_lost(
    broker: Running, commands: Commands
) -> None:
    client = await user_with_clients(broker)
    for name in ("amq1", "amq2", "other"):
        await put(broker, f"queues/%2F/{name}")
    words = ("permissions", "set", "ann", "", "^amq[.]", "")
    lines = await consequences(commands, *words)
    assert lines[0] == "user 'ann' will lose rights in vhost '/':"
    assert lines[1] == (
        "  write '^amq' -> '^amq[.]'; lost for 2 existing queues and exchanges, such as 'amq1', "
        "'amq2'"
    )
    assert lines[2].startswith("  read '.*' -> '', which selects no name; lost for ")
    assert lines[2].count("', '") == NAMES_SHOWN - 1
    assert lines[3:] == [ONE_OF_EACH]
    user = broker.node.broker.users.by_name["ann"]
    assert user.permissions["/"] == ("", "^amq", ".*")
    await commands.out(*words, "--yes")
    assert user.permissions["/"] == ("", "^amq[.]", "")
    await client.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)


async def test_own_permissions_replace_those_of_a_role(broker: Running, commands: Commands) -> None:
    grant = {"configure": "", "write": ".*", "read": ".*", "rules": []}
    await put(broker, "roles/devices", {"vhosts": {"/": grant}})
    client = await user_with_clients(broker, role="devices")
    # Rules of a user without own permissions do not apply.
    await commands.out("permissions", "topic", "ann", "deny all #")
    lines = await consequences(commands, "permissions", "set", "ann", "", ".*", ".*")
    assert lines == [
        "user 'ann' will lose rights from role 'devices' in vhost '/':",
        "  topic rules: none, so that all topics are permitted -> 1 topic rule",
        ONE_OF_EACH,
    ]
    await client.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)


async def test_topic_rules_name_the_rules_that_go_and_come(
    broker: Running, commands: Commands
) -> None:
    await put(broker, "users/ann", {"password": "secret", "tags": ""})
    await commands.out("permissions", "topic", "ann", "allow publish a", "reserve client ann-1")
    await commands.out("permissions", "set", "ann", "", ".*", ".*")
    lines = await consequences(commands, "permissions", "topic", "ann", "allow publish b")
    assert lines == [
        "user 'ann' will lose rights in vhost '/':",
        "  topic rule removed: 'allow publish a'",
        "  topic rule removed: 'reserve client ann-1'",
        "  topic rule added: 'allow publish b'",
        NO_CLIENTS,
    ]
    assert "reserve client ann-1" in broker.node.broker.users.by_name["ann"].rules["/"]
    lines = await consequences(commands, "permissions", "topic", "ann", "--clear")
    assert lines[1:3] == [
        "  topic rule removed: 'allow publish a'",
        "  topic rule removed: 'reserve client ann-1'",
    ]
    await commands.out("permissions", "topic", "ann", "--clear", "--yes")
    assert broker.node.broker.users.by_name["ann"].rules == {}


async def test_the_superuser_of_the_settings_loses_rights_by_its_first_permission(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(user="root", password="known", http={"enabled": True})
    status, _ = await api(broker, "PUT", "vhosts/v", user="root")
    assert status == 201
    code, _, err = await Commands(broker, capsys, monkeypatch).run(
        "permissions", "set", "root", "", "", ".*", "--vhost", "v", user="root"
    )
    assert code == 2 and "  configure '.*' -> '', which selects no name; lost for " in err
    assert broker.node.broker.users.by_name.get("root") is None


async def test_a_role_in_use_names_what_its_users_lose(broker: Running, commands: Commands) -> None:
    # No user has the role yet.
    for pattern in (".*", "", ".*"):
        await commands.out("roles", "set", "devices", "", pattern, ".*", "--rule", "allow all #")
    client = await user_with_clients(broker, role="devices")
    await put(broker, "users/bob", {"password": "secret", "tags": "", "role": "devices"})
    rights = {"configure": "", "write": "", "read": ".*"}
    await put(broker, "permissions/%2F/bob", rights)
    await commands.out("roles", "set", "devices", ".*", ".*", ".*")
    words = ("roles", "set", "devices", ".*", "^a", ".*", "--rule", "allow publish a")
    assert await consequences(commands, *words) == [
        "role 'devices' will grant fewer rights in vhost '/':",
        "  write '.*' -> '^a'",
        "  topic rules: none, so that all topics are permitted -> 1 topic rule",
        (
            "2 users have role 'devices'; users that will lose these rights, because they have no "
            "permissions of their own in vhost '/': 1 user"
        ),
        ONE_OF_EACH,
    ]
    role = broker.node.broker.users.roles.by_name["devices"]
    assert role.grants["/"].permission == (".*", ".*", ".*")
    await commands.out(*words, "--yes")
    assert role.grants["/"].permission == (".*", "^a", ".*")
    await client.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
    # The only user that is left has permissions of its own.
    await commands.out("roles", "assign", "--none", "ann", "--yes")
    await commands.out("roles", "set", "devices", "", "", "")


async def test_an_assignment_names_the_users_that_lose_rights(
    broker: Running, commands: Commands
) -> None:
    await put(broker, "vhosts/v")
    grant = {"configure": "", "write": ".*", "read": ".*", "rules": []}
    await put(broker, "roles/all", {"vhosts": {"/": grant, "v": grant}})
    await put(broker, "roles/more", {"vhosts": {"/": grant, "v": grant | {"configure": "x"}}})
    await put(broker, "roles/less", {"vhosts": {"/": grant | {"write": "^a"}}})
    names = [f"u{number}" for number in range(SHOWN + 2)]
    for name in names:
        await put(broker, f"users/{name}", {"password": "secret", "tags": ""})
    await commands.out("roles", "assign", "all", *names)
    await commands.out("roles", "assign", "more", *names)
    lines = await consequences(commands, "roles", "assign", "less", *names)
    assert lines[:6] == [
        "user 'u0' will lose rights from role 'more' in vhost '/':",
        "  write '.*' -> '^a'",
        NO_CLIENTS,
        "user 'u0' will lose rights from role 'more' in vhost 'v':",
        (
            "  access to the virtual host, with these permissions: configure 'x', write '.*', "
            "read '.*'"
        ),
        NO_CLIENTS,
    ]
    assert lines[-1] == "further users that will lose rights: 2"
    by_name = broker.node.broker.users.by_name
    assert {by_name[name].role_name for name in names} == {"more"}
    assert len(await consequences(commands, "roles", "assign", "--none", "u1")) == 6
    await commands.out("roles", "assign", "less", *names, "--yes")
    assert {by_name[name].role_name for name in names} == {"less"}
    assert "there is no role 'none'" in await commands.fails("roles", "assign", "none", "u1")


async def test_tags_that_are_removed(broker: Running, commands: Commands) -> None:
    await put(broker, "users/ann", {"password": "known", "tags": "monitoring"})
    await commands.out("users", "tags", "ann", "monitoring", "policymaker")
    assert await consequences(commands, "users", "tags", "ann", "monitoring") == [
        (
            "user 'ann' will lose the tag policymaker: the HTTP API and the web page will refuse "
            "requests that need it"
        ),
    ]
    await commands.out("users", "tags", "ann", "--yes")
    assert broker.node.broker.users.by_name["ann"].tags == []


async def test_an_import_of_users_names_the_users_that_change(
    broker: Running, commands: Commands, tmp_path: Path
) -> None:
    file = tmp_path / "users.json"
    names = [f"u{number}" for number in range(SHOWN + 3)]
    rows: list[dict[str, Any]] = [
        {"name": name, "password_hash": "", "tags": [], "write": ".*"} for name in names
    ]
    file.write_text(json.dumps(rows))
    words = ("users", "import", str(file))
    # The users are new; then nothing about them changes.
    await commands.out(*words)
    await commands.out(*words)
    for row in rows:
        row |= {"tags": ["monitoring"], "write": "^a", "rules": ["allow publish a"]}
    rows[1] = {"name": "u1", "password": "secret"}
    rows.append({"name": "new", "password": "secret"})
    file.write_text(json.dumps(rows))
    lines = await consequences(commands, *words)
    assert lines[0] == f"the import will change {SHOWN + 3} existing users:"
    assert set(lines[1:-1]) >= {
        "  user 'u0': tags [] -> ['monitoring']",
        "  user 'u1': new password",
        "  permissions of user 'u0' in vhost '/': write '.*' -> '^a'",
        "  topic rules of user 'u0' in vhost '/': rules [] -> ['allow publish a']",
    }
    assert lines[-1] == "further users that will change: 3" and len(lines) == 2 + 3 * SHOWN - 2
    by_name = broker.node.broker.users.by_name
    assert by_name["u0"].tags == [] and "new" not in by_name
    await commands.run(*words, "--yes")
    assert by_name["u0"].permissions["/"] == ("", "^a", "") and "new" in by_name


async def test_an_import_of_definitions_names_the_objects_that_change(
    broker: Running, commands: Commands, tmp_path: Path
) -> None:
    await put(broker, "policies/%2F/p", {"pattern": "^q", "definition": {"max-length": 5}})
    await put(broker, "users/ann", {"password_hash": "", "tags": "monitoring"})
    uri = {"src-uri": "amqp://u:secret@127.0.0.1:1", "dest-uri": "amqp://"}
    uri |= {"src-queue": "q", "dest-queue": "r"}
    await put(broker, "parameters/shovel/%2F/s", {"value": uri})
    await put(broker, "queues/%2F/q")
    _, document = await api(broker, "GET", "definitions")
    # Nothing changes, and a description of the virtual host, as RabbitMQ exports it, is new.
    document["vhosts"][0] |= {"description": "Default virtual host"}
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(document))
    words = ("definitions", "import", str(file))
    assert (await commands.run(*words))[0] == 0
    document["queues"].append({"name": "r", "vhost": "/", "arguments": {}})
    document["policies"][0]["definition"]["max-length"] = 4
    document["parameters"][0]["value"]["src-uri"] = "amqp://u:other@127.0.0.1:1"
    document["users"][0]["tags"] = []
    document["queues"][0]["durable"] = False
    file.write_text(json.dumps(document))
    assert sorted(await consequences(commands, *words)) == sorted(
        [
            "the import will change 3 existing objects:",
            "  user 'ann': tags ['monitoring'] -> []",
            "  shovel parameter 's' in vhost '/': new value",
            ("  policy 'p' in vhost '/': definition {'max-length': 5} -> {'max-length': 4}"),
        ]
    )
    assert "r" not in broker.node.broker.vhosts["/"].queues
    code, out, err = await commands.run(*words, "--dry-run", "--json")
    assert code == 1 and "secret" not in out + err
    assert len(json.loads(out)["changes"]) == 3
    code, _, err = await commands.run(*words, "--dry-run")
    assert err.count("would change: ") == 3
    code, out, _ = await commands.run(*words, "--yes")
    assert code == 1 and "2 queues" not in out
    assert broker.node.broker.vhosts["/"].policies.by_name["p"].definition == {"max-length": 4}


async def test_these_consequences_need_the_tag_administrator(broker: Running) -> None:
    await put(broker, "users/ann", {"password": "known", "tags": "policymaker,monitoring"})
    for path in ("permissions/%2F/ann", "roles/devices", "users/ann"):
        status, _ = await api(broker, "POST", f"consequences/{path}", {}, user="ann")
        assert status == 403, path
