"""Tests of the HTTP API with the requests of RabbitMQ's tools: answers, permissions, pages."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pamqp.commands as spec
import pytest

from tests.top.api_client import ADMIN, api, users
from tests.top.conftest import Start
from tests.top.running import Running


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


GETS: Final = (
    "overview",
    "cluster-name",
    "nodes",
    "nodes/trellis",
    "whoami",
    "vhosts",
    "vhosts/%2F",
    "vhosts/%2F/permissions",
    "users",
    "users/admin",
    "users/without-permissions",
    "users/admin/permissions",
    "permissions",
    "permissions/%2F/admin",
    "topic-permissions",
    "topic-rules",
    "exchanges",
    "exchanges/%2F",
    "exchanges/%2F/amq.topic",
    "exchanges/%2F/amq.default/bindings/source",
    "queues",
    "queues/%2F",
    "bindings",
    "bindings/%2F",
    "route?exchange=amq.topic&key=a",
    "policies",
    "connections",
    "channels",
    "consumers",
    "definitions",
    "definitions/%2F",
    "health/checks/alarms",
    "health/checks/virtual-hosts",
    "health/checks/certificate-expiration/1/months",
    "aliveness-test/%2F",
    "health/checks/protocol-listener/amqp091",
    "health/checks/ready-to-serve-clients",
    "parameters",
    "parameters/shovel/%2F",
    "global-parameters",
    "operator-policies",
    "operator-policies/%2F",
    "vhost-limits",
    "vhost-limits/%2F",
    "user-limits",
    "auth/attempts/trellis",
    "trellis/queues",
    "trellis/sessions",
    "trellis/delayed",
    "trellis/topics",
    "trellis/log",
    "trellis/certificates",
    "trellis/cluster",
)


async def test_the_overview_names_each_type_of_exchange_that_can_be_declared(
    broker: Running,
) -> None:
    _, overview = await api(broker, "GET", "overview")
    names = [row["name"] for row in overview["exchange_types"]]
    assert {"direct", "x-delayed-message", "x-message-deduplication", "x-recent-history"} < set(
        names
    )
    arguments = {"x-delayed-type": "direct", "x-cache-size": 1, "x-recent-history-length": 1}
    for name in names:
        body = {"type": name, "arguments": arguments}
        assert (await api(broker, "PUT", f"exchanges/%2F/of-{name}", body))[0] == 201, name


async def test_every_page_answers_an_administrator(broker: Running) -> None:
    answers = [(path, (await api(broker, "GET", path))[0]) for path in GETS]
    assert [one for one in answers if one[1] != 200] == []


@pytest.mark.parametrize(
    ("user", "password", "path", "status", "error"),
    [
        ("admin", "wrong", "overview", 401, "not_authorised"),
        ("unknown", "known", "overview", 401, "not_authorised"),
        ("plain", "known", "overview", 403, "not_authorised"),
        ("known", "known", "users", 403, "not_authorised"),
        ("known", "known", "nodes", 403, "not_authorised"),
        ("watcher", "known", "nodes", 200, None),
        ("known", "known", "queues", 200, None),
        ("plain", "known", "trellis/queues", 200, None),
        ("watcher", "known", "definitions", 403, "not_authorised"),
        ("admin", "known", "queues/none", 404, "Object Not Found"),
        ("admin", "known", "queues/%2F/none", 404, "Object Not Found"),
        ("admin", "known", "nonsense", 404, "Object Not Found"),
        ("admin", "known", "queues?page=0", 400, "bad_request"),
        ("admin", "known", "queues?page=2", 400, "page_out_of_range"),
        ("admin", "known", "queues?page_size=501&page=1", 400, "bad_request"),
        ("admin", "known", "queues?name=(&use_regex=true", 400, "bad_request"),
    ],
)
async def test_users_get_the_status_for_their_tags(
    broker: Running, user: str, password: str, path: str, status: int, error: str | None
) -> None:
    answer = await api(broker, "GET", path, user=user, password=password)
    assert (answer[0], answer[1].get("error") if status != 200 else None) == (status, error)
    assert status == 200 or answer[1]["reason"]


async def test_objects_are_made_found_bound_and_deleted(broker: Running) -> None:
    assert await api(broker, "PUT", "vhosts/v%2F1", {}) == (201, None)
    assert await api(broker, "PUT", "vhosts/v%2F1") == (204, None)
    for path, body in (
        ("exchanges/v%2F1/x", {"type": "topic"}),
        ("queues/v%2F1/q", {"arguments": {"x-max-length": 5}}),
    ):
        assert (await api(broker, "PUT", path, body), await api(broker, "PUT", path, body)) == (
            (201, None),
            (204, None),
        )
    status, answer = await api(broker, "PUT", "queues/v%2F1/q", {"arguments": {"x-max-length": 6}})
    assert (status, answer["error"], "x-max-length" in answer["reason"]) == (
        400,
        "bad_request",
        True,
    )
    between = "bindings/v%2F1/e/x/q/q"
    assert (await api(broker, "POST", between, {"routing_key": "a.#", "arguments": {"k": 1}}))[
        0
    ] == 201
    assert (await api(broker, "POST", between, {"routing_key": "b/c"}))[0] == 201
    bindings = (await api(broker, "GET", between))[1]
    assert [
        (one["routing_key"], one["arguments"], one["destination_type"]) for one in bindings
    ] == [
        ("a.#", {"k": 1}, "queue"),
        ("b/c", {}, "queue"),
    ]
    assert (await api(broker, "GET", "queues/v%2F1/q/bindings"))[1][1:] == bindings
    assert bindings[0]["properties_key"].startswith("a.%23~")
    assert bindings[1]["properties_key"] == "b%2Fc"
    for one in bindings:
        path = f"{between}/{quote(one['properties_key'], safe='')}"
        assert (await api(broker, "GET", path))[1] == one
        assert await api(broker, "DELETE", path) == (204, None)
    assert (await api(broker, "GET", between))[1] == []
    queue = (await api(broker, "GET", "queues/v%2F1/q"))[1]
    assert {
        name: queue[name]
        for name in (
            "name",
            "vhost",
            "durable",
            "arguments",
            "messages",
            "consumers",
            "state",
            "type",
        )
    } == {
        "name": "q",
        "vhost": "v/1",
        "durable": True,
        "arguments": {"x-max-length": 5},
        "messages": 0,
        "consumers": 0,
        "state": "running",
        "type": "classic",
    }
    assert await api(broker, "DELETE", "queues/v%2F1/q/contents") == (204, None)
    for path in ("queues/v%2F1/q", "exchanges/v%2F1/x", "vhosts/v%2F1"):
        assert await api(broker, "DELETE", path) == (204, None)
        assert (await api(broker, "DELETE", path))[0] == 404
    refused = (await api(broker, "DELETE", "vhosts/%2F"))[1]
    assert (
        refused["reason"]
        == "vhost '/' cannot be deleted, because it keeps the counters of deleted vhosts"
    )


async def test_a_protected_vhost_cannot_be_deleted(start: Start, tmp_path: Path) -> None:
    for life in range(2):
        broker = await start(users=[ADMIN], data={"dir": str(tmp_path)})
        if life == 0:
            await api(broker, "PUT", "vhosts/kept", {"description": "d"})
            assert await api(broker, "POST", "vhosts/kept/deletion/protection") == (204, None)
        status, answer = await api(broker, "DELETE", "vhosts/kept")
        assert (status, "protected from deletion" in answer["reason"]) == (400, True)
        row = (await api(broker, "GET", "vhosts/kept"))[1]
        assert row["protected_from_deletion"] and row["description"] == "d"
        [stored] = [
            one
            for one in (await api(broker, "GET", "definitions"))[1]["vhosts"]
            if one["name"] == "kept"
        ]
        assert stored["metadata"]["protected_from_deletion"] is True
        if life == 0:
            await broker.stop()
    assert await api(broker, "DELETE", "vhosts/kept/deletion/protection") == (204, None)
    # RabbitMQ's tools write the options of a virtual host into `metadata`.
    changed = {"metadata": {"description": "e", "tags": ["t"]}}
    assert await api(broker, "PUT", "vhosts/kept", changed) == (204, None)
    row = (await api(broker, "GET", "vhosts/kept"))[1]
    assert (row["description"], row["tags"]) == ("e", ["t"])
    assert await api(broker, "DELETE", "vhosts/kept") == (204, None)


async def test_deleted_vhost_takes_its_objects_and_clients_along(broker: Running) -> None:
    await api(broker, "PUT", "vhosts/gone")
    await api(broker, "PUT", "users/ann", {"password": "secret", "tags": ""})
    await api(
        broker, "PUT", "permissions/gone/ann", {"configure": ".*", "write": ".*", "read": ".*"}
    )
    for number in range(500):
        broker.node.broker.vhosts["gone"].declare_queue(f"q{number}", True)
    client = await broker.mqtt("c", user="gone:ann/secret", clean=False)
    await client.subscribe("a/#", 1)
    before = (await broker.scrape()).counters
    assert await api(broker, "DELETE", "vhosts/gone") == (204, None)
    assert await client.socket.read() == b""
    assert "gone" not in broker.node.broker.vhosts
    assert not broker.node.mqtt.sessions.all()
    assert (await api(broker, "GET", "users/ann/permissions"))[1] == []
    after = (await broker.scrape()).counters
    assert {
        name
        for name, value in before.items()
        if "vhost" not in str(name) and after.get(name, 0) < value
    } == set()


async def test_a_vhost_that_is_being_deleted_takes_no_new_objects(broker: Running) -> None:
    await api(broker, "PUT", "vhosts/gone")
    vhost = broker.node.broker.vhosts["gone"]
    for number in range(20_000):  # They are deleted in slices of 200, with pauses of 5 ms.
        vhost.declare_queue(f"q{number}")
    deletion = asyncio.ensure_future(api(broker, "DELETE", "vhosts/gone"))
    await broker.until(lambda: vhost.closing)
    permission = {"configure": "", "write": "", "read": ""}
    changes: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "vhosts/gone", {}),
        ("PUT", "queues/gone/q", {}),
        ("PUT", "exchanges/gone/x", {}),
        ("PUT", "policies/gone/p", {"pattern": "", "definition": {"max-length": 5}}),
        ("PUT", "permissions/gone/admin", permission),
        ("POST", "bindings/gone/e/amq.topic/q/q", {}),
        ("POST", "definitions/gone", {"queues": []}),
    )
    answers = await asyncio.gather(*(api(broker, *change) for change in changes))
    advice = "wait until the deletion has ended, and create the vhost again"
    refusal = (400, f"vhost 'gone' is being deleted: {advice}")
    assert [(status, answer["reason"]) for status, answer in answers] == [refusal] * len(changes)
    assert await deletion == (204, None)


async def test_a_page_of_another_site_changes_nothing(broker: Running) -> None:
    token = base64.b64encode(b"admin:known").decode()
    for origin, expected in (
        ("https://elsewhere.example", 403),
        ("null", 403),
        ("http://here", 204),
    ):
        request = (
            f"PUT /api/vhosts/%2F HTTP/1.1\r\nHost: here\r\nOrigin: {origin}\r\nAuthorization: "
            f"Basic {token}\r\n"
            "Content-Length: 0\r\n\r\n"
        )
        assert (await broker.ask("http", request.encode()))[0] == expected


async def test_connections_are_listed_and_closed(broker: Running) -> None:
    amqp, mqtt = await broker.amqp(), await broker.mqtt("c", user="watcher/known")
    await amqp.queue("q")
    arguments: Any = {"x-priority": 3, "for": "audit", "since": datetime(2026, 1, 2, tzinfo=UTC)}
    consume = spec.Basic.Consume(queue="q", consumer_tag="t", arguments=arguments)
    await amqp.call(consume, spec.Basic.ConsumeOk)
    rows = {one["user"]: one for one in (await api(broker, "GET", "connections"))[1]}
    assert {user: row["protocol"] for user, row in rows.items()} == {
        "known": "AMQP 0-9-1",
        "watcher": "MQTT 3.1.1",
    }
    assert rows["known"]["state"] == "running"
    assert [one["user"] for one in (await api(broker, "GET", "connections", user="known"))[1]] == [
        "known"
    ]
    (channel,) = (await api(broker, "GET", "channels"))[1]
    assert (channel["number"], channel["consumer_count"], channel["vhost"]) == (1, 1, "/")
    assert (await api(broker, "GET", f"channels/{quote(channel['name'], safe='')}"))[1][
        "consumer_details"
    ][0]["consumer_tag"] == "t"
    (consumer,) = (await api(broker, "GET", "consumers"))[1]
    assert (consumer["queue"], consumer["consumer_tag"], consumer["ack_required"]) == (
        {"name": "q", "vhost": "/"},
        "t",
        True,
    )
    assert consumer["arguments"] == arguments | {"since": "2026-01-02T00:00:00Z"}
    path = f"connections/{quote(rows['known']['name'], safe='')}"
    assert (await api(broker, "GET", path + "/channels"))[1] == [channel]
    assert (
        await api(
            broker, "DELETE", f"connections/{quote(rows['watcher']['name'], safe='')}", user="known"
        )
    )[0] == 404
    assert (await api(broker, "DELETE", path, user="watcher"))[0] == 403
    assert await api(broker, "DELETE", path) == (204, None)
    close = await amqp.expect(spec.Connection.Close)
    assert (close.reply_code, close.reply_text) == (
        320,
        "CONNECTION_FORCED - closed by an operator",
    )
    assert await api(broker, "DELETE", "connections/username/watcher") == (204, None)
    assert await mqtt.socket.read() == b""


async def test_policies_require_the_tag_policymaker(broker: Running) -> None:
    policy = {"pattern": "^q", "definition": {"max-length": 3}, "apply-to": "queues", "priority": 1}
    assert (await api(broker, "PUT", "policies/%2F/p", policy, user="known"))[0] == 403
    assert (await api(broker, "PUT", "policies/%2F/p", policy, user="polly"))[0] == 201
    assert (await api(broker, "GET", "policies/%2F/p"))[1] == {"vhost": "/", "name": "p", **policy}
    await api(broker, "PUT", "queues/%2F/q")
    assert (await api(broker, "GET", "queues/%2F/q"))[1]["policy"] == "p"
    assert await api(broker, "DELETE", "policies/%2F/p", user="polly") == (204, None)


async def test_global_parameters_are_for_administrators_on_every_path(broker: Running) -> None:
    for path in ("parameters//%2F/cluster_name", "parameters//a/cluster_name"):
        await api(broker, "PUT", "vhosts/a")
        status, answer = await api(broker, "PUT", path, {"value": "x"}, user="polly")
        assert status in (400, 403)
        status, answer = await api(broker, "PUT", path, {"value": "x"})
        assert status == 400 and "/api/global-parameters/cluster_name" in answer["reason"]
    body = {"value": "mine"}
    assert (await api(broker, "PUT", "global-parameters/cluster_name", body))[0] == 201
    for method in ("GET", "DELETE"):
        path = "parameters//%2F/cluster_name"
        assert (await api(broker, method, path, user="polly"))[0] == 400
    assert (await api(broker, "GET", "cluster-name"))[1] == {"name": "mine"}


async def test_long_lists_come_in_pages_and_do_not_block_the_loop(broker: Running) -> None:
    vhost = broker.node.broker.vhosts["/"]
    for number in range(1_000):
        vhost.declare_queue(f"q{number:04}")
    vhost.declare_queue("other")
    page = (
        await api(
            broker,
            "GET",
            "queues?page=3&page_size=30&name=^q&use_regex=true&sort=name&sort_reverse=true"
            "&columns=name",
        )
    )[1]
    assert page["items"] == [{"name": f"q{number:04}"} for number in range(939, 909, -1)]
    assert {name: page[name] for name in page if name != "items"} == {
        "page": 3,
        "page_size": 30,
        "page_count": 34,
        "item_count": 30,
        "filtered_count": 1_000,
        "total_count": 1_001,
    }
    empty = (await api(broker, "GET", "queues?page=1&page_size=30&name=missing"))[1]
    assert (empty["items"], empty["page"], empty["page_count"]) == ([], 1, 0)
    assert len((await api(broker, "GET", "queues"))[1]) == 1_001
    assert (await api(broker, "GET", "queues?name=OTHER&columns=name,arguments"))[1] == [
        {"name": "other", "arguments": {}}
    ]


async def test_an_alarm_is_told_by_the_checks(start: Start) -> None:
    broker = await start(**users(), limits={"memory": 1e-9})
    status, answer = await api(broker, "GET", "health/checks/alarms")
    # The broker measures its memory for the first time some time after the start.
    while status != 503:
        status, answer = await api(broker, "GET", "health/checks/alarms")
    assert (answer["status"], answer["alarms"]) == (
        "failed",
        [{"node": "trellis", "resource": "memory"}],
    )
    assert (await api(broker, "GET", "nodes"))[1][0]["mem_alarm"] is True


async def test_health_checks_report_faults_of_the_node(broker: Running) -> None:
    port = broker.port("amqp")
    assert await api(broker, "GET", f"health/checks/port-listener/{port}") == (
        200,
        {"status": "ok", "port": port},
    )
    assert (await api(broker, "GET", "health/checks/port-listener/1"))[0] == 503
    assert (await api(broker, "GET", "health/checks/protocol-listener/stomp"))[0] == 503
    assert (await api(broker, "GET", "health/checks/certificate-expiration/1/aeons"))[0] == 400


async def test_definitions_of_one_vhost_go_to_another(broker: Running) -> None:
    await api(broker, "PUT", "vhosts/a")
    await api(broker, "PUT", "vhosts/b")
    await api(broker, "PUT", "queues/a/q")
    await api(broker, "POST", "bindings/a/e/amq.topic/q/q", {"routing_key": "k"})
    document = (await api(broker, "GET", "definitions/a"))[1]
    assert (await api(broker, "POST", "definitions/b", document))[1] == {
        "taken": {"queues": 1, "bindings": 1},
        "refused": [],
        "notes": [],
    }
    assert (await api(broker, "GET", "bindings/b/e/amq.topic/q/q"))[1][0]["routing_key"] == "k"


async def test_an_import_into_one_vhost_names_the_sections_that_it_leaves_out(
    broker: Running,
) -> None:
    await api(broker, "PUT", "vhosts/a")
    document = {
        "users": [{"name": "new", "password_hash": "", "tags": []}],
        "permissions": [],
        "operator_policies": 1,
        "queues": [{"name": "q", "durable": True}],
    }
    for path in ("definitions/a?dry_run=true", "definitions/a"):
        status, answer = await api(broker, "POST", path, document)
        assert (status, answer["taken"], answer["refused"]) == (200, {"queues": 1}, [])
        users, operator_policies = answer["notes"]
        assert users.startswith("users: left out, because the definitions of one virtual host")
        assert operator_policies.startswith("operator_policies: left out, ")
    assert "new" not in broker.node.broker.users.by_name
    assert (await api(broker, "GET", "queues/a/q"))[0] == 200
