"""Prints docs/metrics.md: every metric that a running broker exports, as that broker reports it.

python tools/metrics_page.py > docs/metrics.md
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header
import trustme

from broker.messages.message import AT_MOST_ONCE, PLAIN, Address, Message
from broker.messages.sampled import SampledSteps
from broker.queues.consumer import Consumer
from broker.replication.figures import ClusterFigures
from broker.routing.sampling import MessageSampler
from broker.stream.queue import StreamQueue
from broker.stream.reader import QueueStreamReader
from protocols.amqp.connection.handshake import GREETING
from protocols.end_reasons import SHUTDOWN
from protocols.peer import Peer
from trellis.archive.contract import Open
from trellis.archive.service import ArchiveService
from trellis.auth.settings_users import authenticator_from_settings
from trellis.bridge.contract import BridgeState, LinkCounters
from trellis.monitoring import detailed, metrics
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import MetricsPage
from trellis.server.node import BrokerNode
from trellis.settings import Data, Log, Metrics, RatesSettings, Settings, Tls, Wss
from trellis.settings.tokens import Jwt
from trellis.telemetry import contract as telemetry_contract
from trellis.telemetry.service import TelemetryService

HEAD = """# Metrics

This page is for operators who build dashboards and alerts. After this page you know the name, the
labels and the meaning of every metric.

The metrics port (`metrics.port`, 15692) serves three pages. `/metrics` has totals.
`/metrics/per-object` has figures of each queue, session, connection and channel.
`/metrics/detailed` has the families of metrics that the query names, for each queue, connection and
channel; a parameter `vhost` restricts the page to the virtual hosts that it names:

    curl -s http://127.0.0.1:15692/metrics
    curl -s 'http://127.0.0.1:15692/metrics/detailed?family=queue_coarse_metrics&vhost=orders'

- Names that begin with `rabbitmq_` have the same meaning as in RabbitMQ, so RabbitMQ's dashboards
  work. Other names begin with `trellis_`.
