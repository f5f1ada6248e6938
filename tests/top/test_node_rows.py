"""Tests of lists for operators: log events, certificates, connections, consumers, bindings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pamqp.commands as spec
import pytest

from tests.authority import Authority
from tests.clients import marshal
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import settings
from tests.top.secured import secure
from trellis import logs
from trellis.auth.settings_users import accounts_from_settings


@pytest.fixture
def kept() -> Iterator[None]:
    """Keep the broker's last log events in memory, as a broker process does.

    The HTTP API lists these events (`trellis/log`).
    """
    logs.recent.clear()
    handler, root = logs.RecentEvents(), logging.getLogger()
    root.addHandler(handler)
    yield
    root.removeHandler(handler)
    logs.recent.clear()


async def test_the_last_events_of_the_log_are_listed(start: Start, kept: None) -> None:
    broker = await start(**users())
    logs.warning("first", name="a b")
    logs.error("second", note="x" * 1_100)
    _, rows = await api(broker, "GET", "trellis/log")
    assert [(row["level"], row["event"]) for row in rows[:2]] == [
        ("error", "second"),
        ("warning", "first"),
    ]
    assert rows[1]["fields"] == 'name="a b"'
    assert len(rows[0]["fields"]) < logs.EVENT_CHARACTERS_MAX
    assert rows[0]["time"].endswith("Z") and rows[0]["time"] >= rows[1]["time"]
    assert (await broker.scrape()).value("trellis_log_events_kept") == len(logs.recent)
    for _ in range(logs.EVENTS_MAX + 5):
        logs.warning("many")
    assert len(logs.recent) == logs.EVENTS_MAX
    for user, expected in (("watcher", 200), ("known", 403), ("plain", 403)):
        assert (await api(broker, "GET", "trellis/log", user=user))[0] == expected


def test_a_generated_password_is_logged_and_not_kept(
    kept: None, caplog: pytest.LogCaptureFixture
) -> None:
    accounts_from_settings(settings(users=[]), None)
    assert "generated_password user=trellis password=" in caplog.text
    assert not [one for one in logs.recent if "password" in one.text]


async def test_the_certificates_are_listed(start: Start, authority: Authority) -> None:
    broker = await start(**users(), **secure(authority))
    _, (row,) = await api(broker, "GET", "trellis/certificates")
    assert row["file"].endswith(".pem") and row["not_after"].endswith("Z") and row["days_left"] >= 0
    _, overview = await api(broker, "GET", "overview")
    assert {row["protocol"] for row in overview["listeners"] if row["tls"]} == {
        "amqp/ssl",
        "mqtt/ssl",
    }


async def test_the_connections_of_one_client_are_listed(start: Start) -> None:
    broker = await start(**users())
    clients = [
        await broker.mqtt("lamp", user="known/known"),
        await broker.mqtt("other", user="known/known"),
        await broker.amqp("plain", "known"),
    ]
    for client, expected in (("lamp", ["lamp"]), ("known", ["lamp", "other"]), ("absent", [])):
        _, rows = await api(broker, "GET", f"connections?client={client}")
        assert [row["variable_map"]["client_id"] for row in rows] == expected
    _, (row,) = await api(broker, "GET", "connections?client=plain")
    assert row["protocol"] == "AMQP 0-9-1"
    del clients


async def test_the_consumers_of_one_queue_are_listed_with_what_they_hold(start: Start) -> None:
    broker = await start(**users())
    client = await broker.amqp()
    for name in ("q", "other"):
        await client.call(spec.Queue.Declare(queue=name), spec.Queue.DeclareOk)
        consume = spec.Basic.Consume(queue=name, consumer_tag=f"c-{name}")
        await client.call(consume, spec.Basic.ConsumeOk)
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    for _ in range(3):
        await api(broker, "POST", "exchanges/%2F/amq.default/publish", body)
    _, (row,) = await api(broker, "GET", "consumers/%2F?queue=q")
    assert (row["consumer_tag"], row["messages_unacknowledged"]) == ("c-q", 3)
    await client.socket.send(marshal(1, spec.Basic.Ack(0, True)))
    await broker.until(lambda: broker.node.broker.vhosts["/"].queues["q"].unacked == 0)
    _, (row,) = await api(broker, "GET", "consumers?queue=q")
    assert row["messages_unacknowledged"] == 0


async def test_bindings_are_listed_without_those_of_the_default_exchange(start: Start) -> None:
    broker = await start(**users())
    await api(broker, "PUT", "queues/%2F/q", {})
    await api(broker, "POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "a.#"})
    _, rows = await api(broker, "GET", "bindings/%2F")
    assert [row["source"] for row in rows] == ["", "amq.topic"]
    _, page = await api(broker, "GET", "bindings/%2F?default=false&page=1&page_size=5")
    assert [row["source"] for row in page["items"]] == ["amq.topic"] and page["total_count"] == 1


async def test_a_page_of_topics_is_found_by_routing_key(start: Start) -> None:
    broker = await start(**users())
    body = {"payload": "x", "payload_encoding": "string", "properties": {}}
    for key in ("plant.1", "plant.2", "other"):
        path = "exchanges/%2F/amq.topic/publish"
        await api(broker, "POST", path, body | {"routing_key": key})
    _, page = await api(broker, "GET", "trellis/topics?page=1&page_size=5&name=plant&sort=name")
    assert [row["name"] for row in page["items"]] == ["plant.1", "plant.2"]
