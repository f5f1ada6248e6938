"""Counters of single queues, exchanges, sessions and groups of topics: HTTP, metrics and lists."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import marshal, mqtt_publish
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running
from trellis.server.node import TOPIC_GROUPS_MAX
from trellis.settings import SettingsError


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users(), metrics={"topics": ("plant/+/temp", "plant/#")})


async def publish(broker: Running, exchange: str, key: str, **properties: Any) -> None:
    message = {
        "properties": properties,
        "routing_key": key,
        "payload": "x",
        "payload_encoding": "string",
    }
    assert (await api(broker, "POST", f"exchanges/%2F/{exchange}/publish", message))[0] == 200


async def row(broker: Running, name: str) -> dict[str, Any]:
    status, fields = await api(broker, "GET", f"queues/%2F/{name}")
    assert status == 200
    return dict(fields)


async def metric(broker: Running, path: str, name: str) -> dict[str, float]:
    """Return the lines of a metric: labels -> value."""
    _, page = await broker.get("metrics", path)
    lines = [line for line in page.decode().splitlines() if line.startswith(f"{name}{{")]
    return {line[len(name) + 1 : line.index("}")]: float(line.rpartition(" ")[2]) for line in lines}


async def test_dead_letters_of_a_queue_are_counted_by_reason(broker: Running) -> None:
    client = await broker.amqp()
    dead = {"x-dead-letter-exchange": "amq.fanout"}
    await client.queue("full", arguments=dead | {"x-max-length": 1})
    await client.queue("short", arguments=dead | {"x-message-ttl": 0})
    for _ in range(3):
        await publish(broker, "amq.default", "full")
    await publish(broker, "amq.default", "short")
    await client.call(spec.Basic.Get(queue="full"), spec.Basic.GetOk)
    await client.frame()
    await client.frame()
    await client.socket.send(marshal(1, spec.Basic.Reject(delivery_tag=1, requeue=False)))
    full = broker.node.broker.vhosts["/"].queues["full"]
    await broker.until(lambda: full.unacked == 0)
    assert (await row(broker, "full"))["copies_ended"] == {
        "dead_lettered_maxlen": 2,
        "dead_lettered_rejected": 1,
    }
    assert (await row(broker, "short"))["copies_ended"] == {"dead_lettered_expired": 1}
    assert await metric(broker, "/metrics/per-object", "trellis_queue_ended_total") == {
        'fate="dead_lettered_maxlen",queue="full",vhost="/"': 2,
        'fate="dead_lettered_rejected",queue="full",vhost="/"': 1,
        'fate="dead_lettered_expired",queue="short",vhost="/"': 1,
    }


async def test_a_queue_counts_how_its_messages_end(broker: Running) -> None:
    client = await broker.amqp()
    await client.queue("q", arguments={"x-max-length": 2})
    for _ in range(3):
        await publish(broker, "amq.default", "q")
    await client.call(spec.Basic.Get(queue="q", no_ack=True), spec.Basic.GetOk)
    await client.frame()
    await client.frame()
    await client.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    assert (await row(broker, "q"))["copies_ended"] == {
        "auto_acknowledged": 1,
        "over_limit": 1,
        "purged": 1,
    }
    await client.queue("fresh")
    assert "copies_ended" not in await row(broker, "fresh")
    listed = (await api(broker, "GET", "trellis/queues"))[1]
    (queue_row,) = (each for each in listed if each["name"] == "q")
    counts = ("published", "delivered", "redelivered", "acknowledged", "over_limit", "expired")
    assert [queue_row[name] for name in counts] == [3, 1, 0, 0, 1, 0]


async def test_unroutable_messages_are_counted_by_exchange_and_group_of_topics(
    broker: Running,
) -> None:
    sender = await broker.mqtt("sender", user="known/known")
    for topic in ("plant/7/temp", "plant/7/temp", "plant/7/hum", "office/1"):
        await sender.socket.send(mqtt_publish(topic, b"x"))
    await publish(broker, "amq.direct", "absent")
    await publish(broker, "amq.default", "absent")
    await sender.ping()
    assert await metric(broker, "/metrics", "trellis_topic_unroutable_total") == {
        'topics="plant/+/temp"': 2,
        'topics="plant/#"': 3,
        'topics="other"': 1,
    }
    assert (await api(broker, "GET", "trellis/topic_groups"))[1] == [
        {"topics": "plant/+/temp", "unroutable": 2},
        {"topics": "plant/#", "unroutable": 3},
        {"topics": "other", "unroutable": 1},
    ]
    assert await metric(broker, "/metrics/per-object", "trellis_exchange_unroutable_total") == {
        'exchange="amq.topic",vhost="/"': 4,
        'exchange="amq.direct",vhost="/"': 1,
        'exchange="amq.default",vhost="/"': 1,
    }
    listed = (await api(broker, "GET", "trellis/exchanges"))[1]
    counts = {each["name"]: (each["published"], each["unroutable"]) for each in listed}
    assert counts["amq.topic"] == (4, 4) and counts["amq.fanout"] == (0, 0)
    _, exchange = await api(broker, "GET", "exchanges/%2F/amq.topic")
    assert exchange["message_stats"]["drop_unroutable"] == 4
    # With a subscription, messages to the topic are not unroutable any more.
    await (await broker.mqtt("reader", user="known/known")).subscribe("#")
    await sender.socket.send(mqtt_publish("plant/7/temp", b"x"))
    await sender.ping()
    assert (await metric(broker, "/metrics", "trellis_topic_unroutable_total"))[
        'topics="plant/+/temp"'
    ] == 2


async def test_a_new_virtual_host_counts_in_the_same_groups(broker: Running) -> None:
    assert (await api(broker, "PUT", "vhosts/more"))[0] == 201
    message = {
        "properties": {},
        "routing_key": "plant.8.temp",
        "payload": "x",
        "payload_encoding": "string",
    }
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    assert (await api(broker, "PUT", "permissions/more/admin", everything))[0] in (201, 204)
    status, answer = await api(broker, "POST", "exchanges/more/amq.topic/publish", message)
    assert (status, answer) == (200, {"routed": False, "queues": 0})
    assert (await metric(broker, "/metrics", "trellis_topic_unroutable_total"))[
        'topics="plant/+/temp"'
    ] == 1


async def test_too_many_groups_and_wrong_filters_are_refused(start: Start) -> None:
    many = tuple(f"t/{number}" for number in range(TOPIC_GROUPS_MAX + 1))
    with pytest.raises(SettingsError, match=r"metrics\.topics: names 101 .* the limit is 100"):
        await start(metrics={"topics": many})
