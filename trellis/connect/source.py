"""The messages of a queue or a stream, in the order of delivery, and their acknowledgement.

A queue gets an acknowledgement for each message. A stream keeps its rows, so the link stores its
position in the broker: the durable queue `trellis.connect.LINK.offset` has one message, the offset
up to which all rows are settled. The exclusive queue `trellis.connect.LINK.lock` makes sure that
only one process reads the stream for this link.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue

from trellis.connect.amqp import ERRORS, TIMEOUT, BrokerSession, MessageRefused, broker_session
from trellis.connect.message import BrokerMessage
from trellis.connect.progress import Progress
from trellis.connect.settings import BrokerSection, SourceSection
from trellis.connect.status import LinkStatus

#: Seconds between two stores of the offset of a stream.
STORE_SECONDS: Final = 1.0


class LinkSource:
    """The consumer of a link. At most `section.prefetch` delivered messages are not settled yet."""

    def __init__(self, session: BrokerSession, section: SourceSection, status: LinkStatus) -> None:
        self.section: Final = section
        self.messages: Final[asyncio.Queue[BrokerMessage]] = asyncio.Queue()
        #: Set while every delivered message is settled.
        self.idle: Final = asyncio.Event()
        self.idle.set()
        #: Held while a dead letter is published, because aio-pika finds the publication of a
        #: returned message by its message_id, and two messages may have the same message_id.
        self._dead_lettering: Final = asyncio.Lock()
        self.session: Final = session
        self._status: Final = status
        self._place: Final = section.queue or section.stream
        self._offsets: Final = StoredOffset(session, section.name) if section.stream else None
        self._progress: Final = Progress()
        self._consumer: tuple[AbstractQueue, str] | None = None

    async def start(self) -> None:
        """Begin to consume. Raises one of the errors `amqp.ERRORS`."""
        channel = self.session.channel
        await self.session.declared(self.section.dead_letter)
        await channel.set_qos(self.section.prefetch, timeout=TIMEOUT)
        arguments: dict[str, object] = {}
        if self._offsets is not None:
            await self._offsets.open()
            stored = self._offsets.stored
            self._status.offset = -1 if stored is None else stored
            arguments["x-stream-offset"] = self.section.start if stored is None else stored + 1
        queue = await channel.get_queue(self._place, ensure=False)
        tag = await queue.consume(
            self._delivered,
            arguments=arguments,  # type: ignore[arg-type]
            timeout=TIMEOUT,
        )
        self._consumer = queue, tag
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(self._cancelled)

    async def settle(self, message: BrokerMessage) -> None:
        """Acknowledge a message that the target or the dead letter queue has accepted."""
        await message.incoming.ack()
        self._settled(message)

    async def settle_in_order(self, messages: list[BrokerMessage], tags: Progress) -> None:
        """Settle messages; one acknowledgement covers all messages before the first unsettled one.

        `tags` has the delivery tags of all messages of the channel.
        """
        before = tags.done
        for message in messages:
            tags.finish(message.tag)
            self._settled(message)
        if tags.done != before and tags.done is not None:
            underlay = await self.session.channel.get_underlay_channel()
            await underlay.basic_ack(tags.done, multiple=True)

    async def dead_letter(self, message: BrokerMessage, reason: str, attempts: int) -> None:
        """Publish a message to the dead letter queue, and wait for the confirm.

        `reason` and `attempts`, the number of failed attempts, become headers. Raises
        MessageRefused if the queue does not accept the message.
        """
        letter = message.dead_letter(self.section.name, reason, attempts)
        async with self._dead_lettering:
            await self.session.publish(letter, "", self.section.dead_letter)
        self._status.dead_lettered += 1

    async def store(self) -> None:
        """Store the offset of a stream every STORE_SECONDS until the task is cancelled."""
        while self._offsets is not None:
            await asyncio.sleep(STORE_SECONDS)
            await self._store()

    async def stop(self) -> None:
        """Cancel the consumer. Messages that were delivered before may still be settled."""
        if self._consumer is not None:
            queue, tag = self._consumer
            self._consumer = None
            await queue.cancel(tag, timeout=TIMEOUT)

    async def close(self) -> None:
        """Store the offset of a stream for the last time, if the connection still works."""
        with suppress(*ERRORS):
            await self._store()

    async def _store(self) -> None:
        if self._offsets is not None and self._progress.done is not None:
            await self._offsets.store(self._progress.done)
            self._status.offset = self._progress.done

    def _settled(self, message: BrokerMessage) -> None:
        self._status.in_flight -= 1
        if not self._status.in_flight:
            self.idle.set()
        if message.offset is not None:
            self._progress.finish(message.offset)

    async def _delivered(self, incoming: AbstractIncomingMessage) -> None:
        message = BrokerMessage(incoming, self._place)
        if message.offset is not None:
            self._progress.begin(message.offset)
        self._status.in_flight += 1
        self.idle.clear()
        self.messages.put_nowait(message)

    async def _cancelled(self, _: object) -> None:
        if not self.session.lost.done():
            text = f"the broker cancelled the consumer: was the queue '{self._place}' deleted?"
            self.session.lost.set_exception(MessageRefused(text))


@asynccontextmanager
async def open_source(
    broker: BrokerSection, section: SourceSection, status: LinkStatus
) -> AsyncIterator[LinkSource]:
    """Connect to the broker, and yield a source that consumes.

    When the context ends, store the offset of a stream, and disconnect. Raises one of the errors
    `amqp.ERRORS`.
    """
    async with broker_session(broker, section.name) as session:
        source = LinkSource(session, section, status)
        await source.start()
        try:
            yield source
        finally:
            await source.close()


class StoredOffset:
    """The offset up to which a link has settled the rows of a stream, stored in the broker.

    `stored` is the offset; None if no offset is stored yet.
    """

    def __init__(self, session: BrokerSession, link: str) -> None:
        self._session: Final = session
        self._name: Final = f"trellis.connect.{link}"
        self.stored: int | None = None

    async def open(self) -> None:
        """Declare the exclusive queue that reserves the link for this process; read the offset.

        Raises ChannelLockedResource (405) while another process has the exclusive queue, and
        MessageRefused if the stored message is not an offset.
        """
        channel = self._session.channel
        await channel.declare_queue(f"{self._name}.lock", exclusive=True, timeout=TIMEOUT)
        queue = await channel.declare_queue(
            f"{self._name}.offset",
            durable=True,
            arguments={"x-max-length": 1, "x-overflow": "drop-head"},
            timeout=TIMEOUT,
        )
        message = await queue.get(fail=False, timeout=TIMEOUT)
        if message is None:
            return
        await message.nack(requeue=True)
        try:
            self.stored = int(message.body)
        except ValueError:
            raise MessageRefused(
                f"the message in the queue '{self._name}.offset' must be an offset: purge the "
                "queue, and the link begins at `start`"
            ) from None

    async def store(self, offset: int) -> None:
        """Replace the stored offset, and wait for the broker's confirm."""
        if offset == self.stored:
            return
        message = aio_pika.Message(
            str(offset).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        await self._session.publish(message, "", f"{self._name}.offset")
        self.stored = offset
