"""Measures the broker's CPU time per message over each transport, with MQTT QoS 0 in batches.

    python benchmarks/transports.py [MESSAGES] [SIZE]

One client publishes MESSAGES messages of SIZE bytes at full speed, and another client receives them
over the same kind of transport. `tls of uvloop` is, for comparison, a listener that uses the TLS of
the event loop instead of the TLS of Trellis. The transports are measured in turn; the smallest time
of each counts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, cast

import trustme
import uvloop
from websockets.frames import Frame, Opcode

import trellis
from trellis.app import App
from trellis.server.link import Link
from trellis.server.listener_context import ListenerContext
from trellis.settings import Amqp, Data, Http, Metrics, Mqtt, Mqtts, Settings, Tls, Ws, Wss

ROUNDS: Final = 5
TRANSPORTS: Final = ("tcp", "ws", "tls", "wss", "tls of uvloop")
UPGRADE: Final = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
#: Messages in one WebSocket frame, which the client sends in one write.
BATCH: Final = 200


def settings(certificate: str) -> Settings:
    """Return the broker's settings, with a listener for each transport on a free port."""
    host = "127.0.0.1"
    return Settings(
        amqp=Amqp(port=0, host=host),
        mqtt=Mqtt(port=0, host=host, qos0_high_mark=1 << 30),
        metrics=Metrics(port=0, host=host),
        http=Http(port=0, host=host),
        mqtts=Mqtts(enabled=True, port=0, host=host),
        ws=Ws(enabled=True, port=0, host=host),
        wss=Wss(enabled=True, port=0, host=host),
        tls=Tls(certificate=certificate),
        data=Data(dir=":memory:"),
    )


async def serve(certificate: str, report: Connection) -> None:
    """Run the broker, with an additional port that uses the event loop's own TLS.

    Send the ports by transport over `report`, then run until `report` receives a value.
    """
    app = App(settings(certificate))
    serving = asyncio.create_task(app.serve())
    await app.started.wait()
    assert app.node is not None
    entrance: ListenerContext = app.node.listener_contexts["mqtt"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.get_running_loop().create_server(
        lambda: cast(asyncio.Protocol, Link(entrance)), "127.0.0.1", 0, ssl=context, backlog=4096
    )
    ports = {name: int(address.rpartition(":")[2]) for name, address in app.addresses.items()}
    report.send(
        {
            "tcp": ports["mqtt"],
            "ws": ports["ws"],
            "tls": ports["mqtts"],
            "wss": ports["wss"],
            "tls of uvloop": server.sockets[0].getsockname()[1],
        }
    )
    await asyncio.get_running_loop().run_in_executor(None, report.recv)
    server.close()
    app.stop()
    await serving


def broker(certificate: str, report: Connection) -> None:
    """Run the broker in this process, until the parent process ends it."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    uvloop.run(serve(certificate, report))


class TransportClient:
    """A client's socket with the layers of one transport, such as TLS and WebSocket."""

    def __init__(self, transport: str, port: int, name: str, context: ssl.SSLContext) -> None:
        self._framed = transport in ("ws", "wss")
        raw = socket.create_connection(("127.0.0.1", port))
        self._socket = (
            raw
            if transport in ("tcp", "ws")
            else context.wrap_socket(raw, server_hostname="localhost")
        )
        if self._framed:
            self._socket.sendall(UPGRADE)
            while not self._socket.recv(1 << 16).endswith(b"\r\n\r\n"):
                pass
        connect = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name.encode()
        self.send(self.frame(b"\x10" + bytes([len(connect)]) + connect))
        self.read(4 + 2 * self._framed)

    def frame(self, data: bytes) -> bytes:
        """Return the data in a WebSocket frame if the transport is WebSocket, otherwise the data
        unchanged.
        """
        return Frame(Opcode.BINARY, data).serialize(mask=True) if self._framed else data

    def send(self, data: bytes) -> None:
        """Send data over the socket, which encrypts the data if the transport uses TLS."""
        self._socket.sendall(data)

    def read(self, count: int) -> None:
        """Read until at least `count` bytes have arrived."""
        while count > 0:
            got = len(self._socket.recv(1 << 18))
            assert got
            count -= got

    def close(self) -> None:
        """Close the client's socket."""
        self._socket.close()


def spent(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    transport: str, port: int, pid: int, messages: int, size: int, context: ssl.SSLContext
) -> float:
    """Publish messages over one transport; return the broker's CPU time in us per message."""
    reader, writer = (
        TransportClient(transport, port, "reader", context),
        TransportClient(transport, port, "writer", context),
    )
    reader.send(reader.frame(b"\x82\x06\x00\x01\x00\x01t\x00"))
    reader.read(5)
    body = b"\x00\x01t" + bytes(size)
    length = (
        bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 127 | 128, len(body) >> 7])
    )
    message = b"\x30" + length + body
    batch = writer.frame(message * BATCH)
    before = spent(pid)
    reading = threading.Thread(target=reader.read, args=(messages * len(message),))
    reading.start()
    for _ in range(messages // BATCH):
        writer.send(batch)
    reading.join()
    taken = spent(pid) - before
    reader.close()
    writer.close()
    return taken / messages * 1e6


def main() -> None:
    """Measure the transports in turn, and print the CPU time per message of each."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with tempfile.TemporaryDirectory() as directory:
        certificate = Path(directory, "certificate.pem")
        authority = trustme.CA()
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=broker, args=(str(certificate), theirs)
        )
        process.start()
        ports = ours.recv()
        assert process.pid is not None
        best = dict.fromkeys(TRANSPORTS, float("inf"))
        for _ in range(ROUNDS):
            for transport in TRANSPORTS:
                best[transport] = min(
                    best[transport],
                    measure(transport, ports[transport], process.pid, messages, size, context),
                )
                time.sleep(0.1)
        ours.send("enough")
        process.join()
    print(
        f"{messages} messages of {size} bytes, "
        f"{'compiled' if trellis.compiled() else 'NOT compiled'}, {ssl.OPENSSL_VERSION}"
    )
    for transport, taken in best.items():
        print(f"{transport:>14}  {taken:6.2f} us per message  {taken / best['tcp']:5.2f} x tcp")


if __name__ == "__main__":
    main()
