"""Reads the waiting messages of a queue without taking them: `trellis peek`.

    peek(queue, cursor, most) --> the next messages behind the cursor, in the order of delivery

The queue does not change: its order, its counters and the marks of its messages stay as they are. A
caller reads a long queue in several calls. Each call begins behind the last message of the previous
call, so the queue may deliver messages between two calls: a message that has left the queue is not
read, and no message is read twice.

One call reads at most one chunk of messages from the store (paged_tail.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from mypy_extensions import i64

from broker.messages.message import Message
from broker.queues.consumer import ReturnedMessage
from broker.queues.heap import HeapQueue
from broker.queues.paged_heap import key_of, read_entries
from broker.queues.paged_tail import CHUNK_MESSAGES
from broker.queues.queue import Queue
from broker.queues.statistics import HELD_BACK


class PeekCursor:
    """A place in a queue: the rank and the sequence number of the last message that was read.

    The rank is 0 in a queue without priorities.
    """

    __slots__ = ("rank", "sequence")

    def __init__(self, rank: i64 = -(1 << 62), sequence: i64 = 0) -> None:
        self.rank = rank
        self.sequence = sequence


class PeekedMessage:
    """A waiting message, its place in the queue, and the number of times that it was requeued.

    `message` is None if the store cannot read the message.
    """

    __slots__ = ("attempts", "message", "rank", "sequence")

    def __init__(self, message: Message | None, rank: i64, sequence: i64, attempts: i64) -> None:
        self.message = message
        self.rank = rank
        self.sequence = sequence
        self.attempts = attempts


def peek(queue: Queue, cursor: PeekCursor, most: i64) -> list[PeekedMessage]:
    """Return the next waiting messages behind the cursor, at most `most`, and move the cursor.

    The result is empty at the end of the queue. Raises OutOfDescriptors if no file descriptor is
    free to read a message from the store.
    """
    while queue.replacement is not None:
        queue = queue.replacement
    if isinstance(queue, HeapQueue):
        peeked = _peek_heap(queue, cursor, min(most, CHUNK_MESSAGES))
    else:
        peeked = _peek_plain(queue, cursor.sequence, min(most, CHUNK_MESSAGES))
    if peeked:
        cursor.rank, cursor.sequence = peeked[-1].rank, peeked[-1].sequence
    return peeked


def head_of(queue: Queue) -> Message | None:
    """Return the first waiting message; None if no message waits, or if no file descriptor is free
    to read the message from the store.
    """
    return queue._head() if queue.depth > queue.paged else None


def set_head_aside(queue: Queue) -> ReturnedMessage:
    """Remove and return the first waiting message, for a caller that may put it back later.

    The queue counts the message as unacknowledged until `put_aside_back`.
    """
    returned = queue._pop_head()
    queue.unacked += 1
    queue.note(HELD_BACK)
    return returned


def put_aside_back(queue: Queue, returned: ReturnedMessage) -> None:
    """Put back a message, which `set_head_aside` has removed, at its old place in the queue.

    If the queue exceeds a limit now, it drops its oldest messages later, as bulk work. If the queue
    was deleted meanwhile, release the message in the store.
    """
    while queue.replacement is not None:
        queue = queue.replacement
    if queue.dead:
        queue.release(returned.message)
        return
    queue.unacked -= 1
    queue.note(HELD_BACK, -1)
    queue.insert_returned(returned)
    queue.schedule_drain()
    queue._schedule_upkeep()


def _peek_plain(queue: Queue, after: i64, most: i64) -> list[PeekedMessage]:
    """Return the messages of a FIFO queue whose sequence numbers are above `after`.

    The result is in the order of delivery: returned messages, messages in memory, messages on disk.
    """
    peeked: list[PeekedMessage] = []
    waiting = queue._waiting
    for returned in waiting.returned.in_order():
        if returned.sequence > after:
            peeked.append(_of_returned(returned, 0))
            if len(peeked) == most:
                return peeked
    first: i64 = waiting.sequence + 1
    skipped: i64 = max(0, after + 1 - first)
    for at, message in enumerate(waiting.memory.part(skipped, most - len(peeked))):
        peeked.append(PeekedMessage(message, 0, first + skipped + at, 0))
    first += waiting.memory.size
    if len(peeked) < most:
        skipped = max(0, after + 1 - first)
        for at, read in enumerate(waiting.peek_tail(skipped, most - len(peeked))):
            attempts = waiting.peek_attempts(read)
            peeked.append(PeekedMessage(read, 0, first + skipped + at, attempts))
    return peeked


def _of_returned(returned: ReturnedMessage, rank: i64) -> PeekedMessage:
    return PeekedMessage(returned.message, rank, returned.sequence, returned.attempts)


def _peek_heap(queue: HeapQueue, cursor: PeekCursor, most: i64) -> list[PeekedMessage]:
    """Return messages behind the cursor from the heap in memory and the heap of paged messages.

    The result is in the order of delivery: by rank, then by sequence number.
    """
    last = (int(cursor.rank), int(cursor.sequence))
    memory: list[tuple[int, int, ReturnedMessage]] = []
    for entry in _sorted_heap(queue._heap):
        if (entry[0], entry[1]) > last:
            memory.append(entry)
            if len(memory) == most:
                break
    packed: list[int] = []
    for number in _sorted_numbers(queue._paged_heap.entries):
        if key_of(number) > last:
            packed.append(number)
            if len(packed) == most:
                break
    return _merged(queue, memory, packed)[:most]


def _merged(
    queue: HeapQueue, memory: list[tuple[int, int, ReturnedMessage]], packed: list[int]
) -> list[PeekedMessage]:
    """Return the messages of two sorted lists as one sorted list.

    `memory` has messages in memory, `packed` the entries of messages that are read from the store.
    If the store has not read all messages of `packed` in this call, the result ends before the
    first message that is missing.
    """
    ranked = [(entry[0], entry[1], _of_returned(entry[2], entry[0])) for entry in memory]
    read = read_entries(queue.store, queue.number, packed) if packed else []
    for number, message in read:
        rank, sequence = key_of(number)
        ranked.append((rank, sequence, PeekedMessage(message, rank, sequence, 0)))
    ranked.sort(key=_place)
    if len(read) < len(packed):
        # The next call must return the unread message before the messages behind it.
        end = key_of(packed[len(read)])
        ranked = [one for one in ranked if (one[0], one[1]) < end]
    return [one[2] for one in ranked]


def _place(one: tuple[int, int, PeekedMessage]) -> tuple[int, int]:
    return one[0], one[1]


def _sorted_heap(
    heap: list[tuple[int, int, ReturnedMessage]],
) -> Iterator[tuple[int, int, ReturnedMessage]]:
    """Yield the entries of a heap in ascending order, without a change of the heap."""
    open_: list[tuple[int, int, int]] = [(heap[0][0], heap[0][1], 0)] if heap else []
    while open_:
        at = heapq.heappop(open_)[2]
        yield heap[at]
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heapq.heappush(open_, (heap[child][0], heap[child][1], child))


def _sorted_numbers(heap: list[int]) -> Iterator[int]:
    """Yield the packed entries of a heap in ascending order, without a change of the heap."""
    open_: list[tuple[int, int]] = [(heap[0], 0)] if heap else []
    while open_:
        number, at = heapq.heappop(open_)
        yield number
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heapq.heappush(open_, (heap[child], child))
