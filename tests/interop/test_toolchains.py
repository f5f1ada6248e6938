"""Tests of the broker with client libraries for Go, Java and Rust.

Each library has a program (tests/go, tests/java, tests/rust) that uses the library's features,
checks the results itself, and prints "ok".

    AMQP, with streams      amqp091-go, RabbitMQ's Java client, lapin
    MQTT 3.1.1 and MQTT 5   Eclipse's two Go clients, HiveMQ's Java client, rumqttc
    HTTP API                rabbit-hole, with which Terraform's provider for RabbitMQ and the
                            Kubernetes topology operator make their requests
    HTTP API and AMQP       KEDA's RabbitMQ scaler
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiomqtt
import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import BrokerProcess
from tests.foreign import require

HERE = Path(__file__).parents[1]
#: Directory of the built programs.
BUILT = HERE.parent / "build" / "toolchains"
#: Seconds for building a program, with the download of its packages, and for running it.
BUILDING, RUNNING = 600, 60


def build(command: list[str], directory: Path) -> None:
    """Build a program; skip the test if that fails, mostly because packages cannot be fetched."""
    BUILT.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=BUILDING, check=False
    )
    if done.returncode:
        pytest.skip(
            f"{command[0]} could not build the program: {(done.stderr or done.stdout)[-300:]}"
        )


def run(*command: str, directory: Path | None = None) -> str:
    """Run a program, check that it prints "ok", and return its output."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=RUNNING, check=False
    )
    output = re.sub(r"\x1b\[\d*m", "", done.stdout)  # Maven prints colours.
    assert re.search(r"^ok$", output, re.MULTILINE), output + done.stderr
    return output


def run_java(program: str, *args: str) -> str:
    maven = require("mvn")
    target = [f"-DbuildDirectory={BUILT / 'java'}", "-q", "-B"]
    # The goal exec:help makes Maven fetch the plugin that runs the program.
    build([maven, *target, "compile", "exec:help"], HERE / "java")
    return run(
        maven,
        *target,
        "exec:java",
        f"-Dexec.mainClass={program}",
        f"-Dexec.args={' '.join(args)}",
        directory=HERE / "java",
    )


def build_go_amqp() -> str:
    build([require("go"), "build", "-o", str(BUILT / "go-amqp"), "."], HERE / "go" / "amqp")
    return str(BUILT / "go-amqp")


def build_keda() -> str:
    """Build the program that uses KEDA's scaler, and return its path.

    KEDA has all its scalers in one package, with the clients of some sixty services. So the program
    is built in a copy of KEDA's module without the other scalers, with KEDA's own versions of the
    packages. The first build takes 3 CPU minutes and 3 GB.
    """
    directory, copy = HERE / "go" / "keda", BUILT / "keda"
    go = require("go")
    command = [go, "mod", "download", "-json", "github.com/kedacore/keda/v2"]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=BUILDING, check=False
    )
    if done.returncode:
        pytest.skip(f"go could not fetch KEDA: {(done.stdout or done.stderr)[-300:]}")
    scalers = f"{json.loads(done.stdout)['Dir']}/pkg/scalers"

    def left_out(parent: str, names: list[str]) -> set[str]:
        kept = ("rabbitmq_scaler.go", "scaler.go") if parent == scalers else names
        return {
            name
            for name in names
            if name.endswith("_test.go") or (name.endswith(".go") and name not in kept)
        }

    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(Path(scalers).parents[1], copy, ignore=left_out, copy_function=shutil.copyfile)
    for path in (copy, *(one for one in copy.rglob("*") if one.is_dir())):
        path.chmod(0o755)  # The directories of Go's copy are read-only.
    (copy / "trellis").mkdir()
    shutil.copyfile(directory / "main.go", copy / "trellis" / "main.go")
    build([go, "build", "-o", str(BUILT / "go-keda"), "./trellis"], copy)
    return str(BUILT / "go-keda")


def build_lapin() -> None:
    build(
        [require("cargo"), "build", "--quiet", "--target-dir", str(BUILT / "lapin")],
        HERE / "rust" / "lapin",
    )


@pytest.mark.long
def test_amqp091_go(broker: BrokerProcess) -> None:
    run(build_go_amqp(), broker.amqp_url, broker.amqp_url_of("guest", "wrong"))


@pytest.mark.long
def test_rabbit_hole(broker: BrokerProcess) -> None:
    directory = HERE / "go" / "rabbithole"
    build([require("go"), "build", "-o", str(BUILT / "go-rabbithole"), "."], directory)
    host, port = broker.addresses["http"]
    run(str(BUILT / "go-rabbithole"), f"http://{host}:{port}")


