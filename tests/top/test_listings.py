"""Tests of the rows of `trellis list`, which the broker makes while its objects change."""

from __future__ import annotations

from collections import deque
from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.users import User
from broker.queues.policies import Policy
from broker.replication.figures import ClusterFigures
from tests.authority import Authority
from tests.clients import mqtt_publish, publication
from tests.top.api_client import ADMIN, WATCHER, api
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running
from tests.top.secured import secure
from trellis import logs
from trellis.bridge.service import invalid_state
from trellis.cli.list_columns import COLUMNS
from trellis.http.management import users
from trellis.monitoring.listings import KINDS


@pytest.mark.parametrize("kind", ["queues", "exchanges", "bindings", "policies"])
async def test_a_list_goes_on_while_virtual_hosts_are_created(start: Start, kind: str) -> None:
    running = await start()
    broker = running.node.broker
    for name in ("first", "second"):
        vhost = broker.create_vhost(name)
        vhost.declare_queue("q")
        vhost.applied_policies.set_policy(
            Policy(name, "p", "^x", "queues", 0, {"max-length": 1}), None
        )
    seen: list[object] = []
    async for row in KINDS[kind](running.node):
        if not seen:
            broker.create_vhost("later")
        seen.append(row["vhost"])
    assert {"first", "second"} <= set(seen)
    assert "later" not in seen


async def test_the_rows_of_users_are_made_one_by_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is complete even if users are defined or deleted while the broker makes its rows."""
    running = await start(users=[ADMIN])
    stored = running.node.broker.users
    for name in ("first", "second"):
        stored.define(name, "", [])
        stored.set_permission("/", name, "a", "b", "c")
    names: list[str] = []
    row_of = users._user_row

    def changing(user: User) -> dict[str, Any]:
        names.append(user.name)
        if len(names) == 1:
            stored.define("later", "", [])
        return row_of(user)

    monkeypatch.setattr(users, "_user_row", changing)
    status, rows = await api(running, "GET", "users")
    assert (status, [row["name"] for row in rows]) == (200, ["admin", "first", "second"])
    status, rows = await api(running, "GET", "permissions")
    assert [(row["user"], row["configure"]) for row in rows if row["user"] != "admin"] == [
        ("first", "a"),
        ("second", "a"),
    ]


async def test_connections_before_their_login_are_listed_for_monitoring_only(start: Start) -> None:
    running = await start(users=[KNOWN, WATCHER])
    client = await running.socket("amqp")
    await client.send(b"AMQP\x00\x00\x09\x01")
    await client.read()
    listed = [
        (await api(running, "GET", "trellis/connections", user=user))[1]
        for user in ("watcher", "known")
    ]
    assert [row["vhost"] for row in listed[0]] == [""]
    assert listed[1] == []
    client.close()


async def test_lists_of_consumers_do_not_show_the_names_of_reply_queues(start: Start) -> None:
    """Check that a user cannot find the queue to which another client expects its replies."""
    running = await start(users=[KNOWN, ADMIN])
    client = await running.amqp()
    await client.call(
        spec.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True), spec.Basic.ConsumeOk
    )
    (name,) = running.node.broker.vhosts["/"].replies
    for path in ("trellis/consumers", "consumers", "consumers/%2F?queue=amq.rabbitmq.reply-to"):
        status, rows = await api(running, "GET", path)
        assert status == 200 and len(rows) == 1
        assert name not in str(rows) and "'amq.rabbitmq.reply-to'" in str(rows)


async def fill(broker: Running) -> None:
    """Make at least one object of each kind that `trellis list` has."""
    vhost = broker.node.broker.vhosts["/"]
    policy = Policy("/", "p", "^x", "queues", 0, {"max-length": 1})
    vhost.applied_policies.set_policy(policy, None)
    later = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    await api(broker, "PUT", "exchanges/%2F/later", later)
    await api(broker, "PUT", "queues/%2F/q")
    await api(broker, "POST", "bindings/%2F/e/later/q/q", {"routing_key": "k"})
    client = await broker.amqp()
    delay = {"x-delay": 3_600_000}
    await client.socket.send(publication("later", "k", b"x", headers=delay))
    await client.call(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
    device = await broker.mqtt("device", user="known/known", clean=False)
    await device.socket.send(mqtt_publish("home/door", b"open", flags=1))
    await broker.until(lambda: len(vhost.retained) == 1 and vhost.delays["later"].depth == 1)
    broker.node.cluster_figures = lambda: ClusterFigures("cluster", "active")


async def test_the_command_knows_the_columns_of_each_kind(
    start: Start, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `trellis list` knows all columns of each kind of list.

    With these columns, the command refuses an unknown column also if the list is empty.
    """
    topics = {"topics": ("home/#",)}
    broker = await start(users=[KNOWN, ADMIN], metrics=topics, **secure(authority))
    await fill(broker)
    monkeypatch.setattr(logs, "recent", deque([logs.LogEvent(0.0, "info", "event field=1")]))
    broker.node.bridges.add(invalid_state("shovel", "/", "s", "has no source"))
    columns = {
        kind: {name async for row in rows(broker.node) for name in row}
        for kind, rows in KINDS.items()
    }
    assert columns.keys() == COLUMNS.keys()
    for kind, names in columns.items():
        assert (names, len(names)) == (set(COLUMNS[kind]), len(COLUMNS[kind])), kind
