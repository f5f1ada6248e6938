"""The part of a long queue that is not in memory: positions in the store, and what else of a
message is this queue's own.

    push(message) --> [chunk | chunk | ... | chunk] --> pop() --> messages, read from the store

A message takes 17 octets here, wherever its content is. One that the store does not keep stays as
it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message
from broker.queues.fifo import Fifo
from broker.store.contract import Store

#: Messages that are read at once: some tenths of a millisecond.
CHUNK_MESSAGES: Final[i64] = 256
#: Added to a message's assurance when it was retained.
_RETAINED: Final = 4
#: It goes to this queue as it is in the store.
_AS_STORED: Final = -1


class Chunk:
    """Some messages: where they are, when they expire, and with what assurance they go to this
    queue.
    """

    def __init__(self) -> None:
        self.positions: array[int] = array("q")
        self.expires: array[int] = array("q")
        self.flags: array[int] = array("b")
        #: Those that the store does not keep (position 0), in order.
        self.transient: list[Message] = []

    def push(self, message: Message) -> None:
        position: i64 = message.position
        self.positions.append(position)
        self.expires.append(message.expires)
        self.flags.append(message.qos + (_RETAINED if message.retained else 0))
        if position == 0:
            self.transient.append(message)


class PagedTail:
    """First in, first out, by chunks."""

    def __init__(self, store: Store, queue: i64) -> None:
        self._store = store
        self._queue: i64 = queue
        #: Whether the store says when those that were there before expire.
        self._expiring = False
        #: Messages that are read, and wait behind one that cannot be.
        self._read_ahead: list[Message | None] = []
        self._chunks: Fifo[Chunk] = Fifo()
        self._last = Chunk()

    def push(self, message: Message) -> None:
        """Forget the message."""
        if message.position > 0:
            self._store.page_out(message)
        self._open_chunk().push(message)

    def restore(self, positions: array[int], latest: i64) -> None:
        """Messages that are in the store already, and were never seen.

        They expire when they say, and at `latest` (-1: never).
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
        if len(self._last.positions) >= CHUNK_MESSAGES or self._chunks.size == 0:
            self._last = Chunk()
            self._chunks.push(self._last)
        return self._last

    def pop_positions(self) -> array[int]:
        """The positions of the next chunk, which nobody wants to read."""
        if self._read_ahead:
            ahead, self._read_ahead = self._read_ahead, []
            return array("q", [message.position for message in ahead if message is not None])
        return self._chunks.pop().positions

    @property
    def empty(self) -> bool:
        return self._chunks.size == 0 and not self._read_ahead

    def pop(self) -> list[Message | None]:
        """Messages that come next; or None, alone, for one that cannot be read.

        The store has reported that.
        """
        messages = self._read_ahead or self._read()
        self._read_ahead = []
        for at, message in enumerate(messages):
            if message is None:
                self._read_ahead = messages[max(1, at) :]
                return messages[: max(1, at)]
        return messages

    def _read(self) -> list[Message | None]:
        """The messages of the next chunk."""
        chunk = self._chunks.pop()
        wanted = [position for position in chunk.positions if position > 0]
        found = self._store.fetch(self._queue, wanted, self._expiring)
        messages: list[Message | None] = []
        fetched: i64 = 0
        held: i64 = 0
        for at, position in enumerate(chunk.positions):
            if position == 0:
                messages.append(chunk.transient[held])
                held += 1
                continue
            message = found[fetched]
            fetched += 1
            if message is not None:
                message = _for_queue(message, chunk.expires[at], chunk.flags[at])
            messages.append(message)
        return messages


def read_stored(
    store: Store, queue: i64, positions: array[int], expiring: bool
) -> Iterator[Message | None]:
    """The messages that the queue has at these positions, read in chunks; None for one that cannot
    be read.
    """
    for at in range(0, len(positions), CHUNK_MESSAGES):
        yield from store.fetch(queue, list(positions[at : at + CHUNK_MESSAGES]), expiring)


def _for_queue(message: Message, expires: i64, kind: i64) -> Message:
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
