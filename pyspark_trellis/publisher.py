"""Publishes messages to a broker over AMQP with publisher confirms, many in flight at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pika
from pika.exceptions import AMQPError

from pyspark_trellis.errors import PipelineError, shown

#: The maximum number of unconfirmed messages in flight.
WINDOW: Final = 2_000
#: The time in seconds without a confirm after which publishing fails.
PATIENCE: Final = 60


class Outgoing(NamedTuple):
    """A message to publish."""

    exchange: str
    key: str
    body: bytes
    properties: pika.BasicProperties


class SinkPublisher:
    """A connection that publishes one sequence of messages, in pika's event loop."""

    def __init__(self, url: str, credentials: tuple[str, str] | None = None) -> None:
        """Parse the URL. `credentials` (user and password) replace the credentials in the URL.

        Raises PipelineError if the URL is invalid.
        """
        try:
            self._parameters: Final = pika.URLParameters(url)
        except (ValueError, TypeError) as error:
            raise PipelineError(
                f"option url is '{shown(url)}', and should be amqp://HOST:PORT/VHOST ({error})"
            ) from None
        if credentials is not None:
            self._parameters.credentials = pika.PlainCredentials(*credentials)
        self._parameters.blocked_connection_timeout = PATIENCE
        self._url = f"{self._parameters.host}:{self._parameters.port}"
        self._connection: Any = None
        self._channel: Any = None
        self._messages: Iterator[Outgoing] = iter(())
        self._sent = 0
        self._settled = 0
        self._exhausted = False
        self._failure = ""
        self._waiting: Any = None
        self._seen = -1

    def publish(self, messages: Iterator[Outgoing]) -> int:
        """Publish all messages; return their number when the broker has confirmed all of them.

        Raises PipelineError if the broker cannot be reached, refuses a message or sends no
        confirms.
        """
        self._messages = messages
        self._connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._refused,
            on_close_callback=self._closed,
        )
        self._waiting = self._connection.ioloop.call_later(PATIENCE, self._too_long)
        try:
            self._connection.ioloop.start()
        except AMQPError as error:
            self._failure = self._failure or str(error)
        if self._failure:
            raise PipelineError(
                f"publishing to {self._url} failed after {self._settled} of {self._sent} messages: "
                f"{self._failure}"
            )
        return self._settled

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._ready)

    def _ready(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._fill())

    def _fill(self) -> None:
        while not self._exhausted and self._sent - self._settled < WINDOW:
            try:
                message = next(self._messages, None)
            except Exception as error:  # noqa: BLE001 - the loop must end on any error
                self._fail(str(error))
                return
            if message is None:
                self._exhausted = True
                break
            self._channel.basic_publish(
                message.exchange, message.key, message.body, message.properties
            )
            self._sent += 1
        if self._exhausted and self._settled == self._sent:
            self._end()

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            self._fail(
                f"the broker refused message {method.delivery_tag} (basic.nack): a queue is full "
                "and its overflow policy rejects new messages"
            )
            return
        self._settled = method.delivery_tag if method.multiple else self._settled + 1
        self._fill()

    def _channel_closed(self, channel: Any, reason: Exception) -> None:
        if not (self._exhausted and self._settled == self._sent):
            self._fail(str(reason))

    def _refused(self, connection: Any, error: Any) -> None:
        self._failure = self._failure or f"no connection: {error!r}"
        connection.ioloop.stop()

    def _closed(self, connection: Any, reason: Exception) -> None:
        if not (self._exhausted and self._settled == self._sent):
            self._failure = self._failure or str(reason)
        connection.ioloop.stop()

    def _too_long(self) -> None:
        if self._settled == self._seen or self._channel is None:
            self._fail(f"no confirm for {PATIENCE} s")
            return
        self._seen = self._settled
        self._waiting = self._connection.ioloop.call_later(PATIENCE, self._too_long)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._end()

    def _end(self) -> None:
        if self._waiting is not None:
            self._connection.ioloop.remove_timeout(self._waiting)
            self._waiting = None
        if self._connection.is_open:
            self._connection.close()
        else:
            self._connection.ioloop.stop()
