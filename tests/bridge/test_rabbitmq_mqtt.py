"""A bridge to RabbitMQ 3.10, whose MQTT plugin speaks MQTT 3.1.1 only.

RabbitMQ 3.10 closes the connection of a client with MQTT 5 without an answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.bridge.running import KillablePair, Received, Recorder, bridge
from tests.bridge.test_kill import Numbers, check_complete, publish_during_kills
from tests.rabbitmq import RabbitMq

pytestmark = pytest.mark.long
SEED: Final = int(os.environ.get("TRELLIS_CRASH_SEED", "1"))
TOPICS: Final = (
    's/# out 1 "" plant/',
    'c/# in 2 "" plant/',
    "both/# both 1",
    "out/# out 1",
    "in/# in 1",
)
WINDOW: Final = 20
#: Seconds for which clients wait while RabbitMQ starts again on a busy machine.
START: Final = 240.0


class RabbitPair(KillablePair):
    """A Trellis with a bridge to a RabbitMQ. Both brokers keep their data when they are killed."""

    def __init__(self, folder: Path) -> None:
        self.remote = RabbitMq(folder, ("rabbitmq_mqtt",))
        if self.remote.version.startswith(("4.", "3.13.")):
            pytest.skip(f"RabbitMQ {self.remote.version} speaks MQTT 5, too")
        text = bridge(
            "r",
            self.remote.mqtt,
            TOPICS,
            remote_protocol="auto",
            remote_user="guest",
            remote_password="guest",
            reconnect_max=1,
            window=WINDOW,
        )
        super().__init__(folder, self.remote, "r", text)
        self.wait_up()

    def wait_up(self) -> dict[str, Any]:
        row = self.local.wait("r", lambda row: row["state"] == "up")
        assert row["protocol"] == "MQTT 3.1.1"
        return row


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RabbitPair]:
    pair = RabbitPair(tmp_path)
    yield pair
    pair.stop()


def test_the_bridge_falls_back_to_mqtt_311_and_copies_without_loops(pair: RabbitPair) -> None:
    near = Recorder(pair.local.mqtt.port, "near", "c/#", "both/#")
    far = Recorder(pair.remote.mqtt, "far", "plant/s/#", "both/#", old=True)
    for qos in (0, 1, 2):
        near.publish("s/1", b"out %d" % qos, qos)
        assert far.take(1) == [Received("plant/s/1", b"out %d" % qos, min(qos, 1), False)]
    for qos in (0, 1):
        far.publish("plant/c/1", b"in %d" % qos, qos)
        assert near.take(1) == [Received("c/1", b"in %d" % qos, qos, False)]
    for number in range(50):
        near.publish("both/n", b"%d" % (number % 3), retain=number == 49)
        far.publish("both/n", b"%d" % (number % 3), retain=number == 49)
    near.publish("both/end", b"near")
    far.publish("both/end", b"far")
    for recorder in (near, far):
        got = recorder.take(102)
        assert sorted(one.payload for one in got if one.topic == "both/end") == [b"far", b"near"]
        assert recorder.messages.empty()
    row = pair.local.wait("r", lambda row: row["in_flight"] == 0 and row["looped"] == 51)
    assert (row["reconnects"], row["refused"], row["dropped"]) == (0, 0, 0)
    near.close()
    far.close()


@pytest.mark.parametrize("victim", ["remote", "local"])
def test_no_confirmed_message_is_lost_when_a_broker_is_killed(
    pair: RabbitPair, victim: str
) -> None:
    random = Random(SEED)
    far = Recorder(pair.remote.mqtt, "far", "out/#", "both/#", old=True, patience=START)
    near = Recorder(pair.local.mqtt.port, "near", "in/#", "both/#")
    outward = Numbers(pair.local.mqtt.port, "out/n")
    inward = Numbers(pair.remote.mqtt, "in/n", old=True, patience=START)
    publish_during_kills(outward, inward, 2, random, lambda: pair.kill(victim))
    check_complete(far, outward.confirmed)
    check_complete(near, inward.confirmed)
    for recorder in (far, near):
        recorder.close()
