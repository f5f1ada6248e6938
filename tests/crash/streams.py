"""Clients of streams for crash tests: a deduplicated producer, a reader, a check of a journal."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pamqp.commands as spec
from pamqp.header import ContentHeader

from tests.clients import publication
from tests.crash.client import Client, Ports
from tests.crash.ledger import SIZES, Feed, read_body
from tests.crash.wire import Amqp, Confirmed, Delivered, acknowledgement

#: The maximum number of unconfirmed messages.
AHEAD: Final = 15


class Row:
    """The row that a reader got at an offset. `dead` is True if the row is a dead letter."""

    def __init__(self, event: Delivered) -> None:
        header = ContentHeader()
        header.unmarshal(event.header)
        headers: Any = header.properties.headers or {}
        self.offset: int = headers["x-stream-offset"]
        self.body = event.body
        self.dead = "x-death" in headers


async def read_stream(client: Amqp, queue: str, offset: int, count: int) -> list[Row]:
    """Read `count` rows of a stream from an offset on, and return them."""
    await client.consume(queue, prefetch=200, x_stream_offset=offset)
    rows: list[Row] = []
    while len(rows) < count:
        event = await client.event()
        assert isinstance(event, Delivered), event
        rows.append(Row(event))
        if len(rows) % 100 == 0 or len(rows) == count:
            await client.send(acknowledgement(event.tag, True))
    return rows


class Numbering(Client):
    """A producer that numbers its messages and sends unconfirmed ones again after a crash.

    Each message must be in the stream once.
    """

    def __init__(
        self, name: str, seed: int, exchange: str, key: str, queues: tuple[str, ...]
    ) -> None:
        super().__init__(name, seed)
        self.feed = Feed(name)
        self.feed.begin()
        self._exchange = exchange
        self._key = key
        self._queues = queues
        #: Number -> body of each unconfirmed message.
        self._open: dict[int, bytes] = {}
        #: Number -> body of each confirmed message.
        self._done: dict[int, bytes] = {}
        #: True if no new messages shall be sent.
        self.closing = False

    async def live(self, ports: Ports) -> None:
        random, feed = self.random, self.feed
        client = await Amqp.connect(ports.amqp)
        await client.call(spec.Confirm.Select(), (85, 11))
        # The producer repeats some confirmed messages too: the broker must drop these duplicates.
        sent = [*list(self._done)[-random.randrange(1, 10) :], *self._open]
        confirmed = 0
        for number in sent:
            await client.send(self._publication(number))
        while True:
            while (
                not self.closing
                and len(sent) - confirmed < AHEAD
                and (len(sent) == confirmed or random.random() < 0.8)
            ):
                body = feed.next(random.choice(SIZES), *self._queues)
                self._open[len(feed.queues) - 1] = body
                await client.send(self._publication(len(feed.queues) - 1))
                sent.append(len(feed.queues) - 1)
            if len(sent) == confirmed:
                return await client.leave()
            event = await client.event()
            assert isinstance(event, Confirmed), event
            for number in sent[confirmed : event.number]:
                feed.confirmed.add(number)
                if number in self._open:
                    self._done[number] = self._open.pop(number)
            confirmed = event.number

    def _publication(self, number: int) -> bytes:
        body = self._open.get(number) or self._done[number]
        return publication(
            self._exchange,
            self._key,
            body,
            delivery_mode=2,
            headers={"x-trellis-producer": self.name, "x-trellis-sequence": number},
        )


class Following(Client):
    """A reader that reads a stream after each start of the broker.

    The reader begins at the offset at which it ended before, or at an earlier offset. A row that
    the reader has received must never change.
    """

    def __init__(self, name: str, seed: int, queue: str) -> None:
        super().__init__(name, seed)
        self.queue = queue
        #: The body of the row at each offset, from 0 on.
        self.received: list[bytes] = []

    async def live(self, ports: Ports) -> None:
        client = await Amqp.connect(ports.amqp)
        offset = (
            len(self.received)
            if self.random.random() < 0.5
            else self.random.randrange(len(self.received) + 1)
        )
        await client.consume(self.queue, prefetch=50, x_stream_offset=offset)
        while True:
            event = await client.event()
            assert isinstance(event, Delivered), event
            self.take(Row(event), offset)
            offset += 1
            await client.send(acknowledgement(event.tag))

    def take(self, row: Row, offset: int) -> None:
        assert row.offset == offset, f"offset {row.offset} came instead of {offset}"
        if offset < len(self.received):
            assert self.received[offset] == row.body, (
                f"offset {offset} was {self.received[offset][:40]!r}, and is {row.body[:40]!r}"
            )
        else:
            self.received.append(row.body)


class Recorded:
    """The messages in a journal: for each publisher, their numbers in the order of the rows."""

    def __init__(self, rows: list[Row]) -> None:
        assert [row.offset for row in rows] == list(range(len(rows)))
        bodies = [row.body for row in rows if not row.dead and b":" in row.body]
        self.bodies = Counter(bodies)
        self.numbers: dict[str, list[int]] = {}
        for body in bodies:
            name, number = read_body(body)
            self.numbers.setdefault(name, []).append(number)

    def judge(self, feed: Feed) -> None:
        """Check that the journal has all confirmed messages, in order, and no message more often
        than the publisher sent it.
        """
        numbers = self.numbers.get(feed.name, [])
        lacking = sorted(feed.confirmed - set(numbers))
        assert not lacking, (
            f"{feed.name}: {lacking[:20]} were confirmed, and are not in the journal"
        )
        for number, count in Counter(numbers).items():
            most = 1 + feed.again.get(number, 0)
            assert count <= most, (
                f"{feed.name}: {number} is in the journal {count} times, not {most}"
            )
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), f"{feed.name}: the journal is not in order"
