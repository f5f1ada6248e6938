"""Each library over each transport it has: one message there and back, with a password or with a
certificate.
"""

from __future__ import annotations

import asyncio
import queue
import ssl
import subprocess
import threading
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import aio_pika
import aiomqtt
import kombu
import paho.mqtt.client as paho
import pika
import pika.credentials
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.authority import Authority
from tests.broker import Address, BrokerProcess
from tests.foreign import require
from tests.interop.client import PATIENCE
from tests.interop.node import Node

BODY: Final = bytes(range(256)) * 200


class Way(NamedTuple):
    """How a client gets to the broker: `kind` is tls, ws, wss or unix. It shows `certificate` (key
    and all in one file), or without one says guest's name and password."""

    kind: str
    address: Address
    ca: str
    certificate: str

    @property
    def context(self) -> ssl.SSLContext | None:
        if self.kind not in ("tls", "wss"):
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate:
            context.load_cert_chain(self.certificate)
        return context

    @property
    def login(self) -> dict[str, str]:
        return {} if self.certificate else {"username": "guest", "password": "guest"}

    @property
    def websocket(self) -> bool:
        return self.kind in ("ws", "wss")


class Secured(NamedTuple):
    """A broker with every transport, and who signs its certificates."""

    broker: BrokerProcess
    authority: Authority
    sockets: dict[str, Path]
    certificate: Path

    def way(self, protocol: str, kind: str, certificate: bool = False) -> Way:
        listener = kind if kind in ("ws", "wss") else f"{protocol}s"
        address = (
            Address(str(self.sockets[protocol]), 1)
            if kind == "unix"
            else Address("localhost", self.broker.addresses[listener].port)
        )
        return Way(
            kind, address, str(self.authority.file), str(self.certificate) if certificate else ""
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("transports")
    authority = Authority(directory / "certificates")
    sockets = {name: directory / f"{name}.sock" for name in ("amqp", "mqtt")}
    flags = [
        "--tls-certificate",
        str(authority.sign("localhost", "127.0.0.1")),
        "--tls-ca",
        str(authority.file),
    ]
    for listener in ("amqps", "mqtts", "ws", "wss"):
        flags += [
            f"--{listener}-enabled",
            "true",
            f"--{listener}-port",
            "0",
            f"--{listener}-host",
            "127.0.0.1",
        ]
    for listener in ("amqps", "mqtts", "wss"):
        flags += [f"--{listener}-client-certificate", "optional"]
    for listener in ("mqtts", "wss"):
        flags += [f"--{listener}-certificate-user", "true"]
    for name, path in sockets.items():
        flags += [f"--{name}-socket", str(path)]
    process = BrokerProcess(*flags, "--mqtt-anonymous", "false")
    yield Secured(process, authority, sockets, authority.sign("x", common_name="guest"))
    process.stop()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    process = Node()
    yield process
    process.close()


# -- AMQP: publish to a queue, and fetch it


def with_pika(way: Way, node: Callable[[], Node]) -> bytes:
    assert way.context is not None
    login = (
        pika.credentials.ExternalCredentials()
        if way.certificate
        else pika.PlainCredentials("guest", "guest")
    )
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            way.address.host,
            way.address.port,
            credentials=login,
            ssl_options=pika.SSLOptions(way.context, "localhost"),
        )
    )
    channel = connection.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    channel.basic_publish("", name, BODY)
    body: bytes = channel.basic_get(name, auto_ack=True)[2]
    connection.close()
    return body


def with_aio_pika(way: Way, node: Callable[[], Node]) -> bytes:
    files = f"cafile={way.ca}" + (
        f"&certfile={way.certificate}&auth=external" if way.certificate else ""
    )

    async def work() -> bytes:
        connection = await aio_pika.connect(
            f"amqps://guest:guest@{way.address.host}:{way.address.port}/?{files}"
        )
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(BODY), queue.name)
            message = await queue.get(no_ack=True)
            assert message is not None
            return message.body

    return asyncio.run(work())


def with_kombu(way: Way, node: Callable[[], Node]) -> bytes:
    files = {"ca_certs": way.ca, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "localhost"}
    if way.certificate:
        files |= {"certfile": way.certificate, "keyfile": way.certificate}
    with kombu.Connection(
        f"amqp://guest:guest@{way.address.host}:{way.address.port}//",
        ssl=files,
        login_method="EXTERNAL" if way.certificate else "PLAIN",
    ) as connection:
        channel = connection.channel()
        name = channel.queue_declare(exclusive=True).queue
        channel.basic_publish(channel.prepare_message(BODY), routing_key=name)
        body: Any = channel.basic_get(name, no_ack=True).body
        return bytes(body)


def with_amqplib(way: Way, node: Callable[[], Node]) -> bytes:
    files: dict[str, Any] = {"ca": [Path(way.ca).read_text()]}
    if way.certificate:
        files |= {
            "cert": Path(way.certificate).read_text(),
            "key": Path(way.certificate).read_text(),
        }
    process = node()
    login = "" if way.certificate else "guest:guest@"
    client = process.connect(
        "amqplib",
        f"amqps://{login}{way.address.host}:{way.address.port}",
        {**files, "external": bool(way.certificate)},
    )
    name = process.call(client, "declareQueue", "", False, False, True)[0]
    assert process.call(client, "publish", b64encode(BODY).decode(), name, "", False, {}) == "ack"
    body = b64decode(process.call(client, "get", name)["body"])
    process.call(client, "close")
    return body


