"""Clients of other toolchains. Each is a program that works through its habits and says "ok".

AMQP: amqp091-go, the Java client, lapin. MQTT, 3.1.1 and 5: Eclipse's two Go clients, HiveMQ's client, rumqttc.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.broker import BrokerProcess
from tests.foreign import require

HERE = Path(__file__).parents[1]
#: Where the programs are built, once.
BUILT = HERE.parent / "build" / "toolchains"
#: Seconds for building, with what has to be fetched, and for running.
BUILDING, RUNNING = 600, 60


def build(command: list[str], directory: Path) -> None:
    """Without its packages (no network, mostly) the test is skipped, with what the tool says."""
    BUILT.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILDING, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} could not build it: {(done.stderr or done.stdout)[-300:]}")


def run(*command: str, directory: Path | None = None) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=RUNNING, check=False)
    assert re.search(r"(^|\x1b\[0?m)ok$", done.stdout, re.MULTILINE), done.stdout + done.stderr


def run_java(program: str, *args: str) -> None:
    maven = require("mvn")
    target = [f"-DbuildDirectory={BUILT / 'java'}", "-q", "-B"]
    build([maven, *target, "compile"], HERE / "java")
    run(maven, *target, "exec:java", f"-Dexec.mainClass={program}", f"-Dexec.args={' '.join(args)}", directory=HERE / "java")


@pytest.mark.long
def test_amqp091_go(broker: BrokerProcess) -> None:
    go = require("go")
    build([go, "build", "-o", str(BUILT / "go-amqp"), "."], HERE / "go" / "amqp")
    run(str(BUILT / "go-amqp"), broker.amqp_url, broker.amqp_url_of("guest", "wrong"))


@pytest.mark.long
def test_mqtt_in_go(broker: BrokerProcess, unique: str) -> None:
    go = require("go")
    build([go, "build", "-o", str(BUILT / "go-mqtt"), "."], HERE / "go" / "mqtt")
    run(str(BUILT / "go-mqtt"), "{}:{}".format(*broker.mqtt), unique)


@pytest.mark.long
def test_mqtt_in_java(broker: BrokerProcess, unique: str) -> None:
    run_java("Mqtt", broker.mqtt.host, str(broker.mqtt.port), unique)


@pytest.mark.long
def test_mqtt_in_rust(broker: BrokerProcess, unique: str) -> None:
    cargo = require("cargo")
    build([cargo, "build", "--quiet", "--target-dir", str(BUILT / "rumqttc")], HERE / "rust" / "rumqttc")
    run(str(BUILT / "rumqttc" / "debug" / "rumqttc-test"), broker.mqtt.host, str(broker.mqtt.port), unique)


@pytest.mark.long
def test_the_java_client(broker: BrokerProcess) -> None:
    run_java("Amqp", broker.amqp_url)


@pytest.mark.long
def test_lapin(broker: BrokerProcess) -> None:
    cargo = require("cargo")
    build([cargo, "build", "--quiet", "--target-dir", str(BUILT / "lapin")], HERE / "rust" / "lapin")
    run(str(BUILT / "lapin" / "debug" / "lapin-test"), broker.amqp_url)
