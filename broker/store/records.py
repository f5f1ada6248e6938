"""Records: how entries are written in the log (layout has the format).

Recorder.add(position, entry) --> Records --> one write
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64, u8

from broker.messages.message import Message
from broker.store.codecs import Codecs
from broker.store.contract import (
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    Sequenced,
    StoreEntry,
    StreamExtended,
)
from broker.store.disk import StoreError
from broker.store.layout import (
    APART,
    CLOSED,
    EXTENDED,
    FIRST,
    HEADER,
    KEPT,
    MANY,
    PAYLOAD_MAX,
    RECEIVED,
    RELEASED,
    RETAINED,
    RETAINED_FLAG,
    SEQUENCED,
    SERIALS,
    SETTLED,
    STEPPED,
    STRIDE,
    VERSION,
    VERSION_2,
)

_U16: Final[i64] = 0xFFFF


class Records:
    """Encoded records, ready to be written, and what the log wants to know of them."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.octets: i64 = 0
        self.count: i64 = 0
        #: First position; last one, with those of a Many.
        self.first: i64 = 0
        self.last: i64 = 0
        #: (position, offset) of some records, the first among them.
        self.marks: list[tuple[int, int]] = []
        #: Copies of messages, the octets of their records, and the octets of records that serve
        #: only until a checkpoint.
        self.copies: i64 = 0
        self.kept_octets: i64 = 0
        self.passing: i64 = 0
        #: Positions of which a copy is settled.
        self.settled: list[int] = []


class Recorder:
    """Encodes entries as they are appended; `take` gives the records of one batch."""

    def __init__(self, codecs: Codecs, seed: i64) -> None:
        self._codecs = codecs
        self._seed: i64 = seed
        #: Added to a message's time, it is ms of the wall clock.
        self.clock: i64 = 0
        self._out = BytesWriter()
        self._records = Records()
        self._marked: i64 = -STRIDE
        #: Octets of the entries of the last Many.
        self._sizes: list[int] = []
        self._vhost = ""
        self._vhost_octets = b""

    @property
    def count(self) -> int:
        """Records since the last `take`."""
        return int(self._records.count)

    @property
    def octets(self) -> int:
        """Octets since the last `take`."""
        return int(self._records.octets)

    def take(self) -> Records:
        """What was added since the last call."""
        records = self._records
        if len(self._out):
            records.parts.append(self._out.getvalue())
        self._out = BytesWriter()
        self._records = Records()
        self._marked = -STRIDE
        return records

    def add(self, position: i64, entry: StoreEntry) -> None:
        """Encode the entry.

        Raises StoreError when no record can hold it; nothing is added then. Hot path.
        """
        records = self._records
        first: i64 = FIRST << 16 if records.count == 0 else 0
        head = BytesWriter()
        content = b""
        last: i64 = position
        kind: i64 = kind_of(entry)
        version: i64 = VERSION_2 if kind > CLOSED or kind == MANY and _newer(entry) else VERSION
        write_i32_be(head, i32(version << 24 | kind << 16 | first))
        write_i32_be(head, 0)
        write_i64_be(head, position)
        if isinstance(entry, EntryGroup):
            content = self._many(entry)
            last = position + len(entry.entries) - 1
        else:
            content = self._payload(head, entry)
        tail = head.getvalue()
        size: i64 = len(tail) + len(content) + 8
        if size > PAYLOAD_MAX:
            raise StoreError(f"an entry of {size} octets is larger than a record may be")
        crc: i64 = crc32(tail, self._seed)
        out = self._out
        offset: i64 = records.octets
        if content:
            crc = crc32(content, crc)
        write_i32_be(out, i32(size - HEADER))
        write_i32_be(out, i32(crc - (1 << 32) if crc >= 1 << 31 else crc))
        out.write(tail)
        if len(content) < APART:
            out.write(content)
        else:
            records.parts.append(out.getvalue())
            records.parts.append(content)
            self._out = BytesWriter()
        if records.count == 0:
            records.first = position
        records.count += 1
        records.octets = offset + size
        records.last = last
        if offset - self._marked >= STRIDE:
            self._marked = offset
            records.marks.append((position, offset))
        self._note(records, entry, size)

    def _note(self, records: Records, entry: StoreEntry, size: i64) -> None:
        """Count the entry, for a checkpoint to pay."""
        if isinstance(entry, MessageStored):
            records.copies += len(entry.queues)
            records.kept_octets += size
        elif isinstance(entry, EntryGroup):
            for at, one in enumerate(entry.entries):
                self._note(records, one, self._sizes[at])
        else:
            records.passing += size
            if isinstance(entry, MessageSettled):
                records.settled.append(entry.position)

    def _payload(self, out: BytesWriter, entry: StoreEntry) -> bytes:
        """Write the payload but for its last part, and return that."""
        if isinstance(entry, MessageStored):
            queues = entry.queues
            write_i32_be(out, i32(len(queues)))
            serials = entry.serials
            for at, queue in enumerate(queues):
                write_i64_be(out, queue)
                serial: i64 = 0 if serials is None else serials[at]
                write_i32_be(out, i32(_wrapped(serial)))
            return self._blob(out, entry.vhost, entry.message)
        if isinstance(entry, MessageSettled):
            return _pair(out, entry.queue, entry.position)
        if isinstance(entry, PubrecReceived):
            return _pair(out, entry.queue, entry.position)
        if isinstance(entry, PacketIdHeld):
            return _identifier(out, entry.session, entry.packet_id)
        if isinstance(entry, PacketIdReleased):
            return _identifier(out, entry.session, entry.packet_id)
        if isinstance(entry, StreamExtended):
            return _pair(out, entry.stream, entry.end)
        if isinstance(entry, Sequenced):
            name, producer = entry.vhost.encode(), entry.producer.encode("utf-8", "surrogateescape")
            write_i64_be(out, entry.sequence)
            _write_u16(out, len(name))
            out.write(name)
            return producer
        if isinstance(entry, RetainedSet):
            vhost, key = entry.vhost.encode(), entry.key.encode("utf-8", "surrogateescape")
            _write_u16(out, len(vhost))
            _write_u16(out, len(key))
            out.write(vhost)
            out.write(key)
            if entry.message is not None:
                return self._blob(out, entry.vhost, entry.message)
        return b""

    def _blob(self, out: BytesWriter, vhost: str, message: Message) -> bytes:
        """Write a message but for its content, and return that."""
        tag, parameters, content = self._codecs.dump(message.encoding, message.content)
        address = message.address
        exchange = address.exchange.encode("utf-8", "surrogateescape")
        key = address.key.encode("utf-8", "surrogateescape")
        if vhost != self._vhost:
            self._vhost, self._vhost_octets = vhost, vhost.encode()
        expires: i64 = message.expires
        out.append(u8(message.qos + (RETAINED_FLAG if message.retained else 0)))
        out.append(u8(tag))
        write_i64_be(out, expires + self.clock if expires > 0 else 0)
        write_i32_be(out, i32(len(parameters)))
        _write_u16(out, len(self._vhost_octets))
        _write_u16(out, len(exchange))
        _write_u16(out, len(key))
        write_i16_be(out, 0)
        out.write(self._vhost_octets)
        out.write(exchange)
        out.write(key)
        out.write(parameters)
        return content

    def _many(self, entry: EntryGroup) -> bytes:
        """count u32, then kind u8, length u32 and payload of each."""
        self._sizes = []
        out = BytesWriter()
        write_i32_be(out, i32(len(entry.entries)))
        for one in entry.entries:
            kind: i64 = kind_of(one)
            assert kind != MANY, "a Many holds no Many"
            part = BytesWriter()
            content = self._payload(part, one)
            size: i64 = len(part) + len(content)
            if size > PAYLOAD_MAX:
                raise StoreError(f"an entry of {size} octets is larger than a record may be")
            self._sizes.append(size)
            out.append(u8(kind))
            write_i32_be(out, i32(size))
            out.write(part.getvalue())
            out.write(content)
        return out.getvalue()


