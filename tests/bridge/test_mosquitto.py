"""A bridge to Mosquitto: both directions, QoS, retained messages, a restart, small limits."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import foreign
from tests.addresses import free_port
from tests.bridge.running import PATIENCE, BridgingBroker, Received, Recorder, bridge
from trellis.parent_process import end_with_parent

pytestmark = pytest.mark.long
MOSQUITTO = foreign.require("mosquitto-broker")


class Mosquitto:
    """A Mosquitto on 127.0.0.1 that keeps its sessions in `folder`."""

    def __init__(self, folder: Path, port: int, extra: str = "") -> None:
        self._folder, self.port = folder, port
        self._conf = folder / "mosquitto.conf"
        self._conf.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {folder}/\nuser root\n{extra}"
        )
        self.start()

    def start(self) -> None:
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._conf)], preexec_fn=end_with_parent, stdout=log, stderr=log
        )
        log.close()

    def stop(self) -> None:
        """Stop Mosquitto; it writes its sessions to the disk."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    # Mosquitto takes 5 unacknowledged messages, and packets of 2,000 bytes.
    limits = "max_inflight_messages 5\nmax_packet_size 2000\n"
    server = Mosquitto(tmp_path, free_port(), limits)
    yield server
    server.stop()


@pytest.fixture(params=["5", "3.1.1"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Return the version of MQTT between the bridge and Mosquitto."""
    return str(request.param)


@pytest.fixture
def local(tmp_path: Path, mosquitto: Mosquitto, protocol: str) -> Iterator[BridgingBroker]:
    topics = ['s/# out 1 "" plant/', 'c/# in 2 "" plant/', "both/# both 1"]
    # Mosquitto tells its largest packet only in MQTT 5.
    limit = {} if protocol == "5" else {"remote_packet_max": 2_000}
    text = bridge("m", mosquitto.port, topics, reconnect_max=1, remote_protocol=protocol, **limit)
    broker = BridgingBroker(tmp_path / "local", text, "--data-dir", str(tmp_path / "data"))
    broker.wait_up("m")
    yield broker
    broker.stop()


def test_a_bridge_to_mosquitto(local: BridgingBroker, mosquitto: Mosquitto, protocol: str) -> None:
    near = Recorder(local.mqtt.port, "near", "c/#", "both/#")
    far = Recorder(mosquitto.port, "far", "plant/s/#", "both/#")
    for qos in (0, 1, 2):
        near.publish("s/1", b"out %d" % qos, qos)
        assert far.take(1) == [Received("plant/s/1", b"out %d" % qos, min(qos, 1), False)]
        far.publish("plant/c/1", b"in %d" % qos, qos)
        assert near.take(1) == [Received("c/1", b"in %d" % qos, min(qos, 1), False)]
    near.publish("both/n", b"n", retain=True)
    far.publish("both/f", b"f", retain=True)
    # MQTT 3.1.1 does not tell the bridge that a new message is retained.
    near_f = Received("both/f", b"f", 1, protocol == "5")
    assert near.take(2) == [near_f, Received("both/n", b"n", 1, True)]
    assert far.take(2) == [Received("both/f", b"f", 1, True), Received("both/n", b"n", 1, True)]
    near.publish("s/end", b"end")
    far.publish("plant/c/end", b"end")
    assert near.take_until(b"end") == far.take_until(b"end") == [b"end"]
    assert local.links()["m"]["protocol"] == f"MQTT {protocol}"
    near.close()
    far.close()


def test_messages_for_mosquitto_wait_while_it_is_away(
    local: BridgingBroker, mosquitto: Mosquitto
) -> None:
    """Check that waiting messages are forwarded when Mosquitto has started again.

    The bridge must reconnect only once after each stop. If the bridge sent more messages without
    acknowledgement than Mosquitto accepts, Mosquitto would close the connection once more.
    """
    near = Recorder(local.mqtt.port, "near")
    far = Recorder(mosquitto.port, "far", "plant/s/#")
    for life in range(2):
        mosquitto.stop()
        local.wait("m", lambda row: row["state"] == "connecting")
        for number in range(300):
            near.publish("s/n", b"%d %d" % (life, number))
        mosquitto.start()
        missing = {b"%d %d" % (life, number) for number in range(300)}
        while missing:
            # Messages of the previous round may come again: the bridge had not received their
            # acknowledgements when Mosquitto was stopped.
            missing.discard(bytes(far.next().payload))
        local.wait("m", lambda row: row["state"] == "up" and row["in_flight"] == 0)
    assert local.links()["m"]["reconnects"] == 2
    near.close()
    far.close()


def test_a_message_that_is_too_large_for_mosquitto_is_refused(
    local: BridgingBroker, mosquitto: Mosquitto
) -> None:
    near = Recorder(local.mqtt.port, "near")
    far = Recorder(mosquitto.port, "far", "plant/s/#")
    near.publish("s/large", b"x" * 3_000)
    near.publish("s/small", b"small")
    assert far.next().payload == b"small"
    row = local.wait("m", lambda row: row["refused"] == 1)
    assert "the broker accepts 2000" in row["refusal"]
    assert row["reconnects"] == 0
    [line] = [line for line in local.log.splitlines() if "bridge_refused" in line]
    assert "name=m messages=1" in line
    near.close()
    far.close()


def test_mosquitto_is_found_when_it_starts_later(tmp_path: Path) -> None:
    port = free_port()
    local = BridgingBroker(tmp_path / "local", bridge("m", port, ["s/# out 1"], reconnect_max=1))
    row = local.wait("m", lambda row: "Connection refused" in row["error"])
    assert row["state"] == "connecting"
    near = Recorder(local.mqtt.port, "near")
    near.publish("s/early", b"early")
    server = Mosquitto(tmp_path, port)
    far = None
    end = time.monotonic() + PATIENCE
    while far is None and time.monotonic() < end:
        far = Recorder(port, "far", "s/#")
    assert far is not None
    local.wait_up("m")
    near.publish("s/late", b"late")
    assert b"late" in far.take_until(b"late")
    for recorder in (near, far):
        recorder.close()
    local.stop()
    server.stop()
