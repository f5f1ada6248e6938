"""Limits, default queue types, parameters and operator policies, which operators set over HTTP."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from protocols.amqp.connection.handshake import GREETING
from tests.clients import marshal, start_ok
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Amqp0, Running


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    assert (await api(running, "PUT", "vhosts/a"))[0] == 201
    body = {"password": "known", "tags": ""}
    assert (await api(running, "PUT", "users/ann", body))[0] == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert (await api(running, "PUT", "permissions/a/ann", everything))[0] == 201
    return running


async def entered(broker: Running, vhost: str = "a", user: str = "ann") -> tuple[Amqp0, Any]:
    """Log in and open a virtual host; return the client and the reply to connection.open."""
    client = Amqp0(await broker.socket("amqp"))
    await client.socket.send(GREETING)
    await client.expect(spec.Connection.Start)
    await client.socket.send(start_ok(user, "known", "PLAIN"))
    await client.expect(spec.Connection.Tune)
    await client.socket.send(
        marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
        + marshal(0, spec.Connection.Open(vhost))
    )
    return client, await client.frame()


async def test_a_virtual_host_has_as_many_connections_and_queues_as_its_limits(
    broker: Running,
) -> None:
    assert (await api(broker, "PUT", "vhost-limits/a/max-connections", {"value": 1}))[0] == 201
    assert (await api(broker, "PUT", "vhost-limits/a/max-queues", {"value": 1}))[0] == 201
    assert (await api(broker, "GET", "vhost-limits"))[1] == [
        {"vhost": "a", "value": {"max-connections": 1, "max-queues": 1}}
    ]
    assert (await api(broker, "GET", "vhosts/a"))[1]["limits"] == {
        "max-connections": 1,
        "max-queues": 1,
    }
    client, answer = await entered(broker)
    assert isinstance(answer, spec.Connection.OpenOk)
    _, refused = await entered(broker)
    assert refused.reply_code == 530
    assert "connection limit (1) is reached" in refused.reply_text
    await client.call(spec.Channel.Open(), spec.Channel.OpenOk)
    await client.queue("one")
    await client.queue("one")
    status, answer = await api(broker, "PUT", "queues/a/two", {}, "admin")
    assert (status, answer["error"]) == (400, "bad_request")
    assert "queue limit in vhost 'a' (1) is reached" in answer["reason"]
    # After the limits are deleted, the queue and the connection are accepted.
    assert (await api(broker, "DELETE", "vhost-limits/a/max-queues"))[0] == 204
    assert (await api(broker, "DELETE", "vhost-limits/a/max-queues"))[0] == 404
    assert (await api(broker, "PUT", "vhost-limits/a/max-connections", {"value": -1}))[0] == 204
    assert (await api(broker, "PUT", "queues/a/two"))[0] == 201
    assert isinstance((await entered(broker))[1], spec.Connection.OpenOk)
    assert (await api(broker, "GET", "vhost-limits/a"))[1] == []


async def test_a_user_has_as_many_connections_and_channels_as_its_limits(broker: Running) -> None:
    assert (await api(broker, "PUT", "user-limits/ann/max-connections", {"value": 1}))[0] == 201
    assert (await api(broker, "PUT", "user-limits/ann/max-channels", {"value": 1}))[0] == 201
    wanted = {"max-connections": 1, "max-channels": 1}
    assert (await api(broker, "GET", "user-limits"))[1] == [{"user": "ann", "value": wanted}]
    assert (await api(broker, "GET", "users/ann"))[1]["limits"] == wanted
    client, answer = await entered(broker)
    assert isinstance(answer, spec.Connection.OpenOk)
    _, refused = await entered(broker)
    assert "user connection limit (1) is reached" in refused.reply_text
    await client.call(spec.Channel.Open(), spec.Channel.OpenOk)
    await client.socket.send(marshal(2, spec.Channel.Open()))
    assert "maximum allowed limit of (1)" in (await client.frame()).reply_text
    # A new password keeps the limits; without limits a second connection is accepted.
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": ""})
    assert (await api(broker, "GET", "user-limits/ann"))[1] == [{"user": "ann", "value": wanted}]
    assert (await api(broker, "DELETE", "user-limits/ann/max-connections"))[0] == 204
    assert isinstance((await entered(broker))[1], spec.Connection.OpenOk)
    assert isinstance((await entered(broker))[1], spec.Connection.OpenOk)


async def test_the_limits_of_other_users_do_not_tell_which_users_exist(broker: Running) -> None:
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    assert (await api(broker, "PUT", "user-limits/ann/max-channels", {"value": 9}))[0] == 201
    own = [{"user": "ann", "value": {"max-channels": 9}}]
    assert (await api(broker, "GET", "user-limits/ann", None, "ann")) == (200, own)
    answers = [
        await api(broker, "GET", f"user-limits/{name}", None, "known")
        for name in ("ann", "admin", "none")
    ]
    assert [status for status, _ in answers] == [403, 403, 403]
    assert answers[0][1] == answers[1][1] == answers[2][1]
    assert (await api(broker, "GET", "user-limits/ann", None, "watcher")) == (200, own)
    assert (await api(broker, "GET", "user-limits/none", None, "watcher"))[0] == 404


async def test_a_request_for_messages_above_the_limit_of_channels_leaves_no_connection(
    broker: Running,
) -> None:
    await api(broker, "PUT", "users/ann", {"password": "known", "tags": "management"})
    assert (await api(broker, "PUT", "queues/a/q"))[0] == 201
    assert (await api(broker, "PUT", "user-limits/ann/max-channels", {"value": 0}))[0] == 201
    publication = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
    for path, body in (
        ("queues/a/q/get", {"count": 1}),
        ("exchanges/a/amq.default/publish", publication | {"properties": {}}),
    ):
        status, answer = await api(broker, "POST", path, body, "ann")
        assert (status, answer["error"]) == (400, "bad_request")
        assert "maximum allowed limit of (0)" in answer["reason"]
    assert list(broker.node.amqp.connections) == []
    assert broker.node.broker.vhosts["a"].contexts.connections.total == 0
    assert (await api(broker, "DELETE", "user-limits/ann/max-channels"))[0] == 204
    assert (await api(broker, "POST", "queues/a/q/get", {"count": 1}, "ann"))[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("vhost-limits/a/max-odd", {"value": 1}, 400, "unknown limit 'max-odd'"),
        ("vhost-limits/a/max-queues", {"value": "1"}, 400, "must be a whole number"),
        ("vhost-limits/a/max-queues", {}, 400, "the field 'value' of the body is missing"),
        ("vhost-limits/none/max-queues", {"value": 1}, 404, "there is no vhost"),
        ("user-limits/none/max-channels", {"value": 1}, 404, "there is no user"),
        ("user-limits/ann/max-queues", {"value": 1}, 400, "unknown limit 'max-queues'"),
        ("parameters/vhost-limits/a/limits", {"value": {}}, 400, "/api/vhost-limits"),
        ("parameters/operator_policy/a/p", {"value": {}}, 400, "/api/operator-policies"),
        ("parameters/x%2Fy/a/p", {"value": 1}, 400, "must not contain '/'"),
        ("parameters/shovel/a/p", {}, 400, "the field 'value' of the body is missing"),
        ("vhosts/a", {"tracing": True}, 400, "cannot trace vhost 'a': tracing (amq"),
        ("vhosts/new", {"tracing": "on"}, 400, "'tracing'"),
        ("vhosts/a", {"default_queue_type": "odd"}, 400, "'default_queue_type' is 'odd'"),
        ("vhosts/a", {"description": 7}, 400, "'description' must be a text"),
        (
            "operator-policies/a/p",
            {"pattern": "q", "definition": {"dead-letter-exchange": "x"}},
            400,
            "operator policies cannot set",
        ),
        (
            "operator-policies/a/p",
            {"pattern": "q", "definition": {"max-length": 1}, "apply-to": "exchanges"},
            400,
            "'apply-to' is 'exchanges'",
        ),
    ],
)
async def test_invalid_operator_policy_is_refused(
    broker: Running, path: str, body: Any, status: int, says: str
) -> None:
    got, answer = await api(broker, "PUT", path, body)
    assert got == status
    assert says in answer["reason"]


async def test_the_default_queue_type_is_that_of_durable_queues(broker: Running) -> None:
    body = {"default_queue_type": "quorum", "description": "shop", "tags": ["eu"]}
    await api(broker, "PUT", "queues/a/old")
    assert (await api(broker, "PUT", "vhosts/a", body))[0] == 204
    row = (await api(broker, "GET", "vhosts/a"))[1]
    assert (row["default_queue_type"], row["description"], row["tags"]) == (
        "quorum",
        "shop",
        ["eu"],
    )
    client, _ = await entered(broker)
    await client.call(spec.Channel.Open(), spec.Channel.OpenOk)
    # Each declaration is repeated with equal arguments, also the declaration of a queue that was
    # declared before the vhost had a default type.
    for _ in range(2):
        await client.queue("durable", durable=True)
        await client.queue("old", durable=True)
        await client.queue("transient")
        await client.queue("mine", durable=True, exclusive=True)
        await client.queue("classic", durable=True, arguments={"x-queue-type": "classic"})
    types = {row["name"]: row["type"] for row in (await api(broker, "GET", "queues/a"))[1]}
    assert types == {
        "old": "classic",
        "durable": "quorum",
        "transient": "classic",
        "mine": "classic",
        "classic": "classic",
    }
    # A request that names one option leaves the other options unchanged.
    assert (await api(broker, "PUT", "vhosts/a", {"description": "new"}))[0] == 204
    row = (await api(broker, "GET", "vhosts/a"))[1]
    assert (row["default_queue_type"], row["description"]) == ("quorum", "new")
    await api(broker, "PUT", "queues/a/rows", {"arguments": {"x-queue-type": "stream"}})
    assert (await api(broker, "GET", "queues/a/rows"))[1]["type"] == "stream"


async def test_parameters_are_kept_and_returned(broker: Running) -> None:
    value = {"uri": "amqp://west", "max-hops": 2}
    path = "parameters/federation-upstream/a/west"
    assert (await api(broker, "PUT", path, {"value": value}))[0] == 201
    assert (await api(broker, "PUT", path, {"value": value}))[0] == 204
    row = {"component": "federation-upstream", "name": "west", "vhost": "a", "value": value}
    for listed in ("parameters", "parameters/federation-upstream", path.rpartition("/")[0]):
        assert (await api(broker, "GET", listed))[1] == [row]
    assert (await api(broker, "GET", "parameters/shovel"))[1] == []
    assert (await api(broker, "GET", path))[1] == row
    assert (await api(broker, "PUT", "global-parameters/cluster_name", {"value": "x"}))[0] == 201
    assert (await api(broker, "GET", "global-parameters"))[1] == [
        {"name": "cluster_name", "value": "x"}
    ]
    assert (await api(broker, "DELETE", "global-parameters/cluster_name"))[0] == 204
    assert (await api(broker, "GET", "global-parameters/cluster_name"))[0] == 404
    assert (await api(broker, "DELETE", path))[0] == 204
    assert (await api(broker, "GET", path))[0] == 404
    for user, status in (("known", 403), ("watcher", 403), ("polly", 200)):
        assert (await api(broker, "GET", "parameters", user=user))[0] == status
    assert (await api(broker, "PUT", path, {"value": 1}, "polly"))[0] == 403, (
        "the user may not change this vhost"
    )
    assert (await api(broker, "PUT", "vhost-limits/%2F/max-queues", {"value": 1}, "polly"))[
        0
    ] == 403
    assert (await api(broker, "PUT", "operator-policies/%2F/p", {}, "polly"))[0] == 403


async def test_a_policy_key_without_effect_is_logged(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker accepts a policy with a key that has no effect in Trellis, and logs the key."""
    policy = {
        "pattern": "^q",
        "definition": {"federation-upstream-pattern": "a", "max-length": 5, "queue-mode": "lazy"},
    }
    assert (await api(broker, "PUT", "policies/a/p", policy))[0] == 201
    limits = {"pattern": "^q", "definition": {"ha-mode": "all", "max-length": 5}}
    assert (await api(broker, "PUT", "operator-policies/a/o", limits))[0] == 201
    logged = [record.getMessage() for record in caplog.records if "set key" in record.getMessage()]
    assert logged == [
        (
            "user 'admin' set key 'federation-upstream-pattern' of policy 'p' in vhost 'a'; "
            "the key has no effect: use federation-upstream or federation-upstream-set"
        ),
        (
            "user 'admin' set key 'queue-mode' of policy 'p' in vhost 'a'; "
            "the key has no effect: long queues are paged to disk in any mode"
        ),
        (
            "user 'admin' set key 'ha-mode' of policy 'o' in vhost 'a'; "
            "the key has no effect: single queues are not replicated, and standbys have all queues"
        ),
    ]
    assert (await api(broker, "GET", "policies/a/p"))[1]["definition"] == policy["definition"]


