"""What is still live of the records that were read so far: what a recovery keeps, and what a
checkpoint copies.

It knows positions, not messages: 20 octets a message, and more for one of several queues.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.store.disk import DamagedStore
from broker.store.layout import (
    EXTENDED,
    HOLDER,
    KEPT,
    MANY,
    RECEIVED,
    RELEASED,
    RETAINED,
    SEQUENCED,
    SETTLED,
    STEPPED,
)
from broker.store.reading import parts
from broker.store.recovery import Replay

_U16: Final[i64] = 0xFFFF
_U32: Final[i64] = 0xFFFFFFFF
_ALL: Final = (1 << 63) - 1


class Copies:
    """Which messages are live, and for whom.

        positions   rising
        queues      the only queue that still holds it; 0: none does; below 0: see `shared`
        sizes       octets of the record

    `octets` is how many are live.
    """

    def __init__(self) -> None:
        self._positions: array[int] = array("q")
        self._queues: array[int] = array("q")
        self._sizes: array[int] = array("I")
        self.octets: i64 = 0
        self._shared: dict[int, list[int]] = {}
        self._next: i64 = 0
        #: Behind the message that was looked for last: mostly the next one is looked for then.
        self._hint: i64 = 0

    def keep(self, position: i64, queues: list[int], size: i64) -> None:
        self._positions.append(position)
        self._sizes.append(size)
        if queues:
            self.octets += size
        if len(queues) == 1:
            self._queues.append(queues[0])
        elif queues:
            self._queues.append(-1)
            self._shared[position] = queues
        else:
            self._queues.append(0)

    def _find(self, position: i64) -> i64:
        """Where the message stands; -1: nowhere. Hot path."""
        positions = self._positions
        at: i64 = self._hint
        if at >= len(positions) or positions[at] != position:
            at = bisect_left(positions, position)
            if at == len(positions) or positions[at] != position:
                return -1
        self._hint = at + 1
        return at

    def settle(self, queue: i64, position: i64) -> None:
        at = self._find(position)
        if at < 0:
            return
        holder: i64 = self._queues[at]
        if holder == queue:
            self._queues[at] = 0
            self.octets -= self._sizes[at]
        elif holder < 0:
            queues = self._shared[position]
            if queue in queues:
                queues.remove(queue)
                if not queues:
                    self._queues[at] = 0
                    self.octets -= self._sizes[at]
                    del self._shared[position]

    def held(self, queue: i64, position: i64) -> bool:
        """Whether the queue still holds the message."""
        at = self._find(position)
        if at < 0:
            return False
        holder: i64 = self._queues[at]
        return holder == queue if holder >= 0 else queue in self._shared[position]

    def next(self) -> list[int]:
        """Who still holds the message, asked for one after the other."""
        at: i64 = self._next
        self._next = at + 1
        holder: i64 = self._queues[at]
        if holder > 0:
            return [holder]
        return self._shared[int(self._positions[at])] if holder < 0 else []

    def by_queue(self) -> dict[int, array[int]]:
        """Number of a queue -> positions of what it holds, rising."""
        found: dict[int, array[int]] = {}
        last: i64 = 0
        same: array[int] = array("q")
        for at, position in enumerate(self._positions):
            holder: i64 = self._queues[at]
            if holder > 0:
                if holder != last:
                    same = found.setdefault(holder, array("q"))
                    last = holder
                same.append(position)
            elif holder < 0:
                for queue in self._shared[position]:
                    found.setdefault(queue, array("q")).append(position)
        return found


class Survivors(Replay):
    """Reads records. `exist` holds the numbers of all queues and sessions that there are: others
    hold nothing. None had a number beyond `newest`."""

    def __init__(self, exist: set[int], newest: i64 = 0) -> None:
        self.exist = exist
        self.newest: i64 = newest
        #: Copies of messages for queues beyond that, and rows for streams; in the last batch they
        #: are `unpromised`: it was written, the catalog not yet.
        self.strange: i64 = 0
        self.unpromised: i64 = 0
        self.copies = Copies()
        #: (queue, position) of messages whose reader has them.
        self.stepped: set[tuple[int, int]] = set()
        #: Session -> packet identifiers held, and where the last entry about each stands.
        self.received: dict[int, dict[int, int]] = {}
        #: Where the last retained message of a (virtual host, key) stands.
        self.retained: dict[tuple[str, str], int] = {}
        #: Stream -> the offset behind its last row, and where the last entry about that stands.
        self.streams: dict[int, tuple[int, int]] = {}
        #: (virtual host, producer) -> its last sequence number, and where the entry stands.
        self.sequences: dict[tuple[str, str], tuple[int, int]] = {}

    def batch(self) -> None:
        self.strange += self.unpromised
        self.unpromised = 0

    def record(self, kind: i64, position: i64, octets: bytes, start: i64, end: i64) -> None:
        """What the record means for what is live. Raises Damaged. Hot path."""
        if kind == MANY:
            for part in parts(octets, position, start, end):
                self.record(part.kind, part.position, octets, part.start, part.end)
        elif kind == KEPT:
            size: i64 = end - start
            left: i64 = i64(read_i32_be(octets, start)) & _U32
            start += 4
            if start + left * HOLDER > end:
                raise DamagedStore("a message is cut off")
            queues: list[int] = []
            while left > 0:
                queue: i64 = read_i64_be(octets, start)
                start += HOLDER
                left -= 1
                if queue in self.exist:
                    queues.append(queue)
                elif queue > self.newest:
                    self.unpromised += 1
            self.copies.keep(position, queues, size)
        elif kind == SETTLED:
            self.copies.settle(read_i64_be(octets, start), read_i64_be(octets, start + 8))
            if self.stepped:
                self.stepped.discard((read_i64_be(octets, start), read_i64_be(octets, start + 8)))
        elif kind == STEPPED:
            self.stepped.add((read_i64_be(octets, start), read_i64_be(octets, start + 8)))
        elif kind == RECEIVED:
            session: i64 = read_i64_be(octets, start)
            if session in self.exist:
                self.received.setdefault(session, {})[_u16(octets, start + 8)] = position
        elif kind == RELEASED:
            self.received.get(read_i64_be(octets, start), {}).pop(_u16(octets, start + 8), None)
        elif kind == RETAINED:
            names: i64 = start + 4 + _u16(octets, start) + _u16(octets, start + 2)
            if names < end:
                self.retained[retained_key(octets, start)] = position
            else:
                self.retained.pop(retained_key(octets, start), None)
        elif kind == EXTENDED:
            stream: i64 = read_i64_be(octets, start)
            if stream in self.exist:
                self.streams[stream] = (read_i64_be(octets, start + 8), position)
            elif stream > self.newest:
                self.unpromised += 1
        elif kind == SEQUENCED:
            sequence: i64 = read_i64_be(octets, start)
            if sequence >= 0:
                self.sequences[producer_key(octets, start, end)] = (sequence, position)
            else:
                self.sequences.pop(producer_key(octets, start, end), None)

    def known_to(self) -> int:
        """The last number of which the catalog can say whether there is such a queue: all, if its
        end is not missing.
        """
        return int(self.newest) if self.strange else _ALL

    def holds(self, octets: bytes, start: i64, position: i64) -> bool:
        """Whether the Received there is the last word about its identifier."""
        return (
            self.received.get(read_i64_be(octets, start), {}).get(_u16(octets, start + 8))
            == position
        )

    def stepped_by_queue(self) -> dict[int, set[int]]:
        """Number of an inbox -> positions of the messages that its client said it has."""
        found: dict[int, set[int]] = {}
        for queue, position in self.stepped:
            found.setdefault(queue, set()).add(position)
        return found


def retained_key(octets: bytes, start: i64) -> tuple[str, str]:
    """Virtual host and key of a RetainedSet."""
    vhost: i64 = start + 4 + _u16(octets, start)
    return octets[start + 4 : vhost].decode(), octets[
        vhost : vhost + _u16(octets, start + 2)
    ].decode("utf-8", "surrogateescape")


def producer_key(octets: bytes, start: i64, end: i64) -> tuple[str, str]:
    """Virtual host and producer of a Sequenced."""
    name: i64 = start + 10 + _u16(octets, start + 8)
    return octets[start + 10 : name].decode(), octets[name:end].decode("utf-8", "surrogateescape")


def _u16(octets: bytes, at: i64) -> i64:
    return i64(read_i16_be(octets, at)) & _U16
