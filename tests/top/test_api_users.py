"""Tests of users, permissions and topic rules over the HTTP API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from tests.top.api_client import ADMIN, api, users
from tests.top.conftest import Start
from tests.top.disks import HandledDisk
from tests.top.running import KNOWN, Running


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def test_users_and_permissions_are_made_at_run_time_and_hold_at_once(broker: Running) -> None:
    assert (
        await api(
            broker, "PUT", "users/ann", {"password": "secret", "tags": "management,monitoring"}
        )
    )[0] == 201
    assert (await api(broker, "GET", "users/ann"))[1]["tags"] == ["management", "monitoring"]
    assert (await api(broker, "GET", "whoami", user="ann", password="secret"))[1]["name"] == "ann"
    permission = {"configure": "", "write": "", "read": "^q"}
    assert await api(broker, "PUT", "permissions/%2F/ann", permission) == (201, None)
    assert (await api(broker, "GET", "permissions/%2F/ann"))[1] == {
        "user": "ann",
        "vhost": "/",
        **permission,
    }
    await api(broker, "PUT", "queues/%2F/q")
    client = await broker.amqp("ann", "secret")
    await client.call(spec.Basic.Consume(queue="q", consumer_tag="t"), spec.Basic.ConsumeOk)
    assert (await api(broker, "PUT", "permissions/%2F/ann", permission | {"read": "^other"}))[
        0
    ] == 204
    # The broker closes the channel, because the client did not announce that it understands
    # basic.cancel.
    assert (await client.expect(spec.Channel.Close)).reply_code == 403
    assert await api(broker, "DELETE", "users/ann") == (204, None)
    assert (await client.expect(spec.Connection.Close)).reply_code == 320
    assert (await api(broker, "GET", "whoami", user="ann", password="secret"))[0] == 401
    assert (await api(broker, "POST", "users/bulk-delete", {"users": ["ann"]}))[0] == 204
    status, answer = await api(broker, "PUT", "users/admin", {"password": "x", "tags": ""})
    assert status == 400
    assert answer["reason"].startswith("user 'admin' is defined in the settings: change the user")
    for wrong in (
        {"tags": ""},
        {"password": "x"},
        {"password": "", "tags": ""},
        {"password_hash": "!", "tags": ""},
        {"password": 1, "tags": []},
    ):
        assert (await api(broker, "PUT", "users/bob", wrong))[0] == 400


async def test_rules_about_topics_hold_for_bindings_made_over_http(start: Start) -> None:
    running = await start(
        users=[KNOWN | {"tags": ("management",), "rules": ("deny all secret/#", "allow all #")}]
    )
    await api(running, "PUT", "queues/%2F/q", user="known")
    for key, expected in (("open.a", 201), ("secret.a", 403), ("#", 403)):
        assert (
            await api(
                running, "POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": key}, user="known"
            )
        )[0] == expected


async def test_rules_and_topic_permissions_are_made_at_run_time(broker: Running) -> None:
    await api(broker, "PUT", "users/ann", {"password": "secret", "tags": ""})
    await api(
        broker, "PUT", "permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"}
    )
    client = await broker.mqtt("c", user="ann/secret")
    await client.subscribe("#")
    assert await api(
        broker, "PUT", "topic-rules/%2F/ann", {"rules": ["deny all x", "allow all #"]}
    ) == (201, None)
    assert (await api(broker, "GET", "topic-rules"))[1] == [
        {"user": "ann", "vhost": "/", "rules": ["deny all x", "allow all #"]}
    ]
    await client.socket.send(b"\x30\x03\x00\x01x\x30\x03\x00\x01y")
    assert await client.packet() == (0x30, b"\x00\x01y")
    status, answer = await api(broker, "PUT", "topic-rules/%2F/ann", {"rules": ["perhaps all x"]})
    assert (status, "perhaps all x" in answer["reason"]) == (400, True)
    assert await api(broker, "DELETE", "topic-rules/%2F/ann") == (204, None)
    assert (
        await api(
            broker,
            "PUT",
            "topic-permissions/%2F/ann",
            {"exchange": "amq.topic", "write": "^y", "read": ".*"},
        )
    )[0] == 201
    assert (await api(broker, "GET", "topic-permissions/%2F/ann"))[1] == [
        {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^y", "read": ".*"}
    ]
    await client.socket.send(b"\x30\x03\x00\x01x\x30\x04\x00\x02yy")
    assert await client.packet() == (0x30, b"\x00\x02yy")
    assert await api(broker, "DELETE", "topic-permissions/%2F/ann") == (204, None)


async def test_users_rules_and_permissions_survive_a_restart(start: Start, tmp_path: Any) -> None:
    data = {"data": {"dir": str(tmp_path)}}
    running = await start(**users(), **data)
    await api(running, "PUT", "users/ann", {"password": "secret", "tags": "management"})
    await api(running, "PUT", "permissions/%2F/ann", {"configure": "", "write": ".*", "read": ".*"})
    await api(running, "PUT", "topic-rules/%2F/ann", {"rules": ["allow all a/#"]})
    await api(
        running, "PUT", "topic-permissions/%2F/ann", {"exchange": "x", "write": "w", "read": "r"}
    )
    await api(running, "PUT", "users/ann", {"password": "other", "tags": "management"})
    await api(running, "PUT", "users/bob", {"password": "secret", "tags": ""})
    await api(running, "DELETE", "users/bob")
    client = await running.mqtt("c", user="ann/other", clean=False)
    await client.socket.send(b"\x82\x08\x00\x01\x00\x03a/#\x01")
    await client.socket.exactly(5)
    await running.stop()
    running = await start(**users(), **data)
    assert [one["name"] for one in (await api(running, "GET", "users"))[1]][-1] == "ann"
    assert (await api(running, "GET", "topic-rules/%2F/ann", user="admin"))[1]["rules"] == [
        "allow all a/#"
    ]
    assert (await api(running, "GET", "topic-permissions/%2F/ann"))[1][0]["read"] == "r"
    assert (await api(running, "GET", "whoami", user="ann", password="other"))[0] == 200
    (session,) = running.node.mqtt.sessions.all()
    await asyncio.sleep(0)
    assert (session.user, session.named, list(session.subscriptions)) == ("ann", True, ["a/#"])
    await api(running, "DELETE", "users/ann")
    await running.until(lambda: not running.node.mqtt.sessions.all())


async def test_the_creator_of_a_vhost_has_its_permissions_before_the_disk_answers(
    start: Start, tmp_path: Path
) -> None:
    disk = HandledDisk()
    broker = await start(disk=disk, data={"dir": str(tmp_path)}, **users())
    body = {"password": "known", "tags": "administrator"}
    assert (await api(broker, "PUT", "users/maker", body))[0] == 201
    disk.open_for_syncs.clear()
    created = asyncio.create_task(api(broker, "PUT", "vhosts/made", user="maker"))
    try:
        await broker.until(lambda: "made" in broker.node.broker.vhosts)
        # The creator must have the permissions already: the HTTP call now waits for the disk only,
        # and may still fail.
        assert broker.node.broker.users.by_name["maker"].permissions == {"made": (".*", ".*", ".*")}
    finally:
        disk.open_for_syncs.set()
    assert await created == (201, None)


async def test_one_permission_or_rule_is_found_without_the_other_users(broker: Running) -> None:
    class Lookup(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("a request for one user visited all users")

        keys = values = items = __iter__

    await api(broker, "PUT", "vhosts/a")
    await api(broker, "PUT", "users/one", {"password": "x", "tags": ""})
    body = {"configure": "a", "write": "b", "read": "c"}
    await api(broker, "PUT", "permissions/%2F/one", body)
    rules = {"rules": ["allow all mine/#"]}
    await api(broker, "PUT", "topic-rules/%2F/one", rules)
    stored = broker.node.broker.users
    by_name, stored.by_name = stored.by_name, Lookup(stored.by_name)
    try:
        row = {"user": "one", "vhost": "/"}
        assert await api(broker, "GET", "permissions/%2F/one") == (200, row | body)
        assert await api(broker, "GET", "topic-rules/%2F/one") == (200, row | rules)
        assert (await api(broker, "GET", "permissions/a/one"))[0] == 404
        assert (await api(broker, "GET", "topic-rules/a/one"))[1]["rules"] == []
        assert (await api(broker, "GET", "permissions/%2F/plain"))[0] == 200
    finally:
        stored.by_name = by_name


# -- users of the settings in virtual hosts made at run time


async def test_a_user_of_the_settings_may_get_permissions_in_a_new_vhost(
    broker: Running,
) -> None:
    assert (await api(broker, "PUT", "vhosts/new"))[0] == 201
    body = {"configure": "", "write": "^amq", "read": ".*"}
    assert (await api(broker, "GET", "queues/new", user="known"))[0] == 403
    assert (await api(broker, "PUT", "permissions/new/known", body))[0] == 201
    assert (await api(broker, "PUT", "permissions/new/known", body))[0] == 204
    assert (await api(broker, "GET", "queues/new", user="known"))[0] == 200
    assert (await api(broker, "PUT", "queues/new/q", {}, user="known"))[0] == 403
    row = {"user": "known", "vhost": "new", **body}
    assert await api(broker, "GET", "permissions/new/known") == (200, row)
    status, rows = await api(broker, "GET", "users/known/permissions")
    assert status == 200 and [one["vhost"] for one in rows] == ["/", "new"]
    client = await broker.mqtt("c", user="new:known/known")
    await client.ping()
    status, rows = await api(broker, "GET", "users")
    assert [one["name"] for one in rows].count("known") == 1
    rules = {"rules": ["allow all mine/#"]}
    assert (await api(broker, "PUT", "topic-rules/new/known", rules))[0] == 201
    assert (await api(broker, "DELETE", "permissions/new/known"))[0] == 204
    assert await client.socket.read_to_end() == b""
    assert (await api(broker, "GET", "queues/new", user="known"))[0] == 403
    # The settings alone give the permissions in their virtual hosts.
    status, answer = await api(broker, "PUT", "permissions/%2F/known", body)
    assert status == 400 and "defined in the settings" in answer["reason"]


async def test_a_refused_change_of_a_user_of_the_settings_stores_nothing(broker: Running) -> None:
    assert (await api(broker, "PUT", "vhosts/new"))[0] == 201
    bad = {"configure": "(", "write": "", "read": ""}
    requests: tuple[tuple[str, str, Any, int], ...] = (
        ("PUT", "permissions/new/known", {"configure": ""}, 400),
        ("PUT", "permissions/new/known", bad, 400),
        ("DELETE", "permissions/new/known", None, 404),
        ("PUT", "topic-permissions/new/known", bad | {"exchange": "x", "read": "("}, 400),
        ("PUT", "topic-permissions/new/known", {"exchange": "", "write": "", "read": ""}, 400),
        ("DELETE", "topic-permissions/new/known", None, 204),
        ("PUT", "topic-rules/new/known", {"rules": ["allow all {user}"]}, 400),
        ("PUT", "topic-rules/new/known", {"rules": ["allow nothing"]}, 400),
        ("DELETE", "topic-rules/new/known", None, 204),
    )
    for method, path, body, status in requests:
        assert (path, body, (await api(broker, method, path, body))[0]) == (path, body, status)
    assert (await api(broker, "GET", "definitions"))[1]["users"] == []
    topics = {"exchange": "x", "write": "", "read": ""}
    assert (await api(broker, "PUT", "topic-permissions/new/known", topics))[0] == 201
    assert (await api(broker, "DELETE", "topic-permissions/new/known"))[0] == 204
    (row,) = (await api(broker, "GET", "definitions"))[1]["users"]
    assert (row["name"], row["tags"], row["password_hash"]) == ("known", [], "")


async def test_stored_permissions_of_a_superuser_hold_in_new_vhosts(start: Start) -> None:
    broker = await start(user="root", password="known", users=[ADMIN])
    assert (await api(broker, "PUT", "vhosts/new"))[0] == 201
    assert (await api(broker, "PUT", "queues/new/one", {}, user="root"))[0] == 201
    body = {"configure": "^none$", "write": ".*", "read": ".*"}
    assert (await api(broker, "PUT", "permissions/new/root", body))[0] == 201
    assert (await api(broker, "PUT", "queues/new/two", {}, user="root"))[0] == 403
    _, rows = await api(broker, "GET", "users/root/permissions")
    assert [(one["vhost"], one["configure"]) for one in rows] == [("/", ".*"), ("new", "^none$")]
    assert (await api(broker, "DELETE", "permissions/new/root"))[0] == 204
    assert (await api(broker, "PUT", "queues/new/two", {}, user="root"))[0] == 201
    assert (await api(broker, "PUT", "permissions/%2F/root", body))[0] == 400
