"""One of the two AMQP connections of a shovel: pika's callbacks as awaitable calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError

from trellis.bridge.amqp_uri import AmqpUri, parse_uri
from trellis.bridge.contract import LocalAmqp
from trellis.bridge.tls_files import load_files

#: Seconds to wait for a connection, and for the answer to a method.
TIMEOUT: Final = 30.0

#: The ends of the names of the two internal exchanges of a federation link, which replace each
#: other.
INTERNAL_EXCHANGES: Final = ("A", "B")


class LinkLost(Exception):
    """Raised if a connection or channel is closed or cannot be opened, or gets no answer."""


class ChannelClosed(LinkLost):
    """Raised if the broker closed the channel because a method failed; `code` is the reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


def _tls(uri: AmqpUri) -> pika.SSLOptions | None:
    """Return the TLS options; None without TLS. Raises OSError, which names an unreadable file."""
    if not uri.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not uri.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    load_files(context, uri.ca, uri.certificate, uri.key)
    return pika.SSLOptions(context, uri.server_name or uri.host)


def parameters_of(text: str, local: LocalAmqp, vhost: str, name: str) -> pika.ConnectionParameters:
    """Return pika's parameters for a valid URI. `name` is the name of the connection.

    A URI without a host means the broker `local`, and a URI without a virtual host means `vhost`.
    Raises OSError if a certificate file cannot be read.
    """
    uri = parse_uri(text)
    user, password = uri.login
    host, port = uri.host, uri.port
    if not host:
        host, port = local.host, local.port
        if uri.user is None:
            user, password = local.user, local.password
    return pika.ConnectionParameters(
        host=host,
        port=port,
        virtual_host=vhost if uri.vhost is None else uri.vhost,
        credentials=pika.PlainCredentials(user, password),
        heartbeat=uri.heartbeat,
        ssl_options=_tls(uri) if uri.host else None,
        client_properties={"connection_name": name, "product": "trellis bridge"},
        socket_timeout=TIMEOUT,
        stack_timeout=TIMEOUT,
        connection_attempts=1,
    )


