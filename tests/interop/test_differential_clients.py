"""Comparison of the answers to one client: Trellis, and RabbitMQ or Mosquitto.

Each case sends the same bytes to Trellis and to RabbitMQ (AMQP) or Mosquitto (MQTT), and compares
the answers. Levels of MQTT above 5 are not compared: Trellis refuses them with a CONNACK of level
5, Mosquitto 2.0 with a CONNACK of level 4.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pika
import pytest

from protocols.amqp.codec.frames import decode
from tests.broker import BrokerProcess
from tests.clients import marshal, text
from tests.rabbitmq import RabbitMq
from tests.wire.amqp.speech import BODY, METHOD, body, header, publish, split
from trellis.parent_process import end_with_parent

Q, X, B = spec.Queue, spec.Exchange, spec.Basic
#: Seconds that a broker may take to answer.
PATIENCE = 10.0
FRAME_MAX = 131_072


class RawAmqp:
    """An AMQP client on a socket, with channel 1 open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._input = b""
        self._socket.sendall(b"AMQP\0\0\x09\1")
        self.until("Connection.Start")
        capabilities: Any = {"consumer_cancel_notify": True}
        self.send_methods(
            spec.Connection.StartOk({"capabilities": capabilities}, response="\0guest\0guest")
        )
        self.until("Connection.Tune")
        self.send_methods(spec.Connection.TuneOk(2047, FRAME_MAX, 0), spec.Connection.Open())
        self.until("Connection.OpenOk")
        self.call(spec.Channel.Open())

    def send_methods(self, *methods: Any, channel: int = 0) -> None:
        """Send AMQP methods on a channel; channel 0 is the connection."""
        self._socket.sendall(b"".join(marshal(channel, one) for one in methods))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def until(self, *names: str) -> list[Any]:
        """Receive methods until one of these methods arrives, or a close of the channel or
        connection.

        Return all received methods, with the size of each body frame between them.
        """
        received: list[Any] = []
        while True:
            while len(self._input) >= 8:
                size = int.from_bytes(self._input[3:7], "big") + 8
                if len(self._input) < size:
                    break
                [one], self._input = split(self._input[:size]), self._input[size:]
                if one.kind == METHOD:
                    received.append(decode(one.data))
                    if received[-1].name in (*names, "Channel.Close", "Connection.Close"):
                        return received
                elif one.kind == BODY:
                    received.append(len(one.payload))
            data = self._socket.recv(1 << 20)
            assert data, "the broker has closed the socket"
            self._input += data

    def call(self, method: Any) -> Any:
        """Send a method on channel 1, and return the broker's reply."""
        self.send_methods(method, channel=1)
        return self.until(f"{method.name}Ok")[-1]

    def close(self) -> None:
        self._socket.close()


def summary(method: Any) -> tuple[Any, ...]:
    """Return the name, the reply code and the queue of a method; 0 and "" if it has none."""
    return method.name, getattr(method, "reply_code", 0), getattr(method, "queue", "")


NAMES: list[Any] = [
    Q.Declare(queue="a\nb\r"),
    X.Declare(exchange="x\r\ny"),
    Q.Declare(queue="\nab", passive=True),
    X.Declare(exchange="x\ny", passive=True),
    Q.Bind(queue="a\rb", exchange="xy\n", routing_key="k"),
    X.Bind(destination="x\ny", source="amq.\nfanout"),
    Q.Unbind(queue="a\rb", exchange="xy\n", routing_key="k"),
    X.Unbind(destination="x\ny", source="amq.\nfanout"),
    Q.Purge(queue="a\nb"),
    B.Consume(queue="a\nb"),
    X.Delete(exchange="x\ny"),
    X.Declare(exchange="xy", passive=True),
    Q.Delete(queue="a\nb"),
    Q.Declare(queue="ab", passive=True),
]


def both(broker: BrokerProcess, rabbitmq: RabbitMq) -> list[int]:
    return [broker.amqp.port, rabbitmq.port]


