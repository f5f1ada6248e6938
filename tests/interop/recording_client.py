"""A client that records the answers of its broker, to compare Trellis with RabbitMQ."""

from __future__ import annotations

from typing import Any, Final

import pika
import pika.exceptions

from tests.interop.client import PATIENCE

#: Seconds to wait for a delivery where none is expected.
SILENCE: Final = 0.3


class RecordingClient:
    """A client of one broker that records every answer of the broker in `recorded`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.recorded: list[Any] = []
        self.connect()

    def connect(self) -> None:
        """Open a connection and a channel; works also after the broker has closed the previous
        ones.
        """
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self._port)
        )
        self.open()

    def open(self) -> None:
        """Open a channel in confirm mode."""
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def do(self, name: str, *args: Any, **given: Any) -> Any:
        """Call a method of the channel, record the outcome, and return the answer.

        Return None if the broker refuses the call. If the broker has closed the channel or the
        connection, open a new one.
        """
        try:
            answer = getattr(self.channel, name)(*args, **given)
        except pika.exceptions.ChannelClosedByBroker as refusal:
            self.recorded.append((name, refusal.reply_code, refusal.reply_text))
            self.open()
            return None
        except pika.exceptions.ConnectionClosedByBroker as refusal:
            self.recorded.append((name, refusal.reply_code, refusal.reply_text))
            self.connect()
            return None
        except (pika.exceptions.UnroutableError, pika.exceptions.NackError) as fate:
            self.recorded.append((name, type(fate).__name__))
            return None
        self.recorded.append((name, "done"))
        return answer

    def drain(self, queue: str) -> None:
        """Get all messages of a queue and record them."""
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return
            headers = dict(properties.headers or {})
            deaths = [
                {key: value for key, value in death.items() if key != "time"}
                for death in headers.pop("x-death", [])
            ]
            kept = {
                key: value
                for key, value in headers.items()
                if not key.startswith(("x-first-death", "x-last-death"))
            }
            self.recorded.append(
                (
                    queue,
                    method.exchange,
                    method.routing_key,
                    method.redelivered,
                    body,
                    kept,
                    deaths,
                    properties.priority,
                    properties.expiration,
                    properties.reply_to,
                )
            )

    def read(self, stream: str, offset: object, count: int, prefetch: int, multiple: bool) -> None:
        """Consume `count` messages of a stream from `offset` on, and record them.

        Messages are acknowledged one by one or, if `multiple` is true, each time that `prefetch` of
        them are unacknowledged. Headers that are lists are not recorded: streams of RabbitMQ 3.10
        lose them.
        """
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        arguments = {} if offset is None else {"x-stream-offset": offset}
        received = 0
        for method, properties, body in channel.consume(
            stream, arguments=arguments, inactivity_timeout=PATIENCE if count else SILENCE
        ):
            if method is None:
                break
            received += 1
            plain = {
                name: value
                for name, value in properties.headers.items()
                if not isinstance(value, list)
            }
            self.recorded.append(
                (
                    stream,
                    method.delivery_tag,
                    method.exchange,
                    method.routing_key,
                    method.redelivered,
                    body,
                    {**vars(properties), "headers": plain},
                )
            )
            if not multiple or method.delivery_tag % prefetch == 0:
                channel.basic_ack(method.delivery_tag, multiple)
            if received == count:
                break
        self.recorded.append((stream, offset, received))
        channel.close()
