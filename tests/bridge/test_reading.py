"""A bridge with MQTT 3.1.1 reads no more while too many messages are not acknowledged."""

from __future__ import annotations

import asyncio

from paho.mqtt.client import MQTTMessage

from trellis.bridge.contract import MqttBridge, MqttLogin
from trellis.bridge.mqtt_end import Handler, MqttEnd
from trellis.settings.bridge import MQTT311

WINDOW = 10
MESSAGES = 1_000
CONNACK, SUBACK = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01"


def publish(identifier: int) -> bytes:
    """Return a PUBLISH packet of QoS 1 with the topic `t`."""
    return b"\x32\x05\x00\x01t" + identifier.to_bytes(2, "big")


class Counting(Handler):
    """Counts the messages, and acknowledges none of them until `end.limit(0)` is called."""

    def __init__(self, end: MqttEnd) -> None:
        self._end = end
        self.count = 0
        self.unacknowledged = 0
        self.reached = asyncio.Event()

    def on_message(self, message: MQTTMessage) -> None:
        self.count += 1
        self.unacknowledged += 1
        self._end.limit(self.unacknowledged)
        if self.unacknowledged == WINDOW:
            self.reached.set()


async def test_a_broker_without_receive_maximum_must_wait() -> None:
    """Let a server send many messages at once, and count those that the bridge reads."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            if data[0] == 0x10:
                writer.write(CONNACK)
            elif data[0] == 0x82:
                writer.write(SUBACK + b"".join(publish(1 + n) for n in range(MESSAGES)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = MqttLogin("127.0.0.1", port, "b", protocol=MQTT311)
    bridge = MqttBridge("b", login, login, (), WINDOW, 1, 60, 60, 1)
    end = MqttEnd(bridge, login, {"t": 1})
    end.handler = handler = Counting(end)
    running = asyncio.create_task(end.run())
    while handler.count < MESSAGES:
        await asyncio.wait_for(handler.reached.wait(), 60)
        count = handler.count
        for _ in range(20):  # The socket has more messages: each turn could read one.
            await asyncio.sleep(0)
        assert handler.count == count
        handler.reached.clear()
        handler.unacknowledged = 0
        end.limit(0)
    assert end.lost == 0
    running.cancel()
    end.stop()
    server.close()
