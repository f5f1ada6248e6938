"""Tests of /metrics/detailed: requested metric families and virtual hosts, and a bounded size."""

from __future__ import annotations

from typing import Final

import pamqp.commands as spec
import pytest

from tests.clients import marshal, publication
from tests.top.conftest import Start
from tests.top.running import Running
from tests.top.test_metrics import expect_bodies
from tests.turn_counter import TurnCounter
from trellis.monitoring import detailed
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.pace import STEPS_SLICE

#: Families of every page of /metrics/detailed.
ALWAYS: Final = {
    "rabbitmq_identity_info",
    "rabbitmq_build_info",
    "trellis_detailed_families_cut",
    "trellis_detailed_families_unknown",
}


async def test_detailed_metrics_list_the_requested_families_and_virtual_hosts(
    running: Running,
) -> None:
    running.node.broker.create_vhost("other")
    running.node.broker.vhosts["other"].declare_queue("elsewhere")
    client = await running.amqp()
    await client.queue("mine", "amq.topic", "a.#")
    await client.socket.send(publication("", "mine", b"x") * 3)
    await client.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
    await client.call(spec.Basic.Consume(queue="mine"), spec.Basic.ConsumeOk)
    await expect_bodies(client, spec.Basic.Deliver, 1)
    subscriber = await running.mqtt("subscriber")
    await subscriber.subscribe("a/b", 1)

    page = await running.scrape("/metrics/detailed?family=queue_coarse_metrics&vhost=%2F")
    labels = {"vhost": "/", "queue": "mine"}
    assert page.value("rabbitmq_detailed_queue_messages_ready", **labels) == 2
    assert page.value("rabbitmq_detailed_queue_messages_unacked", **labels) == 1
    assert page.value("rabbitmq_detailed_queue_messages", **labels) == 3
    assert set(page.families) == {
        *(f"rabbitmq_detailed_queue_messages{end}" for end in ("", "_ready", "_unacked")),
        *ALWAYS,
    }
    names = {
        sample.labels["queue"]
        for sample in page.families["rabbitmq_detailed_queue_messages"].samples
    }
    assert "mine" in names and "elsewhere" not in names

    both = "family=queue_metrics&family=queue_consumer_count"
    page = await running.scrape(f"/metrics/detailed?{both}")
    assert page.value("rabbitmq_detailed_queue_consumers", **labels) == 1
    assert page.value("rabbitmq_detailed_queue_consumers", vhost="other", queue="elsewhere") == 0
    assert page.value("rabbitmq_detailed_queue_process_memory_bytes", **labels) > 0

    page = await running.scrape("/metrics/detailed?family=channel_metrics")
    (sample,) = page.families["rabbitmq_detailed_channel_consumers"].samples
    assert sample.value == 1 and sample.labels["channel"].startswith("amqp091-")
    channel = sample.labels
    for name, value in (("messages_unacked", 1), ("messages_unconfirmed", 0), ("prefetch", 0)):
        assert page.value(f"rabbitmq_detailed_channel_{name}", **channel) == value
    assert page.value("rabbitmq_detailed_consumer_prefetch", **channel) == 1

    families = "family=connection_metrics&family=connection_coarse_metrics"
    page = await running.scrape(f"/metrics/detailed?{families}")
    channels = page.families["rabbitmq_detailed_connection_channels"].samples
    assert sorted(sample.value for sample in channels) == [0, 1]
    name = channel["channel"].rpartition(":")[0]
    received = "rabbitmq_detailed_connection_incoming_bytes_total"
    assert page.value(received, vhost="/", connection=name, channel=name) > 100

    families = "family=vhost_status&family=exchange_names&family=exchange_bindings"
    page = await running.scrape(f"/metrics/detailed?{families}")
    exchange = {"vhost": "/", "exchange": "amq.topic", "type": "topic"}
    assert page.value("rabbitmq_cluster_vhost_status", vhost="other") == 1
    assert page.value("rabbitmq_cluster_exchange_name", **exchange) == 1
    assert page.value("rabbitmq_cluster_exchange_bindings", **exchange) == 2

    families = "family=connection_churn_metrics&family=auth_attempt_metrics"
    page = await running.scrape(f"/metrics/detailed?{families}")
    totals = await running.scrape()
    for name in ("connections_opened", "channels_opened", "queues_created", "queues_deleted"):
        expected = totals.value(f"rabbitmq_{name}_total")
        assert page.value(f"rabbitmq_detailed_{name}_total") == expected
    attempts = page.value("rabbitmq_detailed_auth_attempts_succeeded_total", protocol="amqp091")
    assert attempts == 1


