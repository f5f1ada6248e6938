"""Tests of /metrics: correct values, names that dashboards use, and counters that never fall."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pamqp.body
import pamqp.commands as spec
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics import parser as openmetrics

from broker.replication.figures import ClusterFigures
from broker.vhost.vhost import VirtualHost
from tests.authority import Authority
from tests.clients import marshal, mqtt_publish, publication
from tests.test_monitoring_files import metrics_used
from tests.top.conftest import Start
from tests.top.running import Amqp0, Running, Scrape
from tests.top.secured import secure
from tests.wire.mqtt.client import subscribe
from trellis.archive.contract import Open
from trellis.archive.service import ArchiveService
from trellis.monitoring import metrics
from trellis.monitoring.detailed import FAMILIES
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import RENDER_SLICE, MetricsPage

#: The NAME of metrics `rabbitmq_global_messages_NAME_total` that stock dashboards read
#: (operations.md), with the label `protocol`.
_BY_PROTOCOL: Final = (
    "received",
    "received_confirm",
    "routed",
    "confirmed",
    "delivered",
    "delivered_consume_auto_ack",
    "delivered_consume_manual_ack",
    "delivered_get_auto_ack",
    "delivered_get_manual_ack",
    "get_empty",
    "redelivered",
    "acknowledged",
    "unroutable_dropped",
    "unroutable_returned",
)
_RABBITMQ: Final = (
    "channel_consumers",
    "channel_messages_unacked",
    "channel_messages_unconfirmed",
    "channel_messages_published_total",
    "channel_messages_confirmed_total",
    "channel_messages_unroutable_dropped_total",
    "channel_messages_unroutable_returned_total",
    "channel_messages_delivered_total",
    "channel_messages_delivered_ack_total",
    "channel_messages_redelivered_total",
    "channel_messages_acked_total",
    "channel_get_total",
    "channel_get_ack_total",
    "channel_get_empty_total",
    "queue_messages_published_total",
    "queue_consumers",
    "global_publishers",
    "global_consumers",
    "erlang_uptime_seconds",
    "connections",
    "channels",
    "queues",
    "consumers",
    "queue_messages_ready",
    "queue_messages_unacked",
    "queue_messages",
    "connections_opened_total",
    "connections_closed_total",
    "channels_opened_total",
    "channels_closed_total",
    "queues_declared_total",
    "queues_created_total",
    "queues_deleted_total",
    "global_messages_dead_lettered_expired_total",
    "global_messages_dead_lettered_maxlen_total",
    "global_messages_dead_lettered_rejected_total",
    "global_messages_dead_lettered_delivery_limit_total",
    "process_open_fds",
    "process_max_fds",
    "process_open_tcp_sockets",
    "process_max_tcp_sockets",
    "process_resident_memory_bytes",
    "resident_memory_limit_bytes",
    "disk_space_available_bytes",
    "disk_space_available_limit_bytes",
    "identity_info",
    "build_info",
    "alarms_memory_used_watermark",
    "alarms_free_disk_space_watermark",
    "alarms_file_descriptor_limit",
    "auth_attempts_total",
    "auth_attempts_succeeded_total",
    "auth_attempts_failed_total",
)


def of_protocol(page: Scrape, protocol: str) -> dict[str, int]:
    values = {
        name: int(page.value(f"rabbitmq_global_messages_{name}_total", protocol=protocol))
        for name in _BY_PROTOCOL
    }
    return {name: value for name, value in values.items() if value}


async def test_rabbitmqs_names_are_there(start: Start, tmp_path: object) -> None:
    page = await (await start(data={"dir": str(tmp_path)})).scrape()
    assert {f"rabbitmq_{name}" for name in _RABBITMQ} - page.names == set()
    for protocol in ("amqp091", "mqtt"):
        for name in _BY_PROTOCOL:
            assert (
                f"rabbitmq_global_messages_{name}_total",
                (("protocol", protocol),),
            ) in page.samples
    (identity,) = [
        dict(labels) for name, labels in page.samples if name == "rabbitmq_identity_info"
    ]
    assert set(identity) == {"rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"}


async def test_every_metric_of_the_rules_and_the_dashboard_is_there(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    running = await start(
        **secure(authority),
        data={"dir": str(tmp_path / "data")},
        log={"audit": str(tmp_path / "audit.log")},
    )
    running.node.cluster_figures = lambda: ClusterFigures("orders", "active")
    opening = Open("file:///archive", str(tmp_path / "data" / "archive"), 0)
    running.node.archive = ArchiveService(opening, 0, 0, 0, running.node.disk)
    # Each reason for a close has a sample only after a connection was closed for this reason, and
    # the metric of refused logins only after a refusal.
    await (await running.amqp()).leave()
    login = base64.b64encode(b"unknown:secret").decode()
    await running.get("http", "/api/overview", f"Authorization: Basic {login}\r\n")
    assert metrics_used() - (await running.scrape()).names == set()


async def test_every_family_has_a_type_and_a_text(running: Running) -> None:
    await (await running.amqp()).queue("q")
    detailed_path = f"/metrics/detailed?family={'&family='.join(FAMILIES)}"
    for path in ("/metrics", "/metrics/per-object", detailed_path):
        for family in (await running.scrape(path)).families.values():
            assert family.documentation, family.name
            assert family.type in ("gauge", "counter"), family.name
            assert len({tuple(sorted(sample.labels)) for sample in family.samples}) == 1, (
                family.name
            )


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", "/metrics/detailed"])
async def test_a_scraper_may_ask_for_openmetrics(running: Running, path: str) -> None:
    await (await running.amqp()).queue('a "name"\n')
    query = f"?family={'&family='.join(FAMILIES)}" if path.endswith("detailed") else ""
    await running.scrape(path + query)
    plain = await running.scrape(path + query)  # The second page counts the first answer.
    accept = "Accept: text/plain;q=0.5, application/openmetrics-text;version=1.0.0;q=0.9\r\n"
    status, body = await running.get("metrics", path + query, accept)
    assert status == 200 and body.endswith(b"# EOF\n")
    # The parser is strict, and raises ValueError for a page that is not OpenMetrics.
    read: Any = openmetrics.text_string_to_metric_families
    names = {sample.name for family in read(body.decode()) for sample in family.samples}
    assert names == plain.names


async def expect_bodies(client: Amqp0, kind: type, count: int) -> list[int]:
    """Read a number of deliveries, and return their delivery tags."""
    tags = []
    for _ in range(count):
        tags.append((await client.expect(kind)).delivery_tag)
        await client.frame()
        await client.expect(pamqp.body.ContentBody)
    return tags


async def test_counters_match_the_actions_of_amqp_clients(running: Running) -> None:
    publisher, reader = await running.amqp(), await running.amqp()
    for queue in ("auto", "manual", "fetched"):
        await publisher.queue(queue)
    await publisher.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    publications = (
        [publication("", "auto", b"x")] * 10
        + [publication("", "manual", b"x")] * 5
        + [publication("", "fetched", b"x")] * 3
    )
    publications += [publication("", "nowhere", b"x")] * 4
    await publisher.socket.send(b"".join(publications))
    assert (await publisher.expect(spec.Basic.Ack)).delivery_tag == 22
    await publisher.socket.send(publication("", "nowhere", b"x", mandatory=True) * 2)
    await expect_returns(publisher, 2)
    assert (await publisher.expect(spec.Basic.Ack)).delivery_tag == 24

    await reader.call(spec.Basic.Consume(queue="auto", no_ack=True), spec.Basic.ConsumeOk)
    await expect_bodies(reader, spec.Basic.Deliver, 10)
    await reader.call(spec.Basic.Consume(queue="manual"), spec.Basic.ConsumeOk)
    tags = await expect_bodies(reader, spec.Basic.Deliver, 5)
    await reader.socket.send(marshal(1, spec.Basic.Nack(tags[2], False, True)))
    tags += await expect_bodies(reader, spec.Basic.Deliver, 1)
    await reader.socket.send(
        marshal(1, spec.Basic.Ack(tags[1], True)) + marshal(1, spec.Basic.Ack(tags[3]))
    )

    for no_ack in (True, False, False):
        await reader.socket.send(marshal(1, spec.Basic.Get(queue="fetched", no_ack=no_ack)))
        tags += await expect_bodies(reader, spec.Basic.GetOk, 1)
    await reader.socket.send(
        marshal(1, spec.Basic.Ack(tags[-2])) + marshal(1, spec.Basic.Reject(tags[-1], False))
    )
    await reader.call(spec.Basic.Get(queue="fetched"), spec.Basic.GetEmpty)

    page = await running.scrape()
    assert of_protocol(page, "amqp091") == {
        "received": 24,
        "received_confirm": 24,
        "routed": 18,
        "confirmed": 24,
        "unroutable_dropped": 4,
        "unroutable_returned": 2,
        "delivered": 19,
        "delivered_consume_auto_ack": 10,
        "delivered_consume_manual_ack": 6,
        "delivered_get_auto_ack": 1,
        "delivered_get_manual_ack": 2,
        "get_empty": 1,
        "redelivered": 1,
        "acknowledged": 4,
    }
    assert of_protocol(page, "mqtt") == {}
    assert {
        fate: page.value("trellis_copies_total", fate=fate)
        for fate in ("acknowledged", "auto_acknowledged", "rejected")
    } == {"acknowledged": 4, "auto_acknowledged": 11, "rejected": 1}
    assert page.value("trellis_copies_made_total") == 18
    assert (
        page.value("trellis_messages_total", fate="routed"),
        page.value("trellis_messages_total", fate="unroutable"),
    ) == (18, 6)
    assert (
        page.value("rabbitmq_queue_messages_unacked") == page.value("rabbitmq_queue_messages") == 2
    )
    assert (
        page.value("rabbitmq_queues"),
        page.value("rabbitmq_consumers"),
        page.value("rabbitmq_channels"),
    ) == (3, 2, 2)
    assert (
        page.value("rabbitmq_queues_declared_total"),
        page.value("rabbitmq_queues_created_total"),
    ) == (3, 3)
    objects = await running.scrape("/metrics/per-object")
    assert objects.value("rabbitmq_queue_messages_unacked", vhost="/", queue="manual") == 2
    assert objects.value("rabbitmq_queue_consumers", vhost="/", queue="auto") == 1


async def test_deduplication_and_late_acknowledgements_are_counted(running: Running) -> None:
    client = await running.amqp()
    await client.queue("q", arguments={"x-consumer-timeout": 100})
    await client.call(
        spec.Exchange.Declare(
            exchange="once",
            exchange_type="x-message-deduplication",
            arguments={"x-cache-size": 5},
        ),
        spec.Exchange.DeclareOk,
    )
    await client.call(spec.Queue.Bind(queue="q", exchange="once"), spec.Queue.BindOk)
    await client.call(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
    headers = {"x-deduplication-header": "a"}
    await client.socket.send(publication("once", "", b"x", headers=headers) * 2)
    await expect_bodies(client, spec.Basic.Deliver, 1)
    assert (await client.expect(spec.Channel.Close)).reply_code == 406
    page = await running.scrape()
    assert page.value("trellis_deduplication_entries") == 1
    assert page.value("trellis_messages_total", fate="repeated") == 1
    assert page.value("trellis_acknowledgement_timeouts_total") == 1


async def test_each_page_says_its_kind(running: Running) -> None:
    for path, kind in (
        ("/metrics", "aggregated"),
        ("/metrics/per-object", "per-object"),
        ("/metrics/detailed?family=node_metrics", "detailed"),
    ):
        page = await running.scrape(path)
        (sample,) = page.families["rabbitmq_identity_info"].samples
        assert sample.labels["rabbitmq_endpoint"] == kind
        assert page.families["rabbitmq_build_info"].samples[0].value == 1


async def test_publishers_and_consumers_are_counted_by_protocol(running: Running) -> None:
    client, silent = await running.amqp(), await running.amqp()
    await client.queue("q")
    await client.socket.send(publication("", "q", b"x"))
    await silent.call(spec.Basic.Consume(queue="q"), spec.Basic.ConsumeOk)
    await expect_bodies(silent, spec.Basic.Deliver, 1)
    listener, other = await running.mqtt("listener"), await running.mqtt("other")
    await listener.subscribe("a", 1)
    await other.ping()
    for path in ("/metrics", "/metrics/per-object"):
        page = await running.scrape(path)
        assert page.value("rabbitmq_global_publishers", protocol="amqp091") == 1
        assert page.value("rabbitmq_global_consumers", protocol="amqp091") == 1
        assert page.value("rabbitmq_global_consumers", protocol="mqtt") == 1
        assert page.value("rabbitmq_global_messages_received_total", protocol="amqp091") == 1
        stream = [key for key in page.samples if ("protocol", "stream") in key[1]]
        assert len(stream) == 22 and not any(page.samples[key] for key in stream)


async def test_bytes_of_connections_are_counted_also_after_their_end(running: Running) -> None:
    client, subscriber = await running.amqp(), await running.mqtt("subscriber")
    await subscriber.ping()
    names = [f"rabbitmq_connection_{way}_bytes_total" for way in ("incoming", "outgoing")]
    before = await running.scrape()
    assert before.value("rabbitmq_connection_channels") == 1
    await client.leave()
    await subscriber.leave()
    await running.until(lambda: not any(front.connections for front in running.node.fronts))
    after = await running.scrape()
    assert after.value(names[0]) > before.value(names[0]) > 0
    assert after.value(names[1]) >= before.value(names[1]) > 0
    assert after.value("rabbitmq_connection_channels") == 0


async def test_a_page_of_single_objects_is_bounded(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost = running.node.broker.vhosts["/"]
    for number in range(7):
        vhost.declare_queue(f"q{number}")
    subscriber = await running.mqtt("one")
    await subscriber.subscribe("a", 1)
    for most, queues, sessions, left_out in ((100, 8, 1, 0), (8, 8, 0, 1), (3, 3, 0, 6)):
        monkeypatch.setattr(metrics, "OBJECTS_MAX", most)
        page = await metrics.per_object_metrics(running.node, HttpCounters())
        assert len(page.families["rabbitmq_queue_messages"].samples) == queues
        missed = page.families.get("trellis_session_missed_messages")
        assert (0 if missed is None else len(missed.samples)) == sessions
        assert page.families["trellis_per_object_left_out"].samples == [({}, left_out)]


async def expect_returns(client: Amqp0, count: int) -> None:
    for _ in range(count):
        await client.expect(spec.Basic.Return)
        await client.frame()
        await client.expect(pamqp.body.ContentBody)


async def test_counters_match_the_actions_of_mqtt_clients(running: Running) -> None:
    reader, publisher = await running.mqtt("reader"), await running.mqtt("publisher")
    await reader.subscribe("often/#", 0)
    await reader.subscribe("surely/#", 1)
    await publisher.socket.send(
        mqtt_publish("often/a", b"x") * 4 + mqtt_publish("nowhere", b"x") * 2
    )
    await publisher.socket.send(
        b"".join(mqtt_publish("surely/a", b"x", 1, number) for number in (1, 2, 3))
    )
    assert [await publisher.packet() for _ in range(3)] == [
        (0x40, bytes([0, number])) for number in (1, 2, 3)
    ]
    packets = [await reader.packet() for _ in range(7)]
    numbers = [body[10:12] for first, body in packets if first == 0x32]
    await reader.socket.send(b"".join(b"\x40\x02" + number for number in numbers[:2]))
    await reader.ping()
    away = await running.mqtt("away", clean=False)
    await away.subscribe("often/#", 0)
    await away.leave()
    await publisher.socket.send(mqtt_publish("often/a", b"x"))
    await publisher.ping()

    page = await running.scrape()
    counted = of_protocol(page, "mqtt")
    for confirms in ("received_confirm", "confirmed"):
        counted.pop(confirms, None)  # The front end decides if PUBACK counts as a confirm.
    assert counted == {
        "received": 10,
        "routed": 8,
        "unroutable_dropped": 2,
        "delivered": 8,
        "delivered_consume_auto_ack": 5,
        "delivered_consume_manual_ack": 3,
        "acknowledged": 2,
    }
    assert page.value("trellis_copies_total", fate="offline") == 1
    assert page.value("trellis_mqtt_sessions", state="connected") == 2
    assert page.value("trellis_mqtt_sessions", state="away") == 1
    assert page.value("trellis_mqtt_sessions_created_total") == 3
    objects = await running.scrape("/metrics/per-object")
    assert objects.value("trellis_session_missed_messages_total", vhost="/", client_id="away") == 1


async def churn_amqp(running: Running, number: int) -> None:
    """Connect a client, give it a queue with messages in several states, and end the connection."""
    client, queue = await running.amqp(), f"churn-{number}"
    await client.queue(queue, "amq.topic", "churn.#", arguments={"x-max-length": 2})
    await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    await client.socket.send(
        publication("amq.topic", "churn.a", b"x") * 5
        + publication("", "nowhere", b"x", mandatory=True)
    )
    await expect_returns(client, 1)
    await client.call(spec.Queue.Purge(queue=queue), spec.Basic.Ack)
    await client.expect(spec.Queue.PurgeOk)
    if number % 2:
        await client.call(spec.Queue.Delete(queue=queue), spec.Queue.DeleteOk)
        await client.leave()
    else:
        client.socket.close()


async def churn_mqtt(running: Running, number: int) -> None:
    client = await running.mqtt(
        f"churn-{number % 3}", clean=bool(number % 2), will=("churn/will", b"x")
    )
    await client.socket.send(subscribe(1, ("churn/#", 1)))
    # Messages of the other client may come before the SUBACK (MQTT 3.1.1, section 3.8.4).
    while (await client.packet())[0] != 0x90:
        pass
    await client.socket.send(mqtt_publish("churn/a", b"x", 1, 7) + mqtt_publish("churn/a", b"x"))
    await client.packet()
    if number % 4:
        client.socket.close()
    else:
        await client.socket.send(b"\xe0\x00")
        await client.socket.read_to_end()


async def test_totals_never_fall_while_everything_comes_and_goes(running: Running) -> None:
    async def churn() -> None:
        for number in range(24):
            await asyncio.gather(churn_amqp(running, number), churn_mqtt(running, number))

    churning = asyncio.create_task(churn())
    before = (await running.scrape()).counters
    scrapes = 0
    while not churning.done():
        now = (await running.scrape()).counters
        assert [key for key, value in before.items() if now.get(key, -1.0) < value] == []
        before, scrapes = now, scrapes + 1
    await churning
    assert scrapes > 5
    await running.until(lambda: not running.node.amqp.connections)
    page = await running.scrape()
    assert page.value("rabbitmq_connections_opened_total") == 48
    assert page.value("rabbitmq_connections_closed_total") == 48
    assert page.value("rabbitmq_queues_created_total") == 24
    assert page.value("rabbitmq_queues_deleted_total") == 12


@pytest.mark.parametrize(
    "name", ['quote"d', "back\\slash", "new\nline", "üñí", '{curly="}', " ", "#x"]
)
async def test_any_name_makes_a_page_that_can_be_read(running: Running, name: str) -> None:
    # AMQP removes line breaks from names; other ways to declare a queue keep them.
    running.node.broker.vhosts["/"].declare_queue(name)
    page = await running.scrape("/metrics/per-object")
    assert page.value("rabbitmq_queue_consumers", vhost="/", queue=name) == 0
    assert ("rabbitmq_queue_consumers", (("queue", name), ("vhost", "/"))) in page.samples


class Reference:
    """A collector of prometheus_client that has a page's metrics; it renders the expected page."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    def collect(self) -> Iterator[Metric]:
        for family in self._page.families.values():
            metric = Metric(family.name, family.text, family.kind)
            for labels, value in family.samples:
                suffix = "_total" if family.kind == "counter" else ""
                metric.add_sample(family.name + suffix, labels, value)
            yield metric


