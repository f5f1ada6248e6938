"""AMQP clients of the active node, and the guarantees that they check.

Each process of a node that becomes active gets a client of its own, a ClientSession. The client
publishes rising numbers with confirms, and gets and acknowledges messages. The client continues
after another node has taken over, to notice if its own node still confirms or delivers.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

if TYPE_CHECKING:
    from tests.cluster.rounds.world import RoundNode

QUEUE = "work"
#: Seconds between two attempts to connect, and seconds for one attempt.
RETRY_SECONDS = 0.05
CONNECT_SECONDS = 5.0


class Checker:
    """The messages of all ClientSessions, and the number of violations of each guarantee.

    A session is named by its index: a higher index belongs to a node that became active later.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._next = 0
        self.confirmed: set[int] = set()
        self.delivered: set[int] = set()
        #: Numbers whose settlement is durable: a later confirm came on the same connection.
        self.settled: set[int] = set()
        self.order_broken = self.settled_back = self.deposed_acts = 0
        #: Number of AMQP connections that the clients did not close, and that ended nevertheless.
        self.closed = 0
        #: Times of all confirms.
        self.times: list[float] = []
        #: Time of the first confirm of each session.
        self._first: dict[int, float] = {}

    def number(self) -> int:
        """Return the next number to publish."""
        with self.lock:
            self._next += 1
            return self._next

    def confirm(self, session: int, number: int, sent: float) -> None:
        """Record that a session got the confirm of `number`, which it had published at `sent`."""
        with self.lock:
            now = time.monotonic()
            self.confirmed.add(number)
            self.times.append(now)
            self._first.setdefault(session, now)
            self._check_owner(session, sent)

    def connection_closed(self) -> None:
        """Record that a connection ended although its client had not closed it."""
        with self.lock:
            self.closed += 1

    def answered(self, session: int, sent: float) -> None:
        """Record an answer, other than a confirm, to a request that a session sent at `sent`."""
        with self.lock:
            self._check_owner(session, sent)

    def _check_owner(self, session: int, sent: float) -> None:
        """Count a violation if a node answered a request although it was not the owner any more.

        `sent` is the time of the request. The node was not the owner any more if a session of a
        later owner got a confirm before that time.
        """
        if any(later > session and at < sent for later, at in self._first.items()):
            self.deposed_acts += 1

    def lost(self) -> set[int]:
        """Return the confirmed messages that no consumer got."""
        return self.confirmed - self.delivered


class ClientSession(threading.Thread):
    """A thread with an AMQP client of one node process.

    It begins when the node becomes active, and ends with the process or with `stop`.
    """

    def __init__(self, checker: Checker, node: RoundNode, index: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._checker = checker
        self.node = node
        self._index = index
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        #: Numbers that this connection has acknowledged before any later confirm.
        self._unproven: set[int] = set()
        self._last = 0

    def run(self) -> None:
        """Publish and consume until the node has ended, or `stop` is called."""
        while not self._stopping.is_set() and not self.node.has_ended:
            is_open = False
            try:
                with self._connected() as connection:
                    is_open = True
                    channel = connection.channel()
                    channel.confirm_delivery()
                    channel.queue_declare(QUEUE, durable=True)
                    while not self._stopping.is_set():
                        self._step(channel)
            except (AMQPError, OSError):
                if is_open:
                    self._checker.connection_closed()
                self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """Request that `run` ends after its present step."""
        self._stopping.set()

    def drain(self) -> None:
        """Get and acknowledge all messages in the queue. Call this after `stop`."""
        with self._connected() as connection:
            channel = connection.channel()
            while self._get(channel):
                pass

    def _connected(self) -> pika.BlockingConnection:
        host, _, port = self.node.addresses["amqp"].rpartition(":")
        self._unproven.clear()
        self._last = 0
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                host,
                int(port),
                heartbeat=0,
                socket_timeout=CONNECT_SECONDS,
                stack_timeout=2 * CONNECT_SECONDS,
            )
        )

    def _step(self, channel: BlockingChannel) -> None:
        number, sent = self._checker.number(), time.monotonic()
        properties = pika.BasicProperties(delivery_mode=2)
        body = b"%d" % number + b"." * self._chance.choice((0, 0, 400))
        channel.basic_publish("", QUEUE, body, properties, mandatory=True)
        self._checker.confirm(self._index, number, sent)
        with self._checker.lock:
            self._checker.settled |= self._unproven
        self._unproven.clear()
        if self._chance.random() < 0.8:
            self._get(channel)

    def _get(self, channel: BlockingChannel) -> bool:
        """Get and acknowledge a message; return False if the queue is empty."""
        checker, sent = self._checker, time.monotonic()
        method, _, body = channel.basic_get(QUEUE)
        checker.answered(self._index, sent)
        if method is None or method.delivery_tag is None or body is None:
            return False
        number = int(body.rstrip(b"."))
        with checker.lock:
            checker.settled_back += number in checker.settled
            checker.order_broken += number <= self._last
            checker.delivered.add(number)
        self._last = number
        channel.basic_ack(method.delivery_tag)
        self._unproven.add(number)
        return True
