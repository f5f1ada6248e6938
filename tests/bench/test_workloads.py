"""Tests that every workload gets right answers from a real broker, and deletes its objects."""

from __future__ import annotations

import pytest

from tests.bench.runs import held, ran, small, small_options, targets
from tests.broker import BrokerProcess
from trellis.bench.processes import Processes
from trellis.bench.report import rows
from trellis.bench.run import run
from trellis.bench.workloads import ALL, WORKLOADS
from trellis.progress import ProgressLine


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_gets_right_answers_and_leaves_nothing(broker: BrokerProcess, name: str) -> None:
    workload = small(name)
    result = ran(workload, targets(broker), pids=[broker.process.pid])
    assert result.error is None and result.median is not None
    measured = result.rounds[0]
    assert measured.messages == 400
    assert measured.deliveries == 400 * (workload.subscribers if workload.sharing == ALL else 1)
    assert (
        measured.octets_out > 400 * workload.size
        and measured.octets_in > measured.deliveries * workload.size
    )
    assert (
        measured.broker is not None
        and measured.broker.cpu > 0
        and measured.broker.rss_peak >= measured.broker.rss_after > 1 << 20
    )
    assert (measured.latency is not None) == (workload.window == 1)
    assert (result.bind_seconds is not None) == (workload.bindings > 0)
    kinds = ("queues", "exchanges", "bindings", "sessions")
    assert not any(held(broker, kind) for kind in kinds)


def test_rounds_are_measured_one_by_one(broker: BrokerProcess) -> None:
    result = ran(small("amqp-ack"), targets(broker), small_options(messages=100, rounds=3))
    assert result.error is None
    assert [one.messages for one in result.rounds] == [100, 100, 100]


def test_round_may_last_for_a_time(broker: BrokerProcess) -> None:
    result = ran(small("mqtt-qos1"), targets(broker), small_options(seconds=0.05, rounds=1))
    assert (
        result.error is None and result.rounds[0].messages > 0 and result.rounds[0].seconds >= 0.05
    )


@pytest.mark.parametrize("name", ["mqtt-qos0", "mqtt-50pub", "amqp-ack", "amqp-compete5"])
def test_rate_is_kept_and_every_delivery_is_timed(broker: BrokerProcess, name: str) -> None:
    result = ran(small(name), targets(broker), small_options(messages=200, rate=2_000.0, rounds=1))
    assert result.error is None
    measured = result.rounds[0]
    assert measured.latency is not None and measured.latency.count == measured.deliveries == 200
    assert (
        0
        < measured.latency.p50
        <= measured.latency.p99
        <= measured.latency.p999
        <= measured.latency.max
    )
    # The last of 200 messages is due after 199 intervals.
    assert measured.seconds >= 199 / 2_000


@pytest.mark.parametrize("size", [8, 9, 3_000, 200_000])
@pytest.mark.parametrize("name", ["mqtt-qos0", "mqtt-qos1", "amqp-auto", "cross-mqtt-amqp"])
def test_bodies_may_have_any_size(broker: BrokerProcess, name: str, size: int) -> None:
    result = ran(small(name), targets(broker), small_options(messages=50, size=size, rounds=1))
    assert result.error is None and result.size == size
    assert result.rounds[0].octets_in > 50 * size


def test_broker_reports_its_product_and_version(broker: BrokerProcess) -> None:
    servers: dict[str, str] = {}
    run(
        small("amqp-auto"),
        small_options(messages=10, rounds=1),
        targets(broker),
        Processes([]),
        ProgressLine(shown=False),
        servers,
    )
    assert servers["amqp"].startswith("Trellis ")


def test_table_has_a_row_for_each_workload(broker: BrokerProcess) -> None:
    results = [
        ran(small(name), targets(broker), pids=[broker.process.pid])
        for name in ("mqtt-pingpong", "amqp-bindings10k")
    ]
    table = rows(results)
    assert [row["workload"] for row in table] == ["mqtt-pingpong", "amqp-bindings10k"]
    assert "p99 us" in table[0] and "p99 us" not in table[1]
    assert "binds/s" in table[1] and all(row["broker us"] for row in table)


def test_slow_rate_is_no_lack_of_progress(broker: BrokerProcess) -> None:
    result = ran(
        small("mqtt-qos1"), targets(broker), small_options(messages=4, rate=2.0, patience=0.25)
    )
    assert result.error is None and result.rounds[0].messages == 4
