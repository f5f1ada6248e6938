"""Accounting of the broker's memory: the part that messages, output and bindings take.

The memory in use that the operating system reports (RSS) does not measure the size of the broker's
objects: after a queue is emptied, the process keeps the freed memory. The memory alarm therefore
ends by an estimate:

    estimate = min(RSS, accounted + unaccounted)

MemoryAccount counts `accounted`. `unaccounted` is the rest of RSS at the time when RSS passed the
limit: objects that are not counted, and freed memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from broker.broker import Broker
from protocols.amqp.front import AmqpFront
from protocols.mqtt.front import MqttFront
from trellis.server.store_writer import StoreWriter

#: Number of queues, exchanges, sessions or connections counted in one turn of the event loop.
COUNT_SLICE: Final = 100
#: A count returns the last result again until COUNT_PAUSE times the duration of the last count has
#: passed.
COUNT_PAUSE: Final = 20


class MemoryAccount:
    """A count of the memory that the broker's objects take, made in slices."""

    def __init__(
        self, broker: Broker, amqp: AmqpFront, mqtt: MqttFront, store_writer: StoreWriter
    ) -> None:
        self._broker = broker
        self._store_writer = store_writer
        self._amqp = amqp
        self._mqtt = mqtt
        #: The result of the last count in bytes; 0 before the first count.
        self.accounted = 0
        self._next_count = 0.0

    async def count(self) -> int:
        """Return the memory of messages, unsent output, unread input and bindings, in bytes.

        The objects are counted in slices, over many turns of the event loop. If the last count is
        recent (COUNT_PAUSE), return its result without a new count.
        """
        began = asyncio.get_running_loop().time()
        if began < self._next_count:
            return self.accounted
        total = self._store_writer.unwritten_bytes
        measured: list[Iterator[int]] = []
        for vhost in list(self._broker.vhosts.values()):
            total += vhost.retained.size
            for objects in (
                vhost.queues,
                vhost.replies,
                vhost.delays,
                vhost.histories,
                vhost.inboxes,
            ):
                measured.append(queue.memory_bytes() for queue in list(objects.values()))
            measured.append(each.memory_bytes() for each in list(vhost.exchanges.values()))
            measured.append(moves.memory_bytes() for moves in list(vhost.moves.values()))
        for front in (self._amqp, self._mqtt):
            measured.append(each.memory_bytes() for each in list(front.connections))
        sessions = self._mqtt.sessions.all()
        measured.append(each.in_flight.memory_bytes() for each in sessions)
        steps = chain.from_iterable(measured)
        while some := list(islice(steps, COUNT_SLICE)):
            total += sum(map(int, some))
            await asyncio.sleep(0)
        self.accounted = total
        ended = asyncio.get_running_loop().time()
        self._next_count = ended + COUNT_PAUSE * (ended - began)
        return total


class MemoryEstimate:
    """Estimates the memory in use while RSS is above the limit; the module explains the formula."""

    def __init__(self) -> None:
        self._unaccounted = 0
        #: The largest RSS since RSS passed the limit, and the largest accounted memory at such a
        #: peak, both in bytes; None while RSS is below the limit.
        self._peak: tuple[int, int] | None = None

    def end(self) -> None:
        """End the estimate, because RSS is below the limit; the next `update` begins another."""
        self._peak = None

    @property
    def begun(self) -> bool:
        """True if RSS has passed the limit, and has not fallen below it since."""
        return self._peak is not None

    def update(self, resident: int, accounted: int) -> int:
        """Return the estimate of the memory in use, from `resident` (RSS) and `accounted` memory.

        All numbers are in bytes. Begin an estimate if there is none.
        """
        if self._peak is None:
            self._unaccounted = max(0, resident - accounted)
            self._peak = resident, accounted
        elif resident > self._peak[0]:
            # If RSS grows by more than the accounted memory, the difference is unaccounted memory.
            grown = resident - self._peak[0] - max(0, accounted - self._peak[1])
            self._unaccounted += max(0, grown)
            self._peak = resident, max(accounted, self._peak[1])
        return min(resident, accounted + self._unaccounted)
