"""A producer and a consumer of Kafka for the event loop: their threads, options and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from trellis.cluster.client_options import ClientLog
from trellis.connect.message import BrokerMessage
from trellis.connect.settings import OptionValue

#: Seconds within which Kafka must answer the first request of a link.
METADATA_SECONDS: Final = 10.0
#: Seconds that a call of a client waits in its thread.
_POLL_SECONDS: Final = 0.2
#: Seconds within which Kafka must acknowledge a record; otherwise, the link connects again.
_DELIVERY_SECONDS: Final = 30
_COMMON: Final[dict[str, OptionValue]] = {
    "allow.auto.create.topics": False,
    "enable.metrics.push": False,
    "reconnect.backoff.max.ms": 1_000,
    "reconnect.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 60_000,
}


class KafkaFailed(ConnectionError):
    """Raised if Kafka cannot be reached, or a request to Kafka failed. The text has the reason."""


class RecordAnswer(NamedTuple):
    """The answer of Kafka to the record of a message; `error` is None if Kafka accepted it."""

    message: BrokerMessage
    error: KafkaError | None


def _check_topics(client: Producer | Consumer, servers: str, topics: Sequence[str]) -> None:
    """Raise KafkaFailed unless Kafka answers, and has these topics. Blocks."""
    try:
        known = client.list_topics(timeout=METADATA_SECONDS).topics
    except KafkaException as error:
        raise KafkaFailed(f"no answer from Kafka at {servers}: {_text(error)}") from None
    for topic in topics:
        if topic not in known:
            raise KafkaFailed(f"Kafka at {servers} has no topic '{topic}': create it")


class RecordWriter:
    """A producer with a thread that receives Kafka's answers.

    `settled` is called in the event loop with Kafka's answers. Records with the same key go to one
    partition, in the order of the calls of `write`.
    """

    def __init__(
        self,
        servers: str,
        options: Mapping[str, OptionValue],
        name: str,
        settled: Callable[[list[RecordAnswer]], None],
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._servers: Final = servers
        self._settled: Final = settled
        #: Gets an exception after a fatal error, or when no node of Kafka is reachable.
        self.lost: Final[asyncio.Future[None]] = self._loop.create_future()
        self._answers: list[RecordAnswer] = []
        self._lock: Final = threading.Lock()
        self._closed: Final = threading.Event()
        self._producer: Final = Producer(
            _options(
                servers,
                # Kafka's Java library puts the records of one key into the same partition.
                # `in_flight` bounds the records under way; a second bound in bytes would end the
                # session while Kafka is slow.
                {
                    "partitioner": "murmur2_random",
                    "linger.ms": 5,
                    "queue.buffering.max.kbytes": 2_147_483_647,
                    **options,
                },
                {
                    "acks": "all",
                    "enable.idempotence": True,
                    "delivery.timeout.ms": _DELIVERY_SECONDS * 1000,
                    "error_cb": _watch(self._loop, self.lost),
                },
            ),
            logger=ClientLog(f"connect {name}"),
        )
        self._thread: Final = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    async def check(self, topic: str) -> None:
        """Raise KafkaFailed unless Kafka answers, and has this topic."""
        await asyncio.to_thread(_check_topics, self._producer, self._servers, [topic])

    def write(
        self,
        message: BrokerMessage,
        topic: str,
        key: bytes,
        headers: list[tuple[str, bytes]],
        timestamp: int,
    ) -> None:
        """Send the record of a message. `timestamp` is in ms since 1970; 0 if there is none.

        If the record is too large, `settled` gets the error. Raises KafkaFailed if the producer
        does not accept the record for another reason.
        """

        def answered(error: KafkaError | None, _: Message) -> None:
            with self._lock:
                self._answers.append(RecordAnswer(message, error))
                first = len(self._answers) == 1
            if first:
                self._loop.call_soon_threadsafe(self._take)

        try:
            self._producer.produce(
                topic,
                message.incoming.body,
                key,
                on_delivery=answered,
                timestamp=timestamp,
                headers=headers,  # type: ignore[arg-type]
            )
        except KafkaException as error:
            if (reason := error.args[0]).code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise KafkaFailed(_text(error)) from None
            self._loop.call_soon(self._settled, [RecordAnswer(message, reason)])
        except BufferError as error:
            raise KafkaFailed(str(error)) from None

    async def close(self) -> None:
        """Drop the records that Kafka has not answered yet, and end the thread."""
        self._closed.set()
        await self._loop.run_in_executor(None, self._thread.join)
        if not self.lost.cancel():
            self.lost.exception()

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(_POLL_SECONDS)
        self._producer.purge()

    def _take(self) -> None:
        with self._lock:
            answers, self._answers = self._answers, []
        if not self._closed.is_set():
            self._settled(answers)


class GroupReader:
    """A member of a consumer group of Kafka. Its calls run in a separate thread."""

    def __init__(
        self,
        servers: str,
        options: Mapping[str, OptionValue],
        group: str,
        topics: Sequence[str],
        name: str,
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._servers: Final = servers
        self._topics: Final = list(topics)
        self._thread: Final = ThreadPoolExecutor(1, f"kafka-{name}")
        self.lost: Final[asyncio.Future[None]] = self._loop.create_future()
        self._consumer: Final = Consumer(
            _options(
                servers,
                {"auto.offset.reset": "earliest", **options},
                {
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "group.id": group,
                    "error_cb": _watch(self._loop, self.lost),
                },
            ),
            logger=ClientLog(f"connect {name}"),
        )

    async def start(self) -> None:
        """Join the group. Raises KafkaFailed unless Kafka answers, and has the topics."""
        await self._call(_check_topics, self._consumer, self._servers, self._topics)
        await self._call(self._consumer.subscribe, self._topics)

    async def read(self, most: int) -> list[Message]:
        """Return the next records, at most `most`; [] if there is none within _POLL_SECONDS.

        Raises KafkaFailed.
        """
        messages = await self._call(self._consumer.consume, most, _POLL_SECONDS)
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaFailed(error.str())
        return list(messages)

    async def keep(self) -> None:
        """Stay a member of the group without reading records.

        Raises KafkaFailed if Kafka has assigned other partitions to this member.
        """
        partitions = await self._call(self._consumer.assignment)
        await self._call(self._consumer.pause, partitions)
        messages = await self._call(self._consumer.consume, 1, 0.0)
        if messages:  # A record of a new partition, which is not paused: it would be lost here.
            raise KafkaFailed(
                f"Kafka has assigned other partitions of {', '.join(self._topics)} to this "
                "consumer, so the link must connect again"
            )
        await self._call(self._consumer.resume, partitions)

    async def commit(self, messages: Sequence[Message]) -> None:
        """Commit the offsets after these records. Raises KafkaFailed."""
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            place = str(message.topic()), int(message.partition() or 0)
            ends[place] = max(ends.get(place, 0), int(message.offset() or 0) + 1)
        offsets = [TopicPartition(*place, offset) for place, offset in ends.items()]
        try:
            await self._call(lambda: self._consumer.commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:
            raise KafkaFailed(f"the offsets were not committed: {_text(error)}") from None

    async def close(self) -> None:
        """Leave the group."""
        await self._call(self._consumer.close)
        self._thread.shutdown(wait=False)
        if not self.lost.cancel():
            self.lost.exception()

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._thread, function, *arguments)


def _watch(
    loop: asyncio.AbstractEventLoop, lost: asyncio.Future[None]
) -> Callable[[KafkaError], None]:
    """Return a callback for the errors of a client.

    The callback sets an exception of `lost` after a fatal error, and if no node is reachable.
    """

    def report(error: KafkaError) -> None:
        if not lost.done():
            lost.set_exception(KafkaFailed(error.str()))

    def failed(error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN:
            loop.call_soon_threadsafe(report, error)

    return failed


def _options(
    servers: str, options: Mapping[str, OptionValue], own: Mapping[str, Any]
) -> dict[str, Any]:
    return {**_COMMON, **options, **own, "bootstrap.servers": servers}


def _text(error: KafkaException) -> str:
    reason = error.args[0]
    return str(reason.str()) if isinstance(reason, KafkaError) else str(error)
