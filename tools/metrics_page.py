"""Prints docs/metrics.md: every metric that a running broker exports, as that broker reports it.

python tools/metrics_page.py > docs/metrics.md
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pamqp.commands as spec
import pamqp.frame
import trustme

from protocols.amqp.connection.handshake import GREETING
from protocols.connection import SHUTDOWN, Peer
from trellis.auth.settings_users import authenticator_from_settings
from trellis.monitoring import metrics
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import MetricsPage
from trellis.server.node import BrokerNode
from trellis.settings import Data, RatesSettings, Settings, Tls, Wss

HEAD = """# Metrics

For operators who build dashboards and alerts. After this page you know the name, the labels and the
meaning of every metric.

The metrics port (`metrics.port`, 15692) serves `/metrics`, with totals, and `/metrics/per-object`,
with queues and sessions by name:

    curl -s http://127.0.0.1:15692/metrics

- Names that begin with `rabbitmq_` have the same meaning as in RabbitMQ, so its dashboards work.
  Other names begin with `trellis_`.
- Counters never fall, also when queues, sessions and connections end.
- Metrics `trellis_rate_...` exist for configured rate limits only.
- [architecture.md](architecture.md#fates-every-message-is-accounted-for) explains the label `fate`,
  [transports.md](transports.md#when-a-tls-client-cannot-connect) the reasons of
  `trellis_tls_failures_total`.

`tools/metrics_page.py` generates this page, and a test checks that it is up to date.
"""


async def pages() -> list[tuple[str, MetricsPage]]:
    """Return the pages of a broker with one queue, one session and every listener."""
    with tempfile.TemporaryDirectory() as directory:
        certificate = Path(directory, "certificate.pem")
        trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
            certificate
        )
        settings = Settings(
            data=Data(dir=":memory:"),
            wss=Wss(enabled=True),
            rates=RatesSettings(user_messages=1),
            tls=Tls(certificate=str(certificate)),
        )
        accounts = authenticator_from_settings(settings, None)
        node = BrokerNode(settings, accounts, Path(directory), print)
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
            return [
                ("/metrics", await metrics.aggregated_metrics(node, HttpCounters())),
                ("/metrics/per-object", await metrics.per_object_metrics(node)),
            ]
        finally:
            await node.store_writer.close()
            node.gc_policy.close()
            accounts.close()


def table(page: MetricsPage) -> str:
    """Return the metrics of a page as a Markdown table."""
    lines = ["| name | kind | labels | what it counts |", "|---|---|---|---|"]
    for family in page.families.values():
        labels = sorted({name for sample, _ in family.samples for name in sample})
        name = family.name + ("_total" if family.kind == "counter" else "")
        lines.append(f"| `{name}` | {family.kind} | {', '.join(labels)} | {family.text} |")
    return "\n".join(lines) + "\n"


def document() -> str:
    """Return the whole page."""
    return HEAD + "".join(f"\n## {path}\n\n{table(page)}" for path, page in asyncio.run(pages()))


if __name__ == "__main__":
    print(document(), end="")
