"""Message statistics and rates in the answers of the HTTP API."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec

from tests.clients import marshal, publication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import Running
from trellis.http.management import rates
from trellis.http.management.rates import Rates
from trellis.monitoring.http_counters import HttpCounters


def test_a_rate_is_the_growth_since_an_earlier_answer() -> None:
    counted = Rates(HttpCounters())
    key = ("queue", "/", "q")
    assert counted.of(key, [100], 10.0, 1) == [0.0]
    assert counted.of(key, [110], 12.0, 1) == [0.0], "the first sample is too recent for a rate"
    assert counted.of(key, [160], 16.0, 1) == [10.0]
    assert counted.of(key, [190], 19.0, 1) == [10.0], "the base is still the first sample"
    assert counted.of(key, [360], 26.0, 1) == [20.0]
    assert counted.of(key, [5], 32.0, 1) == [0.0], "the queue was created again"
    assert counted.of(key, [55], 37.0, 1) == [10.0]
    assert counted.of(key, [60], 37.0 + rates.SAMPLE_MAX_AGE + 1, 1) == [0.0], "the base is too old"


def test_a_gauge_may_fall() -> None:
    counted = Rates(HttpCounters())
    key = ("queue", "/", "q")
    for now, count, gauge in ((0.0, 5, 50), (10.0, 7, 20)):
        row = counted.rated(key, {"publish": count}, {"messages": gauge}, now)
    assert row == {
        "publish": 7,
        "publish_details": {"rate": 0.2},
        "messages_details": {"rate": -3.0},
    }


def test_samples_are_kept_of_a_bounded_number_of_objects() -> None:
    counters = HttpCounters()
    counted = Rates(counters)
    most = rates.RATED_OBJECTS_MAX
    for number in range(most + 10):
        counted.of(("queue", "/", str(number)), [0], 0.0, 1)
    assert counters.rated_objects == most
    assert counted.of(("queue", "/", "9"), [10], 10.0, 1) == [0.0], (
        "the oldest samples were dropped"
    )
    assert counted.of(("queue", "/", str(most)), [10], 10.0, 1) == [1.0]


def numbers(row: dict[str, Any]) -> dict[str, int]:
    return {
        name: count
        for name, count in row["message_stats"].items()
        if not name.endswith("_details") and count
    }


async def test_statistics_are_in_the_rows_of_the_api(start: Start) -> None:
    broker: Running = await start(**users())
    client = await broker.amqp()
    await client.queue("q")
    assert "message_stats" not in (await api(broker, "GET", "queues/%2F/q"))[1]
    await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    await client.socket.send(b"".join(publication("", "q", b"m") for _ in range(3)))
    await client.call(spec.Basic.Get(queue="q"), spec.Basic.Ack)
    await client.expect(spec.Basic.GetOk)
    await client.frame()
    await client.frame()
    await client.socket.send(marshal(1, spec.Basic.Nack(1, requeue=True)))
    await client.call(spec.Basic.Consume(queue="q", consumer_tag="t"), spec.Basic.ConsumeOk)
    for _ in range(9):
        await client.frame()
    await client.socket.send(marshal(1, spec.Basic.Ack(3)))
    await client.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
    row = (await api(broker, "GET", "queues/%2F/q"))[1]
    read = {"deliver": 3, "get": 1, "deliver_get": 4, "redeliver": 1, "ack": 1}
    assert numbers(row) == read | {"publish": 3}
    assert row["message_stats"]["deliver_get_details"] == {"rate": 0.0}
    (channel,) = (await api(broker, "GET", "channels"))[1]
    assert numbers(channel) == read | {"publish": 3, "confirm": 3}
    assert numbers((await api(broker, "GET", "exchanges/%2F/amq.default"))[1]) == {
        "publish_in": 3,
        "publish_out": 3,
    }
    overview = (await api(broker, "GET", "overview"))[1]
    assert numbers(overview) == read | {"publish": 3, "confirm": 3}
    assert overview["rates_mode"] == "basic"
    ports = {context["port"] for context in overview["contexts"]}
    assert ports == {str(broker.port("http")), str(broker.port("metrics"))}
    (connection,) = (await api(broker, "GET", "connections"))[1]
    assert connection["host"] == "127.0.0.1"
    assert connection["port"] == broker.port("amqp")
    assert connection["client_properties"] == {
        "product": "test",
        "capabilities": {"authentication_failure_close": True},
    }
    assert connection["recv_oct_details"] == {"rate": 0.0}
