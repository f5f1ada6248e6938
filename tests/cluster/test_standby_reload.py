"""SIGHUP on a standby: its new settings are in force when it becomes active."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from tests.cluster.conftest import cluster_on, created
from tests.cluster.nodes import PATIENCE, NodeProcess, node_on_kafka, started
from tests.cluster.programs import Kfake
from tests.top.running import KNOWN


@pytest.mark.long
def test_standby_applies_the_users_of_a_reload_when_it_becomes_active(
    kfake: Kfake, name: str, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    cluster = created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))
    first = started(nodes, node_on_kafka(cluster, tmp_path / "first"), "active")
    settings = tmp_path / "settings.toml"
    settings.write_text("")
    more = {"config": str(settings)}
    second = started(nodes, node_on_kafka(cluster, tmp_path / "second", more), "following")
    settings.write_text(f'[[users]]\nname = "ann"\npassword_hash = "{KNOWN["password_hash"]}"\n')
    os.kill(second.process.pid, signal.SIGHUP)
    end = time.monotonic() + PATIENCE
    while "reload_postponed" not in second.errors.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    first.kill()
    second.wait_for("ready")
    host, _, port = second.addresses["amqp"].rpartition(":")
    login = pika.PlainCredentials("ann", "known")
    while True:  # The reload hashes the password in a thread.
        try:
            given = pika.ConnectionParameters(host, int(port), credentials=login)
            pika.BlockingConnection(given).close()
            break
        except AMQPError:
            assert time.monotonic() < end, second.errors.read_text()
            time.sleep(0.05)
