"""Tests that shovels deliver at least once, whichever of the processes is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest

from tests.bridge.amqp_kill import Publishing, check_complete
from tests.bridge.running import BridgingBroker

pytestmark = pytest.mark.long
SEED = int(os.environ.get("TRELLIS_CRASH_SEED", "1"))


@pytest.mark.parametrize("victim", ["worker", "remote", "local"])
def test_no_confirmed_message_is_lost_when_a_process_is_killed(tmp_path: Path, victim: str) -> None:
    random = Random(SEED)
    near, far = ("--data-dir", str(tmp_path / "near")), ("--data-dir", str(tmp_path / "far"))
    remote = BridgingBroker(tmp_path / "r", "", *far)
    port = str(remote.amqp.port)
    local = BridgingBroker(tmp_path / "l", "", *near)
    publishing = Publishing(local.amqp_url, 0)
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
            publishing = Publishing(local.amqp_url, publishing.confirmed)
            publishing.start()
    local.wait_up("s")
    publishing.stop.set()
    publishing.join()
    # A kill repeats at most the messages of src-prefetch-count.
    assert check_complete(remote.amqp_url, "to", publishing.confirmed) <= 3 * 20
    local.stop()
    remote.stop()