async def test_an_operator_policy_bounds_queues_until_it_is_deleted(broker: Running) -> None:
    policy = {"pattern": "^q", "definition": {"max-length": 5, "message-ttl": 9_000}}
    await api(broker, "PUT", "policies/a/p", policy)
    bound = {"pattern": "^q", "definition": {"max-length": 2, "expires": 60_000}}
    assert (await api(broker, "PUT", "operator-policies/a/o", bound))[0] == 201
    await api(broker, "PUT", "queues/a/q")
    row = (await api(broker, "GET", "queues/a/q"))[1]
    assert (row["policy"], row["operator_policy"]) == ("p", "o")
    assert row["effective_policy_definition"] == {
        "max-length": 2,
        "message-ttl": 9_000,
        "expires": 60_000,
    }
    queue = broker.node.broker.vhosts["a"].queues["q"]
    assert (int(queue.arguments.max_length), int(queue.arguments.expires)) == (2, 60_000)
    (listed,) = (await api(broker, "GET", "operator-policies/a"))[1]
    assert (listed["name"], listed["apply-to"]) == ("o", "queues")
    assert (await api(broker, "DELETE", "operator-policies/a/o"))[0] == 204
    assert (await api(broker, "GET", "operator-policies/a/o"))[0] == 404
    await broker.until(
        lambda: int(broker.node.broker.vhosts["a"].queues["q"].arguments.max_length) == 5
    )


