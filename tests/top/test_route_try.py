"""Tests of binding trials over HTTP, and of the topic history that they use.

A trial predicts how changed bindings would route the messages of the topic history.

The topic history has the topics of the last hour, each with its number of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import Any

import pytest

from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from tests.clients import publication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running
from trellis import cli

PUBLISH = "exchanges/%2F/amq.topic/publish"


@pytest.fixture
async def broker(start: Start) -> Running:
    running = await start(**users())
    vhost = running.node.broker.vhosts["/"]
    for name in ("temps", "all"):
        vhost.declare_queue(name)
    vhost.bind("amq.topic", Binding("plant.*.temp", vhost.queues["temps"]))
    return running


async def publish(broker: Running, key: str, count: int = 1, exchange: str = "amq.topic") -> None:
    message = {"routing_key": key, "payload": "x", "payload_encoding": "string", "properties": {}}
    for number in range(count):
        # Every second message takes the slow path.
        properties = {"expiration": "60000"} if number % 2 else {}
        body = {**message, "properties": properties}
        status, _ = await api(broker, "POST", f"exchanges/%2F/{exchange}/publish", body)
        assert status == 200


def published_to(broker: Running, exchange: Exchange) -> int:
    """Return the number of messages that were published to an exchange."""
    broker.node.broker.vhosts["/"].contexts.ingress_counters()  # This adds the routes' counts.
    return int(exchange.published)


def change(what: str, key: str, queue: str, **more: Any) -> dict[str, Any]:
    return {
        "change": what,
        "source": "amq.topic",
        "routing_key": key,
        "destination": queue,
        **more,
    }


async def tried(broker: Running, *changes: dict[str, Any], user: str = "admin") -> tuple[int, Any]:
    return await api(broker, "POST", "route/try", {"changes": list(changes)}, user=user)


async def test_a_trial_says_which_queues_gain_and_lose_which_topics(broker: Running) -> None:
    await publish(broker, "plant.1.temp", 5)
    await publish(broker, "plant.2.temp", 3)
    await publish(broker, "plant.2.load", 2)
    status, answer = await tried(
        broker, change("remove", "plant.*.temp", "temps"), change("add", "plant.2.#", "all")
    )
    assert status == 200
    assert [
        (row["change"], row["destination"], row["topics"], row["messages"])
        for row in answer["changes"]
    ] == [("remove", "temps", 2, 8), ("add", "all", 2, 5)]
    assert [
        (row["name"], row["type"], row["effect"], row["topics"], row["messages"])
        for row in answer["queues"]
    ] == [("temps", "queue", "loses", 2, 8), ("all", "queue", "gains", 2, 5)]
    assert [
        (row["name"], row["effect"], row["routing_key"], row["topic"], row["messages"])
        for row in answer["topics_changed"]
    ] == [
        ("temps", "loses", "plant.1.temp", "plant/1/temp", 5),
        ("temps", "loses", "plant.2.temp", "plant/2/temp", 3),
        ("all", "gains", "plant.2.temp", "plant/2/temp", 3),
        ("all", "gains", "plant.2.load", "plant/2/load", 2),
    ]
    assert (answer["newly_unroutable"], answer["newly_routed"]) == (5, 2)
    assert (answer["topics"], answer["messages"], answer["complete"]) == (3, 10, True)
    # Nothing has changed.
    assert broker.node.broker.vhosts["/"].queues["temps"].depth == 8
    _, bindings = await api(broker, "GET", "bindings/%2F/e/amq.topic/q/temps")
    assert [row["routing_key"] for row in bindings] == ["plant.*.temp"]


async def test_a_trial_deletes_queues_and_exchanges(broker: Running) -> None:
    await publish(broker, "plant.1.temp", 5)
    await publish(broker, "temps", 4, "amq.default")
    await publish(broker, "all", 2, "amq.default")
    body: dict[str, Any] = {"deleted": [{"type": "queue", "name": "temps"}]}
    status, answer = await api(broker, "POST", "route/try", body)
    assert (status, answer["newly_unroutable"], answer["changes"]) == (200, 9, [])
    assert [
        (row["name"], row["effect"], row["topics"], row["messages"]) for row in answer["queues"]
    ] == [("temps", "loses", 2, 9)]
    body = {"deleted": [{"type": "exchange", "name": "amq.topic"}]}
    _, answer = await api(broker, "POST", "route/try", body)
    assert answer["newly_unroutable"] == 5
    # A binding that the same trial adds gets the messages of the deleted queue.
    body = {
        "deleted": [{"type": "queue", "name": "temps"}],
        "changes": [change("add", "#", "all")],
    }
    _, answer = await api(broker, "POST", "route/try", body)
    assert answer["newly_unroutable"] == 4
    assert broker.node.broker.vhosts["/"].queues["temps"].depth == 9
    screen = await broker.mqtt("screen", user="known/known")
    await screen.subscribe("plant/+/load")
    await publish(broker, "plant.1.load", 3)
    body = {"deleted": [{"type": "session", "name": "screen"}]}
    _, answer = await api(broker, "POST", "route/try", body)
    assert answer["newly_unroutable"] == 3
    assert [(row["type"], row["name"], row["messages"]) for row in answer["queues"]] == [
        ("session", "screen", 3)
    ]
    for deleted, expected, reason in (
        ([{"type": "queue", "name": "absent"}], 404, "no queue 'absent'"),
        ([{"type": "exchange", "name": "absent"}], 404, "no exchange 'absent'"),
        ([{"type": "user", "name": "ann"}], 400, "delete must be queue, exchange or session"),
        ([{"type": "session", "name": "absent"}], 404, "no session 'absent'"),
        ([{"name": "temps"}], 400, "'deleted' must be a list of objects"),
    ):
        status, answer = await api(broker, "POST", "route/try", {"deleted": deleted})
        assert (status, reason in answer["reason"]) == (expected, True), answer


async def test_a_trial_that_makes_no_sense_is_refused(broker: Running) -> None:
    status, _ = await api(broker, "PUT", "exchanges/%2F/x-random", {"type": "x-random"})
    assert status == 201
    refused: tuple[tuple[list[dict[str, Any]], int, str], ...] = (
        ([], 400, "a trial must have 1 to 100 changed bindings or deleted objects, not 0"),
        ([change("swap", "a", "all")], 400, "'change' must be add or remove, not 'swap'"),
        ([change("add", "a", "absent")], 404, "no queue 'absent'"),
        ([change("remove", "absent", "all")], 404, "no binding with key 'absent'"),
        ([change("add", "a", "all", source="absent")], 404, "no exchange 'absent'"),
        ([change("add", "a", "all", source="x-random")], 400, "cannot try a binding"),
        ([change("add", "a", "all", typo=1)], 400, "unknown field `typo`"),
        ([change("add", "a", "all", destination_type="x")], 400, "must be queue or exchange"),
    )
    for changes, expected, reason in refused:
        status, answer = await tried(broker, *changes)
        assert (status, reason in answer["reason"]) == (expected, True), answer
    assert (await api(broker, "POST", "route/try", {"changes": 7}))[0] == 400
    status, answer = await tried(broker, change("add", "#", "all"), user="known")
    assert (status, "'monitoring'" in answer["reason"]) == (403, True)


async def test_a_trial_of_a_headers_exchange_uses_the_headers_of_the_hour(broker: Running) -> None:
    client = await broker.amqp()
    for number in range(300):
        headers = {"kind": "order" if number % 3 else "invoice", "number": number}
        await client.socket.send(publication("amq.headers", "", b"m", headers=headers))
    exchange = broker.node.broker.vhosts["/"].exchanges["amq.headers"]
    await broker.until(lambda: published_to(broker, exchange) == 300)
    to_orders = change("add", "", "all", source="amq.headers")
    to_orders["arguments"] = {"x-match": "all", "kind": "order"}
    status, answer = await tried(broker, to_orders)
    assert (status, answer["estimated"], answer["by_headers"]) == (200, 1, 0)
    (gain,) = answer["queues"]
    # 200 of 300 messages are orders. The estimate comes from 32 of them, so its standard deviation
    # is 25.
    assert (gain["name"], gain["effect"], gain["topics"]) == ("all", "gains", 1)
    assert abs(gain["messages"] - 200) < 60 and answer["newly_routed"] == gain["messages"]
    assert answer["changes"][0]["arguments"] == {"x-match": "all", "kind": "order"}


async def test_the_topics_of_the_hour_are_listed_and_counted(broker: Running) -> None:
    await publish(broker, "plant.1.temp", 3)
    await publish(broker, "nowhere", 2)
    await publish(broker, "temps", 2, "amq.default")
    _, rows = await api(broker, "GET", "trellis/topics")
    assert {(row["exchange"], row["routing_key"]): row for row in rows} == {
        ("amq.topic", "plant.1.temp"): {
            "vhost": "/",
            "exchange": "amq.topic",
            "routing_key": "plant.1.temp",
            "messages": 3,
            "unroutable": 0,
        },
        ("amq.topic", "nowhere"): {
            "vhost": "/",
            "exchange": "amq.topic",
            "routing_key": "nowhere",
            "messages": 2,
            "unroutable": 2,
        },
    }
    scrape = await broker.scrape()
    assert scrape.value("trellis_topic_history_topics") == 3  # Unroutable topics count twice.
    assert scrape.value("trellis_topic_history_queues") == 1
    assert scrape.value("trellis_topic_history_left_out_messages_total") == 0
    status, answer = await api(broker, "GET", "trellis/topics", user="known")
    assert (status, "lacks the tag 'monitoring'" in answer["reason"]) == (403, True)


async def route(broker: Running, *arguments: str) -> tuple[int, str]:
    """Run `trellis route`; return its exit code and its output."""

    def run() -> int:
        url = f"http://{broker.app.addresses['http']}"
        login = ("--login", "admin", "--password", "known", "--url", url)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            return cli.main(["route", *arguments, *login])

    out = io.StringIO()
    return await asyncio.to_thread(run), out.getvalue()


async def test_the_command_tries_bindings_with_arguments(broker: Running) -> None:
    client = await broker.amqp()
    exchange = broker.node.broker.vhosts["/"].exchanges["amq.headers"]
    for kind, number in (("order", 1), ("invoice", 2)):
        headers = {"kind": kind, "n": number}
        await client.socket.send(publication("amq.headers", "k", b"m", headers=headers))
    await broker.until(lambda: published_to(broker, exchange) == 2)
    binding = ("--add", "amq.headers", "", "all")
    code, text = await route(broker, *binding, "x-match=any", "kind=order", "n=3")
    assert code == 0, text
    assert text.partition("\n\n")[2] == (
        "add binding '' of 'amq.headers' to queue 'all' (x-match=any kind=order n=3): matches "
        "1 topic, 1 message\n\n"
        "queue 'all' gains 1 message of 1 topic\n  1  amq.headers  k\n"
        "messages that reach no queue now, and would reach one: 1\n"
    )
    for words, error in (
        (("--add", "amq.headers", "k"), "--add: expected EXCHANGE KEY DESTINATION, got 2 of"),
        ((*binding, "kind"), "--add: 'kind' must have the form NAME=VALUE"),
    ):
        code, text = await route(broker, *words)
        assert code == 2 and error in text


async def test_the_command_prints_the_trial(broker: Running) -> None:
    await publish(broker, "plant.1.temp", 3)

    arguments = ("--remove", "amq.topic", "plant.*.temp", "temps", "--add", "amq.topic", "#", "all")
    _, text = await route(broker, *arguments)
    assert text.startswith("the trial used 1 topic with 3 messages of the last ")
    assert text.partition("\n\n")[2] == (
        "remove binding 'plant.*.temp' of 'amq.topic' to queue 'temps': matches 1 topic, "
        "3 messages\n"
        "add binding '#' of 'amq.topic' to queue 'all': matches 1 topic, 3 messages\n\n"
        "queue 'temps' loses 3 messages of 1 topic\n  3  amq.topic  plant.1.temp\n\n"
        "queue 'all' gains 3 messages of 1 topic\n  3  amq.topic  plant.1.temp\n"
    )
    _, json = await route(broker, *arguments, "--json")
    assert '"effect": "gains"' in json
