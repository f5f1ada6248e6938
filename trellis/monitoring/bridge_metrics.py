"""The metrics of the links to other brokers: bridges, shovels and federation links."""

from __future__ import annotations

from trellis.bridge import contract
from trellis.bridge.service import BridgeService
from trellis.monitoring.page import MetricsPage


def add_bridges(page: MetricsPage, bridges: BridgeService) -> None:
    """Add to the page the metrics of each link."""
    for link in bridges:
        state, counters = link.state, link.counters
        labels = {"kind": state.kind, "vhost": state.vhost, "link": state.name}
        page.listed(
            "trellis_bridge_up",
            "gauge",
            "1 while both ends of the link are connected, else 0.",
            state.state == contract.UP,
            labels,
        )
        for direction, count in (("out", counters.sent), ("in", counters.received)):
            page.listed(
                "trellis_bridge_messages",
                "counter",
                "Total number of messages that the link has copied, by direction: `out` to the "
                "remote broker, `in` from the remote broker. A shovel has the direction `out` "
                "only.",
                count,
                {**labels, "direction": direction},
            )
        for name, text, number in (
            (
                "refused_messages",
                "Total number of messages that were lost, because their destination refused them.",
                counters.refused,
            ),
            (
                "dropped_messages",
                "Total number of dropped QoS 0 messages: the destination was unreachable or slow.",
                counters.dropped,
            ),
            (
                "looped_messages",
                "Total number of messages not copied: this link or too many links had copied them.",
                counters.looped,
            ),
            ("reconnects", "Total number of lost connections of the link.", counters.reconnects),
        ):
            page.listed(f"trellis_bridge_{name}", "counter", text, number, labels)
        page.listed(
            "trellis_bridge_in_flight_messages",
            "gauge",
            "Number of messages that the link has read and that the destination has not accepted "
            "yet.",
            state.in_flight,
            labels,
        )
        page.listed(
            "trellis_bridge_expected_echoes",
            "gauge",
            "Number of messages that the link has published to a remote broker with MQTT 3.1.1 and "
            "that this broker has not sent back to the link yet.",
            state.echoes,
            labels,
        )
    page.counter(
        "trellis_bridge_workers_lost",
        "Total number of worker processes of the bridges that ended unexpectedly.",
        0 if bridges.worker is None else bridges.worker.lost,
    )
