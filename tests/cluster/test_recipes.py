"""Tests that the programs of examples/failover continue after the active node is killed.

The two nodes have their replicated log on kfake, an in-memory Kafka.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker import environment
from tests.cluster.conftest import cluster_on, created
from tests.cluster.nodes import PATIENCE, QUEUE, NodeProcess, pair_on_kafka
from tests.cluster.programs import Kfake
from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build
from trellis.demo.kafka_node import free_ports
from trellis.parent_process import end_with_parent

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "failover"
#: The programs in examples/failover, each with the listener that it uses. A name without a suffix
#: is a directory whose program must be compiled; only the long tests run such programs.
PROGRAMS: Final = (
    ("with_pika.py", "amqp"),
    ("with_aio_pika.py", "amqp"),
    ("with_celery.py", "amqp"),
    ("with_paho.py", "mqtt"),
    ("with_mqttjs.js", "mqtt"),
    ("with_amqp091_go", "amqp"),
    ("with_java_client", "amqp"),
)
#: The packages of the clients that run on Node.
MODULES: Final = Path(__file__).parents[1] / "node" / "node_modules"
#: Number of messages that are confirmed and received before the kill, and again after it.
COUNT: Final = 20


@pytest.fixture
def nodes(kfake: Kfake, name: str, tmp_path: Path) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """Start an active node and a standby, both on kfake."""
    cluster = created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))
    with pair_on_kafka(cluster, tmp_path) as pair:
        yield pair


class Recipe:
    """A program that prints `confirmed N` and `received N`; a thread reads its lines."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command,
            preexec_fn=end_with_parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment() | {"NODE_PATH": str(MODULES), "PYTHONUNBUFFERED": ""},
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        #: Numbers by the first word of their line; `lines` has all other lines of the program.
        self.numbers: dict[str, set[int]] = {"confirmed": set(), "received": set()}
        self.other: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait_for(self, confirmed: int) -> None:
        """Wait until `confirmed` numbers are confirmed, and all confirmed numbers are received."""
        end = time.monotonic() + 2 * PATIENCE
        done, received = self.numbers["confirmed"], self.numbers["received"]
        while len(done) < confirmed or not set(range(confirmed)) <= received:
            try:
                line = self._lines.get(timeout=end - time.monotonic())
            except (queue.Empty, ValueError):
                text = "".join(self.other[-20:])
                pytest.fail(f"{len(done)} confirmed, {len(received)} received: {text}")
            word, _, rest = line.partition(" ")
            if word in self.numbers:
                self.numbers[word].add(int(rest))
            elif line:
                self.other.append(line)
            else:
                pytest.fail(f"the program has ended: {''.join(self.other[-20:])}")

    def close(self) -> None:
        """End the program and its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)


def command(name: str) -> list[str]:
    """Return the command that runs a program of examples/failover."""
    if name.endswith(".js"):
        return [require("node"), str(EXAMPLES / name)]
    if name.endswith("_go"):
        program = str(BUILT / name)
        build([require("go"), "build", "-o", program, "."], EXAMPLES / name)
        return [program]
    if name == "with_java_client":
        path = BUILT / f"{name}-class-path"
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={path}"]
        build([require("mvn"), "-q", "-B", *goal], EXAMPLES / name)
        source = str(EXAMPLES / name / "Failover.java")
        return [require("java"), "-cp", path.read_text().strip(), source]
    return [sys.executable, str(EXAMPLES / name)]


def test_page_names_each_program_that_is_tested() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "high-availability.md").read_text()
    section = page.partition("## Clients that reconnect")[2].partition("\n## ")[0]
    named = re.findall(r"\| `([^`]+)` \|$", section, re.MULTILINE)
    assert {name.rstrip("/") for name in named} == {name for name, _ in PROGRAMS} | {"bridge.conf"}
    assert {path.name for path in EXAMPLES.iterdir()} == {name.rstrip("/") for name in named}


#: The program that `make test` runs; the others run in `make test-long`.
QUICK = ("with_pika.py",)


@pytest.mark.parametrize(
    ("name", "listener"),
    [
        pytest.param(*program, marks=[] if program[0] in QUICK else [pytest.mark.long])
        for program in PROGRAMS
    ],
)
def test_client_continues_at_the_new_active_node_and_loses_nothing(
    nodes: tuple[NodeProcess, NodeProcess], name: str, listener: str
) -> None:
    recipe = Recipe(*command(name), *(node.addresses[listener] for node in nodes))
    try:
        recipe.wait_for(COUNT)
        before = len(recipe.numbers["confirmed"])
        nodes[0].kill()
        nodes[1].wait_for("ready")
        recipe.wait_for(before + COUNT)
    finally:
        recipe.close()


def connected(port: int) -> mqtt.Client:
    """Wait until mosquitto has started; return a connected client."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    end = time.monotonic() + PATIENCE
    while True:
        try:
            client.connect("127.0.0.1", port)
        except ConnectionRefusedError:
            assert time.monotonic() < end
        else:
            client.loop_start()
            return client


def publish(client: mqtt.Client, numbers: range) -> None:
    """Publish numbers to mosquitto, which forwards them to the active node."""
    for number in numbers:
        client.publish("work/numbers", b"%d" % number, qos=1)


def receive(channel: BlockingChannel, missing: set[int]) -> None:
    """Get and acknowledge messages until all numbers in `missing` have come; empty `missing`."""
    end = time.monotonic() + PATIENCE
    while missing:
        method, _, body = channel.basic_get(QUEUE)
        if method is not None and body is not None:
            channel.basic_ack(method.delivery_tag or 0)
            missing.discard(int(body))
        assert time.monotonic() < end, missing


@pytest.fixture
def bridge(nodes: tuple[NodeProcess, NodeProcess], tmp_path: Path) -> Iterator[int]:
    """Start mosquitto with bridge.conf; yield its port."""
    program, port = require("mosquitto-broker"), free_ports()[0]
    text = (EXAMPLES / "bridge.conf").read_text()
    for old, new in (
        ("listener 1884 ", f"listener {port} "),
        ("127.0.0.1:1883 127.0.0.2:1883", " ".join(node.addresses["mqtt"] for node in nodes)),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "bridge.conf").write_text(text)
    with (tmp_path / "bridge.log").open("wb") as log:
        command = [program, "-c", str(tmp_path / "bridge.conf")]
        process = subprocess.Popen(command, preexec_fn=end_with_parent, stdout=log, stderr=log)
    yield port
    process.kill()
    process.wait(PATIENCE)


@pytest.mark.long
def test_bridge_of_mosquitto_continues_at_the_new_active_node_and_loses_nothing(
    nodes: tuple[NodeProcess, NodeProcess], bridge: int
) -> None:
    channel = nodes[0].channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, "amq.topic", "work.numbers")
    client = connected(bridge)
    try:
        publish(client, range(COUNT))
        receive(channel, set(range(COUNT)))
        nodes[0].kill()
        publish(client, range(COUNT, 2 * COUNT))
        nodes[1].wait_for("ready")
        receive(nodes[1].channel(), set(range(COUNT, 2 * COUNT)))
    finally:
        client.loop_stop()
