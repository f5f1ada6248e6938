"""The part of a long queue whose messages are not in memory: their positions in the store.

    push(message) --> [chunk | chunk | ... | chunk] --> pop() --> messages, read from the store

A message takes 17 bytes here: its position in the store, its expiry and its flags, which may differ
from queue to queue. The queue reads the content of a message again before the delivery. A message
that the store does not keep (position 0) stays in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.messages.memory import MESSAGE_SIZE
from broker.messages.message import Message
from broker.queues.fifo import Fifo
from broker.store.contract import Store

#: Largest number of messages that are read at once. `Store.fetch` also limits the size of their
#: contents. The read takes up to about 1 ms.
CHUNK_MESSAGES: Final[i64] = 256
#: Memory of a message's position, expiry and flags in bytes.
POSITION_SIZE: Final[i64] = 17
#: Number that is added to the QoS in a message's flags if the message was published with the retain
#: flag.
_RETAINED: Final = 4
#: Flags of a restored message: its QoS and its retain flag are read from the store.
_AS_STORED: Final = -1


class Chunk:
    """Consecutive messages of the tail: for each, its position in the store, expiry and flags.

    The flags are the QoS with which the message goes to this queue, and whether it was retained.
    """

    def __init__(self) -> None:
        self.positions: array[int] = array("q")
        self.expires: array[int] = array("q")
        self.flags: array[int] = array("b")
        #: Messages that the store does not keep (position 0), in order.
        self.transient: list[Message] = []
        #: Total size of the contents of `transient`, in bytes.
        self.transient_bytes: i64 = 0

    def push(self, message: Message) -> None:
        """Append a message to this chunk."""
        position: i64 = message.position
        self.positions.append(position)
        self.expires.append(message.expires)
        self.flags.append(flags_of(message))
        if position == 0:
            self.transient.append(message)
            self.transient_bytes += len(message.content)

    def split(self, count: i64, transient: i64) -> Chunk:
        """Remove the first `count` messages, and return them as a new chunk.

        `transient` is the number of these messages that the store does not keep.
        """
        first = Chunk()
        first.positions, self.positions = self.positions[:count], self.positions[count:]
        first.expires, self.expires = self.expires[:count], self.expires[count:]
        first.flags, self.flags = self.flags[:count], self.flags[count:]
        first.transient, self.transient = self.transient[:transient], self.transient[transient:]
        for message in first.transient:
            first.transient_bytes += len(message.content)
        self.transient_bytes -= first.transient_bytes
        return first


class PagedTail:
    """The newest messages of a queue, first in, first out, read from the store chunk by chunk."""

    def __init__(self, store: Store, queue: i64) -> None:
        self._store = store
        self._queue: i64 = queue
        #: True if the queue's annotations in the store are expiry times.
        self._expiring = False
        #: Messages that were read from the store, but not returned by `pop` yet.
        self._read_ahead: list[Message | None] = []
        self._chunks: Fifo[Chunk] = Fifo()
        self._last = Chunk()
        #: Number of messages in `Chunk.transient` of all chunks, and total size of their contents.
        self._transient: i64 = 0
        self._transient_bytes: i64 = 0
        #: True while no file descriptor is free to read the next messages, and a retry is
        #: scheduled.
        self.waits = False

    def push(self, message: Message) -> None:
        """Append a message, and drop its content from memory if the store keeps it."""
        if message.position > 0:
            self._store.page_out(message)
        else:
            self._transient += 1
            self._transient_bytes += len(message.content)
        self._open_chunk().push(message)

    def restore(self, positions: array[int], latest: i64) -> None:
        """Append the messages at these positions in the store, after a restart.

        Each message expires at its own time, but not after `latest` (ms; -1: no such limit).
        """
        self._expiring = latest >= 0
        for at in range(0, len(positions), CHUNK_MESSAGES):
            chunk = Chunk()
            chunk.positions = positions[at : at + CHUNK_MESSAGES]
            chunk.expires = array("q", [latest]) * len(chunk.positions)
            chunk.flags = array("b", [_AS_STORED]) * len(chunk.positions)
            self._chunks.push(chunk)
            self._last = chunk

    def _open_chunk(self) -> Chunk:
        """Return the last chunk of the tail; append a new chunk if the last chunk is full."""
        if len(self._last.positions) >= CHUNK_MESSAGES or self._chunks.size == 0:
            self._last = Chunk()
            self._chunks.push(self._last)
        return self._last

    def position_ahead(self, count: i64) -> i64:
        """Return the position of a message about `count` messages after the first one.

        The distance is inexact: it may be up to CHUNK_MESSAGES messages shorter. If the tail has
        fewer messages, return the position of the last message. Return 0 if the tail holds only
        transient messages.
        """
        position: i64 = 0
        for message in self._read_ahead:
            if message is not None:
                position = max(position, message.position)
        chunks: i64 = count // CHUNK_MESSAGES + 1
        for chunk in self._chunks.part(0, chunks):
            count -= len(chunk.positions)
            if count < 0 and position > 0:
                break
            position = max(position, chunk.positions[-1])
        return position

    def pop_positions(self) -> array[int]:
        """Remove the next chunk and return its positions, without reading the messages."""
        if self._read_ahead:
            ahead, self._read_ahead = self._read_ahead, []
            return array("q", [message.position for message in ahead if message is not None])
        return self._pop_chunk().positions

    def _pop_chunk(self) -> Chunk:
        """Remove and return the first chunk of the tail."""
        chunk = self._chunks.pop()
        self._drop(chunk)
        return chunk

    def _drop(self, chunk: Chunk) -> None:
        """Subtract the transient messages of a removed chunk from the tail's counts."""
        self._transient -= len(chunk.transient)
        self._transient_bytes -= chunk.transient_bytes

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the tail in bytes: positions, and transient messages."""
        positions: i64 = self._chunks.size * CHUNK_MESSAGES * POSITION_SIZE
        return positions + self._transient_bytes + self._transient * MESSAGE_SIZE

    @property
    def empty(self) -> bool:
        """True if the tail holds no messages."""
        return self._chunks.size == 0 and not self._read_ahead

    def pop(self) -> list[Message | None]:
        """Remove and return the next messages, up to the first message that cannot be read.

        Return `[None]` if the next message itself cannot be read; the store has logged the reason.
        Raises OutOfDescriptors, and removes nothing, if no file descriptor is free to read the
        messages.
        """
        messages = self._read_ahead or self._read()
        self._read_ahead = []
        for at, message in enumerate(messages):
            if message is None:
                self._read_ahead = messages[max(1, at) :]
                return messages[: max(1, at)]
        return messages

    def _read(self) -> list[Message | None]:
        """Remove the next messages, up to one chunk, and return them.

        The result has None for each unreadable message.
        """
        chunk = self._chunks.peek()
        assert chunk is not None
        messages = self._read_chunk(chunk, 0, CHUNK_MESSAGES)
        if len(messages) < len(chunk.positions):
            held = chunk.positions[: len(messages)].count(0)
            self._drop(chunk.split(len(messages), held))
        else:
            self._pop_chunk()
        return messages

    def _read_chunk(self, chunk: Chunk, start: i64, count: i64) -> list[Message | None]:
        """Return up to `count` messages of a chunk from the index `start` on; fewer if the messages
        are large. The result has None for each unreadable message.
        """
        positions = chunk.positions[start : start + count]
        wanted = [position for position in positions if position > 0]
        stored = self._store.fetch(self._queue, wanted, self._expiring) if wanted else []
        messages: list[Message | None] = []
        fetched: i64 = 0
        held: i64 = chunk.positions[:start].count(0) if start > 0 else 0
        for at, position in enumerate(positions):
            if position == 0:
                messages.append(chunk.transient[held])
                held += 1
                continue
            if fetched == len(stored):
                break
            message = stored[fetched]
            fetched += 1
            if message is not None:
                message = for_queue(message, chunk.expires[start + at], chunk.flags[start + at])
            messages.append(message)
        return messages

    def peek(self, skipped: i64, count: i64) -> list[Message | None]:
        """Return up to `count` messages behind the first `skipped` messages, and remove none.

        The messages are of one chunk, so the result may be shorter. The result has None for each
        unreadable message. Raises OutOfDescriptors if no file descriptor is free to read the
        messages.
        """
        ahead: i64 = len(self._read_ahead)
        if skipped < ahead:
            return self._read_ahead[skipped : skipped + count]
        skipped -= ahead
        at: i64 = 0
        while at < self._chunks.size:
            chunk = self._chunks.part(at, 1)[0]
            if skipped < len(chunk.positions):
                return self._read_chunk(chunk, skipped, count)
            skipped -= len(chunk.positions)
            at += 1
        return []


def read_stored(
    store: Store, queue: i64, positions: array[int], expiring: bool
) -> Iterator[Message | None]:
    """Yield the messages of a queue at these positions of the log, which is read in chunks.

    Yield None for a message that cannot be read. `expiring` is True if the queue has a message TTL:
    then the log has an expiry time for each of its messages.
    """
    at: i64 = 0
    while at < len(positions):
        messages = store.fetch(queue, list(positions[at : at + CHUNK_MESSAGES]), expiring)
        at += len(messages)
        yield from messages


def flags_of(message: Message) -> int:
    """Return the flags of a message: its QoS, plus _RETAINED if it was published with RETAIN."""
    return int(message.qos) + (_RETAINED if message.retained else 0)


def for_queue(message: Message, expires: i64, kind: i64) -> Message:
    """Return the message as its queue holds it: with the expiry `expires` (ms) and the flags
    `kind`.
    """
    if kind == _AS_STORED:
        kind = message.qos + (_RETAINED if message.retained else 0)
        expires = message.expires if expires < 0 or 0 < message.expires < expires else expires
    qos: i64 = kind % _RETAINED
    if message.expires != expires or message.qos != qos or message.retained != (kind >= _RETAINED):
        position: i64 = message.position
        message = message.copy(qos, kind >= _RETAINED)
        message.position = position
        message.expires = expires
    return message
