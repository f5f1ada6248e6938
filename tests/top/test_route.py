"""`GET /api/route`: where a message would go, as the HTTP API answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    vhost = running.node.broker.vhosts["/"]
    vhost.declare_exchange(
        "sensors", "topic", ExchangeOptions(arguments={"alternate-exchange": "lost"})
    )
    vhost.declare_exchange("lost", "fanout", ExchangeOptions())
    for name, arguments in (
        ("temps", {}),
        ("full", {"x-max-length": 0, "x-overflow": "reject-publish"}),
        ("unrouted", {}),
        ("reports", {}),
    ):
        vhost.declare_queue(name, arguments=arguments)
    for source, name, key, binding_arguments in (
        ("sensors", "temps", "sensors.*.temp", {}),
        ("sensors", "full", "sensors.#", {}),
        ("lost", "unrouted", "", {}),
        ("amq.headers", "reports", "", {"type": "report", "pages": 3}),
    ):
        vhost.bind(source, Binding(key, vhost.queues[name], 0, binding_arguments))
    return running


async def route(broker: Running, user: str = "admin", **query: str) -> tuple[int, dict[str, Any]]:
    status, answer = await api(broker, "GET", f"route?{urlencode(query)}", user=user)
    return status, answer


async def test_the_answer_has_the_path_the_bindings_the_queues_and_the_near_misses(
    broker: Running,
) -> None:
    status, answer = await route(broker, exchange="sensors", key="sensors.kitchen.temp")
    assert status == 200
    assert (answer["exchange"], answer["type"], answer["refusal"]) == ("sensors", "topic", "")
    assert [(one["name"], one["entered"]) for one in answer["exchanges"]] == [
        ("sensors", "published here")
    ]
    assert {(one["binding_key"], one["reason"]) for one in answer["bindings"]} == {
        ("sensors.*.temp", "* matches 'kitchen'"),
        ("sensors.#", "# matches 'kitchen.temp'"),
    }
    assert {(one["name"], one["verdict"]) for one in answer["queues"]} == {
        ("temps", "takes"),
        ("full", "refuses"),
    }
    _, answer = await route(broker, exchange="sensors", key="Sensors.kitchen.temp")
    assert [(one["name"], one["entered"]) for one in answer["exchanges"]] == [
        ("sensors", "published here"),
        ("lost", "alternate exchange of 'sensors'"),
    ]
    assert [one["name"] for one in answer["queues"]] == ["unrouted"]
    assert {(one["destination"], one["kind"]) for one in answer["near_misses"]} == {
        ("temps", "case"),
        ("full", "case"),
    }


async def test_headers_are_repeated_and_have_types(broker: Running) -> None:
    query = "exchange=amq.headers&header=type%3Dreport&header=pages%3D"
    for pages, reached in (("3", True), ('"3"', False)):
        _, answer = await api(broker, "GET", f"route?{query}{pages}")
        assert ([one["name"] for one in answer["queues"]] == ["reports"]) is reached
        assert bool(answer["near_misses"]) is not reached
    assert answer["near_misses"][0]["text"] == (
        "the binding would match if the header 'pages' were 3, not '3'"
    )
    _, answer = await route(broker, exchange="", key="none", header='CC=["temps"]')
    assert [(one["destination"], one["matched_key"]) for one in answer["bindings"]] == [
        ("temps", "temps")
    ]


async def test_the_rights_of_a_user_and_the_rule_that_decides_are_named(broker: Running) -> None:
    stored = broker.node.broker.users
    stored.define("ann", "", [])
    stored.set_permission("/", "ann", "", "^sens", "")
    stored.set_rules("/", "ann", ["deny publish +/kitchen/#", "allow all sensors/#"])
    stored.set_topic_permission("/", "ann", "sensors", ("temp$", ""))
    _, answer = await route(broker, exchange="sensors", key="sensors.hall.temp")
    assert answer["rights"] == []

    async def decisions(key: str, exchange: str = "sensors") -> tuple[str, list[Any]]:
        question = urlencode({"exchange": exchange, "key": key, "user": "ann"})
        _, answer = await api(broker, "GET", f"route?{question}")
        rights = [(one["right"], one["rule"], one["allows"]) for one in answer["rights"]]
        return answer["refusal"], rights

    assert await decisions("sensors.hall.temp") == (
        "",
        [
            ("write permission", "^sens", True),
            ("topic permission", "temp$", True),
            ("topic rule", "allow all sensors/#", True),
        ],
    )
    refusal, rights = await decisions("sensors.kitchen.temp")
    assert rights[-1] == ("topic rule", "deny publish +/kitchen/#", False)
    assert refusal.startswith("write access to topic 'sensors.kitchen.temp'")
    refusal, rights = await decisions("sensors.hall.wind")
    assert rights[1] == ("topic permission", "temp$", False)
    assert (await decisions("other.temp"))[1][-1] == ("topic rule", "", False)
    refusal, rights = await decisions("x", "amq.direct")
    assert refusal.startswith("write access to exchange 'amq.direct'")
    assert rights == [("write permission", "^sens", False)]
    stored.define("stranger", "", [])
    status, answer = await api(broker, "GET", "route?exchange=sensors&key=a&user=stranger")
    assert (status, "has no permissions in vhost '/'" in answer["refusal"]) == (200, True)
    status, answer = await api(broker, "GET", "route?exchange=sensors&key=a&user=unknown")
    assert (status, answer["reason"]) == (404, "there is no user 'unknown'")


async def test_a_topic_of_an_mqtt_client_is_explained(broker: Running) -> None:
    vhost = broker.node.broker.vhosts["/"]
    vhost.bind("amq.topic", Binding("sensors.*.temp", vhost.queues["temps"]))
    _, answer = await route(broker, mqtt="sensors/hall/temp")
    assert (answer["exchange"], answer["routing_key"]) == ("amq.topic", "sensors.hall.temp")
    assert (answer["topic"], answer["retained"], answer["refusal"]) == (
        "sensors/hall/temp",
        False,
        "",
    )
    assert [one["name"] for one in answer["queues"]] == ["temps"]
    for topic, reason in (
        ("a/#", "is not valid"),
        ("", "is not valid"),
        ("$SYS/x", "is reserved"),
        ("/".join("a" * 300), "levels (mqtt.max_levels)"),
    ):
        _, answer = await route(broker, mqtt=topic)
        assert reason in answer["refusal"]


@pytest.mark.parametrize(
    ("user", "query", "status", "reason"),
    [
        ("admin", "", 400, "give the message's address: either 'exchange'"),
        ("admin", "exchange=a&mqtt=b", 400, "address: either 'exchange'"),
        ("admin", "exchange=none", 404, "no exchange 'none' in vhost '/'"),
        ("admin", "exchange=&vhost=none", 404, "there is no vhost 'none'"),
        ("admin", "exchange=&limit=-1", 400, "'limit' must be a whole number from 0 to"),
        ("admin", "exchange=&header=a", 400, "header 'a' must have the form NAME=VALUE"),
        ("admin", "exchange=&header=CC%3Da", 400, "the header 'CC' is not a list"),
        ("watcher", "exchange=amq.topic&key=a&user=admin", 403, "lacks the tag 'administrator'"),
        ("plain", "exchange=amq.topic", 403, "lacks the tag"),
        ("watcher", "exchange=amq.topic&key=a", 200, ""),
        ("known", "exchange=amq.topic&key=a&user=known", 200, ""),
    ],
)
async def test_a_wrong_question_is_refused_with_its_reason(
    broker: Running, user: str, query: str, status: int, reason: str
) -> None:
    code, answer = await api(broker, "GET", f"route?{query}", user=user)
    assert (code, reason in answer.get("reason", "")) == (status, True)


async def test_a_user_of_another_virtual_host_is_refused(broker: Running) -> None:
    broker.node.broker.create_vhost("other")
    stored = broker.node.broker.users
    stored.define("ann", str(KNOWN["password_hash"]), ["management"])
    stored.set_permission("/", "ann", "", "", "")
    for vhost, status in (("/", 200), ("other", 403)):
        question = urlencode({"exchange": "", "key": "a", "vhost": vhost})
        code, answer = await api(broker, "GET", f"route?{question}", user="ann")
        assert (code, answer.get("error")) == (
            status,
            None if status == 200 else "not_authorised",
        )