def kind_of(entry: StoreEntry) -> i64:
    """The kind of the entry's record."""
    if isinstance(entry, MessageStored):
        return KEPT
    if isinstance(entry, MessageSettled):
        return SETTLED
    if isinstance(entry, PubrecReceived):
        return STEPPED
    if isinstance(entry, PacketIdHeld):
        return RECEIVED
    if isinstance(entry, PacketIdReleased):
        return RELEASED
    if isinstance(entry, RetainedSet):
        return RETAINED
    if isinstance(entry, StreamExtended):
        return EXTENDED
    if isinstance(entry, Sequenced):
        return SEQUENCED
    assert isinstance(entry, EntryGroup) and entry.entries, f"{entry!r} does not belong in the log"
    return MANY


def _newer(entry: StoreEntry) -> bool:
    """Whether there is something in a Many that came with version 2."""
    return isinstance(entry, EntryGroup) and any(
        isinstance(one, (StreamExtended, Sequenced)) for one in entry.entries
    )


def _wrapped(serial: i64) -> i64:
    """A serial as it fits into four octets, with its sign."""
    if serial > 0:
        return (serial - 1) % SERIALS + 1
    return -((-serial - 1) % SERIALS + 1) if serial < 0 else 0


def _pair(out: BytesWriter, queue: i64, position: i64) -> bytes:
    write_i64_be(out, queue)
    write_i64_be(out, position)
    return b""


def _identifier(out: BytesWriter, session: i64, packet_id: i64) -> bytes:
    write_i64_be(out, session)
    _write_u16(out, packet_id)
    return b""


def _write_u16(out: BytesWriter, number: i64) -> None:
    if number > _U16 or number < 0:
        raise StoreError(f"a name or identifier of {number} does not fit into two octets")
    write_i16_be(out, i16(number - (1 << 16) if number >= 1 << 15 else number))


def header(size: i64, crc: i64, out: BytesWriter) -> None:
    """Write length and checksum of a record of `size` octets in all."""
    write_i32_be(out, i32(size - HEADER))
    write_i32_be(out, i32(crc - (1 << 32) if crc >= 1 << 31 else crc))


def closing(position: i64, records: i64, octets: i64, salt: i64, seed: i64) -> bytes:
    """The record that ends a file, behind so many records and octets.

    It says the salt once more, far from the heads.
    """
    tail = BytesWriter()
    write_i32_be(tail, i32(VERSION << 24 | (CLOSED | FIRST) << 16))
    write_i32_be(tail, 0)
    write_i64_be(tail, position)
    write_i64_be(tail, records)
    write_i64_be(tail, octets)
    write_i32_be(tail, i32(salt - (1 << 32) if salt >= 1 << 31 else salt))
    body = tail.getvalue()
    out = BytesWriter()
    header(len(body) + 8, crc32(body, seed), out)
    out.write(body)
    return out.getvalue()
