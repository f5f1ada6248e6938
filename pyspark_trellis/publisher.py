"""Publishes messages to a broker over AMQP with publisher confirms, many in flight at once.

    refused (basic.nack)    the publisher waits, and publishes the refused messages again in order
    connection.blocked      the publisher waits
    connection lost         the publisher connects again, and publishes all unconfirmed messages
                            again in order

Messages have numbers by which the broker deduplicates (docs/streams.md). After a refusal, the
broker refuses all higher numbers of the producer, until it has stored the refused message. So no
message is missing after the refused messages are published again in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pika
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from pyspark_trellis.credentials import tls_context
from pyspark_trellis.errors import PipelineError, redacted

#: The maximum number of unconfirmed messages in flight, and of bytes of their bodies (one message
#: may have more).
WINDOW: Final = 2_000
WINDOW_BYTES: Final = 16 << 20
#: The time in seconds without a confirm after which publishing fails.
PATIENCE: Final = 60.0
#: The shortest and the longest pause in seconds before refused messages are published again.
PAUSE: Final = 0.02
PAUSE_MAX: Final = 1.0
#: The number of attempts to connect, if none has succeeded yet.
ATTEMPTS: Final = 3
#: The largest number of characters of a name in an error text.
_SHOWN: Final = 100
#: AMQP's reply code of a connection that an operator closed, for example by stopping the broker.
_FORCED: Final = 320


class Outgoing(NamedTuple):
    """A message to publish."""

    exchange: str
    key: str
    body: bytes
    properties: pika.BasicProperties


class SinkPublisher:
    """A publisher of one sequence of messages, in pika's event loop."""

    def __init__(
        self,
        url: str,
        credentials: tuple[str, str] | None = None,
        ca_file: str = "",
        patience: float = PATIENCE,
    ) -> None:
        """Parse the URL. `credentials` (user and password) replace the credentials in the URL.

        `ca_file` is a PEM file with the authorities to trust; if it is "", the system's authorities
        are trusted. `patience` is the time in seconds without a confirm after which publishing
        fails. Raises PipelineError if the URL is invalid.
        """
        try:
            self._parameters: Final = pika.URLParameters(url)
        except (ValueError, TypeError) as error:
            raise PipelineError(
                f"option url is '{redacted(url)}', but must be amqp://HOST:PORT/VHOST ({error})"
            ) from None
        if credentials is not None:
            self._parameters.credentials = pika.PlainCredentials(*credentials)
        if url.startswith("amqps:"):
            self._parameters.ssl_options = pika.SSLOptions(
                tls_context(ca_file), self._parameters.host
            )
        # The broker may block publishers for a long time; `patience` limits that.
        self._parameters.blocked_connection_timeout = None
        self._url = f"{self._parameters.host}:{self._parameters.port}"
        self._patience: Final = patience
        self._connection: Any = None
        self._channel: Any = None
        self._messages: Iterator[Outgoing] = iter(())
        #: Refused or unconfirmed messages, in order, each with its number. They are published again
        #: before further messages of `_messages`.
        self._to_republish: deque[tuple[int, Outgoing]] = deque()
        #: Messages in flight with their numbers, by delivery tag, in ascending order.
        self._in_flight: dict[int, tuple[int, Outgoing]] = {}
        self._bytes = 0
        #: Messages that were refused since the last pause.
        self._refused: list[tuple[int, Outgoing]] = []
        self._pause = PAUSE
        #: The present limit of the number of messages in flight, and the number of messages that
        #: were accepted since the last pause.
        self._window = WINDOW
        self._accepted = 0
        self._tag = 0
        self._read = 0
        self._confirmed = 0
        self._exhausted = False
        self._opened = False
        #: The reason why publishing failed, and the reason why the connection was lost.
        self._failure = ""
        self._lost_reason = ""
        self._timer: Any = None
        self._progress_at = 0.0
        #: The number of messages that were refused, and of connections that were lost.
        self.refusals = 0
        self.reconnects = 0

    def publish(self, messages: Iterator[Outgoing]) -> int:
        """Publish all messages; return their number when the broker has confirmed all of them.

        Raises PipelineError if the broker cannot be reached, rejects the login or an exchange, or
        confirms no message within `patience` seconds.
        """
        self._messages = messages
        self._progress_at = time.monotonic()
        attempts = 0
        while not (self._exhausted and not self._to_republish):
            self._run()
            if self._failure:
                break
            if not self._lost_reason:
                continue
            attempts = 1 if self._opened else attempts + 1
            late = time.monotonic() - self._progress_at > self._patience
            if late or (not self._opened and attempts >= ATTEMPTS):
                self._failure = self._lost_reason
                break
            self.reconnects += self._opened
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, PAUSE_MAX)
        if self._failure:
            raise PipelineError(
                f"publishing to {self._url} failed after {self._confirmed} of {self._read} "
                f"messages: {self._failure}"
            )
        return self._confirmed

    def _run(self) -> None:
        """Publish over one connection, until all messages are confirmed or the connection ends."""
        self._lost_reason, self._tag, self._channel = "", 0, None
        self._connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_open_error,
            on_close_callback=self._on_close,
        )
        self._timer = self._connection.ioloop.call_later(self._patience / 4, self._watch)
        try:
            self._connection.ioloop.start()
        except AMQPError as error:
            self._lost_reason = self._lost_reason or str(error)
        finally:
            self._connection.ioloop.close()
        self._refused += self._in_flight.values()
        self._in_flight.clear()
        self._bytes = 0
        self._publish_again()

    def _publish_again(self) -> None:
        """Move the messages in `_refused` to `_to_republish`, in the order of their numbers."""
        self._to_republish = deque(sorted([*self._refused, *self._to_republish], key=_number))
        self._refused.clear()

    # -- what happens on the connection

    def _on_open(self, connection: Any) -> None:
        self._opened = True
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_close)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._fill())

    def _fill(self) -> None:
        """Publish messages, as long as there is room for messages in flight."""
        while (
            not (self._failure or self._refused)
            and len(self._in_flight) < self._window
            and self._bytes < WINDOW_BYTES
        ):
            entry = self._next()
            if entry is None:
                break
            number, message = entry
            # Record the message as in flight before it is sent: if the connection is then lost, the
            # message is published again.
            self._tag += 1
            self._in_flight[self._tag] = entry
            self._bytes += len(message.body)
            try:
                self._channel.basic_publish(
                    message.exchange, message.key, message.body, message.properties
                )
            except Exception as error:
                if not self._channel.is_open:
                    raise
                self._failure = _not_encoded(number, message, error)
        if self._failure or (
            self._exhausted and not self._to_republish and not self._in_flight and not self._refused
        ):
            self._end()

    def _next(self) -> tuple[int, Outgoing] | None:
        if self._to_republish:
            return self._to_republish.popleft()
        try:
            message = next(self._messages, None)
        except Exception as error:  # noqa: BLE001 - the loop must end on any error
            self._failure = str(error)
            return None
        if message is None:
            self._exhausted = True
            return None
        self._read += 1
        return self._read, message

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag = method.delivery_tag
        settled = []
        if method.multiple:
            while self._in_flight and (first := next(iter(self._in_flight))) <= tag:
                settled.append(self._in_flight.pop(first))
        else:
            settled.append(self._in_flight.pop(tag))
        self._bytes -= sum(len(message.body) for _, message in settled)
        if method.NAME == "Basic.Ack":
            self._confirmed += len(settled)
            self._accepted += len(settled)
            self._progress_at = time.monotonic()
        else:
            self._refused += settled
            self.refusals += len(settled)
        if not self._refused:
            self._pause = PAUSE
            self._window = min(WINDOW, self._window + len(settled))
            self._fill()
        elif not self._in_flight:
            # All messages in flight are settled. After a pause, publish the refused messages again,
            # at first only as many at once as the broker accepted since the last pause.
            self._window, self._accepted = max(1, self._accepted), 0
            self._connection.ioloop.call_later(self._pause, self._after_pause)
            self._pause = min(2 * self._pause, PAUSE_MAX)

    def _after_pause(self) -> None:
        self._publish_again()
        self._fill()

    def _on_channel_close(self, channel: Any, reason: Exception) -> None:
        if not self._connection.is_closing and not self._connection.is_closed:
            self._failure = self._failure or str(reason)
            self._end()

    def _on_open_error(self, connection: Any, error: Any) -> None:
        reason = f"cannot connect: {error!r}"
        rejected = (AuthenticationError, ProbableAuthenticationError, ProbableAccessDeniedError)
        if isinstance(error, rejected) or _closed_for_good(error):
            self._failure = self._failure or reason
        self._lost_reason = reason
        connection.ioloop.stop()

    def _on_close(self, connection: Any, reason: Exception) -> None:
        self._lost_reason = str(reason) or repr(reason)
        if _closed_for_good(reason):
            self._failure = self._failure or self._lost_reason
        if self._exhausted and not (self._to_republish or self._in_flight or self._refused):
            self._lost_reason = ""
        connection.ioloop.stop()

    def _watch(self) -> None:
        """Give up if the broker has confirmed no message for `patience` seconds."""
        if time.monotonic() - self._progress_at > self._patience:
            refused = (
                " and refuses messages, because a queue is full: consume from this queue"
                if self.refusals
                else ""
            )
            self._failure = (
                self._failure
                or f"the broker confirmed no message for {self._patience:g} s{refused}"
            )
            self._end()
            return
        self._timer = self._connection.ioloop.call_later(self._patience / 4, self._watch)

    def _end(self) -> None:
        if self._timer is not None:
            self._connection.ioloop.remove_timeout(self._timer)
            self._timer = None
        if self._connection.is_open:
            with suppress(AMQPError):
                self._connection.close()
        else:
            self._connection.ioloop.stop()


def _closed_for_good(reason: Any) -> bool:
    """True if the broker would close a new connection for the same reason as this one."""
    return isinstance(reason, ConnectionClosedByBroker) and reason.reply_code != _FORCED


def _not_encoded(number: int, message: Outgoing, error: Exception) -> str:
    """Return the text of the error for a message with a field that AMQP cannot represent."""
    return (
        f"message {number}, with exchange '{message.exchange[:_SHOWN]}' and topic "
        f"'{message.key[:_SHOWN]}', cannot be encoded for AMQP ({repr(error)[: 2 * _SHOWN]}): "
        "change or filter out such rows"
    )


def _number(each: tuple[int, Outgoing]) -> int:
    return each[0]