async def test_an_import_says_that_the_settings_decide_about_their_users(broker: Running) -> None:
    row = {"name": "admin", "password_hash": "", "tags": []}
    status, answer = await api(broker, "POST", "definitions", {"users": [row]})
    assert (status, answer["notes"]) == (200, [])
    for change in ({"tags": "monitoring"}, {"password_hash": "A" * 48}, {"tags": ["other"]}):
        for path in ("definitions?dry_run=true", "definitions"):
            status, answer = await api(broker, "POST", path, {"users": [row | change]})
            assert (status, answer["taken"]) == (200, {"users": 1})
            assert answer["notes"] == [
                "users 'admin': the settings, not the import, give the password and the tags"
            ]
    assert (await api(broker, "GET", "whoami"))[1]["tags"] == ["administrator"]


async def test_a_user_of_the_settings_has_limits_too(broker: Running) -> None:
    """As in RabbitMQ, each user can have limits, also one without stored permissions."""
    path = "user-limits/admin/max-channels"
    assert (await api(broker, "DELETE", path))[0] == 404
    assert (await api(broker, "GET", "user-limits/admin"))[1] == []
    assert (await api(broker, "PUT", path, {"value": "many"}))[0] == 400
    assert (await api(broker, "PUT", path, {"value": 1}))[0] == 201
    assert (await api(broker, "PUT", path, {"value": 1}))[0] == 204
    wanted = [{"user": "admin", "value": {"max-channels": 1}}]
    assert (await api(broker, "GET", "user-limits/admin"))[1] == wanted
    assert (await api(broker, "GET", "user-limits"))[1] == wanted
    assert (await api(broker, "GET", "users/admin"))[1]["limits"] == {"max-channels": 1}
    client, answer = await entered(broker, user="admin")
    assert isinstance(answer, spec.Connection.OpenOk)
    await client.call(spec.Channel.Open(), spec.Channel.OpenOk)
    await client.socket.send(marshal(2, spec.Channel.Open()))
    assert "maximum allowed limit of (1)" in (await client.frame()).reply_text
    # The limits change nothing else: the user still has its password, tags and permissions.
    assert (await api(broker, "GET", "users/admin"))[1]["tags"] == ["administrator"]
    assert (await api(broker, "DELETE", path))[0] == 204
    assert (await api(broker, "GET", "user-limits"))[1] == []
