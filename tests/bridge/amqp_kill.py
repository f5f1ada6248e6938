"""Publishes numbered messages, and checks that all confirmed ones arrive, for the kill tests."""

from __future__ import annotations

import threading

import pika
from pika.exceptions import AMQPError

from tests.bridge.amqp import channel_at, messages
from tests.bridge.running import wait_for


class Publishing(threading.Thread):
    """A publisher of numbers with confirms, which ends when its broker is killed.

    The messages go to a queue, or to an exchange, which must exist.
    """

    def __init__(self, url: str, first: int, queue: str = "from", exchange: str = "") -> None:
        super().__init__(daemon=True)
        self._channel = channel_at(url)
        self._exchange, self._key = exchange, queue
        if not exchange:
            self._channel.queue_declare(queue, durable=True)
        self._channel.confirm_delivery()
        #: The number after the last confirmed message.
        self.confirmed = first
        self.stop = threading.Event()

    def run(self) -> None:
        persistent = pika.BasicProperties(delivery_mode=2)
        try:
            while not self.stop.is_set():
                body = b"%d" % self.confirmed
                self._channel.basic_publish(self._exchange, self._key, body, persistent)
                self.confirmed += 1
        except (AMQPError, OSError):
            return

    def wait_for(self, count: int) -> None:
        """Wait until `count` further numbers are confirmed."""
        wanted = self.confirmed + count
        wait_for(lambda: self.confirmed >= wanted)


def check_complete(url: str, queue: str, confirmed: int) -> int:
    """Wait until all confirmed numbers have arrived in a queue; return the number of duplicates."""
    wanted, received = set(range(confirmed)), 0
    reader = channel_at(url)
    for _, body, _ in messages(reader, queue):
        received += 1
        wanted.discard(int(body))
        if not wanted:
            break
    reader.cancel()
    waiting = int(reader.queue_declare(queue, passive=True).method.message_count)
    reader.connection.close()
    return received + waiting - confirmed
