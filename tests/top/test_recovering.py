"""Tests of the log lines of a recovery: its progress, and its findings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from broker.queues.policies import policy_of
from broker.store.disk import RealDisk
from broker.store.entries import Defined
from broker.store.opening import LOG
from broker.store.replay import Recovery
from tests.clients import World
from tests.store.homes import Home
from trellis.server.recovery import RecoveryProgress, open_directory, restore
from trellis.settings.schema import StoreSettings


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_progress_of_a_recovery_is_logged_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = [100.0]
    progress, recovery = RecoveryProgress(lambda: now[0]), Recovery()
    recovery.bytes_total = 1_000_000_000
    for at in range(1, 51):
        now[0] = 100.0 + at / 10
        recovery.bytes_read = at * 20_000_000
        recovery.messages = at * 40_000
        progress(recovery)
    assert lines(caplog) == [
        f"recovery messages={400_000 * second} done={20 * second}% rate=200MB/s left={5 - second}s"
        for second in range(1, 6)
    ]


def test_a_short_recovery_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    RecoveryProgress(lambda: 1.0)(Recovery())
    assert lines(caplog) == []


def test_every_finding_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("d", durable=True)
    for serial in range(3):
        client.publish("", "d", b"%d" % serial, delivery_mode=2)
    world.crash()
    (segment,) = (tmp_path / LOG).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data + b"torn")
    opened = open_directory(RealDisk(), tmp_path, StoreSettings())
    assert [line.split()[0] for line in lines(caplog)] == ["recovery_finding", "recovery_finding"]
    assert "quarantined: " in lines(caplog)[0] and "cut: " in lines(caplog)[1]
    opened.store.close()


def test_a_log_that_ends_before_the_catalog_saw_it_end_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("d", durable=True)
    client.publish("", "d", b"x", delivery_mode=2)
    world.store.append(
        Defined("/", "queue", "later", {"auto_delete": False, "arguments": {}}), None
    )
    world.store.sync()
    world.crash()
    for segment in (tmp_path / LOG).glob("*.log"):
        segment.unlink()
    opened = open_directory(RealDisk(), tmp_path, StoreSettings())
    assert [
        line
        for line in lines(caplog)
        if "the log ends at position 0, but the broker has written it up to position 2" in line
    ]
    assert opened.store.position >= 3
    opened.store.close()


def test_the_line_about_the_restored_objects_has_the_plural_of_each_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Home(tmp_path)
    world.amqp().queue("d", durable=True)
    policy = policy_of("/", "limits", {"pattern": "^d", "definition": {"max-length": 9}})
    world.vhost.applied_policies.set_policy(policy)
    world.store.sync()
    world.crash()
    caplog.set_level(logging.INFO)
    opened = open_directory(RealDisk(), tmp_path, StoreSettings())
    empty = World(store=opened.store)
    restore(opened, empty.broker, empty.mqtt_front.sessions)
    (line,) = [line for line in lines(caplog) if line.startswith("recovered ")]
    assert " policies=1 queues=1 " in line
    opened.store.close()
