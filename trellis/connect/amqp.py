"""The connection of a link to the broker: one connection, one channel with confirms."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import DeliveryError, PublishError

from trellis.connect.settings import BrokerSection, broker_url
from trellis.settings.errors import SettingsError

#: Seconds to wait for the connection to the broker, and for the answer to each request.
TIMEOUT: Final = 30.0
#: Seconds to wait for the broker's answer when a connection is closed.
_CLOSING: Final = 5.0
#: Interval of heartbeats in seconds: a lost broker is noticed after twice this time.
_HEARTBEAT: Final = 20


class BrokerLost(ConnectionError):
    """Raised if the connection or the channel to the broker was closed."""


class MessageRefused(Exception):
    """Raised if the broker did not accept a message. The text has the reason.

    `unroutable` is True if no queue takes the message.
    """

    def __init__(self, text: str, unroutable: bool = False) -> None:
        super().__init__(text)
        self.unroutable: Final = unroutable


#: The errors after which a link connects again. The library raises RuntimeError if a connection
#: closes during a request. SettingsError: the file with the password cannot be read any more.
ERRORS: Final = (
    aiormq.exceptions.AMQPError,
    aio_pika.exceptions.AMQPError,
    aio_pika.exceptions.ChannelInvalidStateError,
    OSError,
    MessageRefused,
    RuntimeError,
    SettingsError,
    TimeoutError,
)


class BrokerSession:
    """An open connection of a link to the broker, with one channel in confirm mode."""

    def __init__(self, connection: AbstractConnection, channel: AbstractChannel) -> None:
        self.connection: Final = connection
        self.channel: Final = channel
        #: Set with the reason when the connection or the channel is closed.
        self.lost: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        connection.close_callbacks.add(self._closed)
        channel.close_callbacks.add(self._closed)

    def _closed(self, _: object, error: BaseException | None) -> None:
        if not self.lost.done():
            text = text_of(error) if error else "the connection to the broker was closed"
            self.lost.set_exception(BrokerLost(text))

    async def publish(self, message: aio_pika.Message, exchange: str, routing_key: str) -> None:
        """Publish a message, and wait for the confirm of the broker.

        Raises MessageRefused if no queue takes the message, or if the broker refuses it.
        """
        target = await self.channel.get_exchange(exchange, ensure=False)
        try:
            await target.publish(message, routing_key, mandatory=True, timeout=TIMEOUT)
        except PublishError:
            raise MessageRefused(
                f"no queue takes a message with the routing key '{routing_key}' of the exchange "
                f"'{exchange}'",
                unroutable=True,
            ) from None
        except DeliveryError as error:
            raise MessageRefused(f"the broker refused the message: {error}") from None

    async def declared(self, name: str) -> None:
        """Declare a durable queue, unless a queue of this name exists."""
        probe = await self.connection.channel()
        try:
            await probe.declare_queue(name, passive=True, timeout=TIMEOUT)
        except aiormq.exceptions.ChannelNotFoundEntity:
            await self.channel.declare_queue(name, durable=True, timeout=TIMEOUT)
        finally:
            with suppress(*ERRORS):
                await probe.close()


@asynccontextmanager
async def broker_session(section: BrokerSection, link: str) -> AsyncIterator[BrokerSession]:
    """Connect to the broker, and close the connection when the context ends.

    Raises one of the errors ERRORS.
    """
    context = None
    if section.ca:
        context = ssl.create_default_context(cafile=section.ca)
    connection = await aio_pika.connect(
        broker_url(section),
        timeout=TIMEOUT,
        ssl_context=context,
        heartbeat=_HEARTBEAT,
        client_properties={"connection_name": f"trellis connect {link}"},
    )
    try:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        session = BrokerSession(connection, channel)
        try:
            yield session
        finally:
            if not session.lost.cancel():
                session.lost.exception()  # Else asyncio logs that the exception was not retrieved.
    finally:
        with suppress(*ERRORS, asyncio.CancelledError):
            await asyncio.wait_for(connection.close(), _CLOSING)


def text_of(error: BaseException) -> str:
    """Return the type and the text of an error in one line of at most 500 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text}"[:500]
