"""Tests that run the programs of examples/ as examples/README.md describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.broker import BrokerProcess
from trellis.parent_process import end_with_parent

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PATIENCE: Final = 20


class Examples:
    """The example programs, configured for one broker by three environment variables."""

    def __init__(self, broker: BrokerProcess, stack: ExitStack) -> None:
        self._stack = stack
        host, port = broker.mqtt
        self._environment = os.environ | {
            "AMQP_URL": broker.amqp_url,
            "MQTT_HOST": host,
            "MQTT_PORT": str(port),
            "PYTHONIOENCODING": "utf-8",
        }

    def run(self, name: str, *arguments: str) -> list[str]:
        """Run an example to its end, which must be a success, and return its lines of output."""
        return self.rest(self.start(name, *arguments))

    def publish(self, sensor: str, count: int) -> list[float]:
        """Run a sensor and return the readings that it printed."""
        lines = self.run("sensor", sensor, "--count", str(count), "--interval", "0")
        readings = [
            re.fullmatch(rf"sensors/{sensor}/temperature: (-?\d+\.\d)", line) for line in lines
        ]
        temperatures = [float(reading[1]) for reading in readings if reading]
        assert len(temperatures) == count, lines
        return temperatures

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start an example and return its process, which is killed at the end of the test."""
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
        process = subprocess.Popen(
            command,
            preexec_fn=end_with_parent,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def line(self, process: subprocess.Popen[str]) -> str:
        """Return the next line that the example prints."""
        assert process.stdout is not None
        return process.stdout.readline().rstrip("\n")

    def rest(self, process: subprocess.Popen[str]) -> list[str]:
        """Wait until the process ends with success and return its remaining lines of output."""
        out, wrong = process.communicate(timeout=PATIENCE)
        assert (process.returncode, wrong) == (0, "")
        return out.splitlines()


@pytest.fixture
def examples() -> Iterator[Examples]:
    """Start a broker for the examples alone: their queues and topics have fixed names."""
    broker = BrokerProcess()
    with ExitStack() as stack:
        yield Examples(broker, stack)
    broker.stop()


def test_sensor_on_mqtt_reaches_worker_on_amqp(examples: Examples) -> None:
    worker = examples.start("worker", "--count", "3")
    assert examples.line(worker) == "waiting for readings"
    readings = examples.publish("kitchen", 3)
    assert examples.rest(worker) == [f"kitchen: {celsius} °C" for celsius in readings]


def test_queue_stores_readings_while_no_worker_runs(examples: Examples) -> None:
    worker = examples.start("worker", "--count", "1")
    assert examples.line(worker) == "waiting for readings"
    examples.publish("kitchen", 1)
    assert len(examples.rest(worker)) == 1
    first, second = examples.publish("cellar", 2)
    assert examples.run("worker", "--count", "2") == [
        "waiting for readings",
        f"cellar: {first} °C",
        f"cellar: {second} °C",
    ]


def test_service_on_amqp_answers_dashboard_on_mqtt(examples: Examples) -> None:
    service = examples.start("service")
    assert examples.line(service) == "waiting for requests"
    mean = round(sum(examples.publish("kitchen", 4)) / 4, 2)
    shown = examples.run("dashboard", "kitchen", "cellar", "--count", "2", "--interval", "0")
    assert shown == [f"kitchen: 4 readings, mean {mean} °C", "cellar: 0 readings"] * 2
    assert examples.line(service).startswith("answered hall, sensor kitchen: ")
