"""Peeking: read the waiting messages of a queue without a change of the queue."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

from broker.names import shown
from broker.queues.peeking import PeekCursor, PeekedMessage
from broker.queues.peeking import peek as peek_messages
from broker.queues.queue import Queue
from broker.store.disk import OutOfDescriptors
from broker.stream.queue import StreamQueue
from broker.vhost.vhost import VirtualHost
from trellis.http import contract
from trellis.http.management.answers import ApiRefusal, Call, Listing, Row, bad_request
from trellis.http.management.messages import (
    FETCHED_BYTES_MAX,
    check_encoding,
    json_properties,
    whole_number,
)
from trellis.http.management.topology import named_queue

#: Largest number of messages in one answer, and the number if the query has no `count`.
PEEKED_MAX: Final = 1_000
PEEKED: Final = 10
#: Largest number of bytes of each body in one answer, and the number if the query has no
#: `truncate`.
BODY_MAX: Final = 1 << 20
BODY: Final = 64 << 10
#: Number of messages that are read at once from the queue.
_AT_ONCE: Final = 32
#: Pattern of the `sequence` of a message: the rank, in a queue with priorities, and the sequence
#: number.
_PLACE: Final = re.compile(r"(-?[0-9]{1,5}:)?[0-9]{1,17}", re.ASCII)


def readable_queue(call: Call, purpose: str) -> tuple[VirtualHost, Queue]:
    """Return the queue that the path names, if the user may read its messages.

    The queue of an MQTT session has messages that topic rules protect, and an exclusive queue has
    messages for one connection only, such as replies. So only administrators may read these queues.
    `purpose` is the operation, for the error. Raises ApiRefusal, AccessRefused.
    """
    vhost, queue = named_queue(call)
    if isinstance(queue, StreamQueue):
        raise bad_request(
            f"cannot {purpose} queue '{queue.name}' in vhost '{vhost.name}', because the queue is "
            "a stream; use `trellis stream`"
        )
    if queue.private:
        call.require_administrator(f"{purpose} queue '{queue.name}' of an MQTT session")
    if queue.exclusive_to is not None:
        call.require_administrator(f"{purpose} queue '{queue.name}', which is exclusive")
    call.may("read", "queue", queue.name, vhost)
    return vhost, queue


async def peek(call: Call) -> Listing:
    """Return the first waiting messages of the queue in the path; the queue keeps them unchanged.

    The query may have `count` (largest number of messages), `after`, `truncate` (largest number of
    bytes of each body) and `encoding` (auto or base64). `after` is the `sequence` of the last
    message in the previous answer.
    """
    _, queue = readable_queue(call, "peek into")
    count = whole_number(call.query, "count", PEEKED, PEEKED_MAX)
    truncate = whole_number(call.query, "truncate", BODY, BODY_MAX)
    cursor = _cursor_of(call.query.get("after", ""))
    encoding = call.query.get("encoding", "auto")
    check_encoding(encoding)

    async def rows() -> AsyncIterator[Row | None]:
        left, size = count, 0
        while left > 0:
            messages = _read(queue, cursor, min(left, _AT_ONCE))
            if not messages:
                return
            for one in messages:
                row = _row(one, queue, truncate, encoding)
                yield row
                if row is not None:
                    left -= 1
                    size += len(row["payload"])
                    if size >= FETCHED_BYTES_MAX:
                        return

    return Listing(rows(), contract.MESSAGES)


def _cursor_of(text: str) -> PeekCursor:
    """Return a cursor at the message that follows the message with the sequence number `text`.

    `text` is `after` in the query; if it is "", the cursor is at the first message of the queue.
    Raises ApiRefusal if `text` is not a sequence number.
    """
    if not text:
        return PeekCursor()
    if not _PLACE.fullmatch(text):
        raise bad_request(f"'after' must be the 'sequence' of a message, not '{shown(text)}'")
    rank, _, sequence = text.rpartition(":")
    return PeekCursor(int(rank or 0), int(sequence))


def _read(queue: Queue, cursor: PeekCursor, most: int) -> list[PeekedMessage]:
    try:
        return peek_messages(queue, cursor, most)
    except OutOfDescriptors:
        raise ApiRefusal(
            503,
            "busy",
            f"the messages of queue '{queue.name}' in vhost '{queue.vhost}' are on disk, and the "
            "broker has no free file descriptor to read them: try again",
        ) from None


def _row(one: PeekedMessage, queue: Queue, truncate: int, encoding: str) -> Row | None:
    """Return a message as a row of the API; None if the store cannot read the message.

    The row has the first `truncate` bytes of the body, which the gateway encodes as `encoding`.
    """
    message = one.message
    if message is None:
        return None
    now = queue.agenda.now
    sequence = str(int(one.sequence)) if one.rank == 0 else f"{int(one.rank)}:{int(one.sequence)}"
    key = message.address.key.encode("utf-8", "surrogateescape")
    return {
        "sequence": sequence,
        "payload_bytes": int(message.encoding.size(message.content)),
        "redelivered": one.attempts > 0,
        "returns": int(one.attempts),
        "exchange": message.address.exchange,
        "routing_key": key.decode("utf-8", "backslashreplace"),
        "persistent": message.position > 0,
        "expires_in_ms": None if message.expires == 0 else max(0, int(message.expires - now)),
        "properties": json_properties(message.properties),
        "payload": message.encoding.first_bytes(message.content, truncate),
        "payload_encoding": encoding,
    }
