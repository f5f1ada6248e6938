"""Tests of the options that Trellis gives Kafka's client library, and of the library's log lines.

The time limit of an append must leave Kafka and a standby time to act. Repeated log lines of the
library are counted.
"""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError

from trellis.cluster.client_errors import unreachable
from trellis.cluster.client_options import (
    LINES_MAX,
    REASON_SECONDS,
    REPEAT_SECONDS,
    ClientLog,
    consumer_options,
    delivery_seconds,
    producer_options,
)
from trellis.settings.cluster import FIXED_OPTIONS, ClusterSettings


def test_outcome_is_unknown_only_after_kafka_and_a_standby_had_time_to_act() -> None:
    for silence, seconds in ((0.5, 30.0), (10.0, 30.0), (20.0, 42.0)):
        cluster = ClusterSettings(silence=silence)
        assert delivery_seconds(cluster) == seconds
        assert producer_options(cluster)["delivery.timeout.ms"] == seconds * 1000


def test_options_in_the_settings_override_options_that_are_not_fixed() -> None:
    cluster = ClusterSettings(servers="a:1", options={"retry.backoff.ms": 7, "ssl.ca.pem": "b"})
    for options in (producer_options(cluster), consumer_options(cluster, "g")):
        assert options["bootstrap.servers"] == "a:1"
        assert (options["retry.backoff.ms"], options["ssl.ca.pem"]) == (7, "b")


def test_options_that_the_rules_decide_have_their_values_and_are_fixed() -> None:
    cluster = ClusterSettings(servers="a:1")
    decided = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "max.in.flight": 1}
    assert decided.items() <= producer_options(cluster).items()
    reading = {"isolation.level": "read_uncommitted", "auto.offset.reset": "error"}
    assert reading.items() <= consumer_options(cluster, "g").items()
    assert {*decided, *reading, "client.rack", "delivery.timeout.ms"} <= FIXED_OPTIONS
    assert "client.rack" not in consumer_options(cluster, "g")


def test_repeated_log_lines_of_the_client_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = ClientLog("read", lambda: now[0])
    with caplog.at_level(logging.INFO, "trellis"):
        for milliseconds in range(50):
            log.log(logging.WARNING, "%s [%s] refused (after %dms)", "FAIL", "c#1", milliseconds)
        log.log(logging.ERROR, "%s", "another")
        now[0] = REPEAT_SECONDS
        log.log(logging.WARNING, "%s [%s] refused (after %dms)", "FAIL", "c#1", 7)
    assert [record.message for record in caplog.records] == [
        'kafka client client=read text="FAIL [c#1] refused (after 0ms)"',
        "kafka client client=read text=another",
        'kafka client client=read text="FAIL [c#1] refused (after 7ms)" repeated=49',
    ]


def test_the_reason_in_an_old_line_does_not_explain_a_later_failure() -> None:
    now = [0.0]
    log = ClientLog("admin", lambda: now[0])
    assert log.reason == ""
    cluster = ClusterSettings(servers="a:1", name="c")
    error = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    log.log(logging.ERROR, "%s [%s]: %s", "FAIL", "thrd:a:1/1", "a:1/1: Connection refused")
    failure = unreachable("read topic", cluster, error, log.reason)
    assert failure.__notes__ == ["a:1/1: Connection refused"]
    now[0] = REASON_SECONDS
    assert log.reason == ""
    failure = unreachable("read topic", cluster, error, log.reason)
    assert not hasattr(failure, "__notes__")
    log.log(logging.ERROR, "%s [%s]: %s", "FAIL", "thrd:a:1/1", "a:1/1: timed out")
    assert log.reason == "a:1/1: timed out"


def test_number_of_remembered_log_lines_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog("read", lambda: 0.0)
    lines = ["x" * number for number in range(1, LINES_MAX + 2)]
    with caplog.at_level(logging.INFO, "trellis"):
        for line in [*lines, lines[-1], lines[0]]:
            log.log(logging.INFO, line)
    assert len(caplog.records) == len(lines) + 1
    assert len(log._written) == 2