AMQP: Final = {
    "pika": with_pika,
    "aio-pika": with_aio_pika,
    "kombu": with_kombu,
    "amqplib": with_amqplib,
}


@pytest.mark.parametrize("certificate", [False, True], ids=["password", "certificate"])
@pytest.mark.parametrize("library", AMQP)
def test_amqp_over_tls(
    secured: Secured, library: str, certificate: bool, request: pytest.FixtureRequest
) -> None:
    way = secured.way("amqp", "tls", certificate)
    assert AMQP[library](way, lambda: request.getfixturevalue("node")) == BODY


# -- MQTT: subscribe, publish, hear it


def with_paho(way: Way, topic: str, node: Callable[[], Node]) -> bytes:
    transport: Any = "websockets" if way.websocket else "unix" if way.kind == "unix" else "tcp"
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311, transport=transport)
    if way.login:
        client.username_pw_set(**way.login)
    if way.context is not None:
        client.tls_set_context(way.context)
    if way.websocket:
        client.ws_set_options("/ws")
    heard: queue.Queue[bytes] = queue.Queue()
    ready = threading.Event()
    client.on_message = lambda _c, _u, message: heard.put(bytes(message.payload))
    client.on_connect = lambda *_: ready.set()
    client.connect(*way.address)
    client.loop_start()
    try:
        assert ready.wait(PATIENCE)
        client.subscribe(topic, 1)
        client.publish(topic, BODY, 1)
        return heard.get(timeout=PATIENCE)
    finally:
        client.disconnect()
        client.loop_stop()


def with_aiomqtt(way: Way, topic: str, node: Callable[[], Node]) -> bytes:
    transport: Any = "websockets" if way.websocket else "unix" if way.kind == "unix" else "tcp"

    async def work() -> bytes:
        async with (
            asyncio.timeout(PATIENCE),
            aiomqtt.Client(
                *way.address,
                transport=transport,
                websocket_path="/ws",
                tls_context=way.context,
                **way.login,  # type: ignore[arg-type]
            ) as client,
        ):
            await client.subscribe(topic, 1)
            await client.publish(topic, BODY, 1)
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                return message.payload
        raise AssertionError("nothing came")

    return asyncio.run(work())


def with_mqttjs(way: Way, topic: str, node: Callable[[], Node]) -> bytes:
    options: dict[str, Any] = {**way.login, "ca": [Path(way.ca).read_text()]}
    if way.certificate:
        options |= {
            "cert": Path(way.certificate).read_text(),
            "key": Path(way.certificate).read_text(),
        }
    where = f"{way.address.host}:{way.address.port}"
    url = {"tls": f"mqtts://{where}", "ws": f"ws://{where}/ws", "wss": f"wss://{where}/ws"}[
        way.kind
    ]
    process = node()
    client = process.connect("mqtt", url, options)
    assert process.call(client, "subscribe", topic, 1) == 1
    process.call(client, "publish", topic, b64encode(BODY).decode(), 1, False)
    body = b64decode(process.call(client, "receive")["payload"])
    process.call(client, "disconnect")
    return body


def with_mosquitto(way: Way, topic: str, node: Callable[[], Node]) -> bytes:
    require("mosquitto")
    host, port = way.address
    where = (
        ["--unix", host]
        if way.kind == "unix"
        else ["-h", host, "-p", str(port), "--cafile", way.ca]
    )
    where += (
        ["--cert", way.certificate, "--key", way.certificate]
        if way.certificate
        else ["-u", "guest", "-P", "guest"]
    )
    told = ["-t", topic, "-q", "1", *where]
    subprocess.run(["mosquitto_pub", "-s", "-r", *told], input=BODY, check=True, timeout=PATIENCE)
    heard = subprocess.run(
        ["mosquitto_sub", "-C", "1", "-N", *told], capture_output=True, check=True, timeout=PATIENCE
    )
    return heard.stdout


MQTT: Final[dict[str, Callable[[Way, str, Callable[[], Node]], bytes]]] = {
    "paho": with_paho,
    "aiomqtt": with_aiomqtt,
    "mqttjs": with_mqttjs,
    "mosquitto": with_mosquitto,
}
#: What each library has: kind of transport, and whether with a certificate.
WAYS: Final = [
    *(
        (library, kind, certificate)
        for library in ("paho", "aiomqtt", "mqttjs")
        for kind, certificate in (
            ("tls", False),
            ("tls", True),
            ("ws", False),
            ("wss", False),
            ("wss", True),
        )
    ),
    ("paho", "unix", False),
    ("aiomqtt", "unix", False),
    ("mosquitto", "unix", False),
    ("mosquitto", "tls", False),
    ("mosquitto", "tls", True),
]


@pytest.mark.parametrize(
    ("library", "kind", "certificate"),
    WAYS,
    ids=[
        f"{library}-{kind}-{'certificate' if certificate else 'password'}"
        for library, kind, certificate in WAYS
    ],
)
def test_mqtt_over_every_transport(
    secured: Secured, library: str, kind: str, certificate: bool, request: pytest.FixtureRequest
) -> None:
    way = secured.way("mqtt", kind, certificate)
    assert (
        MQTT[library](
            way, f"transports/{uuid.uuid4().hex}", lambda: request.getfixturevalue("node")
        )
        == BODY
    )
