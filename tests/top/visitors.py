"""A process whose clients connect to every listener, do something and disconnect.

    python -m tests.top.visitors ROUNDS CA_FILE NAME=PORT ...

A visit is one short connection: the client sends its input, waits for the expected answer and
disconnects. In each round, the process makes all visits of `VISITS` whose listener the command line
names. The process fails if the broker does not answer a visit as expected.
"""

from __future__ import annotations

import base64
import socket
import ssl
import struct
import sys
from typing import Final, NamedTuple

import pamqp.commands as spec

from protocols.amqp.connection.handshake import GREETING
from protocols.websocket.frames import BINARY
from tests.clients import connect_packet, marshal, mqtt_publish, packet, publication, start_ok, text
from tests.top.running import PATIENCE
from tests.websocket_client import MQTT, frame, upgrade


class Visit(NamedTuple):
    """One connection of a client: its input, and the answer after which the client disconnects."""

    listener: str
    sent: bytes
    #: Bytes that the answer contains. With b"", the client waits until the broker closes; with
    #: NO_ANSWER, it waits for nothing.
    until: bytes
    #: True if the client's socket is reset instead of closed.
    reset: bool = False


def subscribed(topic_filter: str, qos: int) -> bytes:
    """Return a SUBSCRIBE packet."""
    return packet(0x82, b"\x00\x01" + text(topic_filter) + bytes([qos]))