@pytest.mark.long
def test_line_breaks_in_names(broker: BrokerProcess, rabbitmq: RabbitMq) -> None:
    answers: list[list[Any]] = []
    for port in both(broker, rabbitmq):
        answers.append([])
        for method in NAMES:
            client = RawAmqp(port)
            answers[-1].append(summary(client.call(method)))
            client.close()
    assert answers[0] == answers[1]


@pytest.mark.long
@pytest.mark.parametrize("durable", [False, True])
def test_delete_ok_comes_before_the_cancel_of_an_own_consumer(
    broker: BrokerProcess, rabbitmq: RabbitMq, durable: bool
) -> None:
    for port in both(broker, rabbitmq):
        client = RawAmqp(port)
        client.call(Q.Declare(queue="own", durable=durable))
        client.call(B.Consume(queue="own", consumer_tag="t"))
        client.send_methods(Q.Delete(queue="own"), channel=1)
        received = client.until("Basic.Cancel")
        assert [one.name for one in received] == ["Queue.DeleteOk", "Basic.Cancel"]
        client.close()


@pytest.mark.long
@pytest.mark.parametrize("size", [FRAME_MAX - 8, FRAME_MAX - 7, FRAME_MAX, FRAME_MAX + 1])
def test_sizes_of_payloads(broker: BrokerProcess, rabbitmq: RabbitMq, size: int) -> None:
    answers = []
    for port in both(broker, rabbitmq):
        client = RawAmqp(port)
        client.call(Q.Declare(queue="", exclusive=True))
        client.call(B.Consume(no_ack=True, consumer_tag="t"))
        client.call(Q.Bind(exchange="amq.fanout"))
        client.send(publish("amq.fanout", "") + header(size) + body(b"x" * size))
        if size > FRAME_MAX:
            answers.append(client.until("Connection.Close")[-1].reply_code)
        else:
            client.send_methods(B.Qos(), channel=1)
            received = client.until("Basic.QosOk")
            frames = 1 + (size > FRAME_MAX - 8)
            while len([one for one in received if isinstance(one, int)]) < frames:
                client.send_methods(B.Qos(), channel=1)
                received += client.until("Basic.QosOk")
            answers.append([one for one in received if isinstance(one, int)])
        client.close()
    assert answers[0] == answers[1]


@pytest.mark.long
def test_an_oversized_frame_is_refused_at_its_seventh_byte(
    broker: BrokerProcess, rabbitmq: RabbitMq
) -> None:
    for port in both(broker, rabbitmq):
        client = RawAmqp(port)
        client.send(b"\1\0\1" + (FRAME_MAX + 1).to_bytes(4, "big"))
        assert client.until("Connection.Close")[-1].reply_code == 501
        client.close()


@pytest.mark.long
def test_a_global_prefetch_is_shared_by_queues(broker: BrokerProcess, rabbitmq: RabbitMq) -> None:
    for port in both(broker, rabbitmq):
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in ("one", "two", "three"):
                channel.queue_declare(name)
                for _ in range(200):
                    channel.basic_publish("", name, b"x")
            counts: Counter[str] = Counter()
            channel.basic_qos(prefetch_count=3, global_qos=True)

            def take(
                channel: Any, method: Any, _: Any, __: bytes, counts: Counter[str] = counts
            ) -> None:
                counts[method.consumer_tag] += 1
                channel.basic_ack(method.delivery_tag)

            for name in ("one", "two", "three"):
                channel.basic_consume(name, take, consumer_tag=name)
            while counts.total() < 300:
                connection.process_data_events(PATIENCE)
            for name in ("one", "two", "three"):
                channel.queue_delete(name)
            assert min(counts["one"], counts["two"], counts["three"]) >= 50


@pytest.mark.long
def test_transacted_messages_age_from_the_commit(broker: BrokerProcess, rabbitmq: RabbitMq) -> None:
    for port in both(broker, rabbitmq):
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            channel.queue_declare("aging", exclusive=True)
            channel.tx_select()
            channel.basic_publish("", "aging", b"x", pika.BasicProperties(expiration="1000"))
            connection.sleep(1.5)
            channel.tx_commit()
            assert channel.basic_get("aging", True)[2] == b"x"


