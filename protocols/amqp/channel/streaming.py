"""Delivers the rows of a stream: each row becomes a basic.deliver with a header x-stream-offset.

    deliver      frame, method, tag | delivery tag | 0, exchange, key
    header       frame, class, weight, size | properties before | offset | properties after
    body         frames

The properties are copied from the row. They are split at the end of the headers, where the value of
x-stream-offset is inserted. The two parts are cached for the next rows with the same properties.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_le, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, u8

from broker.messages.message import PLAIN, Address, Message
from broker.messages.outlet import LARGE_BODY
from broker.queues.consumer import Delivery
from broker.store.disk import StoreError
from broker.stream.archived import RowsPending, RowsUnavailable
from broker.stream.arrow import FIRST_BUFFER, BatchView
from broker.stream.offsets import resolve_offset
from broker.stream.queue import StreamQueue
from broker.stream.reader import QueueStreamReader
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.codec.frames import FRAME_END, OVERHEAD
from protocols.amqp.codec.properties import split_properties
from protocols.amqp.errors import AmqpError
from protocols.window import Window

#: Name and type of the header for the offset: a signed number of 8 bytes.
_OFFSET: Final = b"\x0fx-stream-offsetl"
_DELIVER: Final = b"\x00\x3c\x00\x3c"
_CONSUME: Final[i64] = 60 << 16 | 20
#: Length of the fixed fields of a content header (class, weight, body size), in bytes.
_FIXED: Final[i64] = 12
_HEADERS: Final = 1 << 13
#: The message of every delivery from a stream: an empty message, because such a delivery is settled
#: by its offset alone.
_NOTHING: Final = Message(Address("", ""), b"", PLAIN, 0)

_EXCHANGE: Final[i64] = FIRST_BUFFER["exchange"]
_TOPIC: Final[i64] = FIRST_BUFFER["topic"]
_HEADER: Final[i64] = FIRST_BUFFER["content_header"]
_BODY: Final[i64] = FIRST_BUFFER["body"]


class StreamStart:
    """The row at which a consumer wants to begin: `wanted` is the consumer's argument
    x-stream-offset.
    """

    def __init__(self, queue: StreamQueue, vhost: VirtualHost, wanted: object) -> None:
        self._queue = queue
        self._wanted = wanted
        self._name = f"queue '{queue.name}' in vhost '{vhost.name}'"
        #: Time of the request in microseconds, from which an interval such as `1h` is counted.
        self._asked_us = i64(vhost.agenda.wall * 1_000_000)

    def offset(self) -> i64:
        """Return the offset of the row.

        Raises PreconditionFailed if `wanted` is invalid, RowsPending if the archive must be asked
        first, RowsUnavailable or StoreError if the rows cannot be read.
        """
        queue = self._queue
        return resolve_offset(
            queue.local, queue.pages, self._wanted, queue.end, self._asked_us, self._name
        )

    def offset_now(self) -> i64:
        """Return the offset of the row; -1 if the archive must be asked first.

        Raises PreconditionFailed if `wanted` is invalid, AmqpError if the rows cannot be read.
        """
        try:
            return self.offset()
        except RowsPending:
            return -1
        except (RowsUnavailable, StoreError) as error:
            raise AmqpError(406, str(error)) from error


class AmqpStreamConsumer(QueueStreamReader):
    """The reader of a stream for one AMQP consumer.

    The AmqpConsumer in `consumer` has the consumer tag and the credit; this object writes the rows.
    """

    def __init__(
        self,
        consumer: AmqpConsumer,
        start: StreamStart,
        offset: i64,
        connection: ConnectionInterface,
        unacked: Window,
    ) -> None:
        super().__init__(consumer, offset)
        self._start = start
        frames = consumer.frames
        channel = int(frames.channel).to_bytes(2, "big")
        self._connection = connection
        self._number: i64 = frames.channel
        self._unacked = unacked
        self._tally = connection.front.tally
        self._room: i64 = frames.frame_max - OVERHEAD
        self._method = _DELIVER + bytes([len(consumer.tag.encode())]) + consumer.tag.encode()
        self._method_head = b"\x01" + channel
        self._header_head = b"\x02" + channel
        self._body_head = b"\x03" + channel
        #: Flags and properties of the last row, and their parts before and after the offset.
        self._last_properties = b""
        self._before = b""
        self._after = b""

    def find_start(self) -> i64:
        return self._start.offset()

    def serve(self, batch: BatchView, row: i64) -> i64:
        """Deliver rows of a batch, from `row` on, while the consumer has credit. Hot path.

        Return the number of handled rows. Rows that are skipped, because their properties do not
        fit into a frame of this client, count as handled.
        """
        consumer = self.consumer
        pool = consumer.pool
        outlet = consumer.outlet
        unacked = self._unacked
        data = batch.data
        exchange_ends: i64 = batch.buffer_start(_EXCHANGE + 1)
        exchange_data: i64 = batch.buffer_start(_EXCHANGE + 2)
        topic_ends: i64 = batch.buffer_start(_TOPIC + 1)
        topic_data: i64 = batch.buffer_start(_TOPIC + 2)
        header_ends: i64 = batch.buffer_start(_HEADER + 1)
        header_data: i64 = batch.buffer_start(_HEADER + 2)
        body_ends: i64 = batch.buffer_start(_BODY + 1)
        body_data: i64 = batch.buffer_start(_BODY + 2)
        method = self._method
        overhead: i64 = len(method) + 11
        rows: i64 = batch.rows
        first: i64 = row
        while row < rows:
            if consumer.credit <= 0 or pool is not None and pool.credit <= 0 or not outlet.open():
                break
            at: i64 = 4 * row
            start: i64 = header_data + i64(read_i32_le(data, header_ends + at))
            stop: i64 = header_data + i64(read_i32_le(data, header_ends + at + 4))
            properties = data[start + _FIXED : stop]
            if properties != self._last_properties:
                self._split_at_offset(properties)
            before, after = self._before, self._after
            size: i64 = _FIXED + len(before) + 8 + len(after)
            if size > self._room:
                # The properties do not fit into a frame of this client, so the row is skipped.
                row += 1
                continue
            exchange = data[
                exchange_data + i64(read_i32_le(data, exchange_ends + at)) : exchange_data
                + i64(read_i32_le(data, exchange_ends + at + 4))
            ]
            key = data[
                topic_data + i64(read_i32_le(data, topic_ends + at)) : topic_data
                + i64(read_i32_le(data, topic_ends + at + 4))
            ]
            if not batch.is_null("routing_key", row):
                # The key is not valid UTF-8, so `topic` has replacements for some of its bytes.
                key = batch.text("routing_key", row)
            if len(key) > 255:
                key = key[:255]
            offset: i64 = batch.base + row
            consumer.credit -= 1
            if pool is not None:
                pool.take(consumer)
            out = outlet.out
            out.write(self._method_head)
            write_i32_be(out, i32(overhead + len(exchange) + len(key)))
            out.write(method)
            write_i64_be(out, unacked.add(Delivery(_NOTHING, consumer, offset)))
            out.append(u8(0))
            out.append(u8(len(exchange)))
            out.write(exchange)
            out.append(u8(len(key)))
            out.write(key)
            out.append(u8(FRAME_END))
            out.write(self._header_head)
            write_i32_be(out, i32(size))
            out.write(data[start : start + _FIXED])
            out.write(before)
            write_i64_be(out, offset)
            out.write(after)
            out.append(u8(FRAME_END))
            start = body_data + i64(read_i32_le(data, body_ends + at))
            stop = body_data + i64(read_i32_le(data, body_ends + at + 4))
            if stop - start < LARGE_BODY and stop - start <= self._room:
                if stop > start:
                    out.write(self._body_head)
                    write_i32_be(out, i32(stop - start))
                    out.write(data[start:stop])
                    out.append(u8(FRAME_END))
            else:
                self._write_large(data, start, stop)
            row += 1
        if row > first:
            self._tally.delivered_manual += row - first
            if not outlet.dirty:
                outlet.touch()
        return row - first

    def _write_large(self, data: bytes, start: i64, stop: i64) -> None:
        """Write the body data[start:stop] in as many frames as needed, without copying the body."""
        outlet = self.consumer.outlet
        while start < stop:
            end: i64 = min(start + self._room, stop)
            outlet.out.write(self._body_head)
            write_i32_be(outlet.out, i32(end - start))
            outlet.attach(data[start:end])
            outlet.out.append(u8(FRAME_END))
            start = end

    def _split_at_offset(self, properties: bytes) -> None:
        """Cache the parts of these properties before and after the value of x-stream-offset."""
        self._last_properties = properties
        self._before, self._after = with_offset(properties)

    def fail(self, reason: str) -> None:
        self._connection.close_channel(self._number, AmqpError(406, reason), _CONSUME)


def with_offset(properties: bytes) -> tuple[bytes, bytes]:
    """Add a header x-stream-offset, as the last header, to flags and properties.

    Return the bytes before and the bytes after the header's value. Between these two parts, the
    caller inserts the value: the offset of a row.
    """
    flags = int.from_bytes(properties[:2], "big")
    before: list[bytes] = []
    table = b""
    at = 2
    for name, kind, data in split_properties(properties):
        if kind == "table":
            table = data[4:]
        elif name not in ("content_type", "content_encoding"):
            break
        else:
            before.append(data)
        at += len(data)
    table += _OFFSET
    head = (
        (flags | _HEADERS).to_bytes(2, "big")
        + b"".join(before)
        + (len(table) + 8).to_bytes(4, "big")
        + table
    )
    return head, properties[at:]


def check_stream_consumer(
    queue: StreamQueue, vhost: VirtualHost, no_ack: bool, limited: bool
) -> None:
    """Raise AmqpError, with RabbitMQ's text, if a stream cannot serve a consumer.

    A stream serves only a consumer with a prefetch count (`limited` is True) that acknowledges its
    deliveries (`no_ack` is False).
    """
    thing = f"queue '{queue.name}' in vhost '{vhost.name}'"
    if not limited:
        raise AmqpError(406, f"consumer prefetch count is not set for stream {thing}")
    if no_ack:
        raise AmqpError(540, f"automatic acknowledgement not supported by stream {thing}")
