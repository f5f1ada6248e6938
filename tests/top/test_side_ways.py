"""Tests of attempts to get around permissions over the HTTP API.

Each attempt must be refused or allowed as over AMQP.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.top.api_client import api
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running

RULED: Final = KNOWN | {
    "name": "ruled",
    "tags": ("policymaker",),
    "rules": ("allow publish mine/#", "allow subscribe #"),
}
READER: Final = KNOWN | {"name": "reader", "tags": ("policymaker",), "read": "^mine"}
FREE: Final = KNOWN | {"name": "free", "tags": ("policymaker",)}
WATCHING: Final = KNOWN | {"name": "watching", "tags": ("monitoring", "policymaker")}
#: Users that may log in from this machine only. `guest` is also the user of a URI without a user.
LOCAL: Final = KNOWN | {"name": "local", "loopback_only": True}
GUEST: Final = KNOWN | {"name": "guest", "loopback_only": True}
ADMIN: Final = KNOWN | {"name": "admin", "administrator": True, "read": "^mine"}

AROUND: Final[list[tuple[str, str, dict[str, Any]]]] = [
    ("POST", "bindings/%2F/e/own/e/amq.topic", {"routing_key": "mine.a"}),
    (
        "PUT",
        "exchanges/%2F/other",
        {"type": "fanout", "arguments": {"alternate-exchange": "amq.topic"}},
    ),
    ("PUT", "queues/%2F/other", {"arguments": {"x-dead-letter-exchange": "amq.topic"}}),
    (
        "PUT",
        "policies/%2F/other",
        {"pattern": "^x", "definition": {"alternate-exchange": "amq.topic"}},
    ),
    (
        "PUT",
        "policies/%2F/other",
        {
            "pattern": "^x",
            "definition": {
                "dead-letter-exchange": "amq.topic",
                "dead-letter-routing-key": "secret.a",
            },
        },
    ),
]
JOURNAL: Final = {"durable": True, "arguments": {"x-queue-type": "stream", "x-journal": True}}


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(users=[RULED, READER, FREE, WATCHING, LOCAL, GUEST, ADMIN])


@pytest.mark.parametrize(("method", "path", "body"), AROUND)
async def test_ways_into_a_topic_exchange(
    broker: Running, method: str, path: str, body: dict[str, Any]
) -> None:
    assert (await api(broker, "PUT", "exchanges/%2F/own", {"type": "direct"}, "ruled"))[0] == 201
    status, answer = await api(broker, method, path, body, "ruled")
    assert (status, answer["error"]) == (403, "not_authorised")
    assert "topic rules" in answer["reason"]
    assert (await api(broker, method, path, body, "free"))[0] == 201


async def test_the_key_of_a_policy_allows_nothing_because_a_queue_may_have_its_own(
    broker: Running,
) -> None:
    letters: dict[str, Any] = {
        "dead-letter-exchange": "amq.topic",
        "dead-letter-routing-key": "mine.a",
    }
    body: dict[str, Any] = {"pattern": "^x", "definition": letters}
    assert (await api(broker, "PUT", "policies/%2F/other", body, "ruled"))[0] == 403
    letters["dead-letter-exchange"] = "amq.direct"
    assert (await api(broker, "PUT", "policies/%2F/other", body, "ruled"))[0] == 201


async def test_a_queue_is_judged_with_its_policy(broker: Running) -> None:
    letters = {"dead-letter-exchange": "amq.topic", "dead-letter-routing-key": "mine.a"}
    body = {"pattern": "^x", "definition": letters}
    assert (await api(broker, "PUT", "policies/%2F/other", body, "free"))[0] == 201
    for queue, key, expected in (("x1", "secret.a", 403), ("x2", "mine.b", 201)):
        arguments = {"arguments": {"x-dead-letter-routing-key": key}}
        status, _ = await api(broker, "PUT", f"queues/%2F/{queue}", arguments, "ruled")
        assert status == expected
    assert (await api(broker, "PUT", "queues/%2F/x3", {}, "ruled"))[0] == 201


async def test_the_target_of_a_way_cannot_become_a_topic_exchange(broker: Running) -> None:
    alternate = {"type": "fanout", "arguments": {"alternate-exchange": "ev"}}
    for method, path, body in (
        ("PUT", "exchanges/%2F/ev", {"type": "fanout"}),
        ("PUT", "exchanges/%2F/other", alternate),
        ("DELETE", "exchanges/%2F/ev", None),
    ):
        assert (await api(broker, method, path, body, "ruled"))[0] in (201, 204)
    status, answer = await api(broker, "PUT", "exchanges/%2F/ev", {"type": "topic"}, "ruled")
    assert status == 403 and "topic rules" in answer["reason"]
    assert (await api(broker, "DELETE", "exchanges/%2F/other", None, "ruled"))[0] == 204
    assert (await api(broker, "PUT", "exchanges/%2F/ev", {"type": "topic"}, "ruled"))[0] == 201


@pytest.mark.parametrize(
    ("user", "status"), [("reader", 403), ("ruled", 201), ("free", 201), ("admin", 201)]
)
async def test_a_journal_as_an_argument(broker: Running, user: str, status: int) -> None:
    # Administrators need the permission to configure, but none to read.
    assert (await api(broker, "PUT", "queues/%2F/mine", JOURNAL, user))[0] == status
    assert ("mine" in broker.node.broker.vhosts["/"].queues) is (status == 201)


async def test_a_journal_in_a_policy(broker: Running) -> None:
    """A policy cannot make a stream a journal: no key of a policy does this.

    So a user cannot read all messages by means of a policy.
    """
    body = {"pattern": "^mine", "definition": {"journal": True}}
    for user in ("reader", "free"):
        status, answer = await api(broker, "PUT", "policies/%2F/p", body, user)
        assert status == 400 and "unknown key 'journal'" in answer["reason"]


async def test_a_journal_in_definitions_needs_an_administrator(broker: Running) -> None:
    document = {"queues": [{"vhost": "/", "name": "mine", **JOURNAL}]}
    assert (await api(broker, "POST", "definitions", document, "reader"))[0] == 403
    assert (await api(broker, "POST", "definitions/%2F", document, "reader"))[0] == 403
    status, answer = await api(broker, "POST", "definitions", document, "admin")
    assert (status, answer["refused"]) == (200, [])


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        ([{"upstream": "u"}], 201),
        ([{"upstream": "u", "uri": "amqp:///other"}], 403),
        ([{"upstream": "u"}, {"upstream": "u", "exchange": "secret"}], 403),
    ],
)
async def test_only_administrators_replace_keys_of_an_upstream_in_a_set(
    broker: Running, entries: list[dict[str, str]], status: int
) -> None:
    path = "parameters/federation-upstream-set/%2F/set"
    answered, answer = await api(broker, "PUT", path, {"value": entries}, "free")
    assert answered == status
    if status == 403:
        assert "lacks the tag 'administrator'" in answer["reason"]
        assert (await api(broker, "PUT", path, {"value": entries}))[0] == 201


@pytest.mark.parametrize("end", ["src", "dest"])
@pytest.mark.parametrize(
    ("uri", "status"),
    [
        ("amqp://free:known@", 201),
        ("amqp://stranger:x@rabbit.example.org", 201),
        ("amqp://guest:guest@", 403),
        ("amqp://guest:guest@/other", 403),
        ("amqp://guest:guest@127.0.0.1:5672", 403),
        ("amqp://127.0.0.1", 403),
        ("amqps://broker.example.org", 403),
        ("amqp://local:known@[::1]", 403),
        (["amqp://free:known@", "amqp://%6cocal:known@localhost"], 403),
    ],
)
async def test_only_administrators_set_shovels_with_a_user_who_may_log_in_here_only(
    broker: Running, end: str, uri: str | list[str], status: int
) -> None:
    """Check that a policymaker cannot set a shovel with a user who may log in from loopback only.

    Shovels connect from the broker's machine. So the policymaker, who may be on another machine,
    could use the rights of this user.
    """
    other = "dest" if end == "src" else "src"
    value = {
        f"{end}-uri": uri,
        f"{other}-uri": "amqp://free:known@",
        "src-queue": "q",
        "dest-queue": "r",
    }
    path = "parameters/shovel/%2F/way"
    answered, answer = await api(broker, "PUT", path, {"value": value}, "free")
    assert answered == status
    if status == 403:
        assert "who may log in only from the machine of this broker" in answer["reason"]
        assert (await api(broker, "PUT", path, {"value": value}))[0] == 201


async def test_the_tag_monitoring_gives_a_policymaker_no_further_virtual_hosts(
    broker: Running,
) -> None:
    shovel = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "r"}
    policy = {"pattern": "^x", "definition": {"max-length": 1}}
    for vhost in ("%2F", "other"):
        await api(broker, "PUT", f"vhosts/{vhost}")
        path = f"parameters/shovel/{vhost}/s"
        assert (await api(broker, "PUT", path, {"value": shovel}))[0] == 201
        assert (await api(broker, "PUT", f"policies/{vhost}/p", policy))[0] == 201
    listed = await api(broker, "GET", "parameters", None, "watching")
    assert [row["vhost"] for row in listed[1]] == ["/"]
    refused: list[tuple[str, str, Any]] = [
        ("GET", "parameters/shovel/other", None),
        ("GET", "parameters/shovel/other/s", None),
        ("PUT", "parameters/any/other/s", {"value": 1}),
        ("DELETE", "parameters/shovel/other/s", None),
        ("DELETE", "shovels/vhost/other/s", None),
        ("PUT", "policies/other/p", policy),
        ("DELETE", "policies/other/p", None),
    ]
    for method, path, body in refused:
        status, answer = await api(broker, method, path, body, "watching")
        assert (status, answer["error"]) == (403, "not_authorised"), path
    assert (await api(broker, "GET", "policies/other/p", None, "watching"))[0] == 200
    other = broker.node.broker.vhosts["other"]
    assert "p" in other.policies.by_name and list(other.parameters.values) == [("shovel", "s")]
    for path in ("shovels/vhost/%2F/s", "policies/%2F/p"):
        assert (await api(broker, "DELETE", path, None, "watching"))[0] == 204
