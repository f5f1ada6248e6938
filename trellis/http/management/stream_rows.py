"""Rows of a stream over HTTP: return rows as JSON, and publish rows again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import pamqp.commands as spec

from broker.errors import BrokerError
from broker.names import shown
from broker.stream.arrow import BatchView
from broker.stream.offsets import resolve_offset
from broker.stream.queue import StreamQueue
from protocols.amqp.codec.contents import frames_of, split_content
from protocols.amqp.codec.frames import encode, method_frame
from protocols.amqp.codec.properties import read_properties
from trellis.copied_properties import HEADER_HEAD, without_instructions
from trellis.http import contract, stream_files
from trellis.http.management.answers import ApiRefusal, Call, Listing, Row, bad_request, text
from trellis.http.management.messages import (
    FETCHED_BYTES_MAX,
    DirectClient,
    check_encoding,
    json_properties,
    whole_number,
)
from trellis.http.management.streaming import (
    archived_result,
    fetch_rows,
    read_result,
    stream_result,
)
from trellis.http.management.topology import exchange_name

#: Largest number of rows in one answer, and the number if the query has no `count`.
ROWS_MAX: Final = 1_000
ROWS: Final = 20
#: Largest number of bytes of each body in one answer, and the number if the query has no
#: `truncate`.
BODY_MAX: Final = 1 << 20
BODY: Final = 64 << 10
#: Largest number of rows that one request publishes again.
REPLAYED_MAX: Final = 1_000
#: Number of rows that are published before their confirms are awaited.
WINDOW: Final = 50
#: Size of the longest name in an AMQP method, in bytes.
_NAME_MAX: Final = 255
_CHANNEL: Final = 1
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"


class StreamCursor:
    """A reader of the durable rows of a stream, one by one, from `offset` on."""

    def __init__(self, stream: StreamQueue, offset: int) -> None:
        self.offset = offset
        self._stream = stream
        self._batches: list[BatchView] = []

    def next_row(self) -> tuple[BatchView, int] | None:
        """Return the next row, as its Arrow batch and its index in the batch.

        Return None after the last durable row. Raises ApiRefusal if the row cannot be read.
        """
        local = self._stream.local
        if self.offset >= local.end:
            return None
        while self._batches and self._batches[0].base + self._batches[0].rows <= self.offset:
            self._batches.pop(0)
        if not self._batches:
            self._batches = self._page(self.offset)
        batch = self._batches[0]
        row = self.offset - int(batch.base)
        self.offset += 1
        return batch, row

    def _page(self, offset: int) -> list[BatchView]:
        """Read up to 256 KiB of the stream; return the batches from the row `offset` on.

        The row `offset` is in the first batch. Raises ApiRefusal if the rows cannot be read now.
        """
        stream = self._stream
        try:
            page = read_result(stream.local.name, lambda: stream.pages.page_with(offset))
        finally:
            if not stream.readers:
                stream.pages.clear()
        return [batch for batch in page.views if batch.base + batch.rows > offset]


def _stream_of(call: Call, vhost: str, name: str) -> StreamQueue:
    query = {"vhost": vhost, "queue": name}
    return stream_result(lambda: stream_files.find_stream(call.broker, call.identity, query))


async def rows(call: Call) -> Listing:
    """Return rows of a stream as JSON, from an offset or a time on.

    The query has `queue`, and may have:

        vhost      virtual host of the stream, by default `/`
        offset     first row: a number, `first`, `last`, `next`, or an age such as `1h`
        time       first row by its time, in seconds since 1970, instead of `offset`
        count      largest number of rows
        truncate   number of bytes of each body that are returned
        encoding   `auto` or `base64`
    """
    query = call.query
    stream = _stream_of(call, query.get("vhost", "/"), query.get("queue", ""))
    count = whole_number(query, "count", ROWS, ROWS_MAX)
    truncate = whole_number(query, "truncate", BODY, BODY_MAX)
    encoding = query.get("encoding", "auto")
    check_encoding(encoding)
    cursor = StreamCursor(stream, await _first_offset(call, stream))
    await fetch_rows(call, stream.local, cursor.offset, count)

    async def shown_rows() -> AsyncIterator[Row]:
        size = 0
        for _ in range(count):
            row = cursor.next_row()
            if row is None or size >= FETCHED_BYTES_MAX:
                return
            shown_row = _row(*row, truncate, encoding)
            size += len(shown_row["payload"])
            yield shown_row

    return Listing(shown_rows(), contract.MESSAGES)


async def _first_offset(call: Call, stream: StreamQueue) -> int:
    """Return the offset of the first row to return, from the query of `rows`.

    Raises ApiRefusal.
    """
    wanted: object = call.query.get("offset", "first")
    if "time" in call.query:
        seconds = whole_number(call.query, "time", 0, 1 << 36)
        wanted = datetime.fromtimestamp(seconds, UTC)
    elif str(wanted).isdecimal():
        wanted = int(str(wanted)[:20])
    now = int(call.broker.agenda.wall * 1_000_000)
    end = int(stream.local.end)
    try:
        return await archived_result(
            call,
            stream.local,
            lambda: int(
                resolve_offset(stream.local, stream.pages, wanted, end, now, f"'{stream.name}'")
            ),
        )
    except BrokerError:
        raise bad_request(
            f"the parameter 'offset' is '{shown(str(wanted))}': give a number from 0, first, last, "
            "next, or an interval such as 1h"
        ) from None
    finally:
        if not stream.readers:
            stream.pages.clear()


def _row(batch: BatchView, row: int, truncate: int, encoding: str) -> Row:
    body = batch.text("body", row)
    header = batch.text("content_header", row)
    return {
        "offset": int(batch.base) + row,
        "published_at": int(batch.published_at(row)) / 1_000_000,
        "exchange": batch.text("exchange", row).decode("utf-8", "backslashreplace"),
        "routing_key": _key_of(batch, row).decode("utf-8", "backslashreplace"),
        "protocol": batch.value("protocol", row),
        "publisher": batch.value("publisher", row),
        "routed": batch.value("routed", row),
        "payload_bytes": len(body),
        "properties": json_properties(read_properties(header[HEADER_HEAD:])) if header else {},
        "payload": body[:truncate],
        "payload_encoding": encoding,
    }


def _key_of(batch: BatchView, row: int) -> bytes:
    """Return the routing key of a row, or its topic if the message was published over MQTT."""
    return batch.text("topic" if batch.is_null("routing_key", row) else "routing_key", row)


async def replay(call: Call) -> Row:
    """Publish rows of a stream again, and wait for their confirms.

    The body of the request has `queue`, and the offsets `from` and `to` (`to` is not included). The
    body may have `vhost`, and `exchange` (default: for each row, its original exchange). One
    request publishes at most 1,000 rows; the answer has `next`, the offset to continue from. A row
    whose MQTT topic is too long for a routing key of AMQP counts as refused.
    """
    body = call.body()
    vhost = call.vhost(text(body, "vhost", "/"))
    stream = _stream_of(call, vhost.name, text(body, "queue"))
    last = stream_files.OFFSET_MAX
    first = whole_number(body, "from", 0, last)
    end = min(whole_number(body, "to", last, last), int(stream.local.end))
    end = min(end, first + REPLAYED_MAX)
    exchange = None if "exchange" not in body else exchange_name(text(body, "exchange")).encode()
    if exchange is not None:
        vhost.exchange(exchange.decode())
    if call.broker.alarms.on:
        reason = call.broker.alarms.reason
        raise ApiRefusal(
            503, "busy", f"publishers are blocked, because the broker is {reason}; try again later"
        )
    cursor = StreamCursor(stream, first)
    await fetch_rows(call, stream.local, first, end - first)
    published = refused = too_long = 0
    async with call.slice() as work:
        client = DirectClient(call, vhost, work)
        try:
            client.send(encode(_CHANNEL, spec.Confirm.Select()))
            await client.method()
            while cursor.offset < end:
                sent = 0
                while sent < WINDOW and cursor.offset < end:
                    row = cursor.next_row()
                    if row is None:
                        break
                    if len(_key_of(*row)) > _NAME_MAX:
                        too_long += 1
                        continue
                    client.send(_publication(call, *row, exchange))
                    sent += 1
                    if work.over:
                        await work.pause()
                refused += await _confirms(client, published, sent)
                published += sent
        except ApiRefusal as refusal:
            raise ApiRefusal(
                refusal.status,
                refusal.error,
                f"{refusal.reason}; rows that were published before this error: {published}",
            ) from None
        finally:
            client.close()
    facts = {"from": first, "to": cursor.offset, "exchange": text(body, "exchange", "")}
    call.audit("replay", "stream", vhost.name, stream.name, facts)
    return {
        "published": published - refused,
        "refused": refused + too_long,
        "next": cursor.offset,
    }


def _publication(call: Call, batch: BatchView, row: int, exchange: bytes | None) -> bytes:
    """Return the AMQP frames that publish a row again.

    If `exchange` is None, the row is published to its original exchange, which the row names.
    """
    name = batch.text("exchange", row) if exchange is None else exchange
    key = _key_of(batch, row)
    header = batch.text("content_header", row)[HEADER_HEAD:] or b"\0\0"
    header = without_instructions(header, exchange is not None)
    method = _PUBLISH + bytes([len(name)]) + name + bytes([len(key)]) + key + b"\0"
    limits = frames_of(_CHANNEL, call.node.amqp.options.frame_max)
    return method_frame(_CHANNEL, method) + split_content(header, batch.text("body", row), limits)


async def _confirms(client: DirectClient, before: int, sent: int) -> int:
    """Wait for the confirms of the last `sent` messages; return how many the broker has refused.

    The broker refuses a message with basic.nack. `before` is the number of messages that the client
    published before the last `sent` messages.
    """
    waiting, refused = set(range(before + 1, before + sent + 1)), 0
    while waiting:
        answer: Any = await client.method()
        if isinstance(answer, spec.Basic.Ack | spec.Basic.Nack):
            tag = answer.delivery_tag or 0
            done = {one for one in waiting if one <= tag} if answer.multiple else {tag} & waiting
            waiting -= done
            refused += len(done) if isinstance(answer, spec.Basic.Nack) else 0
    return refused