@pytest.mark.parametrize(
    ("query", "unknown"),
    [("", 0), ("family=queues", 1), ("families=queue_metrics", 0), ("family=a&family=b&x=1", 2)],
)
async def test_unknown_families_and_parameters_are_ignored(
    running: Running, query: str, unknown: int
) -> None:
    page = await running.scrape(f"/metrics/detailed?{query}")
    assert set(page.families) == ALWAYS
    assert page.value("trellis_detailed_families_unknown") == unknown


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_the_help_text_names_the_unknown_families_and_the_known_ones(
    running: Running, accept: str
) -> None:
    name = "trellis_detailed_families_unknown"

    async def scraped(query: str) -> str:
        path = f"/metrics/detailed?{query}"
        status, body = await running.get("metrics", path, f"Accept: {accept}\r\n")
        assert status == 200
        return body.decode()

    text = await scraped("family=queue_metrics&family=ha")
    help_of = "Number of metric families that the query names and that do not exist."
    assert f"# HELP {name} {help_of}\n" not in text and " Unknown: 'ha'. Known: " in text
    assert all(family in text for family in detailed.FAMILIES)
    hostile = "&".join(f"family=%0A%23{number}%22%5C%ff" + "x" * 99 for number in range(40))
    text = await scraped(hostile)
    (line,) = (line for line in text.splitlines() if line.startswith(f"# HELP {name} "))
    assert line.count("xxx'") == 5 and len(line) < 1_500
    assert f"\n{name} 40" in text
    assert f"# HELP {name} {help_of}\n" in await scraped("")


async def test_deliveries_and_publications_are_counted_by_queue_channel_and_exchange(
    running: Running,
) -> None:
    client = await running.amqp()
    await client.queue("busy", "amq.topic", "a")
    await client.queue("idle")
    await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    await client.socket.send(publication("amq.topic", "a", b"x") * 6)
    assert (await client.expect(spec.Basic.Ack)).delivery_tag == 6
    tags = []
    for no_ack in (True, False):
        await client.socket.send(marshal(1, spec.Basic.Get(queue="busy", no_ack=no_ack)))
        tags += await expect_bodies(client, spec.Basic.GetOk, 1)
    await client.socket.send(marshal(1, spec.Basic.Ack(tags[1])))
    await client.call(spec.Basic.Qos(prefetch_count=3), spec.Basic.QosOk)
    await client.call(spec.Basic.Consume(queue="busy"), spec.Basic.ConsumeOk)
    tags = await expect_bodies(client, spec.Basic.Deliver, 3)
    await client.socket.send(marshal(1, spec.Basic.Nack(tags[0], False, True)))
    tags += await expect_bodies(client, spec.Basic.Deliver, 1)
    await client.socket.send(marshal(1, spec.Basic.Ack(tags[1])))
    await expect_bodies(client, spec.Basic.Deliver, 1)

    page = await running.scrape(
        "/metrics/detailed?family=queue_delivery_metrics&family=queue_exchange_metrics"
        "&family=channel_queue_exchange_metrics&family=exchange_metrics"
        "&family=channel_exchange_metrics&family=channel_queue_metrics"
    )
    queue = {"vhost": "/", "queue": "busy"}
    expected = {
        "get_ack": 1,
        "get": 1,
        "messages_delivered_ack": 5,
        "messages_delivered": 0,
        "messages_redelivered": 1,
        "messages_acked": 2,
    }
    (channel,) = page.families["rabbitmq_detailed_channel_get"].samples
    for name, count in expected.items():
        assert page.value(f"rabbitmq_detailed_queue_{name}_total", **queue) == count, name
        value = page.value(f"rabbitmq_detailed_channel_{name}_total", **channel.labels)
        assert value == count, name
        assert len(page.families[f"rabbitmq_detailed_queue_{name}"].samples) == 1
    published = {**queue, "queue_vhost": "/"}
    for name in ("queue_messages_published", "queue_exchange_messages_published"):
        assert page.value(f"rabbitmq_detailed_{name}_total", **published) == 6
    for name, count in (("published", 6), ("confirmed", 6), ("unroutable_returned", 0)):
        name = f"rabbitmq_detailed_channel_messages_{name}_total"
        assert page.value(name, **channel.labels) == count
    exchange = {"vhost": "/", "exchange": "amq.topic"}
    assert page.value("rabbitmq_detailed_exchange_messages_published_total", **exchange) == 6

    objects, totals = await running.scrape("/metrics/per-object"), await running.scrape()
    for name, count in expected.items():
        assert objects.value(f"rabbitmq_queue_{name}_total", **queue) == count, name
        assert totals.value(f"rabbitmq_channel_{name}_total") == count, name
    assert totals.value("rabbitmq_channel_messages_published_total") == 6
    assert totals.value("rabbitmq_queue_messages_published_total") == 6
    assert totals.value("rabbitmq_channel_messages_unacked") == 3
    assert totals.value("rabbitmq_consumer_prefetch") == 3


