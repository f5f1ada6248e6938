"""A minimal MQTT broker with a deliberate fault, for tests of the load generator."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from types import TracebackType

from trellis.bench.target import BrokerTarget

CONNACK = b"\x20\x02\x00\x00"


class FaultyBroker:
    """A broker in threads of the test, with one of these deliberate faults, or none ("").

    The broker runs during a `with` block.

    silent      forwards no message                     greedy     acknowledges nothing
    stutter     forwards the 20th message twice         forgetful  does not forward the 20th message
    garbled     changes the 20th message                deaf       reads only the first message
    leaving     closes all connections at the 20th message
    """

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.over = threading.Event()
        self.subscribers: list[Peer] = []
        self.peers: list[Peer] = []
        self.seen = 0
        broker = self

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def server_bind(self) -> None:
                if fault == "deaf":
                    # Accepted sockets inherit the small receive buffer, so unread data stays with
                    # the sender.
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                super().server_bind()

            def finish_request(self, request: object, client_address: object) -> None:
                Peer(request, client_address, self, broker)

        self._server = Server(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    @property
    def target(self) -> BrokerTarget:
        return BrokerTarget("mqtt", "127.0.0.1", self._server.server_address[1], None, None)

    def __enter__(self) -> FaultyBroker:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Peer(socketserver.StreamRequestHandler):
    """The connection of one MQTT client to the faulty broker."""

    def __init__(
        self,
        request: object,
        client_address: object,
        server: socketserver.BaseServer,
        broker: FaultyBroker,
    ) -> None:
        self._broker = broker
        broker.peers.append(self)
        # typeshed's type for `request` is private.
        super().__init__(request, client_address, server)  # type: ignore[arg-type]

    def handle(self) -> None:
        try:
            while packet := self._packet():
                self._heard(packet)
        except (OSError, ValueError, IndexError):
            pass  # The client has disconnected.
        if self in self._broker.subscribers:
            self._broker.subscribers.remove(self)

    def _packet(self) -> bytes:
        """Return the next whole packet, or b"" at the end of the connection."""
        head, length, shift = self.rfile.read(1), 0, 0
        while head:
            byte = self.rfile.read(1)
            head += byte
            length |= (byte[0] & 127) << shift
            shift += 7
            if byte[0] < 128:
                return head + self.rfile.read(length)
        return b""

    def _heard(self, packet: bytes) -> None:
        broker, kind = self._broker, packet[0] >> 4
        if kind == 1:
            self.wfile.write(CONNACK)
        elif kind == 8:
            # Add the subscriber before its SUBACK is sent, so that it gets every later message.
            broker.subscribers.append(self)
            self.wfile.write(b"\x90\x03" + packet[2:4] + packet[-1:])
        elif kind == 3:
            broker.seen += 1
            if broker.fault == "deaf":
                broker.over.wait()
            if packet[0] & 6 and broker.fault != "greedy":
                name = 2 if packet[1] < 128 else 3
                behind = name + 2 + packet[name + 1]
                self.wfile.write(b"\x40\x02" + packet[behind : behind + 2])
            self._pass_on(packet, broker.seen == 20)

    def _pass_on(self, packet: bytes, twentieth: bool) -> None:
        fault = self._broker.fault
        copies = 0 if fault == "silent" else 1
        if twentieth and fault == "leaving":
            for peer in self._broker.peers:
                peer.connection.shutdown(2)
        if twentieth and fault in ("stutter", "forgetful"):
            copies = 2 if fault == "stutter" else 0
        if twentieth and fault == "garbled":
            packet = packet[:-1] + b"!"
        for subscriber in list(self._broker.subscribers):
            # The subscriber of the workload before this one may have closed its socket, while its
            # thread has not yet read the end. That is no error of this publisher's connection.
            with suppress(OSError):
                subscriber.wfile.write(packet * copies)