- Counters never fall, also when queues, sessions and connections end.
- Metrics `trellis_rate_...` exist for configured rate limits only.
- [architecture.md](architecture.md#fates-every-message-is-accounted-for) explains the label `fate`,
  [transports.md](transports.md#when-a-tls-client-cannot-connect) the reasons of
  `trellis_tls_failures_total`.
- The families of `/metrics/detailed` have RabbitMQ's names. Families that Trellis does not count
  by object, such as `ra_metrics`, are empty. Unknown families are ignored, as in RabbitMQ, and
  `trellis_detailed_families_unknown` on the page is the number of unknown families; its help text
  names them and the known ones. The families of deliveries and publications list only queues,
  channels and exchanges that had deliveries or publications.
- Trellis does not speak RabbitMQ's stream protocol: all metrics with `protocol="stream"` are 0, so
  that the sums of RabbitMQ's dashboard for streams work.
- The label of a connection is its protocol and number. No page shows addresses or user names.
- `rabbitmq_identity_info` and `rabbitmq_build_info` are on each page, because dashboards join them
  with the other metrics. The label `rabbitmq_endpoint` is `aggregated`, `per-object` or `detailed`.
- `/metrics/per-object` and `/metrics/detailed` list at most 100,000 objects.
  `trellis_detailed_families_cut` on the page is the number of families that lack objects for this
  reason.
- `trellis_topic_unroutable_total` exists if `metrics.topics` names topic filters.
- A broker with an [audit log](security.md#audit-log) has `trellis_audit_...`.
- A broker with an [archive of streams](streams.md#the-archive) has `trellis_archive_...`.
- A broker with [bridges](bridges.md) has `trellis_bridge_...`.
- A broker with [distributed tracing](opentelemetry.md) has `trellis_telemetry_...` and
  `trellis_sampled_delivery_seconds`.
- The three pages answer in the format of OpenMetrics 1.0 if the scraper's header `Accept` names it.
- A broker that accepts [tokens](tokens.md) has `trellis_token_...` and `trellis_tokens_...`.
- A node of a cluster ([high-availability.md](high-availability.md)) has `trellis_cluster_...`, also
  while the node is a standby. Brokers without a cluster do not have these metrics.

`tools/metrics_page.py` generates this page, and a test checks that it is up to date.
"""


#: Metrics that are on every detailed page. HEAD explains these metrics, so the tables omit them.
EVERYWHERE = (
    "trellis_detailed_families_cut",
    "trellis_detailed_families_unknown",
    "rabbitmq_identity_info",
    "rabbitmq_build_info",
)


async def pages() -> list[tuple[str, MetricsPage]]:
    """Return the metrics pages, with their paths, of a broker with a queue, a stream, a session and
    every listener.
    """
    with tempfile.TemporaryDirectory() as directory:
        certificate = Path(directory, "certificate.pem")
        trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
            certificate
        )
        settings = Settings(
            data=Data(dir=":memory:"),
            wss=Wss(enabled=True),
            rates=RatesSettings(user_messages=1),
            metrics=Metrics(topics=("plant/#",)),
            jwt=Jwt(jwks_url="https://localhost:1/keys"),
            log=Log(audit=str(Path(directory) / "audit.jsonl")),
            tls=Tls(certificate=str(certificate)),
        )
        accounts = authenticator_from_settings(settings, None)
        node = BrokerNode(settings, accounts, Path(directory), print)
        node.archive = ArchiveService(
            Open("file:///archive", str(Path(directory, "archive")), 0), 0, 0, 0, node.disk
        )
        node.bridges.add(
            BridgeState("mqtt", "", "head-office", "", "up", "", "", 0, LinkCounters())
        )
        opening = telemetry_contract.OpenExport("", {}, "", "", "")
        sampler = MessageSampler(node.broker.agenda, SampledSteps(time.time_ns), random.getrandbits)
        node.telemetry = TelemetryService(sampler, opening)
        assert node.tokens is not None
        node.tokens.refused["aud"] = 1
        node.cluster_figures = lambda: ClusterFigures("orders", "active")
        try:
            mqtt = node.mqtt.connect(Peer())
            mqtt.receive_data(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")
            node.amqp.connect(Peer()).receive_data(
                GREETING + pamqp.frame.marshal(spec.Connection.Close(200, "", 0, 0), 0)
            )
            node.broker.vhosts["/"].declare_queue("q")
            mqtt.close(SHUTDOWN)
            mqtt = node.mqtt.connect(Peer())
            mqtt.receive_data(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")
            open_channel(node)
            waiting = Message(Address("", "waiting"), b"x", PLAIN, AT_MOST_ONCE)
            node.broker.vhosts["/"].declare_queue("waiting").put(waiting)
            return [
                ("/metrics", await metrics.aggregated_metrics(node, HttpCounters())),
                ("/metrics/per-object", await metrics.per_object_metrics(node, HttpCounters())),
                *[
                    (
                        f"/metrics/detailed?family={name}",
                        await detailed.detailed_metrics(node, HttpCounters(), f"family={name}"),
                    )
                    for name, family in detailed.FAMILIES.items()
                    if family is not detailed.FAMILIES["ra_metrics"]
                ],
            ]
        finally:
            await node.store_writer.close()
            node.gc_policy.close()
            node.broker.authenticator.close()


def open_channel(node: BrokerNode) -> None:
    """Connect an AMQP client that publishes and fetches a message, and a reader of a stream."""
    peer = Peer()
    peer.certificate = "guest"
    client = node.amqp.connect(peer)
    client.receive_data(GREETING)
    for channel, frame in (
        (0, spec.Connection.StartOk({}, "EXTERNAL", "")),
        (0, spec.Connection.TuneOk(10, 131_072, 0)),
        (0, spec.Connection.Open("/")),
        (1, spec.Channel.Open()),
        (1, spec.Basic.Publish(routing_key="q")),
        (1, pamqp.header.ContentHeader(body_size=1, properties=spec.Basic.Properties())),
        (1, pamqp.body.ContentBody(b"x")),
        (1, spec.Basic.Get(queue="q", no_ack=True)),
        (1, spec.Basic.Publish(routing_key="absent")),
        (1, pamqp.header.ContentHeader(body_size=1, properties=spec.Basic.Properties())),
        (1, pamqp.body.ContentBody(b"x")),
    ):
        client.receive_data(pamqp.frame.marshal(frame, channel))
    stream = node.broker.vhosts["/"].declare_queue("s", True, {"x-queue-type": "stream"})
    assert isinstance(stream, StreamQueue)
    # The metrics read only the offset of a stream's reader, so this reader has no consumer.
    stream.readers.append(QueueStreamReader(cast(Consumer, None), 0))


def table(page: MetricsPage, without: Sequence[str]) -> str:
    """Return a Markdown table of a page's metrics, except the metrics named in `without`."""
    lines = ["| name | kind | labels | meaning |", "|---|---|---|---|"]
    for family in page.families.values():
        if family.name in without:
            continue
        labels = sorted({name for sample, _ in family.samples for name in sample})
        name = family.name + ("_total" if family.kind == "counter" else "")
        lines.append(f"| `{name}` | {family.kind} | {', '.join(labels)} | {family.text} |")
    return "\n".join(lines) + "\n"


def document() -> str:
    """Return the text of docs/metrics.md."""
    return HEAD + "".join(
        f"\n## {path}\n\n{table(page, EVERYWHERE if 'detailed' in path else ())}"
        for path, page in asyncio.run(pages())
    )


if __name__ == "__main__":
    print(document(), end="")
