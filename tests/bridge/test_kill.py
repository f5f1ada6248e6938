"""Bridges deliver at least once: each confirmed message arrives, whichever process is killed.

The test repeats: publish numbered messages, kill -9 one of the two brokers or the worker of the
bridge at a random time. At the end, each message that one broker has confirmed must be at the other
broker.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from random import Random
from typing import Any

import pytest

from tests.bridge.running import PATIENCE, BridgingBroker, Recorder, bridge

pytestmark = pytest.mark.long
SEED = int(os.environ.get("TRELLIS_CRASH_SEED", "1"))


class Numbers(threading.Thread):
    """A publisher of the numbers 0, 1, 2 ... with QoS 1, until `stop`.

    `confirmed` is the number of confirmed messages.
    """

    def __init__(self, port: int, topic: str, **more: Any) -> None:
        """Prepare the publisher; `more` are arguments of its Recorder."""
        super().__init__(daemon=True)
        self._recorder = Recorder(port, f"publisher-{topic[0]}", **more)
        self._topic = topic
        self.stop = threading.Event()
        self.reached: dict[int, threading.Event] = {}
        self.confirmed = 0

    def run(self) -> None:
        while not self.stop.is_set():
            number = self.confirmed
            self._recorder.publish(self._topic, b"%d" % number)
            self.confirmed += 1
            if event := self.reached.get(number):
                event.set()
        self._recorder.close()

    def wait_for(self, count: int) -> None:
        """Wait until `count` further numbers are confirmed."""
        event = self.reached.setdefault(self.confirmed + count, threading.Event())
        assert event.wait(PATIENCE)


class KilledPair:
    """Two brokers with data directories; a killed broker starts again on the same MQTT port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.remote = BridgingBroker(folder / "r", "", "--data-dir", str(folder / "remote"))
        self._remote_port = self.remote.mqtt.port
        self._text = bridge(
            "b", self._remote_port, ["out/# out 1", "in/# in 2"], window=20, reconnect_max=1
        )
        self.local = BridgingBroker(folder / "l", self._text, "--data-dir", str(folder / "local"))
        self._local_port = self.local.mqtt.port
        self.local.wait_up("b")

    def kill(self, victim: str) -> None:
        """Kill the process `victim`, and wait until the bridge works again.

        The test starts a killed broker again; the local broker starts a killed worker again.
        """
        if victim == "worker":
            os.kill(self.local.worker(), signal.SIGKILL)
            self.local.wait("b", lambda row: row["state"] != "up")
        elif victim == "remote":
            self.remote.kill()
            self.remote = BridgingBroker(
                self._folder / "r",
                "",
                *("--data-dir", str(self._folder / "remote"), "--mqtt-port"),
                str(self._remote_port),
            )
        else:
            self.local.kill()
            self.local = BridgingBroker(
                self._folder / "l",
                self._text,
                *("--data-dir", str(self._folder / "local"), "--mqtt-port"),
                str(self._local_port),
            )
        self.local.wait_up("b")

    def stop(self) -> None:
        self.local.stop()
        self.remote.stop()


def publish_during_kills(
    outward: Numbers, inward: Numbers, kills: int, random: Random, kill: Callable[[], None]
) -> None:
    """Let two clients publish while `kill` is called `kills` times, after random pauses.

    Afterwards, both directions must work again. Return when both publishers have ended.
    """
    for publisher in (outward, inward):
        publisher.start()
    for _ in range(kills):
        outward.wait_for(random.randrange(5, 50))
        inward.wait_for(random.randrange(5, 50))
        kill()
    # Both directions work again.
    outward.wait_for(20)
    inward.wait_for(20)
    for publisher in (outward, inward):
        publisher.stop.set()
        publisher.join()


def check_complete(recorder: Recorder, confirmed: int) -> None:
    """Wait for all confirmed numbers. Fail if no message comes within PATIENCE seconds."""
    wanted = set(range(confirmed))
    while wanted:
        try:
            wanted.discard(int(recorder.next().payload))
        except Empty:
            raise AssertionError(f"confirmed messages are missing: {sorted(wanted)}") from None


@pytest.mark.parametrize("victim", ["worker", "remote", "local"])
def test_no_confirmed_message_is_lost_when_a_process_is_killed(tmp_path: Path, victim: str) -> None:
    pair, random = KilledPair(tmp_path), Random(SEED)
    far = Recorder(pair.remote.mqtt.port, "far", "out/#")
    near = Recorder(pair.local.mqtt.port, "near", "in/#")
    outward = Numbers(pair.local.mqtt.port, "out/n")
    inward = Numbers(pair.remote.mqtt.port, "in/n")
    publish_during_kills(outward, inward, 3, random, lambda: pair.kill(victim))
    check_complete(far, outward.confirmed)
    check_complete(near, inward.confirmed)
    for recorder in (far, near):
        recorder.close()
    pair.stop()


def test_messages_wait_on_disk_while_the_remote_is_away(tmp_path: Path) -> None:
    """Check that messages for a stopped remote broker survive a crash of the local broker.

    When both brokers run again, the bridge must forward the messages.
    """
    pair = KilledPair(tmp_path)
    far = Recorder(pair.remote.mqtt.port, "far", "out/#")
    port = pair.remote.mqtt.port
    pair.remote.kill()
    row = pair.local.wait("b", lambda row: row["state"] == "connecting")
    assert row["error"]
    near = Recorder(pair.local.mqtt.port, "near")
    for number in range(500):
        near.publish("out/n", b"%d" % number)
    near.publish("out/n", b"transient", 0)
    pair.local.wait("b", lambda row: row["dropped"] == 1)
    near.close()
    assert pair.local.wait("b", lambda row: row["in_flight"] == 20)
    pair.local.kill()
    pair.remote = BridgingBroker(
        tmp_path / "r",
        "",
        *("--data-dir", str(tmp_path / "remote"), "--mqtt-port", str(port)),
    )
    pair.local = BridgingBroker(tmp_path / "l", pair._text, "--data-dir", str(tmp_path / "local"))
    pair.local.wait_up("b")
    assert [int(far.next().payload) for _ in range(500)] == list(range(500))
    far.close()
    pair.stop()
