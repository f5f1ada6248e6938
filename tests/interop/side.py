"""What a client sees of a broker, written down, so that two brokers can be compared."""

from __future__ import annotations

from typing import Any, Final

import pika
import pika.exceptions

from tests.interop.client import PATIENCE

#: Seconds in which nothing may come, where nothing should.
SILENCE: Final = 0.3


class Side:
    """One of the two, as a client sees it. Everything it answers is written down."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.seen: list[Any] = []
        self.connect()

    def connect(self) -> None:
        """Anew, where the last one was closed."""
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self._port)
        )
        self.open()

    def open(self) -> None:
        """Another channel."""
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def do(self, name: str, *args: Any, **given: Any) -> Any:
        """A method of the channel; a refusal is written down, and the channel, or the connection,
        opened anew.
        """
        try:
            answer = getattr(self.channel, name)(*args, **given)
        except pika.exceptions.ChannelClosedByBroker as refusal:
            self.seen.append((name, refusal.reply_code, refusal.reply_text))
            self.open()
            return None
        except pika.exceptions.ConnectionClosedByBroker as refusal:
            self.seen.append((name, refusal.reply_code, refusal.reply_text))
            self.connect()
            return None
        except (pika.exceptions.UnroutableError, pika.exceptions.NackError) as fate:
            self.seen.append((name, type(fate).__name__))
            return None
        self.seen.append((name, "done"))
        return answer

    def drain(self, queue: str) -> None:
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
            self.seen.append(
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
        """Consume a stream from there until so many came. Acknowledged one by one, or when the
        prefetch count is used up. Headers that are lists are left out: streams of RabbitMQ 3.10
        lose them.
        """
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        arguments = {} if offset is None else {"x-stream-offset": offset}
        came = 0
        for method, properties, body in channel.consume(
            stream, arguments=arguments, inactivity_timeout=PATIENCE if count else SILENCE
        ):
            if method is None:
                break
            came += 1
            plain = {
                name: value
                for name, value in properties.headers.items()
                if not isinstance(value, list)
            }
            self.seen.append(
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
            if came == count:
                break
        self.seen.append((stream, offset, came))
        channel.close()
