"""Messages as rows of an Arrow table: what a stream takes over from the loop, and how its writer
makes batches of it.

Captured   what was put: messages, or runs of packets that nobody took apart; how many queues each
went to; and when Scribe     the role of a front end: the content header of a message, and its
properties as columns
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i32_le, write_i64_le
from mypy_extensions import i64, mypyc_attr

from broker.messages.message import Address, Message
from broker.stream.arrow import Body
from broker.stream.columns import Bodies, Cells, Sparse, Texts, ramp

#: Rows, and octets of bodies, of one batch.
ROWS: Final[i64] = 4_096
OCTETS: Final[i64] = 256 << 10

#: Properties that have a column, in their order, with the octets of those that are numbers.
PROPERTIES: Final[dict[str, int]] = {
    "content_type": 0,
    "content_encoding": 0,
    "delivery_mode": 1,
    "priority": 1,
    "correlation_id": 0,
    "reply_to": 0,
    "expiration": 0,
    "message_id": 0,
    "timestamp": 8,
    "type": 0,
    "user_id": 0,
    "app_id": 0,
    "cluster_id": 0,
    "headers": 0,
}
PLACES: Final = {name: place for place, name in enumerate(PROPERTIES)}


@mypyc_attr(acyclic=True)
class Packets:
    """Publications as they came in, one behind the other, that went to the same listeners.

    `described`: with properties.
    """

    def __init__(
        self, data: bytes, count: i64, publisher: bytes, routed: i64, described: bool
    ) -> None:
        self.octets = data
        self.count: i64 = count
        self.publisher = publisher
        self.routed: i64 = routed
        self.described = described


class HeaderCodec:
    """The role of front ends: how a message stands in a stream. Called in the writer's thread."""

    def header(self, message: Message) -> bytes:
        """Class, weight, size, flags and properties, as a reader of queues would get them."""
        raise NotImplementedError

    def properties(self, header: bytes) -> list[tuple[int, bytes]]:
        """(place in PROPERTIES, octets) of those that are there, places rising. Texts are UTF-8;
        numbers little-endian, as wide as they are there. Never raises."""
        raise NotImplementedError


@final
class RowName:
    """What messages were published to, as rows say it: `odd` are the octets of a key that is no
    UTF-8.
    """

    def __init__(self, exchange: bytes, key: bytes) -> None:
        self.exchange = exchange
        self.topic, self.odd = _clean(key)


class StreamRows:
    """Takes publications that have a name and a body, and say no more."""

    def plain(self, name: RowName, body: bytes) -> None:
        raise NotImplementedError


class PacketParser:
    """The role of a front end whose publications come in runs. Called in the writer's thread."""

    def open(self, packets: Packets, rows: StreamRows) -> None:
        """Say name and body of each, in their order.

        The same name should be the same object, where that is cheap.
        """
        raise NotImplementedError

    def protocol(self, packets: Packets) -> bytes:
        """By which they came in."""
        raise NotImplementedError


class RowCodecs:
    """Those of a broker: its front ends say who they are."""

    def __init__(self) -> None:
        self.scribe = HeaderCodec()
        self.opener = PacketParser()


class Captured:
    """What a stream was given since its last batch."""

    def __init__(self, base: i64) -> None:
        self.base: i64 = base
        self.items: list[object] = []
        #: Of each: how many queues it went to.
        self.routed = BytesWriter()
        #: (index of an item, microseconds): from here on things were published then.
        self.times: list[tuple[int, int]] = []
        self.end: i64 = base


class Encoded:
    """A batch as octets that nobody changes, `count` rows from offset `base` on, published between
    these microseconds.
    """

    def __init__(self, data: bytearray, base: i64, count: i64, first_at: i64, last_at: i64) -> None:
        self.octets = data
        self.base: i64 = base
        self.count: i64 = count
        self.first_at: i64 = first_at
        self.last_at: i64 = last_at


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """The role of whoever keeps the batches."""

    def keep(self, encoded: Encoded) -> None:
        """The next batch."""
        raise NotImplementedError


