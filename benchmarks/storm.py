"""Measures storms of MQTT clients that connect at the same time, to Trellis and to Mosquitto, and
the longest turn of the event loop in which Trellis answers a scrape of its metrics beside them.

    .run/bin/python -P benchmarks/storm.py
        --clients N            clients of a storm [15000]
        --pending N            connections that have no CONNACK yet, at most [100]
        --rounds N             storms of each kind, in turn [3]
        --scrapes N            scrapes of each page of metrics with all clients [5]
        --trellis COMMAND      the broker [.run/bin/trellis]

A client connects from one of four addresses of this machine, sends CONNECT (MQTT 3.1.1, clean
session), and stays connected. Each storm has a new broker. The kinds are `trellis` and `mosquitto`,
whose clients have no user, and `trellis-login`, whose clients log in as a user whose password the
broker has verified shortly before. `rate` is in connections per second, and depends on this
program, too, which uses the other processor. `us` is the CPU time of the broker for a connection,
in microseconds. `p50` and `p99` are the times from the connect until CONNACK, in ms. A refused
connection, or a connection that ends, stops the program with an error.

At the end, the clients connect to a broker with a clock in its event loop (loop_clock.py), and the
program prints the most CPU time of one turn, in ms, while each page of metrics is scraped.

Linux only. Install Mosquitto first (Debian: apt install mosquitto). Use an idle machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import select
import socket
import struct
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.append(str(Path(__file__).parent))  # `python -P` leaves out this directory.

from loop_clock import TURNS
from peers.brokers.mosquitto import MosquittoPeer
from peers.brokers.trellis import TrellisPeer, parsed
from peers.machine import busy, machine
from peers.peer import PeerBroker, Tools
from peers.process import LOOPBACK, allow_files
from scale import run_server

from trellis.bench.processes import Processes

#: Addresses of this machine from which the clients connect: each has ports of its own.
SOURCES: Final = ("127.0.0.1", "127.0.1.1", "127.0.1.2", "127.0.1.3")
#: A socket option of Linux that the module socket does not name (ip(7)).
IP_BIND_ADDRESS_NO_PORT: Final = 24
#: The value of SO_LINGER with which `close` sends a reset.
ABORT: Final = struct.pack("ii", 1, 0)
ACCEPTED: Final = b"\x20\x02\x00\x00"
#: Seconds that a storm may take.
PATIENCE: Final = 120.0
#: The pages of metrics that are scraped.
PAGES: Final = ("/metrics", "/metrics/per-object")
#: Flags of Trellis, which limits the connections of one user and of the broker.
FLAGS: Final = ("--limits-connections", "0")


def connect(number: int, login: bytes) -> bytes:
    """Return the CONNECT packet of a client. `login` is its encoded user and password, or b""."""
    name = b"device-%06d" % number
    flags = 0xC2 if login else 0x02
    rest = b"\0\x04MQTT\x04" + bytes([flags]) + b"\0\x3c" + len(name).to_bytes(2, "big") + name
    rest += login
    return bytes([0x10, len(rest)]) + rest


class Storm:
    """Clients that connect to one port; at most `pending` of them have no CONNACK yet."""

    def __init__(self, port: int, login: bytes = b"") -> None:
        self._address = (LOOPBACK, port)
        self._login = login
        self._poll = select.epoll()
        #: Time of the connect and packet of each client without CONNACK, by file descriptor.
        self._pending: dict[int, tuple[float, bytes]] = {}
        self.clients: dict[int, socket.socket] = {}
        #: Seconds from the connect until CONNACK, for each client.
        self.spent: list[float] = []

    def run(self, clients: int, pending: int) -> float:
        """Connect `clients` clients; return the seconds until the last CONNACK."""
        began = time.perf_counter()
        while len(self.spent) < clients:
            while len(self._pending) < pending and len(self.clients) < clients:
                self._begin(len(self.clients))
            for descriptor, events in self._poll.poll(1.0):
                self._continue(descriptor, events)
            if time.perf_counter() - began > PATIENCE:
                sys.exit(
                    f"storm: the broker accepted {len(self.spent)} of {clients} clients within "
                    f"{PATIENCE:.0f} s"
                )
        return time.perf_counter() - began

    def _begin(self, number: int) -> None:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel chooses the port in `connect`, where ports of other destinations are free, too.
        client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        client.bind((SOURCES[number % len(SOURCES)], 0))
        self.clients[client.fileno()] = client
        self._pending[client.fileno()] = (time.perf_counter(), connect(number, self._login))
        client.connect_ex(self._address)
        self._poll.register(client.fileno(), select.EPOLLOUT)

    def _continue(self, descriptor: int, events: int) -> None:
        client = self.clients[descriptor]
        began, packet = self._pending[descriptor]
        if events & select.EPOLLOUT:
            client.sendall(packet)
            self._poll.modify(descriptor, select.EPOLLIN)
            return
        answer = client.recv(64)
        if answer != ACCEPTED:
            sys.exit(f"storm: client {len(self.spent)} received {answer!r} instead of CONNACK")
        del self._pending[descriptor]
        self.spent.append(time.perf_counter() - began)
        self._poll.unregister(descriptor)

    def close(self) -> None:
        """Abort all connections, so that none keeps its port for a minute (TIME_WAIT)."""
        for client in self.clients.values():
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            client.close()
        self._poll.close()


def storm(peer: PeerBroker, login: bytes, chosen: argparse.Namespace) -> dict[str, float]:
    """Start a broker, connect all clients, and return the figures of the storm."""
    with tempfile.TemporaryDirectory(prefix="storm-") as directory:
        broker = peer.start(Path(directory))
        try:
            first = Storm(broker.mqtt, login)
            first.run(1, 1)  # Checks the password.
            processes = Processes(broker.roots)
            before, memory = processes.cpu(), processes.memory().now
            clients = Storm(broker.mqtt, login)
            seconds = clients.run(chosen.clients, chosen.pending)
            spent = processes.cpu().since(before).seconds
            grown = processes.memory().now - memory
            clients.close()
            first.close()
        finally:
            broker.stop()
    times = sorted(clients.spent)
    return {
        "rate": round(chosen.clients / seconds),
        "us": round(1e6 * spent / chosen.clients, 1),
        "p50": round(1e3 * median(times), 2),
        "p99": round(1e3 * times[int(0.99 * len(times))], 2),
        "bytes": round(grown / chosen.clients),
    }


def scrape(clients: int, scrapes: int) -> dict[str, list[float]]:
    """Scrape the metrics of a broker with `clients` clients.

    Return, for each page of PAGES, the most CPU time of one turn of the loop in each scrape, in ms.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="storm-"))
        server = context.Process(
            target=run_server, args=(directory, theirs, {"connections": 0}), daemon=True
        )
        server.start()
        stack.callback(server.join, PATIENCE)
        ports: dict[str, int] = ours.recv()
        stack.callback(ours.send, "")
        devices = Storm(ports["mqtt"])
        stack.callback(devices.close)
        devices.run(clients, 100)
        held: dict[str, list[float]] = {page: [] for page in PAGES}
        for page in PAGES * scrapes:
            records(ours)
            with urllib.request.urlopen(f"http://{LOOPBACK}:{ports['metrics']}{page}") as answer:
                answer.read()
            holds = records(ours)["holds"]
            held[page].append(round(max((1e3 * cpu for _, _, cpu in holds), default=0.0), 1))
    return held


