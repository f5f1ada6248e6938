"""Telegraf as a client: its MQTT and AMQP plugins read from the broker and write to it.

Go builds Telegraf with only the plugins that this test needs. The build takes a minute.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aio_pika
import aiomqtt
import pytest

from tests.broker import BrokerProcess
from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build
from trellis.parent_process import end_with_parent

HERE: Final = Path(__file__).parents[1] / "go" / "telegraf"
PLUGINS: Final = (
    *("inputs.mqtt_consumer", "inputs.amqp_consumer", "outputs.mqtt", "outputs.amqp"),
    *("parsers.influx", "serializers.influx"),
)
PATIENCE: Final = 60
OVER_MQTT: Final = b"weather,place=a temp=21.5 1700000000000000000"
OVER_AMQP: Final = b"load value=3i 1700000000000000001"
CONFIG: Final = """
[agent]
interval = "100ms"
flush_interval = "100ms"
omit_hostname = true
[[inputs.mqtt_consumer]]
servers = ["tcp://{mqtt}"]
topics = ["{name}/in/+"]
topic_tag = ""
qos = 1
client_id = "{name}-in"
persistent_session = true
data_format = "influx"
[[inputs.amqp_consumer]]
brokers = ["{amqp}"]
exchange = "{name}.in"
exchange_type = "topic"
queue = "{name}.in"
binding_key = "in.#"
data_format = "influx"
[[outputs.mqtt]]
servers = ["tcp://{mqtt}"]
protocol = "5"
client_id = "{name}-out"
topic = '{name}/out/{{{{ .Name }}}}'
qos = 1
data_format = "influx"
[[outputs.amqp]]
brokers = ["{amqp}"]
exchange = "{name}.out"
exchange_type = "topic"
routing_key = "out"
delivery_mode = "persistent"
data_format = "influx"
"""


@pytest.fixture
def telegraf(broker: BrokerProcess, unique: str, tmp_path: Path) -> Iterator[None]:
    """Run Telegraf with the plugins connected to the broker."""
    program = BUILT / "telegraf"
    tags = ",".join(("custom", *PLUGINS))
    go = [require("go"), "build", "-mod=mod", "-tags", tags, "-o", str(program)]
    build([*go, "github.com/influxdata/telegraf/cmd/telegraf"], HERE)
    file = tmp_path / "telegraf.conf"
    mqtt = "{}:{}".format(*broker.mqtt)
    file.write_text(CONFIG.format(name=unique, mqtt=mqtt, amqp=broker.amqp_url))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--config", file], preexec_fn=end_with_parent, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    text = (tmp_path / "log").read_text()
    assert " E! " not in text, text


@pytest.mark.long
@pytest.mark.usefixtures("telegraf")
async def test_telegraf_reads_and_writes_both_protocols(broker: BrokerProcess, unique: str) -> None:
    host, port = broker.mqtt
    connection = await aio_pika.connect(broker.amqp_url)
    async with connection, aiomqtt.Client(host, port) as client, asyncio.timeout(PATIENCE):
        channel = await connection.channel()
        out = await channel.declare_exchange(f"{unique}.out", "topic", durable=True)
        queue = await channel.declare_queue(f"{unique}.out", durable=True)
        await queue.bind(out, "#")
        await client.subscribe(f"{unique}/out/#", qos=1)
        # Telegraf declares this exchange and its queue; a retained message waits for its session.
        await client.publish(f"{unique}/in/a", OVER_MQTT, qos=1, retain=True)
        source = await declared_by_telegraf(connection, f"{unique}.in")
        await source.publish(aio_pika.Message(OVER_AMQP), "in.k")

        over_mqtt: dict[str, bytes] = {}
        async for message in client.messages:
            assert isinstance(message.payload, bytes)
            over_mqtt[str(message.topic)] = message.payload.strip()
            if len(over_mqtt) == 2:
                break
        assert over_mqtt == {f"{unique}/out/weather": OVER_MQTT, f"{unique}/out/load": OVER_AMQP}
        lines: set[bytes] = set()
        async with queue.iterator() as messages:
            async for delivery in messages:
                lines.update(delivery.body.splitlines())
                assert delivery.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
                await delivery.ack()
                if len(lines) == 2:
                    break
        assert lines == {OVER_MQTT, OVER_AMQP}


async def declared_by_telegraf(
    connection: aio_pika.abc.AbstractConnection, name: str
) -> aio_pika.abc.AbstractExchange:
    """Wait until Telegraf has bound its queue, and return the exchange."""
    while True:
        channel = await connection.channel(on_return_raises=True)
        try:
            await channel.declare_queue(name, passive=True)
            exchange = await channel.get_exchange(name)
            await exchange.publish(aio_pika.Message(b""), "in.k", mandatory=True)
            return exchange
        except aio_pika.exceptions.AMQPError:
            await asyncio.sleep(0.1)
