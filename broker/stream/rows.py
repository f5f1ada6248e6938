"""Conversion of messages to rows of Arrow record batches, in the writer's thread."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_le, write_i64_le
from mypy_extensions import i64

from broker.messages.message import Address, Message
from broker.stream.arrow import BatchBuilder
from broker.stream.captured_rows import BatchSink, CapturedRows, EncodedBatch
from broker.stream.columns import BodyColumn, NumberColumn, SparseColumn, TextColumn, equal_ends
from broker.stream.row_codecs import PROPERTIES, PublishRun, RowCodecs, RowName, StreamRows, as_utf8

#: Largest number of rows of one batch, and total size of its bodies at which the batch is full, in
#: bytes.
BATCH_ROWS: Final[i64] = 4_096
BATCH_SIZE: Final[i64] = 256 << 10


class RowWriter(StreamRows):
    """A builder of the batches of one stream.

    Consecutive rows often have equal values. So for each column the writer keeps the value of the
    last row, and the row at which the run of this value began. The writer writes the run when a row
    has another value (`_end_...` methods) or the batch is full.
    """

    def __init__(self, vhost: str, codecs: RowCodecs) -> None:
        self._vhost = vhost.encode()
        self._codecs = codecs
        self._header_codec = codecs.header_codec
        self._sink = BatchSink()
        self._used = False
        #: Cache of names: exchange and key, encoded as in Address.short_strings -> RowName.
        self._names: dict[bytes, RowName] = {}
        #: Names of exchanges, so that equal names are one object.
        self._exchange_names: dict[bytes, bytes] = {}
        self._next: i64 = 0
        self._published: i64 = 0
        self._properties = [SparseColumn(width) for width in PROPERTIES.values()]
        #: Cache of headers: size of a body -> content header of a publication without properties.
        self._plain_headers: dict[int, bytes] = {}
        #: The header of the last plain publication. (_PLAIN is not a complete header, so no row has
        #: it.)
        self._plain_header = _PLAIN
        #: The PublishRun that is being parsed.
        self._run = _NO_RUN
        self._run_protocol = b""
        self._begin_batch()

    def _begin_batch(self) -> None:
        self._base: i64 = self._next
        self._rows: i64 = 0
        self._first_at: i64 = self._published
        self._times = NumberColumn(8)
        self._exchanges = TextColumn()
        self._topics = TextColumn()
        self._protocols = TextColumn()
        self._qos_column = NumberColumn(1)
        self._publishers = TextColumn()
        self._routed = NumberColumn(4)
        self._sizes = NumberColumn(8)
        for column in self._properties:
            column.clear()
        self._headers = TextColumn()
        self._raw_keys = SparseColumn()
        self._bodies = BodyColumn()
        # For each column, the value of the last row, and the first row with this value in its run.
        self._time: i64 = 0
        self._time_at: i64 = 0
        self._exchange = b""
        self._exchange_at: i64 = 0
        self._name = _NO_NAME
        self._name_at: i64 = 0
        self._protocol = b""
        self._publisher = b""
        self._origin_at: i64 = 0
        self._qos: i64 = 0
        self._qos_at: i64 = 0
        self._routed_count: i64 = 0
        self._routed_at: i64 = 0
        self._header = b""
        self._header_at: i64 = 0
        self._row_properties: list[tuple[int, bytes]] = []
        self._properties_at: i64 = 0
        self._size: i64 = 0
        self._size_at: i64 = 0

    def write(self, captured: CapturedRows, sink: BatchSink) -> None:
        """Build batches of the captured rows, and pass them to a sink. Clear `captured.items`."""
        if not self._used:
            self._used = True
            reserve_heap()
        self._sink = sink
        self._next = captured.base
        routed = captured.routed.getvalue()
        times, items = captured.times, captured.items
        turn: i64 = 0
        turns: i64 = len(times)
        turn_at: i64 = 0
        self._published = 0
        self._begin_batch()
        header_codec = self._header_codec = self._codecs.header_codec
        packet_parser = self._codecs.packet_parser
        last: Address | None = None
        name = _NO_NAME
        at: i64 = 0
        count: i64 = len(items)
        while at < count:
            while turn < turns and turn_at <= at:
                self._published = times[turn][1]
                turn += 1
                turn_at = times[turn][0] if turn < turns else count
            item = items[at]
            if isinstance(item, Message):
                address = item.address
                origin = address.origin
                if address is not last:
                    last = address
                    name = self._names.get(address.short_strings) or self._row_name(address)
                self._add_row(
                    name,
                    header_codec.header(item),
                    item.encoding.body(item.content),
                    item.qos,
                    origin.protocol,
                    origin.publisher,
                    i64(read_i32_le(routed, 4 * at)),
                )
            elif isinstance(item, PublishRun):
                self._run = item
                self._run_protocol = packet_parser.protocol(item)
                packet_parser.parse(item, self)
            items[at] = None  # Free the message while it is in the processor's cache.
            at += 1
        self._finish_batch()
        self._run = _NO_RUN
        self._sink = BatchSink()

    def _row_name(self, address: Address) -> RowName:
        exchange, _ = as_utf8(address.exchange.encode("utf-8", "surrogateescape"))
        if len(self._names) >= _CACHE_MAX:
            self._names.clear()
            self._exchange_names.clear()
        if len(address.topic) >= _KEY_MAX:
            return RowName(exchange, address.key.encode("utf-8", "surrogateescape"))
        name = RowName(
            self._exchange_names.setdefault(exchange, exchange),
            address.key.encode("utf-8", "surrogateescape"),
        )
        self._names[address.short_strings] = name
        return name

    def add_plain(self, name: RowName, body: bytes) -> None:
        """Add a row for a publication with QoS 0 and no properties. Hot path of the writer.

        The publication belongs to the PublishRun that is being parsed.
        """
        size: i64 = len(body)
        header = self._header
        if size != self._size or header is not self._plain_header:
            header = self._plain_header = self._plain_header_for(size)
        packets = self._run
        self._add_row(name, header, body, 0, self._run_protocol, packets.publisher, packets.routed)

    def _plain_header_for(self, size: i64) -> bytes:
        """Return the content header of a plain publication with a body of `size` bytes.

        A plain publication has QoS 0 and no properties.
        """
        header = self._plain_headers.get(int(size))
        if header is None:
            header = _PLAIN + int(size).to_bytes(8, "big") + _PLAIN_FLAGS
            if len(self._plain_headers) >= _CACHE_MAX:
                self._plain_headers.clear()
            self._plain_headers[int(size)] = header
        return header

    def _add_row(
        self,
        name: RowName,
        header: bytes,
        body: bytes,
        qos: i64,
        protocol: bytes,
        publisher: bytes,
        routed: i64,
    ) -> None:
        """Add a row. Hot path of the writer.

        `routed` is the number of queues and subscribers that got the message. A value that is equal
        to the value in the last row costs only a comparison.
        """
        row: i64 = self._rows
        size: i64 = len(body)
        if row == 0:
            self._first_row(name, header, size, qos, protocol, publisher, routed)
        else:
            if name is not self._name:
                self._end_name(row)
                self._name = name
                if name.exchange is not self._exchange:
                    self._exchanges.add_run(self._exchange, row - self._exchange_at)
                    self._exchange = name.exchange
                    self._exchange_at = row
            if header is not self._header:
                self._end_header(row, header)
            if size != self._size:
                self._end_size(row)
                self._size = size
            if protocol is not self._protocol or publisher is not self._publisher:
                self._end_origin(row)
                self._protocol = protocol
                self._publisher = publisher
            if routed != self._routed_count:
                self._routed.add_run(self._routed_count, row - self._routed_at)
                self._routed_count = routed
                self._routed_at = row
            if qos != self._qos:
                self._qos_column.add_run(self._qos, row - self._qos_at)
                self._qos = qos
                self._qos_at = row
            if self._published != self._time:
                self._times.add_run(self._time, row - self._time_at)
                self._time = self._published
                self._time_at = row
        bodies = self._bodies
        bodies.add(body)
        self._rows = row + 1
        if row + 1 >= BATCH_ROWS or bodies.total >= BATCH_SIZE:
            self._finish_batch()

    def _first_row(
        self,
        name: RowName,
        header: bytes,
        size: i64,
        qos: i64,
        protocol: bytes,
        publisher: bytes,
        routed: i64,
    ) -> None:
        self._first_at = self._time = self._published
        self._name = name
        self._exchange = name.exchange
        self._header = header
        self._row_properties = self._header_codec.properties(header)
        self._size = size
        self._protocol = protocol
        self._publisher = publisher
        self._routed_count = routed
        self._qos = qos

    def _end_name(self, row: i64) -> None:
        name = self._name
        self._topics.add_run(name.topic, row - self._name_at)
        if name.raw_key:
            self._raw_keys.add_run(self._name_at, row - self._name_at, name.raw_key)
        self._name_at = row

    def _end_header(self, row: i64, header: bytes) -> None:
        """End the run of rows with the same content header; use `header` from `row` on.

        The content header of a run is stored once for all its rows.
        """
        self._headers.add_run(self._header, row - self._header_at)
        self._header = header
        self._header_at = row
        properties = self._header_codec.properties(header)
        if properties is not self._row_properties:
            self._end_properties(row)
            self._row_properties = properties

    def _end_properties(self, row: i64) -> None:
        for place, value in self._row_properties:
            self._properties[place].add_run(self._properties_at, row - self._properties_at, value)
        self._properties_at = row

    def _end_size(self, row: i64) -> None:
        self._sizes.add_run(self._size, row - self._size_at)
        self._bodies.ends.add_run(self._size, row - self._size_at)
        self._size_at = row

    def _end_origin(self, row: i64) -> None:
        self._protocols.add_run(self._protocol, row - self._origin_at)
        self._publishers.add_run(self._publisher, row - self._origin_at)
        self._origin_at = row

    def _finish_batch(self) -> None:
        """Build a batch of the rows that were added so far, and pass the batch to the sink."""
        count: i64 = self._rows
        if count == 0:
            return
        self._end_name(count)
        self._exchanges.add_run(self._exchange, count - self._exchange_at)
        self._headers.add_run(self._header, count - self._header_at)
        self._end_properties(count)
        self._end_size(count)
        self._end_origin(count)
        self._routed.add_run(self._routed_count, count - self._routed_at)
        self._qos_column.add_run(self._qos, count - self._qos_at)
        self._times.add_run(self._time, count - self._time_at)
        offsets = BytesWriter()
        offset: i64 = self._base
        while offset < self._base + count:
            write_i64_le(offsets, offset)
            offset += 1
        body = BatchBuilder(count)
        body.add_numbers(offsets.getvalue())
        body.add_numbers(self._times.encode())
        body.add_texts(equal_ends(len(self._vhost), count), self._vhost * int(count))
        body.add_texts(self._exchanges.ends.encode(), self._exchanges.encode())
        body.add_texts(self._topics.ends.encode(), self._topics.encode())
        body.add_texts(self._protocols.ends.encode(), self._protocols.encode())
        body.add_numbers(self._qos_column.encode())
        body.add_texts(self._publishers.ends.encode(), self._publishers.encode())
        body.add_numbers(self._routed.encode())
        body.add_numbers(self._sizes.encode())
        for column in self._properties:
            body.add_sparse(column)
        body.add_texts(self._headers.ends.encode(), self._headers.encode())
        body.add_sparse(self._raw_keys)
        body.add_long_texts(self._bodies.ends.encode(), self._bodies.parts(), self._bodies.total)
        encoded = EncodedBatch(body.build(), self._base, count, self._first_at, self._time)
        self._next += count
        self._begin_batch()
        self._sink.add(encoded)


#: Class and weight of a content header, and flags and properties of a transient message (delivery
#: mode 1) without other properties.
_PLAIN: Final = b"\x00\x3c\x00\x00"
_PLAIN_FLAGS: Final = b"\x10\x00\x01"
#: Largest number of names, and of headers, that are cached. A name with a key of _KEY_MAX bytes or
#: more is not cached, because Address.short_strings has only the beginning of a longer key.
_CACHE_MAX: Final = 1_024
_KEY_MAX: Final = 255


#: Size of the block that `reserve_heap` allocates once, in bytes.
_RESERVED_SIZE: Final = 8 << 20


def reserve_heap() -> None:
    """Make glibc keep freed memory for the next batch, by allocating and freeing one large block.

    By default, glibc returns free memory at the end of its heap to the kernel. The kernel clears
    each page before the process gets it again: this took half of the time to build a row. After a
    large block was freed, glibc keeps up to twice the size of this block. The block is never
    written, so it takes no memory. Other C libraries are not affected.
    """
    bytes(_RESERVED_SIZE)


_NO_NAME: Final = RowName(b"", b"")
_NO_RUN: Final = PublishRun(b"", 0, b"", 0, 4)
