"""Links between the broker and Kafka, in both directions; each message arrives at least once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aio_pika import Message
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError
from confluent_kafka import Message as Record

from trellis import logs
from trellis.connect import backoff
from trellis.connect.amqp import BrokerSession, MessageRefused, broker_session
from trellis.connect.kafka_clients import (
    GroupReader,
    KafkaFailed,
    RecordAnswer,
    RecordWriter,
)
from trellis.connect.key_template import KAFKA_FIELDS, MESSAGE_FIELDS, KeyTemplate
from trellis.connect.link import ConnectorLink, until_lost
from trellis.connect.message import (
    PREFIX,
    BrokerMessage,
    kafka_headers,
    kafka_timestamp,
    message_of_record,
)
from trellis.connect.progress import Progress
from trellis.connect.settings import BrokerSection, FromKafkaSection, ToKafkaSection
from trellis.connect.source import LinkSource, open_source

#: After these errors, Kafka would refuse the record again: the message is dead-lettered.
_HOPELESS: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
#: First and longest pause in seconds before refused messages are published again.
_AGAIN_FIRST: Final = 0.1
_AGAIN_MAX: Final = 5.0
#: Largest size of a routing key in bytes.
_KEY_MAX: Final = 255


class OutgoingMessage(NamedTuple):
    """A message to publish to an exchange; `identifier` is its message_id."""

    message: Message
    identifier: str
    routing_key: str


class ToKafkaLink(ConnectorLink):
    """A link that copies messages of a queue or a stream to a topic of Kafka.

    A message is acknowledged when Kafka has acknowledged its record, or when it is dead-lettered.
    """

    def __init__(self, broker: BrokerSection, section: ToKafkaSection) -> None:
        super().__init__(section.name, "to_kafka")
        self._broker: Final = broker
        self._section: Final = section
        self._key: Final = KeyTemplate(section.key, MESSAGE_FIELDS)

    async def work(self) -> None:
        """Copy messages until an error, or until `stopping` is set."""
        section = self._section
        answers: asyncio.Queue[list[RecordAnswer]] = asyncio.Queue()
        writer = RecordWriter(section.servers, section.options, section.name, answers.put_nowait)
        try:
            await writer.check(section.topic)
            async with open_source(self._broker, section, self.status) as source:
                tags = Progress()
                self.running()
                async with asyncio.TaskGroup() as tasks:
                    helpers = [
                        tasks.create_task(until_lost(source.session.lost)),
                        tasks.create_task(until_lost(writer.lost)),
                        tasks.create_task(source.store()),
                        tasks.create_task(self._write_all(source, writer, tags)),
                        tasks.create_task(self._settle_all(source, answers, tags)),
                    ]
                    await self.stopping.wait()
                    await source.stop()
                    await source.idle.wait()
                    for helper in helpers:
                        helper.cancel()
        finally:
            await writer.close()

    async def _write_all(self, source: LinkSource, writer: RecordWriter, tags: Progress) -> None:
        while True:
            message = await source.messages.get()
            tags.begin(message.tag)
            key = self._key.fill(message.fields(), message.routing_key, message.headers)
            writer.write(
                message,
                self._section.topic,
                key.encode(errors="surrogateescape"),
                kafka_headers(message),
                kafka_timestamp(message),
            )

    async def _settle_all(
        self, source: LinkSource, answers: asyncio.Queue[list[RecordAnswer]], tags: Progress
    ) -> None:
        while True:
            done: list[BrokerMessage] = []
            for message, error in await answers.get():
                if error is None:
                    self.status.delivered += 1
                    self.status.bytes += len(message.incoming.body)
                elif error.code() in _HOPELESS:
                    await source.dead_letter(message, error.str(), 1)
                    logs.warning(
                        "connector_dead_lettered",
                        link=self._section.name,
                        messages=1,
                        reason=error.str(),
                    )
                else:
                    raise KafkaFailed(f"Kafka has not acknowledged a record: {error.str()}")
                done.append(message)
            await source.settle_in_order(done, tags)


class FromKafkaLink(ConnectorLink):
    """A link that copies records of Kafka to an exchange.

    The offsets of the group are committed when the broker has confirmed the messages.
    """

    def __init__(self, broker: BrokerSection, section: FromKafkaSection) -> None:
        super().__init__(section.name, "from_kafka")
        self._broker: Final = broker
        self._section: Final = section
        self._key: Final = KeyTemplate(section.routing_key, KAFKA_FIELDS)

    async def work(self) -> None:
        """Copy records until an error, or until `stopping` is set."""
        section = self._section
        async with broker_session(self._broker, section.name) as session:
            reader = GroupReader(
                section.servers, section.options, section.group, section.topics, section.name
            )
            try:
                await reader.start()
                self.running()
                async with asyncio.TaskGroup() as tasks:
                    helpers = [
                        tasks.create_task(until_lost(session.lost)),
                        tasks.create_task(until_lost(reader.lost)),
                    ]
                    while not self.stopping.is_set():
                        records = await reader.read(section.in_flight)
                        if records and await self._copy(records, session, reader):
                            await reader.commit(records)
                    for helper in helpers:
                        helper.cancel()
            finally:
                await reader.close()

    async def _copy(
        self, records: Sequence[Record], session: BrokerSession, reader: GroupReader
    ) -> bool:
        """Publish records in their order; return True when the broker has accepted all records.

        The records that the broker refuses are published again. Return False if `stopping` is set
        before the broker has accepted them.
        """
        self.status.in_flight = len(records)
        attempt = 0
        left = [self._outgoing(each) for each in records]
        while left:
            refused = await self._publish_all(left, session)
            left = [each for each, _ in refused]
            if not left:
                break
            attempt += 1
            reason = refused[0][1]
            if attempt == 1:
                logs.warning(
                    "connector_refused",
                    link=self._section.name,
                    messages=len(left),
                    error=reason,
                )
            self.status.failed(reason)
            self.status.retries += len(left)
            if await self.wait(backoff.pause(attempt, _AGAIN_FIRST, _AGAIN_MAX)):
                return False
            await reader.keep()
        self.status.in_flight = 0
        return True

    async def _publish_all(
        self, messages: list[OutgoingMessage], session: BrokerSession
    ) -> list[tuple[OutgoingMessage, str]]:
        """Publish messages in their order; return the refused messages, with the reasons.

        aio-pika recognizes a returned message by its message_id, so two messages with the same
        message_id are not under way at the same time.
        """
        refused: list[tuple[OutgoingMessage, str]] = []
        at = 0
        while at < len(messages):
            together: dict[str, OutgoingMessage] = {}
            while at < len(messages) and messages[at].identifier not in together:
                together[messages[at].identifier] = messages[at]
                at += 1
            parts = list(together.values())
            reasons = await asyncio.gather(*(self._publish(each, session) for each in parts))
            refused += [
                (each, reason)
                for each, reason in zip(parts, reasons, strict=True)
                if reason is not None
            ]
        return refused

    def _outgoing(self, record: Record) -> OutgoingMessage:
        """Convert a record of Kafka to a message for the exchange, with its routing key."""
        topic, partition = str(record.topic()), int(record.partition() or 0)
        headers: Any = record.headers()
        raw_key, value = record.key(), record.value()
        key = raw_key.decode(errors="replace") if isinstance(raw_key, bytes) else raw_key or ""
        about = {
            f"{PREFIX}topic": topic,
            f"{PREFIX}partition": partition,
            f"{PREFIX}offset": record.offset(),
            **({f"{PREFIX}key": key} if key else {}),
        }
        kind, at = record.timestamp()
        message = message_of_record(
            value.encode() if isinstance(value, str) else value,
            headers,
            about,
            0 if kind == TIMESTAMP_NOT_AVAILABLE else at / 1000,
            f"{topic}-{partition}-{record.offset()}",
        )
        fields = {"kafka_topic": topic, "key": key, "partition": str(partition)}
        routing_key = self._key.fill(fields, topic, message.headers)
        routing_key = routing_key.encode()[:_KEY_MAX].decode(errors="ignore")
        return OutgoingMessage(message, message.message_id or "", routing_key)

    async def _publish(self, outgoing: OutgoingMessage, session: BrokerSession) -> str | None:
        """Publish one message; return None, or the reason why it must be published again."""
        try:
            await session.publish(outgoing.message, self._section.exchange, outgoing.routing_key)
        except MessageRefused as error:
            if self._section.unroutable == "drop" and error.unroutable:
                self.status.dropped += 1
                return None
            return str(error)
        self.status.delivered += 1
        self.status.bytes += len(outgoing.message.body)
        return None
