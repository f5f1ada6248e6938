"""Brokers of a cluster are killed and paused again and again while a client publishes and consumes.

The tests check that every confirmed message is delivered or in its queue, and that messages stay in
order. After a client has acknowledged a message and then got a confirm, the message must not be
delivered again. To repeat a run, set the environment variable TRELLIS_CRASH_SEED to the seed that
the run printed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, QUEUE, NodeProcess, node_over
from trellis.cluster.membership import FENCED

#: Number of faults in a short run and in a long run.
FAULTS, MANY_FAULTS = 4, 40
#: Number of messages between two faults.
MESSAGES = 150


class Client:
    """A client of the active node, which publishes rising numbers and consumes some of them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.next = 0
        self.confirmed: set[int] = set()
        #: Numbers of the delivered messages; numbers of the messages whose settlement is durable.
        self.delivered: set[int] = set()
        self.settled: set[int] = set()
        #: Numbers of the messages settled on the present connection since the last confirm.
        self._unproven: set[int] = set()
        self._last_delivered = -1

    def connected(self) -> None:
        """Forget the state of the old connection, because the client has connected again.

        Unsettled messages may be delivered again on the new connection.
        """
        self._last_delivered = -1
        self._unproven.clear()

    def step(self, channel: BlockingChannel) -> None:
        """Publish the next number, and sometimes consume messages."""
        number, self.next = self.next, self.next + 1
        channel.basic_publish(
            "", QUEUE, b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True
        )
        self.confirmed.add(number)
        self.settled |= self._unproven
        self._unproven.clear()
        if self._chance.random() < 0.6:
            self.consume(channel)

    def consume(self, channel: BlockingChannel) -> bool:
        """Get and acknowledge a message; return False if the queue is empty."""
        method, _, body = channel.basic_get(QUEUE)
        if method is None or method.delivery_tag is None or body is None:
            return False
        number = int(body)
        assert number not in self.settled, f"{number} came back after its settlement"
        assert number > self._last_delivered, f"{number} came after {self._last_delivered}"
        self._last_delivered = number
        self.delivered.add(number)
        channel.basic_ack(method.delivery_tag)
        self._unproven.add(number)
        return True


class Pair:
    """Two nodes over one log, and the faults of the test."""

    def __init__(self, server: LogServer, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self.nodes = [self._start(0)]
        self.nodes[0].wait_for("ready")
        self.nodes.append(self._start(1))
        self.active = 0

    def _start(self, number: int) -> NodeProcess:
        node = node_over(self._server, self._directory / f"node{number}")
        node.wait_for("following")
        return node

    def take_over(self) -> None:
        """Wait until the other node is active, and start the failed node again."""
        old, self.active = self.active, 1 - self.active
        self.nodes[self.active].wait_for("ready")
        assert self.nodes[old].process.wait(PATIENCE) in (FENCED, -signal.SIGKILL)
        self.nodes[old] = self._start(old)

    def kill_active(self) -> None:
        self.nodes[self.active].process.kill()
        self.take_over()

    def pause_active(self) -> None:
        node = self.nodes[self.active]
        node.process.send_signal(signal.SIGSTOP)
        threading.Timer(2.5, node.process.send_signal, [signal.SIGCONT]).start()
        self.take_over()

    def kill_standby(self) -> None:
        standby = 1 - self.active
        self.nodes[standby].kill()
        self.nodes[standby] = self._start(standby)

    def stop_log(self) -> None:
        """Stop the log for 0.9 s: longer than the active node's lease, too short for a takeover."""
        self._server.moves.clear()
        threading.Timer(0.9, self._server.moves.set).start()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    server = LogServer()
    pair = Pair(server, tmp_path)
    yield pair
    for node in pair.nodes:
        node.kill()
    server.close()


def run(pair: Pair, faults: int) -> None:
    seed = int(os.environ.get("TRELLIS_CRASH_SEED") or random.randrange(1 << 30))
    print(f"TRELLIS_CRASH_SEED={seed}")
    chance = random.Random(seed)
    client = Client(chance)
    channel = pair.nodes[pair.active].channel()
    channel.queue_declare(QUEUE, durable=True)
    kinds = [pair.kill_active, pair.pause_active, pair.kill_standby, pair.stop_log]
    for number in range(faults):
        kind = kinds[number % len(kinds)] if faults <= FAULTS else chance.choice(kinds)
        fault = threading.Thread(target=kind)
        at = chance.randrange(MESSAGES)
        try:
            for step in range(MESSAGES):
                if step == at:
                    fault.start()
                client.step(channel)
        except AMQPError:
            pass
        fault.join(PATIENCE)
        assert not fault.is_alive()
        channel = pair.nodes[pair.active].channel()
        client.connected()
    while client.consume(channel):
        pass
    assert client.confirmed <= client.delivered
    assert len(client.confirmed) > faults * MESSAGES / 4


def test_no_confirmed_message_is_lost_by_faults(pair: Pair) -> None:
    run(pair, FAULTS)


@pytest.mark.long
def test_no_confirmed_message_is_lost_by_many_faults(pair: Pair) -> None:
    run(pair, MANY_FAULTS)