def request(method: str, path: str, body: bytes = b"", user: str = "known:known") -> bytes:
    """Return an HTTP request whose connection ends after the answer."""
    key = base64.b64encode(user.encode()).decode()
    return (
        f"{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
        f"Authorization: Basic {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


AMQP_LOGIN: Final = (
    GREETING
    + start_ok("known", "known")
    + marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
    + marshal(0, spec.Connection.Open())
    + marshal(1, spec.Channel.Open())
)
AMQP_WORK: Final = (
    marshal(1, spec.Queue.Declare(queue="own", exclusive=True))
    + marshal(1, spec.Queue.Bind(queue="own", exchange="amq.topic", routing_key="a.#"))
    + marshal(1, spec.Queue.Declare(queue="kept", durable=True))
    + marshal(1, spec.Confirm.Select())
    + publication("", "kept", b"x" * 100, delivery_mode=2)
    + publication("amq.topic", "a.b", b"x" * 20_000)
    + marshal(1, spec.Queue.Delete(queue="kept"))
    + marshal(1, spec.Basic.Consume(queue="own", consumer_tag="t"))
)
AMQP_DELIVERED: Final = b"x" * 20_000
AMQP_CLOSE: Final = marshal(0, spec.Connection.Close(200, "bye", 0, 0))
#: The identifiers of connection.close.
CLOSING: Final = b"\x00\x0a\x00\x32"
MQTT_LOGIN: Final = connect_packet("visitor", user="known/known")
MQTT_WORK: Final = (
    subscribed("a/+", 1)
    + mqtt_publish("a/b", b"kept", 1, 1, 1)
    + mqtt_publish("a/c", b"twice", 2, 2)
    + b"\x62\x02\x00\x02"
)
MQTT_DELIVERED: Final = text("a/c")
WILL: Final = connect_packet("mortal", will=("a/will", b"gone"), user="known/known")
UPGRADE: Final = upgrade("/ws", MQTT)
DEFINITIONS: Final = (
    b'{"queues": [{"vhost": "/", "name": "imported", "durable": true, "arguments": {}}],'
    b' "policies": [{"vhost": "/", "name": "p", "pattern": "^imported$", "apply-to": "queues",'
    b' "definition": {"max-length": 10}}]}'
)

VISITS: Final = (
    *(
        visit
        for listener in ("amqp", "amqps")
        for visit in (
            Visit(listener, AMQP_LOGIN + AMQP_WORK, AMQP_DELIVERED),
            Visit(listener, AMQP_LOGIN + AMQP_WORK, AMQP_DELIVERED, reset=True),
            Visit(listener, AMQP_LOGIN + AMQP_WORK + AMQP_CLOSE, b""),
            Visit(listener, AMQP_LOGIN + AMQP_CLOSE[:-1] + b"x", CLOSING),
            Visit(listener, AMQP_LOGIN + publication("absent", "", b"x"), b"NOT_FOUND"),
            Visit(listener, b"AMQP\x00\x01\x00\x00", b""),
        )
    ),
    *(
        visit
        for listener in ("mqtt", "mqtts")
        for visit in (
            Visit(listener, MQTT_LOGIN + MQTT_WORK, MQTT_DELIVERED),
            Visit(listener, MQTT_LOGIN + MQTT_WORK, MQTT_DELIVERED, reset=True),
            Visit(listener, MQTT_LOGIN + MQTT_WORK + b"\xe0\x00", b""),
            Visit(listener, WILL, b"\x20\x02\x00\x00", reset=True),
            Visit(listener, MQTT_LOGIN + MQTT_LOGIN, b""),
            Visit(listener, MQTT_LOGIN + b"\xf0\x00", b""),
        )
    ),
    Visit("amqps", b"", b"", reset=True),
    Visit("mqtt", b"GET / HTTP/1.1\r\n\r\n", b""),
    Visit("ws", UPGRADE + frame(BINARY, MQTT_LOGIN) + frame(BINARY, MQTT_WORK), MQTT_DELIVERED),
    Visit("ws", UPGRADE + frame(BINARY, MQTT_LOGIN), b"\x20\x02\x00\x00", reset=True),
    Visit("ws", UPGRADE + frame(BINARY, MQTT_LOGIN) + b"\x81\x85\x00\x00\x00\x00hello", b""),
    Visit("ws", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"404"),
    Visit("metrics", request("GET", "/metrics"), b""),
    Visit("metrics", request("GET", "/metrics/per-object"), b""),
    Visit("metrics", request("GET", "/healthz"), b"200"),
    Visit("metrics", request("GET", "/absent"), b"404"),
    Visit("http", request("GET", "/api/overview"), b"HTTP/1.1 200"),
    Visit("http", request("GET", "/api/queues"), b"HTTP/1.1 200"),
    Visit("http", request("GET", "/api/connections"), b"HTTP/1.1 200"),
    Visit("http", request("GET", "/api/definitions"), b"HTTP/1.1 200"),
    Visit("http", request("POST", "/api/definitions", DEFINITIONS), b"HTTP/1.1 20"),
    Visit("http", request("GET", "/api/queues/%2F/imported"), b"HTTP/1.1 200"),
    Visit("http", request("DELETE", "/api/queues/%2F/imported"), b"HTTP/1.1 20"),
    Visit("http", request("DELETE", "/api/policies/%2F/p"), b"HTTP/1.1 20"),
    Visit("http", request("PUT", "/api/queues/%2F/q", b"not JSON"), b"HTTP/1.1 400"),
    Visit("http", request("GET", "/api/queues/%2F/absent"), b"HTTP/1.1 404"),
    Visit("http", b"GET /api/overview HTTP/1.1\r\nHost: here\r\n\r\n", b"HTTP/1.1 401"),
    Visit("http", b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
    Visit("http", request("GET", "/api/overview"), b"HTTP", reset=True),
    Visit("http", b"GET /api/over", b"-", reset=True),
)
#: Value of `until` of a client that waits for no answer.
NO_ANSWER: Final = b"-"


def happen(visit: Visit, port: int, context: ssl.SSLContext) -> None:
    """Connect to a port, send the input of the visit, wait for its answer, and disconnect.

    Raises AssertionError if the broker closes the connection without the expected answer.
    """
    client: socket.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
    if visit.reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if visit.listener in ("amqps", "mqtts"):
        client = context.wrap_socket(client, server_hostname="localhost")
    try:
        client.sendall(visit.sent)
        answer = b""
        while visit.until != NO_ANSWER and not (visit.until and visit.until in answer):
            if visit.reset and not visit.until:
                break
            more = client.recv(65_536)
            if not more:
                assert visit.until == b"", f"{visit.listener}: {visit.sent!r} got {answer!r}"
                break
            answer += more
    finally:
        client.close()


def main() -> None:
    """Make all visits (connections of clients) one after another; repeat this ROUNDS times."""
    rounds, authority, *listeners = sys.argv[1:]
    ports = {name: int(port) for name, _, port in (one.partition("=") for one in listeners)}
    context = ssl.create_default_context(cafile=authority)
    for _ in range(int(rounds)):
        for visit in VISITS:
            if visit.listener in ports:
                happen(visit, ports[visit.listener], context)


if __name__ == "__main__":
    main()