# -- MQTT


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Mosquitto process. The test is skipped if Mosquitto is not installed."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        pytest.skip("Mosquitto is not installed (apt-get install mosquitto)")
    directory = tmp_path_factory.mktemp("mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    configuration = Path(directory, "mosquitto.conf")
    configuration.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_type none\n")
    process = subprocess.Popen([program, "-c", str(configuration)], preexec_fn=end_with_parent)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < end, "Mosquitto does not answer"
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def connect(name: str, level: int, flags: int = 2, client_id: str = "c") -> bytes:
    rest = text(name) + bytes([level, flags]) + b"\0\x3c" + text(client_id)
    return bytes([0x10, len(rest)]) + rest


def limited(size: int) -> bytes:
    """Return a CONNECT of level 5 with this Maximum Packet Size in bytes."""
    rest = text("MQTT") + b"\5\2\0\x3c\5\x27" + size.to_bytes(4, "big") + text("c")
    return bytes([0x10, len(rest)]) + rest


def answers(port: int, first: bytes, *packets: bytes) -> bytes:
    """Send the packet `first`. If the reply is a CONNACK, send `packets` and a PINGREQ.

    Return all replies up to the PINGRESP, or b"" if the broker closed the connection. Without
    `packets`, send no PINGREQ, and return the reply to `first`.
    """
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(first)
        try:
            replies = client.recv(1_000)
            if replies[:1] == b"\x20" and packets:
                client.sendall(b"".join(packets) + b"\xc0\0")
                while not replies.endswith(b"\xd0\0"):
                    more = client.recv(1_000)
                    if not more:
                        return b""
                    replies += more
        except ConnectionError:
            return b""
    return replies


SUBSCRIBE = b"\x06\0\1" + text("a") + b"\0"
UNSUBSCRIBE = b"\x05\0\2" + text("a")
V31, V311 = ("MQIsdp", 3), ("MQTT", 4)
TALKS: list[tuple[bytes, ...]] = [
    (connect(*V31, flags=3),),
    (connect(*V311, flags=3),),
    *[(connect(name, level),) for name in ("MQIsdp", "MQTT") for level in (3, 4, 0x83, 0x84)],
    *[
        (connect(*version), bytes([first]) + rest)
        for version in (V31, V311)
        for first, rest in (
            (0x80, SUBSCRIBE),
            (0x82, SUBSCRIBE),
            (0x8A, SUBSCRIBE),
            (0xA0, UNSUBSCRIBE),
            (0xAA, UNSUBSCRIBE),
            (0x60, b"\2\0\1"),
            (0x6A, b"\2\0\1"),
        )
    ],
    *[
        (connect(name, level), b"\x82" + SUBSCRIBE, b"\x31\4" + text("a") + b"x", b"\x31\3\0\1a")
        for name, level in (("MQIsdp", 0x83), ("MQTT", 0x84))
    ],
    *[(limited(size),) for size in (1, 4, 5, 8)],
]


@pytest.mark.long
@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: b" ".join(talk).hex())
def test_mosquitto_and_trellis_answer_alike(
    broker: BrokerProcess, mosquitto: int, talk: tuple[bytes, ...]
) -> None:
    assert answers(broker.mqtt.port, *talk) == answers(mosquitto, *talk)


@pytest.mark.long
@pytest.mark.parametrize("version", [V31, V311])
def test_the_connack_byte_of_a_session_that_existed(
    broker: BrokerProcess, mosquitto: int, version: tuple[str, int]
) -> None:
    first = connect(*version, flags=0, client_id=f"kept-{version[1]}")
    ours, theirs = (
        [answers(port, first, b"\xc0\0"), answers(port, first)]
        for port in (broker.mqtt.port, mosquitto)
    )
    assert ours[1] == theirs[1]
