"""A publisher and a consumer, each in a thread, which connect again when a connection is lost.

Message n has the number n as its body. After a lost connection, the publisher publishes the
unconfirmed messages again, so the consumer may get a message twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from trellis.bench import amqp
from trellis.bench.client import AmqpClient
from trellis.bench.errors import BenchError
from trellis.bench.target import BrokerTarget

QUEUE: Final = "demo"
#: Number of messages that are published together (a burst), and seconds of the pause between two
#: bursts.
BURST: Final = 20
_PAUSE: Final = 0.01
#: Seconds before a client tries the next address.
_RETRY: Final = 0.02
#: Prefetch count of the consumer: the largest number of its unacknowledged messages.
_PREFETCH: Final = 100
_NUMBER: Final = 8


class DemoClient(threading.Thread):
    """A client that connects to its addresses in turn, until one of them accepts it.

    While connected, the client publishes or consumes. After a lost connection it connects again.
    """

    def __init__(self, name: str, targets: Sequence[BrokerTarget]) -> None:
        super().__init__(name=name, daemon=True)
        self._targets = targets
        self._ended = threading.Event()
        #: True until the connection's first success: a confirm or a delivery.
        self._fresh = True
        #: The time of the first success of each connection.
        self.resumed: list[float] = []

    def run(self) -> None:
        """Connect, and publish or consume; connect again after a lost connection.

        Return after a call of `stop`.
        """
        while not self._ended.is_set():
            for target in self._targets:
                self._try(target)
                self._ended.wait(_RETRY)

    def stop(self) -> None:
        """Stop the client as soon as it has received the broker's answer to its last request."""
        self._ended.set()

    def _try(self, target: BrokerTarget) -> None:
        try:
            client = AmqpClient(target, self.name)
        except BenchError:
            return
        self._fresh = True
        try:
            client.ask(amqp.queue_declare(QUEUE, durable=True), amqp.QUEUE_DECLARE_OK)
            self.work(client)
        except BenchError:
            return  # The connection is lost.
        finally:
            client.close()

    def resumed_after(self, since: float) -> float | None:
        """Return when, after the time `since`, a new connection first had a confirm or delivery.

        Return None if no new connection has had a confirm or delivery.
        """
        return next((at for at in self.resumed.copy() if at > since), None)

    def succeeded(self) -> None:
        """Record the time of the connection's first confirm or delivery; ignore later calls."""
        if self._fresh:
            self.resumed.append(time.monotonic())
            self._fresh = False

    def work(self, client: AmqpClient) -> None:
        """Publish or consume over a connection until `stop` is called.

        Raises BenchError if the connection is lost.
        """
        raise NotImplementedError


class DemoPublisher(DemoClient):
    """Publishes persistent messages, and waits for their confirms after each BURST."""

    def __init__(self, targets: Sequence[BrokerTarget]) -> None:
        super().__init__("publisher", targets)
        #: Numbers of the confirmed messages.
        self.confirmed: set[int] = set()
        self._unconfirmed: list[int] = []
        self._next = 0

    def work(self, client: AmqpClient) -> None:
        client.ask(amqp.confirm_select(), amqp.SELECT_OK)
        published = 0
        while not self._ended.is_set():
            if not self._unconfirmed:
                self._unconfirmed = list(range(self._next, self._next + BURST))
                self._next += BURST
            burst = dict(enumerate(self._unconfirmed, published + 1))
            client.send(b"".join(_message(number, client) for number in burst.values()))
            published += len(burst)
            self._wait_for_confirms(client, burst)
            self._ended.wait(_PAUSE)

    def _wait_for_confirms(self, client: AmqpClient, burst: dict[int, int]) -> None:
        """Wait until messages are confirmed; `burst` has their numbers by delivery tag."""
        while burst:
            arguments = client.answer(amqp.ACK)
            last, multiple = int.from_bytes(arguments[:8], "big"), arguments[8] & 1
            for tag in [tag for tag in burst if tag == last or (multiple and tag < last)]:
                number = burst.pop(tag)
                self.confirmed.add(number)
                self._unconfirmed.remove(number)
            self.succeeded()


class DemoConsumer(DemoClient):
    """Consumes and acknowledges all messages."""

    def __init__(self, targets: Sequence[BrokerTarget]) -> None:
        super().__init__("consumer", targets)
        #: Numbers of the delivered messages, and the number of deliveries.
        self.delivered: set[int] = set()
        self.deliveries = 0

    def work(self, client: AmqpClient) -> None:
        client.ask(amqp.qos(_PREFETCH), amqp.QOS_OK)
        client.ask(amqp.consume(QUEUE, no_ack=False), amqp.CONSUME_OK)
        while not self._ended.is_set():
            tag, body = client.delivery()
            self.succeeded()
            self.delivered.add(int.from_bytes(body, "big"))
            self.deliveries += 1
            client.send(amqp.ack(tag))


def _message(number: int, client: AmqpClient) -> bytes:
    body = number.to_bytes(_NUMBER, "big")
    return amqp.publish("", QUEUE, body, client.frame_max, persistent=True)