async def test_node_metrics_have_used_and_permitted_resources(
    start: Start, tmp_path: object
) -> None:
    running = await start(data={"dir": str(tmp_path)})
    totals = await running.scrape()
    page = await running.scrape("/metrics/detailed?family=node_metrics&family=node_coarse_metrics")
    for name in (
        "process_open_fds",
        "process_max_fds",
        "process_max_tcp_sockets",
        "process_resident_memory_bytes",
        "resident_memory_limit_bytes",
        "disk_space_available_bytes",
        "disk_space_available_limit_bytes",
        "erlang_uptime_seconds",
    ):
        assert page.value(f"rabbitmq_detailed_{name}") > 0, name
        assert totals.value(f"rabbitmq_{name}") > 0, name


async def test_the_lag_of_the_slowest_consumer_of_a_stream_is_a_metric(
    start: Start, tmp_path: object
) -> None:
    running = await start(data={"dir": str(tmp_path)})
    client = await running.amqp()
    await client.queue("history", durable=True, arguments={"x-queue-type": "stream"})
    await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    await client.socket.send(publication("", "history", b"x") * 5)
    confirmed = 0
    while confirmed < 5:
        confirmed = (await client.expect(spec.Basic.Ack)).delivery_tag
    await client.call(spec.Basic.Qos(prefetch_count=2), spec.Basic.QosOk)
    consume = spec.Basic.Consume(queue="history", arguments={"x-stream-offset": "first"})
    await client.call(consume, spec.Basic.ConsumeOk)
    await expect_bodies(client, spec.Basic.Deliver, 2)
    page = await running.scrape("/metrics/detailed?family=stream_consumer_metrics")
    name = "rabbitmq_detailed_stream_consumer_max_offset_lag"
    assert page.value(name, vhost="/", queue="history") == 3


async def test_a_detailed_page_is_bounded_and_made_in_slices(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost = running.node.broker.vhosts["/"]
    for number in range(5 * STEPS_SLICE):
        vhost.declare_queue(f"q{number}")
    query = "family=queue_consumer_count&family=exchange_names&family=ra_metrics"
    with TurnCounter() as counter:
        page = await detailed.detailed_metrics(running.node, HttpCounters(), query)
    assert counter.turns >= 5
    assert len(page.families["rabbitmq_detailed_queue_consumers"].samples) == 500
    assert page.families["trellis_detailed_families_cut"].samples == [({}, 0)]
    monkeypatch.setattr(detailed, "OBJECTS_MAX", 100)
    page = await detailed.detailed_metrics(running.node, HttpCounters(), query)
    listed = {name: family for name, family in page.families.items() if name not in ALWAYS}
    assert sum(len(family.samples) for family in listed.values()) == 100
    assert page.families["trellis_detailed_families_cut"].samples == [({}, 1)]


async def test_a_connection_that_a_family_does_not_list_is_a_step_of_its_work(
    running: Running,
) -> None:
    """Check that the generator of a metric family also yields for connections that it leaves out.

    After each yield, the broker may pause the generator. If a generator skipped thousands of
    connections without a yield, it would block the event loop.
    """
    devices = [await running.mqtt(f"c{number}") for number in range(100)]
    amqp = await running.amqp()
    await amqp.call(spec.Channel.Close(0, "", 0, 0), spec.Channel.CloseOk)
    families = ["connection_metrics", "channel_metrics", "channel_queue_metrics"]
    scrape = await detailed.begin(running.node, HttpCounters(), families, ["elsewhere"], "x")
    steps = {name: list(detailed.FAMILIES[name](scrape)) for name in families}
    assert steps["connection_metrics"] == [0] * (len(devices) + 1)
    assert steps["channel_metrics"] == steps["channel_queue_metrics"] == [0]
    scrape = await detailed.begin(running.node, HttpCounters(), families, [], "x")
    assert list(detailed.FAMILIES["connection_metrics"](scrape)) == [1] * (len(devices) + 1)
    assert list(detailed.FAMILIES["channel_metrics"](scrape)) == [0]
