"""The part of a long HeapQueue whose messages are not in memory: a heap of numbers.

    push(rank, sequence, message) --> heap of packed entries --> read() --> messages of the store

An entry is one integer, in which rank, sequence number, position in the store, expiry and flags of
a message follow each other. So the integers sort by rank and sequence number, and an entry takes
ENTRY_SIZE bytes, however long its message is. The queue reads the content of a message again before
the delivery.
"""

from __future__ import annotations

import heapq
from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message
from broker.queues.heap_search import HeapSearch
from broker.queues.paged_tail import CHUNK_MESSAGES, flags_of, for_queue
from broker.store.contract import Store

#: Estimated memory of an entry in bytes: an integer of up to 240 bits, and its place in a list.
ENTRY_SIZE: Final[i64] = 72
#: Numbers of bits of the fields that follow the rank. An expiry of 2^56 ms or later counts as
#: never.
_SEQUENCE_BITS: Final = 56
_POSITION_BITS: Final = 62
_EXPIRY_BITS: Final = 56
_FLAG_BITS: Final = 3
_POSITION_SHIFT: Final = _FLAG_BITS + _EXPIRY_BITS
_SEQUENCE_SHIFT: Final = _POSITION_SHIFT + _POSITION_BITS
_RANK_SHIFT: Final = _SEQUENCE_SHIFT + _SEQUENCE_BITS
_NEVER: Final = (1 << _EXPIRY_BITS) - 1
#: Number that is added to a rank, because an entry must not be negative.
_RANK_OFFSET: Final = 1 << 16


def rank_of(entry: int) -> int:
    """Return the rank that an entry holds."""
    return (entry >> _RANK_SHIFT) - _RANK_OFFSET


def sequence_of(entry: int) -> int:
    """Return the sequence number that an entry holds."""
    return entry >> _SEQUENCE_SHIFT & (1 << _SEQUENCE_BITS) - 1


def key_of(entry: int) -> tuple[int, int]:
    """Return the rank and the sequence number in an entry, by which messages are ordered."""
    return rank_of(entry), sequence_of(entry)


def position_of(entry: int) -> int:
    """Return the position in the store that an entry holds."""
    return entry >> _POSITION_SHIFT & (1 << _POSITION_BITS) - 1


def _pack(rank: int, sequence: int, message: Message) -> int:
    return (
        (rank + _RANK_OFFSET) << _RANK_SHIFT
        | sequence << _SEQUENCE_SHIFT
        | int(message.position) << _POSITION_SHIFT
        | min(int(message.expires), _NEVER) << _FLAG_BITS
        | flags_of(message)
    )


class PagedHeap:
    """The messages of a HeapQueue that are only on disk, as packed entries, lowest rank first."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        #: True while no file descriptor is free to read the next messages, and a retry is
        #: scheduled.
        self.waits = False
        #: A search among the entries that runs in slices; None if none runs.
        self.search: HeapSearch | None = None

    def push(self, rank: int, sequence: int, message: Message) -> None:
        """Add an entry for a stored message. The heap does not keep the message's content."""
        self._push(_pack(rank, sequence, message))

    def _push(self, entry: int) -> None:
        heapq.heappush(self.entries, entry)
        if self.search is not None:
            self.search.on_push()

    def precedes(self, rank: int, sequence: int) -> bool:
        """True if the first message of the heap precedes this rank and sequence number."""
        key = (rank + _RANK_OFFSET) << _SEQUENCE_BITS | sequence
        return self.entries[0] >> _SEQUENCE_SHIFT < key

    def read(self, store: Store, queue: i64) -> list[tuple[int, Message | None]]:
        """Remove the first messages, up to CHUNK_MESSAGES, and return them with their entries.

        The message is None if the store cannot read it. Raises OutOfDescriptors, and removes
        nothing, if no file descriptor is free.
        """
        heap = self.entries
        first = [heapq.heappop(heap) for _ in range(min(int(CHUNK_MESSAGES), len(heap)))]
        done = 0
        try:
            pairs = read_entries(store, queue, first)
            done = len(pairs)
        finally:
            for entry in first[done:]:
                self._push(entry)
        return pairs

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the entries in bytes."""
        return ENTRY_SIZE * len(self.entries)


def read_entries(store: Store, queue: i64, entries: list[int]) -> list[tuple[int, Message | None]]:
    """Read the messages of `entries` from the store, and return pairs (entry, message).

    If the messages are large, only the first entries are read (`Store.fetch`). The message is None
    if the store cannot read it.
    """
    read = store.fetch(queue, [position_of(entry) for entry in entries])
    pairs: list[tuple[int, Message | None]] = []
    for entry, message in zip(entries, read, strict=False):
        if message is not None:
            expires = entry >> _FLAG_BITS & _NEVER
            message = for_queue(message, expires, entry & (1 << _FLAG_BITS) - 1)
        pairs.append((entry, message))
    return pairs
