"""Made-up results of the comparison of Trellis with other brokers (peers).

There are three peers, of which one is not installed, and three workloads. In one workload Trellis
needs more processor time than a peer, and one of the peers gives a wrong answer."""

from __future__ import annotations

from typing import Any

from peers.results import About, Figures, PeerCell, Results


def figures(cpu: float, rate: float = 1000.0, **further: Any) -> Figures:
    return Figures(
        **{"messages": 100, "rate": rate, "cpu": cpu, "resident": 10e6, "peak": 20e6, **further}
    )


def results() -> Results:
    about: dict[str, Any] = {"family": "mqtt", "half": "", "rate": None}
    example = Results(
        name="example",
        date="2026-01-02",
        command=["python", "benchmarks/peers", "run"],
        machine={"processor": "one"},
        rounds=3,
        load={},
        peers={
            "trellis": About("Trellis", "1.0, compiled", ("its defaults",)),
            "mosquitto": About("mosquitto", "2.0", ("none",)),
            "relay": About("blind relay", "uvloop", floor=True),
            "nats": About("NATS", missing="the current nats-server is not installed"),
        },
        workloads={
            "mqtt-qos0": {**about, "title": "QoS 0"},
            "mqtt-qos1": {**about, "title": "QoS 1"},
            "amqp-auto": {**about, "title": "no acknowledgements", "family": "amqp"},
        },
    )
    example.cells = {
        "trellis": {
            "mqtt-qos0": PeerCell([figures(0.1), figures(0.3), figures(0.2)]),
            "mqtt-qos1": PeerCell([figures(4.0, p50=10.0, p99=30.0, p999=90.0)] * 3),
            "amqp-auto": PeerCell([figures(0.25)] * 3),
        },
        "mosquitto": {
            "mqtt-qos0": PeerCell([figures(5.0, 2000.0)] * 3),
            "mqtt-qos1": PeerCell([figures(2.0, p50=11.0, p99=20.0, p999=91.0)] * 3),
            "amqp-auto": PeerCell(unable="it does not support AMQP"),
        },
        "relay": {
            "mqtt-qos0": PeerCell([figures(0.05)] * 3),
            "mqtt-qos1": PeerCell([figures(0.05)], wrong="subscriber 0: message 7 came twice"),
            "amqp-auto": PeerCell(failed="the broker ended"),
        },
    }
    return example