class RowWriter(StreamRows):
    """Makes batches of what one stream captured.

    Rows that stand next to each other have much in common. So of each column only this is noted:
    what the last row had, and since which row; it is written when another value comes (`_end_...`),
    or when the batch is full.
    """

    def __init__(self, vhost: str, scribes: RowCodecs) -> None:
        self._vhost = vhost.encode()
        self._scribes = scribes
        self._scribe = scribes.scribe
        self._sink = Sink()
        self._used = False
        #: By exchange and key as addresses have them.
        self._names: dict[bytes, RowName] = {}
        #: Names of exchanges: equal ones are one object.
        self._exchanges_known: dict[bytes, bytes] = {}
        self._next: i64 = 0
        self._published: i64 = 0
        self._properties = [Sparse(width) for width in PROPERTIES.values()]
        #: Headers of messages that say nothing, by the size of their body.
        self._plain_headers: dict[int, bytes] = {}
        self._plain_header = _PLAIN  # No header is this one.
        #: The run that is taken apart.
        self._packets = _NO_PACKETS
        self._protocol_of_run = b""
        self._begin()

    def _begin(self) -> None:
        self._base: i64 = self._next
        self._rows: i64 = 0
        self._first_at: i64 = self._published
        self._times = Cells(8)
        self._exchanges = Texts()
        self._topics = Texts()
        self._protocols = Texts()
        self._qualities = Cells(1)
        self._publishers = Texts()
        self._routed = Cells(4)
        self._sizes = Cells(8)
        for column in self._properties:
            column.clear()
        self._headers = Texts()
        self._odd_keys = Sparse()
        self._bodies = Bodies()
        # The last row's, and since which row.
        self._time: i64 = 0
        self._time_at: i64 = 0
        self._exchange = b""
        self._exchange_at: i64 = 0
        self._name = _NOBODY
        self._name_at: i64 = 0
        self._protocol = b""
        self._publisher = b""
        self._origin_at: i64 = 0
        self._quality: i64 = 0
        self._quality_at: i64 = 0
        self._reached: i64 = 0
        self._reached_at: i64 = 0
        self._header = b""
        self._header_at: i64 = 0
        self._said: list[tuple[int, bytes]] = []
        self._said_at: i64 = 0
        self._size: i64 = 0
        self._size_at: i64 = 0

    def write(self, captured: Captured, sink: Sink) -> None:
        """All of it. What was captured is let go."""
        if not self._used:
            self._used = True
            keep_memory()
        self._sink = sink
        self._next = captured.base
        routed = captured.routed.getvalue()
        times, items = captured.times, captured.items
        turn: i64 = 0
        turns: i64 = len(times)
        turn_at: i64 = 0
        self._published = 0
        self._begin()
        scribe = self._scribe = self._scribes.scribe
        opener = self._scribes.opener
        last: Address | None = None
        name = _NOBODY
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
                    name = self._names.get(address.short_strings) or self._name_of(address)
                self._add(
                    name,
                    scribe.header(item),
                    item.encoding.body(item.content),
                    item.qos,
                    origin.protocol,
                    origin.publisher,
                    i64(read_i32_le(routed, 4 * at)),
                )
            elif isinstance(item, Packets):
                self._packets = item
                self._protocol_of_run = opener.protocol(item)
                opener.open(item, self)
            items[at] = None  # Here it is in the processor's cache.
            at += 1
        self._finish()
        self._packets = _NO_PACKETS
        self._sink = Sink()

    def _name_of(self, address: Address) -> RowName:
        exchange, _ = _clean(address.exchange.encode("utf-8", "surrogateescape"))
        if len(self._names) >= _NAMES_MAX:
            self._names.clear()
            self._exchanges_known.clear()
        if len(address.topic) >= _CUT:
            return RowName(exchange, address.key.encode("utf-8", "surrogateescape"))
        name = RowName(
            self._exchanges_known.setdefault(exchange, exchange),
            address.key.encode("utf-8", "surrogateescape"),
        )
        self._names[address.short_strings] = name
        return name

    def plain(self, name: RowName, body: bytes) -> None:
        """A publication of the run that is taken apart. Hot path of the writer."""
        size: i64 = len(body)
        header = self._header
        if size != self._size or header is not self._plain_header:
            header = self._plain_header = self._header_of(size)
        packets = self._packets
        self._add(name, header, body, 0, self._protocol_of_run, packets.publisher, packets.routed)

    def _header_of(self, size: i64) -> bytes:
        """Of a body of this size that was sent at most once, and says no more."""
        header = self._plain_headers.get(int(size))
        if header is None:
            header = _PLAIN + int(size).to_bytes(8, "big") + _PLAIN_FLAGS
            if len(self._plain_headers) >= _NAMES_MAX:
                self._plain_headers.clear()
            self._plain_headers[int(size)] = header
        return header

    def _add(
        self,
        name: RowName,
        header: bytes,
        body: bytes,
        qos: i64,
        protocol: bytes,
        publisher: bytes,
        routed: i64,
    ) -> None:
        """A row. Hot path of the writer: what is as it was in the row before costs a comparison."""
        row: i64 = self._rows
        size: i64 = len(body)
        if row == 0:
            self._first_row(name, header, size, qos, protocol, publisher, routed)
        else:
            if name is not self._name:
                self._end_name(row)
                self._name = name
                if name.exchange is not self._exchange:
                    self._exchanges.run(self._exchange, row - self._exchange_at)
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
            if routed != self._reached:
                self._routed.run(self._reached, row - self._reached_at)
                self._reached = routed
                self._reached_at = row
            if qos != self._quality:
                self._qualities.run(self._quality, row - self._quality_at)
                self._quality = qos
                self._quality_at = row
            if self._published != self._time:
                self._times.run(self._time, row - self._time_at)
                self._time = self._published
                self._time_at = row
        bodies = self._bodies
        bodies.add(body)
        self._rows = row + 1
        if row + 1 >= ROWS or bodies.total >= OCTETS:
            self._finish()

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
        self._said = self._scribe.properties(header)
        self._size = size
        self._protocol = protocol
        self._publisher = publisher
        self._reached = routed
        self._quality = qos

    def _end_name(self, row: i64) -> None:
        name = self._name
        self._topics.run(name.topic, row - self._name_at)
        if name.odd:
            self._odd_keys.run(self._name_at, row - self._name_at, name.odd)
        self._name_at = row

    def _end_header(self, row: i64, header: bytes) -> None:
        """From this row on it is another."""
        self._headers.run(self._header, row - self._header_at)
        self._header = header
        self._header_at = row
        said = self._scribe.properties(header)
        if said is not self._said:
            self._end_said(row)
            self._said = said

    def _end_said(self, row: i64) -> None:
        for place, value in self._said:
            self._properties[place].run(self._said_at, row - self._said_at, value)
        self._said_at = row

    def _end_size(self, row: i64) -> None:
        self._sizes.run(self._size, row - self._size_at)
        self._bodies.ends.run(self._size, row - self._size_at)
        self._size_at = row

    def _end_origin(self, row: i64) -> None:
        self._protocols.run(self._protocol, row - self._origin_at)
        self._publishers.run(self._publisher, row - self._origin_at)
        self._origin_at = row

    def _finish(self) -> None:
        """The rows so far are a batch."""
        count: i64 = self._rows
        if count == 0:
            return
        self._end_name(count)
        self._exchanges.run(self._exchange, count - self._exchange_at)
        self._headers.run(self._header, count - self._header_at)
        self._end_said(count)
        self._end_size(count)
        self._end_origin(count)
        self._routed.run(self._reached, count - self._reached_at)
        self._qualities.run(self._quality, count - self._quality_at)
        self._times.run(self._time, count - self._time_at)
        offsets = BytesWriter()
        offset: i64 = self._base
        while offset < self._base + count:
            write_i64_le(offsets, offset)
            offset += 1
        body = Body(count)
        body.numbers(offsets.getvalue())
        body.numbers(self._times.octets())
        body.texts(ramp(len(self._vhost), count), self._vhost * int(count))
        body.texts(self._exchanges.ends.octets(), self._exchanges.octets())
        body.texts(self._topics.ends.octets(), self._topics.octets())
        body.texts(self._protocols.ends.octets(), self._protocols.octets())
        body.numbers(self._qualities.octets())
        body.texts(self._publishers.ends.octets(), self._publishers.octets())
        body.numbers(self._routed.octets())
        body.numbers(self._sizes.octets())
        for column in self._properties:
            body.sparse(column)
        body.texts(self._headers.ends.octets(), self._headers.octets())
        body.sparse(self._odd_keys)
        body.long_texts(self._bodies.ends.octets(), self._bodies.parts(), self._bodies.total)
        encoded = Encoded(body.batch(), self._base, count, self._first_at, self._time)
        self._next += count
        self._begin()
        self._sink.keep(encoded)


#: Class and weight of a content header; flags and properties of one that was sent at most once, and
#: says no more.
_PLAIN: Final = b"\x00\x3c\x00\x00"
_PLAIN_FLAGS: Final = b"\x10\x00\x01"
#: Names that are remembered (headers, too), and from how many octets of a key on they are not: an
#: address cuts it there.
_NAMES_MAX: Final = 1_024
_CUT: Final = 255


#: Octets that are asked for once.
_ROOM: Final = 8 << 20


def keep_memory() -> None:
    """Have the C library keep the memory that a batch takes for the next one. What is free at the
    end of its heap it gives back to the kernel, which zeroes every page anew: that was half of what
    a row cost. How much it keeps follows from the largest block that was ever given back (twice
    that, in glibc); one that nobody writes into costs nothing. Elsewhere this means nothing.
    """
    bytes(_ROOM)


def _clean(data: bytes) -> tuple[bytes, bytes]:
    """As UTF-8, and the octets themselves where they are none."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode(), data
    return data, b""


_NOBODY: Final = RowName(b"", b"")
_NO_PACKETS: Final = Packets(b"", 0, b"", 0, False)
