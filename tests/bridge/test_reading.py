"""Bridges with MQTT 3.1.1 that read prepared packets: the window, and repeated messages."""

from __future__ import annotations

import asyncio

import pytest
from paho.mqtt.client import MQTTMessage

from tests.bridge.running import PATIENCE
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
    """A handler that counts the messages, and acknowledges none until `end.limit(0)` is called."""

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


class Taking(Handler):
    """A handler that puts the payload of each message into the queue `got`."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[bytes] = asyncio.Queue()

    def on_message(self, message: MQTTMessage) -> None:
        self.got.put_nowait(bytes(message.payload))


async def connected(first: bytes, messages: bytes) -> tuple[MqttEnd, asyncio.Task[None]]:
    """Connect to a server that answers CONNECT and SUBSCRIBE, and then sends `messages`.

    `first` is the server's CONNACK packet.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            if data[0] == 0x10:
                writer.write(first)
            elif data[0] == 0x82:
                writer.write(SUBACK + messages)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = MqttLogin("127.0.0.1", port, "b", protocol=MQTT311)
    end = MqttEnd(MqttBridge("b", login, login, (), WINDOW, 1, 60, 60, 1), login, {"t": 1})
    return end, asyncio.create_task(serving(server, end))


async def serving(server: asyncio.Server, end: MqttEnd) -> None:
    async with server:
        await end.run()


async def test_a_broker_without_receive_maximum_must_wait() -> None:
    """Check that the bridge stops reading while WINDOW messages are not acknowledged.

    The server sends MESSAGES messages without waiting for acknowledgements, because in MQTT 3.1.1,
    a client cannot send a Receive Maximum.
    """
    every = b"".join(publish(1 + number) for number in range(MESSAGES))
    end, running = await connected(CONNACK, every)
    end.handler = handler = Counting(end)
    while handler.count < MESSAGES:
        await asyncio.wait_for(handler.reached.wait(), PATIENCE)
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


@pytest.mark.parametrize(("present", "taken"), [(0, [b"A", b"B", b"C"]), (1, [b"B", b"C"])])
async def test_retained_messages_are_taken_once_in_a_session(
    present: int, taken: list[bytes]
) -> None:
    """Send three messages: A and B are retained, B has the flag DUP, and C is not retained.

    Check that the bridge takes the messages `taken`, if CONNACK's Session Present is `present`. In
    a present session, the bridge got A before, so it must skip A. The bridge must take B: DUP shows
    that the bridge did not acknowledge B on an earlier connection.
    """
    packets = b"\x33\x06\x00\x01t\x00\x01A" + b"\x3b\x06\x00\x01t\x00\x02B"
    packets += b"\x32\x06\x00\x01t\x00\x03C"
    end, running = await connected(b"\x20\x02" + bytes([present, 0]), packets)
    end.handler = handler = Taking()
    assert [await asyncio.wait_for(handler.got.get(), PATIENCE) for _ in taken] == taken
    running.cancel()
    end.stop()