@pytest.mark.long
def test_keda(broker: BrokerProcess) -> None:
    program, api = build_keda(), "{}:{}".format(*broker.addresses["http"])
    example = HERE.parent / "examples" / "keda" / "orders.yaml"
    run(program, api, "{}:{}".format(*broker.amqp), str(example))


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
    build(
        [cargo, "build", "--quiet", "--target-dir", str(BUILT / "rumqttc")],
        HERE / "rust" / "rumqttc",
    )
    run(
        str(BUILT / "rumqttc" / "debug" / "rumqttc-test"),
        broker.mqtt.host,
        str(broker.mqtt.port),
        unique,
    )


@pytest.mark.long
def test_the_java_client(broker: BrokerProcess) -> None:
    run_java("Amqp", broker.amqp_url)


@pytest.mark.long
def test_lapin(broker: BrokerProcess) -> None:
    build_lapin()
    run(str(BUILT / "lapin" / "debug" / "lapin-test"), broker.amqp_url)


class History:
    """A stream with messages that were published over AMQP, MQTT 3.1.1 and MQTT 5.

    The tested programs read the stream; `rows` has the line that they must print for each message.
    """

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.rows: list[str] = []
        self._channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
        self._channel.confirm_delivery()
        self._channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        self._channel.queue_bind(name, "amq.topic", f"{name}.#")

    def expect_row(
        self,
        body: bytes,
        kind: str = "-",
        correlation: str = "-",
        stamp: str = "-",
        number: str = "-",
    ) -> bytes:
        """Add the line that a program must print for a message; return the message's body.

        The line shows the content type (`kind`), the correlation id, the time in seconds and the
        header `n` as text; "-" for a property that the message does not have.
        """
        self.rows.append(
            f"row {len(self.rows)} {self.name}.sent {body.hex()}"
            f" {kind} {correlation} {stamp} {number}"
        )
        return body

    def publish(self, body: bytes, **properties: Any) -> None:
        self._channel.basic_publish(
            "amq.topic", f"{self.name}.sent", body, pika.BasicProperties(**properties)
        )

    def fill_over_amqp(self) -> None:
        self.publish(
            self.expect_row(bytes(range(256)), "text/plain", "c-1", "1700000000", "70000"),
            content_type="text/plain",
            correlation_id="c-1",
            timestamp=1_700_000_000,
            headers={"n": 70_000},
        )
        self.publish(self.expect_row(b""))
        self.publish(self.expect_row(b"large" * 60_000))

    async def fill_over_mqtt(self, host: str, port: int) -> None:
        for version in (aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5):
            async with aiomqtt.Client(host, port, protocol=version) as client:
                await client.publish(f"{self.name}/sent", self.expect_row(b"\x00mqtt\xff"), 1)
        # paho has no type annotations for Properties.
        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType, properties.CorrelationData, properties.UserProperty = (
            "text/five",
            b"c-5",
            [("n", "5")],
        )
        async with aiomqtt.Client(host, port, protocol=aiomqtt.ProtocolVersion.V5) as client:
            await client.publish(
                f"{self.name}/sent",
                self.expect_row(b"x" * 200_000, "text/five", "c-5", "-", "5"),
                2,
                properties=properties,
            )

    def close(self) -> None:
        self._channel.queue_delete(self.name)
        self._channel.connection.close()


@pytest.fixture
async def history(broker: BrokerProcess, unique: str) -> AsyncIterator[History]:
    history = History(unique, broker.amqp_url)
    history.fill_over_amqp()
    await history.fill_over_mqtt(*broker.mqtt)
    yield history
    history.close()


def streams_in_go(*args: str) -> str:
    return run(build_go_amqp(), "streams", *args)


def streams_in_java(*args: str) -> str:
    return run_java("Streams", *args)


def streams_in_rust(*args: str) -> str:
    build_lapin()
    return run(str(BUILT / "lapin" / "debug" / "streams"), *args)


@pytest.mark.long
@pytest.mark.parametrize("program", [streams_in_go, streams_in_java, streams_in_rust])
async def test_streams(
    program: Callable[..., str], broker: BrokerProcess, history: History
) -> None:
    """Check that a program reads all messages of the stream unchanged.

    The program itself checks reads from other offsets. It also publishes a message, which must
    reach an MQTT 5 subscriber with its properties.
    """
    async with aiomqtt.Client(*broker.mqtt, protocol=aiomqtt.ProtocolVersion.V5) as subscriber:
        await subscriber.subscribe(f"{history.name}/program", 1)
        output = await asyncio.to_thread(
            program,
            broker.amqp_url,
            history.name,
            f"{history.name}.program",
            str(len(history.rows)),
        )
        assert [line for line in output.splitlines() if line.startswith("row ")] == history.rows
        received: Any = await anext(aiter(subscriber.messages))
    assert received.payload == bytes(range(256))
    properties = received.properties
    assert (properties.ContentType, properties.CorrelationData, properties.UserProperty) == (
        "text/x",
        b"c",
        [("n", "7")],
    )