async def test_a_page_is_rendered_in_slices_as_prometheus_client_does() -> None:
    page = MetricsPage()
    for number in range(10 * RENDER_SLICE):
        page.gauge("a_gauge", 'A "text" \\ with\nlines.', number / 3, vhost="/", queue=f"q{number}")
        page.counter(
            "a_count", "Odd names.", 10.0**number if number < 300 else 1, queue='"\n\\\u00e4'
        )
    page.gauge("plain", "No labels.", 5)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(cast(Any, Reference(page)))
    expected = generate_latest(registry)
    turns = 0
    rendering = asyncio.create_task(page.render())
    while not rendering.done():
        turns += 1
        await asyncio.sleep(0)
    assert rendering.result() == expected
    assert turns >= 20 and not any(family.samples for family in page.families.values())


async def test_metrics_are_read_on_the_event_loop_only(start: Start) -> None:
    """The dictionaries of the broker must not be read by another thread.

    A dictionary that grows while another thread iterates over it makes the scrape fail.
    """
    running = await start()
    readers: set[int] = set()

    class Watched(dict[str, VirtualHost]):
        def values(self) -> Any:
            readers.add(threading.get_ident())
            return super().values()

    running.node.broker.vhosts = Watched(running.node.broker.vhosts)
    await running.scrape()
    assert readers == {threading.get_ident()}