def records(report: Any) -> dict[str, Any]:
    """Return the loop clock's records since the last call, and restart the clock (mode TURNS)."""
    report.send(TURNS)
    answer: dict[str, Any] = report.recv()
    return answer


def main() -> int:
    """Measure the storms and the scrapes, and print the figures; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure storms of MQTT clients that connect.")
    parser.add_argument(
        "--clients", type=int, default=15_000, help="number of clients of a storm [15000]"
    )
    parser.add_argument(
        "--pending",
        type=int,
        default=100,
        help="largest number of clients that wait for CONNACK [100]",
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of storms of each kind [3]")
    parser.add_argument("--scrapes", type=int, default=5, help="number of scrapes of each page [5]")
    chosen = parsed(parser)
    allow_files()
    tools = Tools(trellis=chosen.trellis)
    trellis = TrellisPeer(tools)
    trellis.flags = FLAGS
    login = b"\0\x05guest\0\x05guest"
    kinds: dict[str, tuple[PeerBroker, bytes]] = {
        "trellis": (trellis, b""),
        "trellis-login": (trellis, login),
        "mosquitto": (MosquittoPeer(tools), b""),
    }
    for peer, _ in kinds.values():
        if missing := peer.missing():
            print(f"storm: {missing}", file=sys.stderr)
            return 1
        print(f"{peer.title} {peer.version()}")
    print("; ".join(f"{name} {value}" for name, value in machine().items()), busy(), sep="\n")
    results: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(chosen.rounds):
        for kind, (peer, user) in kinds.items():
            results[kind].append(storm(peer, user, chosen))
            print(json.dumps({"kind": kind} | results[kind][-1]), flush=True)
    for kind, rounds in results.items():
        middle = {name: median(one[name] for one in rounds) for name in rounds[0]}
        print(json.dumps({"median": kind} | middle))
    for page, held in scrape(chosen.clients, chosen.scrapes).items():
        print(json.dumps({"page": page, "clients": chosen.clients, "longest_turn_ms": held}))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
