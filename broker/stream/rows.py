"""Messages as rows of an Arrow table: what a stream takes over from the loop, and how its writer makes batches of it.

    Captured   what was put: messages, or runs of packets that nobody took apart; how many queues each went to; and when
    Scribe     the role of a front end: the content header of a message, and its properties as columns
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_le, write_i32_le, write_i64_le
from mypy_extensions import i32, i64, mypyc_attr, u8

from broker.message import Address, Message
from broker.stream.arrow import Body, Sparse, Texts

#: Rows, and octets of bodies, of one batch.
ROWS: Final[i64] = 4_096
OCTETS: Final[i64] = 256 << 10

#: Properties that have a column, in their order, with the octets of those that are numbers.
PROPERTIES: Final[dict[str, int]] = {
    "content_type": 0, "content_encoding": 0, "delivery_mode": 1, "priority": 1, "correlation_id": 0, "reply_to": 0, "expiration": 0,
    "message_id": 0, "timestamp": 8, "type": 0, "user_id": 0, "app_id": 0, "cluster_id": 0, "headers": 0}
PLACES: Final = {name: place for place, name in enumerate(PROPERTIES)}


@mypyc_attr(acyclic=True)
class Packets:
    """Publications as they came in, one behind the other, that went to the same listeners. `described`: with properties."""

    def __init__(self, octets: bytes, count: i64, publisher: bytes, routed: i64, described: bool) -> None:
        self.octets = octets
        self.count: i64 = count
        self.publisher = publisher
        self.routed: i64 = routed
        self.described = described


class Scribe:
    """The role of front ends: how a message stands in a stream. Called in the writer's thread."""

    def header(self, message: Message) -> bytes:
        """Class, weight, size, flags and properties, as a reader of queues would get them."""
        raise NotImplementedError

    def properties(self, header: bytes) -> list[tuple[int, bytes]]:
        """(place in PROPERTIES, octets) of those that are there, places rising. Texts are UTF-8; numbers little-endian, as wide
        as they are there. Never raises."""
        raise NotImplementedError


class Opener:
    """The role of a front end whose publications come in runs. Called in the writer's thread."""

    def open(self, packets: Packets) -> list[tuple[bytes, bytes]]:
        """Key and body of each."""
        raise NotImplementedError

    def protocol(self, packets: Packets) -> bytes:
        """By which they came in."""
        raise NotImplementedError


class Scribes:
    """Those of a broker: its front ends say who they are."""

    def __init__(self) -> None:
        self.scribe = Scribe()
        self.opener = Opener()


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
    """A batch as octets, `count` rows from offset `base` on, published between these microseconds."""

    def __init__(self, octets: bytes, base: i64, count: i64, first_at: i64, last_at: i64) -> None:
        self.octets = octets
        self.base: i64 = base
        self.count: i64 = count
        self.first_at: i64 = first_at
        self.last_at: i64 = last_at


