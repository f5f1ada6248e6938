"""Helpers that run small workloads of the load generator, in the process of the tests, against
given brokers."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace
from typing import Any

from tests.broker import BrokerProcess
from trellis.bench.processes import Processes
from trellis.bench.report import Result
from trellis.bench.run import BenchOptions, run
from trellis.bench.target import BrokerTarget
from trellis.bench.workloads import WORKLOADS, Workload
from trellis.progress import ProgressLine


def targets(broker: BrokerProcess) -> dict[str, BrokerTarget]:
    return {
        "amqp": BrokerTarget("amqp", broker.amqp.host, broker.amqp.port, "guest", "guest"),
        "mqtt": BrokerTarget("mqtt", broker.mqtt.host, broker.mqtt.port, None, None),
    }


def small(name: str) -> Workload:
    """Return the workload `name` with fewer connections and bindings."""
    workload = WORKLOADS[name]
    return replace(
        workload,
        publishers=min(workload.publishers, 8),
        subscribers=min(workload.subscribers, 16),
        bindings=min(workload.bindings, 1_100),
        window=min(workload.window, 256),
    )


def small_options(
    messages: int = 0,
    seconds: float = 2.0,
    rate: float = 0.0,
    size: int = 0,
    rounds: int = 1,
    patience: float = 10.0,
) -> BenchOptions:
    """Return the options of a short run of the load generator; BenchOptions has their units."""
    return BenchOptions(messages, seconds, rate, size, rounds, patience, settle=0.01)


def ran(
    workload: Workload,
    where: dict[str, BrokerTarget],
    options: BenchOptions | None = None,
    pids: list[int] | None = None,
) -> Result:
    return run(
        workload,
        options or small_options(messages=400),
        where,
        Processes(pids or []),
        ProgressLine(shown=False),
        {},
    )


def held(broker: BrokerProcess, kind: str) -> list[dict[str, Any]]:
    """Return the broker's objects that the load generator has made and not deleted.

    `kind` is queues, exchanges, bindings or sessions.
    """
    address = broker.addresses["http"]
    request = urllib.request.Request(
        f"http://{address.host}:{address.port}/api/trellis/{kind}",
        headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        items: list[dict[str, Any]] = json.load(answer)
    return [one for one in items if any(str(value).startswith("bench") for value in one.values())]
