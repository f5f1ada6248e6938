"""Tests of an active node that cannot write its disk: it hands the log over to a standby.

The standby has a silence of 60 s, which no test waits for: it becomes active only by a handover.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, QUEUE, consume, publish
from tests.cluster.rounds.world import RoundNode
from tests.cluster.waiting import wait_for
from trellis.app import FAILED
from trellis.cluster.disk_watch import REPEAT_SECONDS
from trellis.cluster.membership import FENCED

pytestmark = pytest.mark.long
TIMES, PATIENT = (1.0, 0.7, 0.15), (60.0, 20.0, 0.15)
#: While the log gets this number of beats, a node whose disk is stuck asks for a handover at least
#: twice.
BEATS = int(3 * REPEAT_SECONDS / TIMES[2])


class Pair:
    """An active node with a queue, and a standby to which it may hand the log over."""

    def __init__(self, server: LogServer, directory: Path) -> None:
        self._server, self._directory = server, directory
        self.nodes: list[RoundNode] = []
        self.active, self.standby = self._start("first", TIMES), self._start("second", PATIENT)
        self.wait_for(lambda: self.active.state == "ready" and self.state_of("second"))
        #: The numbers of the messages that the broker has confirmed.
        self.confirmed: list[int] = []
        self._stopping = threading.Event()
        self.channel(self.active).queue_declare(QUEUE, durable=True)

    def _start(self, name: str, times: tuple[float, float, float]) -> RoundNode:
        given = {"times": times, "cluster": "broker", "server": self._server.port}
        node = RoundNode(self._directory / name, given, lambda _: None)
        self.nodes.append(node)
        return node

    def state_of(self, name: str) -> str:
        """Return the state in the last report of a node; "" before its first report."""
        report = self._server.log.reports.get(name)
        return "" if report is None else report.state

    def forget_standby(self) -> None:
        """Let the report of the standby look as if the standby had not reported for long."""
        report = self._server.log.reports["second"]
        self._server.log.reports["second"] = replace(report, wall=0)

    def channel(self, node: RoundNode) -> BlockingChannel:
        host, _, port = node.addresses["amqp"].rpartition(":")
        channel = pika.BlockingConnection(pika.ConnectionParameters(host, int(port))).channel()
        channel.confirm_delivery()
        return channel

    def keep_publishing(self) -> None:
        """Publish in a thread until an error; each message waits for the confirm of the previous
        message.
        """
        channel = self.channel(self.active)

        def run() -> None:
            with suppress(AMQPError):
                while not self._stopping.is_set():
                    number = len(self.confirmed)
                    publish(channel, range(number, number + 1))
                    self.confirmed.append(number)

        self._publisher = threading.Thread(target=run, daemon=True)
        self._publisher.start()
        self.progress()

    def progress(self) -> None:
        """Wait until further messages are confirmed."""
        wanted = len(self.confirmed) + 20
        self.wait_for(lambda: len(self.confirmed) >= wanted)

    def wait_for(self, truth: Callable[[], object]) -> None:
        wait_for(truth, lambda: "\n".join(node.errors.read_text() for node in self.nodes))

    @property
    def tip(self) -> int:
        """The offset of the next record of the log."""
        return self._server.log.tip

    def check_messages(self, node: RoundNode) -> None:
        """Check that a node has all confirmed messages, and at most one more."""
        self._stopping.set()
        self._publisher.join(PATIENCE)
        channel = self.channel(node)
        waiting = channel.queue_declare(QUEUE, passive=True).method.message_count
        assert waiting - len(self.confirmed) in (0, 1)
        assert consume(channel, len(self.confirmed)) == self.confirmed


@pytest.fixture
def pair(server: LogServer, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(server, tmp_path)
    yield pair
    for node in pair.nodes:
        node.kill()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            errno.ENOSPC,
            FENCED,
            "trellis: fenced: a batch could not be written to the data directory for 1 s: the log",
        ),
        (0, FENCED, "trellis: fenced: a batch could not be written to the data directory for 1 s"),
        (errno.EIO, FAILED, "trellis: stopped: cannot write to the data directory: cannot write"),
    ],
)
def test_active_node_that_cannot_write_its_disk_hands_the_log_over(
    pair: Pair, error: int, code: int, text: str
) -> None:
    pair.keep_publishing()
    pair.active.fill_disk(error)
    assert pair.active.process.wait(PATIENCE) == code
    log = pair.active.errors.read_text()
    assert log.splitlines()[-1].startswith(text)
    assert "cluster_handed_over node=second" in log and "cluster_disk_blocked" not in log
    pair.wait_for(lambda: pair.standby.state == "ready")
    pair.check_messages(pair.standby)


def test_active_node_without_a_standby_continues_when_its_disk_has_space(pair: Pair) -> None:
    pair.standby.kill()
    pair.forget_standby()
    pair.keep_publishing()
    pair.active.fill_disk()
    pair.wait_for(lambda: "cluster_disk_blocked" in pair.active.errors.read_text())
    before, tip = len(pair.confirmed), pair.tip
    pair.wait_for(lambda: pair.tip >= tip + BEATS)  # The handover is tried again meanwhile.
    assert not pair.active.has_ended
    assert pair.active.errors.read_text().count("cluster_disk_blocked") == 1
    pair.active.resume_disk()
    pair.progress()
    assert len(pair.confirmed) > before and "store_unblocked" in pair.active.errors.read_text()
    pair.check_messages(pair.active)


def test_log_is_not_handed_over_to_a_standby_whose_disk_is_full_too(pair: Pair) -> None:
    pair.standby.fill_disk()
    pair.keep_publishing()
    pair.wait_for(lambda: pair.state_of("second") == "blocked")
    pair.active.fill_disk()
    pair.wait_for(lambda: "cluster_disk_blocked" in pair.active.errors.read_text())
    assert not pair.active.has_ended and pair.standby.state == "following"
    pair.standby.resume_disk()
    assert pair.active.process.wait(PATIENCE) == FENCED
    pair.wait_for(lambda: pair.standby.state == "ready")
    pair.check_messages(pair.standby)