class RowWriter:
    """Makes batches of what one stream captured."""

    def __init__(self, vhost: str, scribes: Scribes) -> None:
        self.made: list[Encoded] = []
        self._vhost = vhost.encode()
        self._scribes = scribes
        self._scribe = scribes.scribe
        self._address: Address | None = None
        self._exchange = b""
        self._topic = b""
        #: The octets of a key that is no UTF-8.
        self._odd = b""
        self._next: i64 = 0
        self._published: i64 = 0
        self._begin()

    def _begin(self) -> None:
        self._base: i64 = self._next
        self._rows: i64 = 0
        self._octets: i64 = 0
        self._first_at: i64 = self._published
        self._times = BytesWriter()
        self._exchanges = Texts()
        self._topics = Texts()
        self._protocols = Texts()
        self._qualities = BytesWriter()
        self._publishers = Texts()
        self._routed = BytesWriter()
        self._sizes = BytesWriter()
        self._properties = [Sparse(width) for width in PROPERTIES.values()]
        self._headers = Texts()
        self._odd_keys = Sparse()
        self._bodies: list[bytes] = []
        self._body_ends = BytesWriter()
        write_i32_le(self._body_ends, 0)

    def write(self, captured: Captured) -> list[Encoded]:
        """All of it."""
        self.made = []
        self._next = captured.base
        routed = captured.routed.getvalue()
        times = captured.times
        turn: i64 = 0
        self._published = times[0][1] if times else 0
        self._begin()
        scribe = self._scribe = self._scribes.scribe
        for at, item in enumerate(captured.items):
            while turn < len(times) and times[turn][0] <= at:
                self._published = times[turn][1]
                turn += 1
            if isinstance(item, Message):
                origin = item.address.origin
                self._name(item.address)
                self._add(scribe.header(item), item.encoding.body(item.content), item.assurance, origin.protocol, origin.publisher,
                          i64(read_i32_le(routed, 4 * i64(at))))
            elif isinstance(item, Packets):
                protocol = self._scribes.opener.protocol(item)
                for key, body in self._scribes.opener.open(item):
                    self._topic, self._odd = _clean(key)
                    self._exchange = b"amq.topic"
                    self._address = None
                    self._add(_PLAIN + len(body).to_bytes(8, "big") + _PLAIN_FLAGS, body, 0, protocol, item.publisher, item.routed)
        self._finish()
        made, self.made = self.made, []
        return made

    def _name(self, address: Address) -> None:
        if address is not self._address:
            self._address = address
            self._exchange, _ = _clean(address.exchange.encode("utf-8", "surrogateescape"))
            self._topic, self._odd = _clean(address.key.encode("utf-8", "surrogateescape"))

    def _add(self, header: bytes, body: bytes, assurance: i64, protocol: bytes, publisher: bytes, routed: i64) -> None:
        """A row. Hot path of the writer: 0.5 us."""
        row: i64 = self._rows
        if row == 0:
            self._first_at = self._published
        write_i64_le(self._times, self._published)
        self._exchanges.add(self._exchange)
        self._topics.add(self._topic)
        if self._odd:
            self._odd_keys.note(row, self._odd)
        self._protocols.add(protocol)
        self._qualities.append(u8(assurance))
        self._publishers.add(publisher)
        write_i32_le(self._routed, i32(routed))
        size: i64 = len(body)
        write_i64_le(self._sizes, size)
        for place, value in self._scribe.properties(header):
            self._properties[place].note(row, value)
        self._headers.add(header)
        self._bodies.append(body)
        self._octets += size
        write_i32_le(self._body_ends, i32(self._octets))
        self._rows = row + 1
        self._next += 1
        if self._rows >= ROWS or self._octets >= OCTETS:
            self._finish()

    def _finish(self) -> None:
        """The rows so far are a batch."""
        count: i64 = self._rows
        if count == 0:
            return
        offsets, names, ends = BytesWriter(), self._vhost * int(count), BytesWriter()
        offset: i64 = self._base
        end: i64 = 0
        write_i32_le(ends, 0)
        while offset < self._base + count:
            write_i64_le(offsets, offset)
            offset += 1
            end += len(self._vhost)
            write_i32_le(ends, i32(end))
        body = Body()
        body.numbers(offsets.getvalue(), count)
        body.numbers(self._times.getvalue(), count)
        body.node(count, 0)
        body.add(b"")
        body.add(ends.getvalue())
        body.add(names)
        body.texts(self._exchanges, count)
        body.texts(self._topics, count)
        body.texts(self._protocols, count)
        body.numbers(self._qualities.getvalue(), count)
        body.texts(self._publishers, count)
        body.numbers(self._routed.getvalue(), count)
        body.numbers(self._sizes.getvalue(), count)
        for column in self._properties:
            column.add_to(body, count)
        body.texts(self._headers, count)
        self._odd_keys.add_to(body, count)
        body.node(count, 0)
        body.add(b"")
        body.add(self._body_ends.getvalue())
        body.add(b"".join(self._bodies))
        self.made.append(Encoded(body.batch(count), self._base, count, self._first_at, self._published))
        self._begin()


#: Class and weight of a content header; flags and properties of one that was sent at most once, and says no more.
_PLAIN: Final = b"\x00\x3c\x00\x00"
_PLAIN_FLAGS: Final = b"\x10\x00\x01"


def _clean(octets: bytes) -> tuple[bytes, bytes]:
    """As UTF-8, and the octets themselves where they are none."""
    try:
        octets.decode()
    except UnicodeDecodeError:
        return octets.decode("utf-8", "replace").encode(), octets
    return octets, b""
