"""Tests of a node that owns the log and opens its store: signals, and clients that connect.

The node stops itself (SIGSTOP) in the state `opening`, before it restores queues and sessions.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE
from tests.cluster.rounds.world import LOOK_SECONDS, RoundNode
from trellis.app import DONE
from trellis.demo.kafka_node import free_ports

pytestmark = pytest.mark.long
TIMES = (1.0, 0.7, 0.15)


class Opening:
    """A node that is stopped in the state `opening`. `ready` is set when the node is active.

    The node does not redirect clients (`cluster.redirect`); its AMQP port is `port`.
    """

    def __init__(self, server: LogServer, directory: Path) -> None:
        self.ready = threading.Event()
        self.port, _ = free_ports()
        given = {"times": TIMES, "cluster": "broker", "server": server.port, "amqp": self.port}
        self.node = RoundNode(directory, given, lambda _: self.ready.set())
        self.node.stop_at("restoring")
        self.wait_for(lambda: self.node.is_stopped)

    def wait_for(self, truth: Callable[[], bool]) -> None:
        """Wait until `truth()` returns True because of the work of the node."""
        end = time.monotonic() + PATIENCE
        while not truth():
            assert time.monotonic() < end, self.log
            threading.Event().wait(LOOK_SECONDS)

    @property
    def log(self) -> str:
        return self.node.errors.read_text()

    def proceed(self) -> None:
        """Let the node become active."""
        self.node.send(signal.SIGCONT)


@pytest.fixture
def opening(server: LogServer, tmp_path: Path) -> Iterator[Opening]:
    opening = Opening(server, tmp_path / "one")
    yield opening
    opening.proceed()
    opening.node.kill()


def test_sighup_while_the_store_is_opened_reloads_the_settings_of_the_active_node(
    opening: Opening,
) -> None:
    opening.node.send(signal.SIGHUP)
    opening.proceed()
    assert opening.ready.wait(PATIENCE), opening.log
    opening.wait_for(lambda: " reloaded " in opening.log)
    assert not opening.node.has_ended


def test_sigterm_while_the_store_is_opened_stops_the_node_cleanly(opening: Opening) -> None:
    opening.node.send(signal.SIGTERM)
    opening.proceed()
    assert opening.node.process.wait(PATIENCE) == DONE
    assert " stopped " in opening.log


def test_node_that_redirects_no_clients_does_not_listen_before_it_is_active(
    opening: Opening,
) -> None:
    address = "127.0.0.1", opening.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, PATIENCE)
    opening.proceed()
    assert opening.ready.wait(PATIENCE), opening.log
    assert opening.node.addresses["amqp"] == f"127.0.0.1:{opening.port}"
    socket.create_connection(address, PATIENCE).close()
