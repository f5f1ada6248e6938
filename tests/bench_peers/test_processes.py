"""Tests of the processes that the benchmarks start.

A process must end with all its descendants. A relay must forward all data.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.brokers import PEERS
from peers.command import tools
from peers.load import BenchLoad
from peers.peer import PeerBroker, Tools
from peers.process import Child, Failed, free_ports, speaks_amqp, speaks_mqtt, tree
from peers.workloads import CASES

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="benchmarks/peers reads /proc"
)


def gone(pid: int) -> bool:
    """True if the process has ended, also if its parent process has not reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_child_ends_with_all_its_descendants(tmp_path: Path) -> None:
    child = Child(
        ["sh", "-c", "sleep 100 & sleep 100 & echo started; wait"], tmp_path, name="shell"
    )
    child.wait_until(lambda: "started" in child.log_end(), 10)
    pids = tree(child.pid)
    assert len(pids) == 3
    child.stop()
    deadline = time.monotonic() + 5
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_error_of_a_process_that_ends_at_once_has_its_output(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "echo no such option; exit 3"], tmp_path, name="shell")
    with pytest.raises(Failed, match=r"shell ended with exit code 3:\nno such option"):
        child.wait_until(lambda: False, 10)
    child.stop()


def test_a_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="none"):
        Child([tmp_path / "none"], tmp_path)


def test_ports_are_free_and_differ() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert not speaks_mqtt(ports[0])
    assert not speaks_amqp(ports[0])


@pytest.fixture(scope="module", params=[[], ["--writer"]], ids=["relay", "writer"])
def relay(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Start benchmarks/relay/relay.py in one of its two modes; return the relay's port."""
    program = ROOT / "benchmarks" / "relay" / "relay.py"
    child = Child(
        [sys.executable, program, *request.param], tmp_path_factory.mktemp("relay"), name="relay"
    )
    child.wait_until(lambda: "ready" in child.log_end(), 20)
    yield int(child.log_end().split()[1])
    child.stop()


def say(port: int, words: bytes, answer: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 5)
    connection.settimeout(5)
    connection.sendall(words)
    assert receive(connection, len(answer)) == answer
    return connection


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
        assert data
    return data


CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a"
SUBSCRIBE = b"\x82\x06\x00\x07\x00\x01#\x00"


def test_data_goes_to_every_subscriber_but_the_sender(relay: int) -> None:
    subscribers = [
        say(relay, CONNECT + SUBSCRIBE, b"\x20\x02\x00\x00\x90\x03\x00\x07\x00") for _ in range(2)
    ]
    publisher = say(relay, CONNECT, b"\x20\x02\x00\x00")
    # An incomplete PUBLISH packet, larger than a socket buffer.
    data = b"\x30\x84\x80\x40" + os.urandom(1 << 20)
    publisher.sendall(data)
    assert all(receive(subscriber, len(data)) == data for subscriber in subscribers)
    subscribers[0].sendall(b"\x30\x03\x00\x01a")
    assert receive(subscribers[1], 5) == b"\x30\x03\x00\x01a"
    publisher.sendall(b"\xe0\x00")  # The relay does not forward the DISCONNECT.
    publisher.close()
    subscribers[1].sendall(b"\x30\x03\x00\x01b")
    assert receive(subscribers[0], 5) == b"\x30\x03\x00\x01b"
    for subscriber in subscribers:
        subscriber.close()


def test_a_handshake_may_come_in_pieces_and_as_mqtt_5(relay: int) -> None:
    connect = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a"
    subscribe = b"\x82\x0b\x00\x07\x00\x00\x01a\x01\x00\x01b\x02"
    with socket.create_connection(("127.0.0.1", relay), 5) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in connect + subscribe:
            client.sendall(bytes([byte]))
        assert receive(client, 5) == b"\x20\x03\x00\x00\x00"
        assert receive(client, 7) == b"\x90\x05\x00\x07\x00\x01\x02"


@pytest.mark.long
@pytest.mark.parametrize("kind", PEERS, ids=lambda kind: kind.name)
def test_a_peer_that_is_installed_starts_answers_and_ends(
    kind: type[PeerBroker], tmp_path: Path
) -> None:
    installed: Tools = tools(None)
    peer = kind(installed)
    if peer.missing():
        pytest.skip(f"{peer.name}: {peer.missing()}")
    assert peer.version()
    running = peer.start(tmp_path)
    pids = [pid for root in running.roots for pid in tree(root)]
    try:
        assert speaks_mqtt(running.mqtt) or running.login
        if installed.trellis is not None:
            case = CASES["mqtt-qos0"]
            assert (
                BenchLoad(installed.trellis, None, 200).measure(case, running, None).messages == 200
            )
    finally:
        running.stop()
    assert all(map(gone, pids))
