"""Tests of every client library over each transport that it has: TLS, WebSocket, Unix socket.

Each test logs in with a password or with a certificate, and sends one message to itself.
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


class Endpoint(NamedTuple):
    """A listener of the broker and the credentials with which a client connects to it.

    `kind` is tls, ws, wss or unix. `certificate` is the path of a file with the client's key and
    certificate; if it is empty, the client logs in as guest with a password.
    """

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


class SecuredBroker(NamedTuple):
    """A broker with every transport, and the authority that signs its certificates."""

    broker: BrokerProcess
    authority: Authority
    sockets: dict[str, Path]
    certificate: Path

    def endpoint(self, protocol: str, kind: str, certificate: bool = False) -> Endpoint:
        listener = kind if kind in ("ws", "wss") else f"{protocol}s"
        address = (
            Address(str(self.sockets[protocol]), 1)
            if kind == "unix"
            else Address("localhost", self.broker.addresses[listener].port)
        )
        return Endpoint(
            kind, address, str(self.authority.file), str(self.certificate) if certificate else ""
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
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
    yield SecuredBroker(process, authority, sockets, authority.sign("x", common_name="guest"))
    process.stop()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    process = Node()
    yield process
    process.close()


# -- AMQP: publish to a queue, and get the message


def with_pika(endpoint: Endpoint, node: Callable[[], Node]) -> bytes:
    assert endpoint.context is not None
    login = (
        pika.credentials.ExternalCredentials()
        if endpoint.certificate
        else pika.PlainCredentials("guest", "guest")
    )
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            endpoint.address.host,
            endpoint.address.port,
            credentials=login,
            ssl_options=pika.SSLOptions(endpoint.context, "localhost"),
        )
    )
    channel = connection.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    channel.basic_publish("", name, BODY)
    body: bytes = channel.basic_get(name, auto_ack=True)[2]
    connection.close()
    return body


def with_aio_pika(endpoint: Endpoint, node: Callable[[], Node]) -> bytes:
    files = f"cafile={endpoint.ca}" + (
        f"&certfile={endpoint.certificate}&auth=external" if endpoint.certificate else ""
    )

    async def work() -> bytes:
        connection = await aio_pika.connect(
            f"amqps://guest:guest@{endpoint.address.host}:{endpoint.address.port}/?{files}"
        )
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(BODY), queue.name)
            message = await queue.get(no_ack=True)
            assert message is not None
            return message.body

    return asyncio.run(work())


def with_kombu(endpoint: Endpoint, node: Callable[[], Node]) -> bytes:
    files = {
        "ca_certs": endpoint.ca,
        "cert_reqs": ssl.CERT_REQUIRED,
        "server_hostname": "localhost",
    }
    if endpoint.certificate:
        files |= {"certfile": endpoint.certificate, "keyfile": endpoint.certificate}
    with kombu.Connection(
        f"amqp://guest:guest@{endpoint.address.host}:{endpoint.address.port}//",
        ssl=files,
        login_method="EXTERNAL" if endpoint.certificate else "PLAIN",
    ) as connection:
        channel = connection.channel()
        name = channel.queue_declare(exclusive=True).queue
        channel.basic_publish(channel.prepare_message(BODY), routing_key=name)
        body: Any = channel.basic_get(name, no_ack=True).body
        return bytes(body)


def with_amqplib(endpoint: Endpoint, node: Callable[[], Node]) -> bytes:
    files: dict[str, Any] = {"ca": [Path(endpoint.ca).read_text()]}
    if endpoint.certificate:
        files |= {
            "cert": Path(endpoint.certificate).read_text(),
            "key": Path(endpoint.certificate).read_text(),
        }
    process = node()
    login = "" if endpoint.certificate else "guest:guest@"
    client = process.connect(
        "amqplib",
        f"amqps://{login}{endpoint.address.host}:{endpoint.address.port}",
        {**files, "external": bool(endpoint.certificate)},
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
    secured: SecuredBroker, library: str, certificate: bool, request: pytest.FixtureRequest
) -> None:
    endpoint = secured.endpoint("amqp", "tls", certificate)
    assert AMQP[library](endpoint, lambda: request.getfixturevalue("node")) == BODY


# -- MQTT: subscribe, publish, receive the message


def with_paho(endpoint: Endpoint, topic: str, node: Callable[[], Node]) -> bytes:
    transport: Any = (
        "websockets" if endpoint.websocket else "unix" if endpoint.kind == "unix" else "tcp"
    )
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311, transport=transport)
    if endpoint.login:
        client.username_pw_set(**endpoint.login)
    if endpoint.context is not None:
        client.tls_set_context(endpoint.context)
    if endpoint.websocket:
        client.ws_set_options("/ws")
    received: queue.Queue[bytes] = queue.Queue()
    ready = threading.Event()
    client.on_message = lambda _c, _u, message: received.put(bytes(message.payload))
    client.on_connect = lambda *_: ready.set()
    client.connect(*endpoint.address)
    client.loop_start()
    try:
        assert ready.wait(PATIENCE)
        client.subscribe(topic, 1)
        client.publish(topic, BODY, 1)
        return received.get(timeout=PATIENCE)
    finally:
        client.disconnect()
        client.loop_stop()


def with_aiomqtt(endpoint: Endpoint, topic: str, node: Callable[[], Node]) -> bytes:
    transport: Any = (
        "websockets" if endpoint.websocket else "unix" if endpoint.kind == "unix" else "tcp"
    )

    async def work() -> bytes:
        async with (
            asyncio.timeout(PATIENCE),
            aiomqtt.Client(
                *endpoint.address,
                transport=transport,
                websocket_path="/ws",
                tls_context=endpoint.context,
                **endpoint.login,  # type: ignore[arg-type]
            ) as client,
        ):
            await client.subscribe(topic, 1)
            await client.publish(topic, BODY, 1)
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                return message.payload
        raise AssertionError("aiomqtt ended before the message arrived")

    return asyncio.run(work())


def with_mqttjs(endpoint: Endpoint, topic: str, node: Callable[[], Node]) -> bytes:
    options: dict[str, Any] = {**endpoint.login, "ca": [Path(endpoint.ca).read_text()]}
    if endpoint.certificate:
        options |= {
            "cert": Path(endpoint.certificate).read_text(),
            "key": Path(endpoint.certificate).read_text(),
        }
    where = f"{endpoint.address.host}:{endpoint.address.port}"
    url = {"tls": f"mqtts://{where}", "ws": f"ws://{where}/ws", "wss": f"wss://{where}/ws"}[
        endpoint.kind
    ]
    process = node()
    client = process.connect("mqtt", url, options)
    assert process.call(client, "subscribe", topic, 1) == 1
    process.call(client, "publish", topic, b64encode(BODY).decode(), 1, False)
    body = b64decode(process.call(client, "receive")["payload"])
    process.call(client, "disconnect")
    return body


def with_mosquitto(endpoint: Endpoint, topic: str, node: Callable[[], Node]) -> bytes:
    require("mosquitto")
    host, port = endpoint.address
    where = (
        ["--unix", host]
        if endpoint.kind == "unix"
        else ["-h", host, "-p", str(port), "--cafile", endpoint.ca]
    )
    where += (
        ["--cert", endpoint.certificate, "--key", endpoint.certificate]
        if endpoint.certificate
        else ["-u", "guest", "-P", "guest"]
    )
    options = ["-t", topic, "-q", "1", *where]
    subprocess.run(
        ["mosquitto_pub", "-s", "-r", *options], input=BODY, check=True, timeout=PATIENCE
    )
    received = subprocess.run(
        ["mosquitto_sub", "-C", "1", "-N", *options],
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    return received.stdout


MQTT: Final[dict[str, Callable[[Endpoint, str, Callable[[], Node]], bytes]]] = {
    "paho": with_paho,
    "aiomqtt": with_aiomqtt,
    "mqttjs": with_mqttjs,
    "mosquitto": with_mosquitto,
}
#: Transports of each library: library, kind, and true for a login with a certificate.
TRANSPORTS: Final = [
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
    TRANSPORTS,
    ids=[
        f"{library}-{kind}-{'certificate' if certificate else 'password'}"
        for library, kind, certificate in TRANSPORTS
    ],
)
def test_mqtt_over_every_transport(
    secured: SecuredBroker,
    library: str,
    kind: str,
    certificate: bool,
    request: pytest.FixtureRequest,
) -> None:
    endpoint = secured.endpoint("mqtt", kind, certificate)
    assert (
        MQTT[library](
            endpoint, f"transports/{uuid.uuid4().hex}", lambda: request.getfixturevalue("node")
        )
        == BODY
    )
