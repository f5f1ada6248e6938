"""Tests of definitions over HTTP and from a file, and of the permissions of their users."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import argon2
import msgspec
import pamqp.commands as spec
import pytest

from protocols.amqp.connection.handshake import GREETING
from tests.clients import World, marshal
from tests.mosquitto.hashes import mosquitto_hash
from tests.top.running import KNOWN, Running, settings
from tests.wire.amqp.speech import read
from trellis.auth.passwords import check_hash, show_hash, verify
from trellis.server import definitions_files
from trellis.settings import SettingsError


def rabbit_hash(password: bytes, algorithm: str = "sha256", salt: bytes = b"salt") -> str:
    return base64.b64encode(salt + hashlib.new(algorithm, salt + password).digest()).decode()


DOCUMENT: dict[str, Any] = {
    "rabbit_version": "3.13.0",
    "vhosts": [{"name": "/"}, {"name": "shop", "limits": []}],
    "users": [
        {
            "name": "ann",
            "password_hash": rabbit_hash(b"secret"),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["administrator"],
            "limits": {},
        },
        {
            "name": "bob",
            "password_hash": rabbit_hash(b"bobs", "sha512"),
            "hashing_algorithm": "rabbit_password_hashing_sha512",
            "tags": "",
        },
        {
            "name": "eve",
            "password_hash": "",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": [],
        },
    ],
    "permissions": [
        {"user": "ann", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "bob", "vhost": "shop", "configure": "^$", "write": "^orders$", "read": "^$"},
    ],
    "policies": [
        {
            "vhost": "shop",
            "name": "short",
            "pattern": "^new",
            "apply-to": "queues",
            "priority": 3,
            "definition": {"max-length": 2},
        }
    ],
    "exchanges": [
        {
            "name": "orders",
            "vhost": "shop",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        },
        {
            "name": "all",
            "vhost": "shop",
            "type": "fanout",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"alternate-exchange": "orders"},
        },
    ],
    "queues": [
        {
            "name": "new",
            "vhost": "shop",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum", "x-dead-letter-exchange": "all"},
        },
        {"name": "plain", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}},
    ],
    "bindings": [
        {
            "source": "all",
            "vhost": "shop",
            "destination": "orders",
            "destination_type": "exchange",
            "routing_key": "",
            "arguments": {},
        },
        {
            "source": "orders",
            "vhost": "shop",
            "destination": "new",
            "destination_type": "queue",
            "routing_key": "new.#",
            "arguments": {},
        },
    ],
}


def taken(world: World, document: Any = None) -> Any:
    imported = definitions_files.import_(
        world.broker, msgspec.json.encode(DOCUMENT if document is None else document)
    )
    world.settle()
    return imported


def test_a_file_of_rabbitmqs_is_taken_in() -> None:
    world = World()
    imported = taken(world)
    assert imported.refused == []
    assert imported.imported == {
        section: len(DOCUMENT[section])
        for section in (
            "vhosts",
            "users",
            "permissions",
            "policies",
            "exchanges",
            "queues",
            "bindings",
        )
    }
    client = world.amqp(vhost="shop")
    for number in range(3):
        client.publish("all", "new.one", b"%d" % number)
    assert read(client, "new") == [b"1", b"2"]


def test_exported_definitions_are_imported_elsewhere_and_again() -> None:
    world = World()
    taken(world)
    given = definitions_files.export(world.broker)
    document = msgspec.json.decode(given)
    for section in ("users", "permissions", "policies", "exchanges", "queues", "bindings"):
        for row in DOCUMENT[section]:
            assert any(
                row.items() <= other.items()
                or section == "users"
                and row["name"] == other["name"]
                and row["password_hash"] == other["password_hash"]
                for other in document[section]
            ), (section, row)
    other = World()
    assert taken(other, document).refused == []
    assert definitions_files.export(other.broker) == given
    position = int(other.store.position)
    assert taken(other, document).refused == [] and int(other.store.position) == position


@pytest.mark.parametrize(
    ("section", "row", "says"),
    [
        ("queues", {"name": "q", "vhost": "nope", "durable": True}, "there is no vhost 'nope'"),
        ("queues", {"name": "q", "vhost": "/", "durable": "yes"}, "true or false, not 'yes'"),
        (
            "queues",
            {"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": -1}},
            "too small",
        ),
        ("queues", 7, "the entry must be a JSON object"),
        (
            "exchanges",
            {"name": "x", "vhost": "/", "type": "x-new"},
            "invalid exchange type 'x-new'",
        ),
        (
            "exchanges",
            {"name": "amq.topic", "vhost": "/", "type": "direct", "durable": True},
            "inequivalent arg 'type'",
        ),
        (
            "bindings",
            {
                "source": "nope",
                "vhost": "/",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "",
            },
            "no queue 'q'",
        ),
        (
            "bindings",
            {
                "source": "",
                "vhost": "/",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "q",
            },
            "default exchange",
        ),
        (
            "users",
            {"name": "u", "password": "x"},
            "import users with passwords with `trellis users",
        ),
        ("users", {"name": "u", "password_hash": "xx"}, "must be base64"),
        ("users", {"name": "u", "password_hash": base64.b64encode(b"short").decode()}, "5 bytes"),
        ("users", {"name": "u", "password_hash": "", "hashing_algorithm": "rot13"}, ""),
        (
            "permissions",
            {"user": "unknown", "vhost": "/", "configure": "", "write": "", "read": ""},
            "no user 'unknown'",
        ),
        (
            "policies",
            {"vhost": "/", "name": "p", "pattern": "(", "definition": {"max-length": 1}},
            "not a regular expression",
        ),
        (
            "topic_permissions",
            {"user": "unknown", "vhost": "/", "exchange": "amq.topic", "write": "", "read": ""},
            "no user 'unknown'",
        ),
        (
            "topic_rules",
            {"user": "ann", "vhost": "/", "rules": "allow all #"},
            "must be a list of strings",
        ),
        ("operator_policies", {"name": "p"}, "operator_policies[0] 'p': lacks the field 'vhost'"),
        (
            "queues",
            {"nme": "x", "y" * 99: 1, "durable": True},
            "queues[0]: lacks the fields 'vhost', 'name', and has the unknown fields 'nme', '"
            + "y" * 50
            + "'",
        ),
        ("queues", {"vhost": None, "name": "q"}, "field 'vhost' must be a string, not None"),
        ("bindings", {"vhost": "/"}, "lacks the fields 'source', 'destination', 'routing_key'"),
        ("bindings", {"source": "", "vhost": "/"}, "bindings[0] ' -> ': lacks the fields 'des"),
    ],
)
def test_import_reports_unknown_definitions_and_imports_the_others(
    section: str, row: Any, says: str
) -> None:
    world = World()
    imported = taken(world, {section: [row], "vhosts": [{"name": "other"}]})
    assert "other" in world.broker.vhosts
    assert [says in line for line in imported.refused + imported.notes] == ([True] if says else [])


def test_a_new_user_whose_rules_are_refused_may_use_no_topic() -> None:
    world = World()
    users = world.broker.users
    owners = [{"user": name, "vhost": "/"} for name in ("ann", "bob")]
    permission = {"configure": "", "write": ".*", "read": ".*"}
    document = {
        "permissions": [owner | permission for owner in owners],
        "topic_rules": [{**owner, "rules": ["allow all {user}/#"]} for owner in owners],
    }
    users.define("ann", "", [])
    users.define("bob", "", [])
    users.set_permission("/", "bob", ".*", ".*", ".*")
    imported = taken(world, document)
    assert [line.partition("; until")[0] for line in imported.refused] == [
        f"topic_rules[{at}] '{name}': invalid rule 'allow all {{user}}/#' of user '{name}' in "
        "vhost '/': there is no variable {user}; the nearest is {username}; the variables are "
        "{username}, {vhost}, {client_id}"
        for at, name in enumerate(("ann", "bob"))
    ]
    assert imported.refused[0].endswith("; until you set valid rules, user 'ann' may use no topic")
    assert users.by_name["ann"].rules == {"/": ["deny all #"]}
    # An existing user keeps its rules.
    assert users.by_name["bob"].rules == {}
    document["topic_rules"] = [{"user": "ann", "vhost": "/", "rules": ["allow all {username}/#"]}]
    assert taken(world, document).refused == []
    assert users.by_name["ann"].rules == {"/": ["allow all {username}/#"]}


@pytest.mark.parametrize("data", [b"", b"[", b"7", b"[]", b"\xff", b"[" * 100_000])
def test_import_refuses_data_that_is_no_definitions_document(data: bytes) -> None:
    with pytest.raises(ValueError):
        definitions_files.import_(World().broker, data)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "md5"])
def test_passwords_hashed_by_rabbitmq_are_known(algorithm: str) -> None:
    kept = check_hash(rabbit_hash(b"secret", algorithm), f"rabbit_password_hashing_{algorithm}")
    assert verify(kept, b"secret") and not verify(kept, b"Secret") and not verify(kept, b"")
    assert show_hash(kept) == (
        rabbit_hash(b"secret", algorithm),
        f"rabbit_password_hashing_{algorithm}",
    )


#: Hashes of the password `secret`, made by `mosquitto_passwd` 2.0.11.
MADE_BY_MOSQUITTO = (
    (
        "$6$8KVIHweh+2p6DUrx$FY6qM7QUxwaaD98CmcFJHyBGY4XuCvBTT8q9p6PQEHkRWz12XBJOg1ujhHow"
        "7gHC1UqJh+ceqUL/qg+OIf3lng=="
    ),
    (
        "$7$101$tByhH959s8rL+7+t$7KcYOsntXofT6K+7cDkpSCuhAK/piKeXZkx7H+EAFHBGWBuaMDMD3qH6"
        "Lis0FiLsaE8AI2k3PPl8oAjvuXh4dA=="
    ),
)


@pytest.mark.parametrize(
    "kept",
    [
        *MADE_BY_MOSQUITTO,
        mosquitto_hash(b"secret", b"s" * 64, 0),
        mosquitto_hash(b"secret", b"s" * 64, 1000),
        argon2.PasswordHasher(
            time_cost=1, memory_cost=47104, parallelism=1, hash_len=64, salt_len=64
        ).hash(b"secret"),
    ],
)
def test_passwords_hashed_by_mosquitto_are_known(kept: str) -> None:
    assert check_hash(kept, "mosquitto") == kept
    assert verify(kept, b"secret") and not verify(kept, b"Secret") and not verify(kept, b"")
    shown, algorithm = show_hash(kept)
    assert (shown, check_hash(shown, algorithm)) == (kept, kept)


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (mosquitto_hash(b"x", b"s", 0)[:-4], "63 bytes"),
        (mosquitto_hash(b"x", b"s" * 65, 0), "65 bytes"),
        (mosquitto_hash(b"x", b"s", 1).replace("$7$1$", "$7$1000001$"), "1000001 iterations"),
        (mosquitto_hash(b"x", b"s", 1).replace("$7$1$", "$7$0$"), "0 iterations"),
        (mosquitto_hash(b"x", b"s", 1).replace("$7$1$", "$7$one$"), "must be a number"),
        ("$6$a", "the hash must be $6$SALT$HASH or $7$ITERATIONS$SALT$HASH"),
        ("$6$!$!", "must be base64"),
        ("$argon2id$v=19$m=262145,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA", "m=262145"),
        ("$argon2id$v=19$m=65536,t=9,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA", "t=9"),
        ("$argon2id$v=19$m=65536,t=1,p=17$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAA", "p=17"),
    ],
)
def test_a_hash_that_is_broken_or_costs_too_much_is_refused(kept: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        check_hash(kept, "mosquitto")


# -- over sockets

AUTHORISED = "Authorization: Basic " + base64.b64encode(b"known:known").decode()


async def test_an_administrator_imports_and_exports_and_the_users_log_in(tmp_path: Path) -> None:
    running = Running(
        settings(users=[{**KNOWN, "administrator": True}], data={"dir": str(tmp_path / "data")})
    )
    await running.start()
    try:
        body = msgspec.json.encode(DOCUMENT)
        request = (
            f"POST /api/definitions HTTP/1.1\r\nHost: x\r\n{AUTHORISED}\r\nContent-Length: "
            f"{len(body)}\r\n\r\n".encode()
            + body
        )
        status, _, answer = await running.ask("http", request)
        assert status == 200 and msgspec.json.decode(answer)["refused"] == []
        for user, password, vhost, good in (
            ("ann", "secret", "shop", True),
            ("ann", "wrong", "shop", False),
            ("bob", "bobs", "/", False),
            ("bob", "bobs", "shop", True),
        ):
            assert await logs_in(running, user, password, vhost) == good, (user, vhost)
    finally:
        await running.stop()
    running = Running(
        settings(users=[{**KNOWN, "administrator": True}], data={"dir": str(tmp_path / "data")})
    )
    await running.start()
    try:
        assert await logs_in(running, "ann", "secret", "shop")
        status, _, answer = await running.ask(
            "http", f"GET /api/definitions HTTP/1.1\r\nHost: x\r\n{AUTHORISED}\r\n\r\n".encode()
        )
        document = msgspec.json.decode(answer)
        assert status == 200 and [one["name"] for one in document["policies"]] == ["short"]
        assert {one["name"] for one in document["queues"]} == {"new", "plain"} and len(
            document["bindings"]
        ) == 2
    finally:
        await running.stop()


async def logs_in(running: Running, user: str, password: str, vhost: str) -> bool:
    """True if the credentials open the virtual host."""
    socket = await running.socket("amqp")
    await socket.send(
        GREETING
        + marshal(0, spec.Connection.StartOk({}, response=f"\0{user}\0{password}"))
        + marshal(0, spec.Connection.TuneOk(0, 0, 0))
        + marshal(0, spec.Connection.Open(vhost))
    )
    heard = b""
    while (
        not (opened := b"\x00\x0a\x00\x29" in heard)
        and b"\x00\x0a\x00\x32" not in heard
        and (more := await socket.read())
    ):
        heard += more
    socket.close()
    return opened


async def test_only_administrators_may_use_definitions(running: Running) -> None:
    for line in ("GET /api/definitions", "POST /api/definitions", "DELETE /api/trellis/delayed"):
        status, _, _ = await running.ask(
            "http",
            f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{AUTHORISED}\r\n\r\n".encode(),
        )
        assert status == 403


async def test_a_file_is_taken_in_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_bytes(msgspec.json.encode(DOCUMENT))
    running = Running(settings(definitions={"file": str(path)}))
    await running.start()
    assert running.app.node is not None and "new" in running.app.node.broker.vhosts["shop"].queues
    await running.stop()
    path.write_text("nonsense")
    with pytest.raises(
        SettingsError, match=r"definitions.file: .*definitions.json: the document is not JSON"
    ):
        await Running(settings(definitions={"file": str(path)})).start()


def test_delayed_messages_are_listed_and_withdrawn() -> None:
    world = World()
    client = world.amqp()
    client.send(
        spec.Exchange.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "fanout"},
        )
    )
    client.queue("q", "later")
    for body, delay in ((b"b", 20), (b"a", 10), (b"c", 30)):
        client.publish("later", "k", body, headers={"x-delay": delay})
    waiting = world.vhost.delays["later"]
    assert [(int(one.sequence), one.message.body) for one in waiting.waiting()] == [
        (2, b"a"),
        (1, b"b"),
        (3, b"c"),
    ]
    answers: list[bool] = []
    for _ in range(2):
        waiting.withdraw(1, answers.append)
    world.settle()
    assert answers == [True, False]
    world.sleep(50)
    world.settle()
    assert read(client, "q") == [b"a", b"c"] and world.copies() == {
        "purged": 1,
        "released": 2,
        "auto_acknowledged": 2,
    }
    world.fates()
