"""Tests that shovels deliver at least once, whichever of the processes is killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from random import Random

import pika
import pytest
from pika.exceptions import AMQPError

from tests.bridge.amqp import channel, messages
from tests.bridge.running import BridgingBroker

pytestmark = pytest.mark.long
SEED = int(os.environ.get("TRELLIS_CRASH_SEED", "1"))


class Publishing(threading.Thread):
    """A publisher with confirms, which ends when its broker is killed."""

    def __init__(self, broker: BridgingBroker, first: int) -> None:
        super().__init__(daemon=True)
        self._channel = channel(broker)
        self._channel.queue_declare("from", durable=True)
        self._channel.confirm_delivery()
        #: The number after the last confirmed message.
        self.confirmed = first
        self.stop = threading.Event()

    def run(self) -> None:
        persistent = pika.BasicProperties(delivery_mode=2)
        try:
            while not self.stop.is_set():
                self._channel.basic_publish("", "from", b"%d" % self.confirmed, persistent)
                self.confirmed += 1
        except (AMQPError, OSError):
            return


@pytest.mark.parametrize("victim", ["worker", "remote", "local"])
def test_no_confirmed_message_is_lost_when_a_process_is_killed(tmp_path: Path, victim: str) -> None:
    random = Random(SEED)
    near, far = ("--data-dir", str(tmp_path / "near")), ("--data-dir", str(tmp_path / "far"))
    remote = BridgingBroker(tmp_path / "r", "", *far)
    port = str(remote.amqp.port)
    local = BridgingBroker(tmp_path / "l", "", *near)
    publishing = Publishing(local, 0)
    value = {
        "src-uri": "amqp://",
        "src-queue": "from",
        "src-prefetch-count": 20,
        "dest-uri": f"amqp://127.0.0.1:{port}",
        "dest-queue": "to",
        "reconnect-delay": 0.2,
    }
    local.request("PUT", "parameters/shovel/%2F/s", {"value": value})
    publishing.start()
    for _ in range(3):
        local.wait_up("s")
        sent = local.links()["s"]["sent"] + random.randrange(1, 50)
        local.wait("s", lambda row, sent=sent: row["sent"] >= sent)  # type: ignore[misc]
        if victim == "worker":
            os.kill(local.worker(), signal.SIGKILL)
            local.wait("s", lambda row: row["state"] != "up")
        elif victim == "remote":
            remote.kill()
            local.wait("s", lambda row: row["state"] != "up")
            remote = BridgingBroker(tmp_path / "r", "", *far, "--amqp-port", port)
        else:
            local.kill()
            publishing.join()
            # The shovel is a parameter, which the broker has stored.
            local = BridgingBroker(tmp_path / "l", "", *near)
            publishing = Publishing(local, publishing.confirmed)
            publishing.start()
    local.wait_up("s")
    publishing.stop.set()
    publishing.join()
    wanted = set(range(publishing.confirmed))
    reader = channel(remote)
    for _, body, _ in messages(reader, "to"):
        wanted.discard(int(body))
        if not wanted:
            break
    local.stop()
    remote.stop()