class AmqpEnd:
    """An AMQP connection with one channel.

    The future `lost` is done when the connection or the channel is closed; the result of `lost` is
    the reason.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection: Any = None
        self._unwanted = False
        self.channel: Any = None
        self.lost: asyncio.Future[LinkLost] = self._loop.create_future()

    @property
    def frame_max(self) -> int:
        """The largest size of a frame in bytes on the open connection."""
        return int(self._connection.params.frame_max)

    @property
    def cluster_name(self) -> str:
        """The name of the broker's cluster, or of the broker; "" if the broker has not sent it."""
        return str((self._connection.server_properties or {}).get("cluster_name", ""))

    async def open(self, parameters: pika.ConnectionParameters) -> None:
        """Connect, and open a channel. Raises LinkLost."""
        opened: asyncio.Future[Any] = self._loop.create_future()

        def on_open(connection: AsyncioConnection) -> None:
            if self._unwanted:
                connection.close()
            _resolve(opened, None)

        def on_error(_connection: object, error: object) -> None:
            self._lose(LinkLost(_reason(error)))

        self._connection = AsyncioConnection(
            parameters,
            on_open_callback=on_open,
            on_open_error_callback=on_error,
            on_close_callback=on_error,
            custom_ioloop=self._loop,
        )
        await self._wait(opened)
        await self.open_channel()

    async def open_channel(self) -> None:
        """Open a channel, in place of one that the broker has closed. Raises LinkLost."""
        opened: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done() and self._connection.is_open:
            self.lost = self._loop.create_future()
        self._connection.channel(on_open_callback=lambda channel: _resolve(opened, channel))
        self.channel = await self._wait(opened)
        self.channel.add_on_close_callback(self._on_channel_closed)

    def _on_channel_closed(self, _channel: object, error: Any) -> None:
        code, text = getattr(error, "reply_code", 0), getattr(error, "reply_text", "")
        self._lose(ChannelClosed(code, text) if code else LinkLost(_reason(error)))

    def _lose(self, error: LinkLost) -> None:
        if not self.lost.done():
            self.lost.set_result(error)

    async def _wait(self, answer: asyncio.Future[Any]) -> Any:
        """Return the result of a future.

        Raises LinkLost if the connection or the channel is closed before the future is done, or if
        TIMEOUT seconds have passed.
        """
        done, _ = await asyncio.wait(
            (answer, self.lost), timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED
        )
        if answer in done:
            return answer.result()
        if self.lost in done:
            raise self.lost.result()
        raise LinkLost(f"the broker has not answered within {TIMEOUT:g} s")

    async def call(self, method: Callable[..., Any], *positional: Any, **named: Any) -> Any:
        """Call a method of the channel, and return the broker's answer frame. Raises LinkLost."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        try:
            method(
                *positional,
                callback=lambda frame: _resolve(answer, frame),
                **named,
            )
        except AMQPError as error:
            raise LinkLost(_reason(error)) from None
        return await self._wait(answer)

    async def declare_queue(self, name: str, arguments: dict[str, Any]) -> int:
        """Declare a durable queue, unless it exists; return its number of messages.

        Raises LinkLost.
        """
        try:
            frame = await self.call(self.channel.queue_declare, name, passive=True)
        except ChannelClosed as error:
            if error.code != 404:
                raise
            await self.open_channel()
            frame = await self.call(
                self.channel.queue_declare, name, durable=True, arguments=arguments
            )
        return int(frame.method.message_count)

    async def declare_exchange(self, name: str, kind: str) -> None:
        """Declare a durable exchange of the type `kind`, unless the exchange exists.

        If `kind` is "", the exchange must exist. Raises LinkLost.
        """
        try:
            await self.call(self.channel.exchange_declare, name, passive=True)
        except ChannelClosed as error:
            if error.code != 404 or not kind:
                raise
            await self.open_channel()
            await self.call(self.channel.exchange_declare, name, exchange_type=kind, durable=True)

    async def bind_exactly(self, queue: str, exchange: str, keys: tuple[str, ...]) -> None:
        """Bind a durable queue to an exchange with these binding keys, and with no other keys.

        AMQP has no method that lists the keys of an earlier link. So the keys belong to an internal
        exchange between `exchange` and the queue. This call creates internal exchange A with the
        keys and deletes B, then creates B with the keys and deletes A. (After an interrupted call,
        A may exist with earlier keys, but B is new.) The queue is always bound to A or B, so the
        queue misses no message; it gets one copy of a message that comes through both. (RabbitMQ's
        federation replaces its exchanges in the same way.) An internal exchange is deleted with
        its queue. Raises LinkLost.
        """
        channel = self.channel
        names = [f"{queue} {letter}" for letter in INTERNAL_EXCHANGES]
        for name, former in (names, reversed(names)):
            await self.call(
                channel.exchange_declare,
                name,
                exchange_type="fanout",
                durable=True,
                auto_delete=True,
                internal=True,
            )
            for key in keys:
                # Without answers: 100 keys would need 100 round trips. An error closes the channel.
                channel.exchange_bind(name, exchange, key)
            await self.call(channel.queue_bind, queue, name)
            await self.call(channel.exchange_delete, former)

    def lose(self, reason: str) -> None:
        """Set the result of `lost` to this reason, unless `lost` is done already."""
        self._lose(LinkLost(reason))

    def close(self) -> None:
        """Close the connection, or if it is not open yet, let it be closed as soon as it is open.

        If the broker does not answer, the attempt to open ends after TIMEOUT seconds. (pika's
        `close` of a connection that is not open yet raises an AssertionError in a callback.)
        """
        self._unwanted = True
        if self._connection is not None and self._connection.is_open:
            self._connection.close()


def _resolve(answer: asyncio.Future[Any], result: object) -> None:
    """Set the result of a future, unless the future is done or cancelled."""
    if not answer.done():
        answer.set_result(result)


def _reason(error: object) -> str:
    """Return the text of an error of pika.

    If the error contains one error for each address, return the text of the last address's error.
    """
    inner = getattr(error, "exceptions", None) or getattr(error, "args", ())
    while inner and isinstance(inner[-1], Exception):
        error = inner[-1]
        inner = getattr(error, "exceptions", None) or error.args
    return str(error) or type(error).__name__
