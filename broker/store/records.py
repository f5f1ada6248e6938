"""Records: how entries are written in the log, and read again. (docs/storage.md is the format; all numbers big-endian.)

    record    length u32 | crc u32 | version u8 | kind u8 | node u8 | shard u8 | epoch u32 | position u64 | payload
    payload   of a Kept: queues u32, (queue u64, serial i32) ..., blob     (the blob is opaque to who only moves it)
    blob      assurance u8 (+ 4: retained) | tag u8 | expires i64 | lengths: parameters u32, vhost u16, exchange u16, key u16 | 0 u16 |
              vhost, exchange, key, parameters, content

    Recorder.add(position, entry) --> Records --> one write          Reader.advance() --> Decoder.entry()

The checksum (docs/decisions/0007) starts from the log's seed, so what looks like a record inside a message is none.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64, mypyc_attr, u8

from broker.message import PLAIN, Address, Encoding, Message
from broker.store.contract import Entry, Extended, Kept, Many, Received, Released, RetainedSet, Sequenced, Settled, Stepped
from broker.store.disk import Damaged, StoreError, TooNew

VERSION: Final[i64] = 1
#: ... of records of streams and producers, which came later.
VERSION_2: Final[i64] = 2
#: Octets before a record's payload, and of the largest payload.
HEADER: Final[i64] = 24
PAYLOAD_MAX: Final[i64] = 1 << 30

KEPT: Final[i64] = 1
SETTLED: Final[i64] = 2
STEPPED: Final[i64] = 3
RECEIVED: Final[i64] = 4
RELEASED: Final[i64] = 5
RETAINED: Final[i64] = 6
MANY: Final[i64] = 7
#: The file was finished in order here. Its payload: records u64, octets u64 before it, salt u32. It takes no position.
CLOSED: Final[i64] = 8
EXTENDED: Final[i64] = 9
SEQUENCED: Final[i64] = 10
#: Octets of the record that closes a file.
CLOSING: Final[i64] = HEADER + 20
KINDS: Final = ("", "kept", "settled", "stepped", "received", "released", "retained", "many", "closed", "extended", "sequenced")
#: Added to the assurance of a message that was retained.
RETAINED_FLAG: Final[i64] = 4
#: Serials of a queue, after which they begin anew: a multiple of the number of MQTT's packet identifiers. (They have a sign.)
SERIALS: Final[i64] = 65_535 * 32_768
#: Octets of each queue that a Kept names.
HOLDER: Final[i64] = 12
#: Added to the kind of the first record of a batch: all that stands before it in the file was durable already.
FIRST: Final[i64] = 0x80

#: Octets of a file between two places that its index knows.
STRIDE: Final[i64] = 4_096
#: Contents from here on are not copied into the batch, but written from where they are.
APART: Final[i64] = 16_384
#: Octets of a blob before the names.
_BLOB: Final[i64] = 22
_U16: Final[i64] = 0xFFFF
_U32: Final[i64] = 0xFFFFFFFF
#: Addresses that a Decoder remembers, so that messages share them.
_ADDRESSES: Final = 65_536

#: What a record looks like from its version to the upper half of its epoch; used to find one again behind damage.
LIKENESS: Final = re.compile(rb"[\x01\x02][\x01-\x0a\x81-\x8a]\0\0\0\0\0\0")


@mypyc_attr(allow_interpreted_subclasses=True)
class Codec:
    """How the contents of some encodings are written in the log. Front ends have theirs."""

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        """(tag, parameters, content), from which `load` makes an equal encoding. The content may be written anew for that."""
        raise NotImplementedError

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        """The encoding of the content; the same object for equal ones. Raises ValueError."""
        raise NotImplementedError


class Codecs:
    """Which codec writes what. Tag 0 is a body without properties, and needs none."""

    def __init__(self) -> None:
        self._by_type: dict[type[Encoding], Codec] = {}
        self._by_tag: dict[int, Codec] = {}

    def register(self, codec: Codec, encodings: list[type[Encoding]], tags: list[int]) -> None:
        """The codec writes these kinds of encodings, and reads these tags (1 to 255)."""
        for encoding in encodings:
            self._by_type[encoding] = codec
        for tag in tags:
            assert 0 < tag < 256 and tag not in self._by_tag
            self._by_tag[tag] = codec

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        if encoding is PLAIN:
            return 0, b"", content
        codec = self._by_type.get(type(encoding))
        if codec is None:
            raise StoreError(f"contents of kind {type(encoding).__name__} cannot be stored")
        return codec.dump(encoding, content)

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        """Raises TooNew, or ValueError."""
        if tag == 0:
            return PLAIN
        codec = self._by_tag.get(tag)
        if codec is None:
            raise TooNew(f"a message has an encoding (tag {tag}) that this version does not know")
        return codec.load(tag, parameters, content)


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
        #: Copies of messages, the octets of their records, and the octets of records that serve only until a checkpoint.
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

    def add(self, position: i64, entry: Entry) -> None:
        """Encode the entry. Raises StoreError when no record can hold it; nothing is added then. Hot path."""
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
        if isinstance(entry, Many):
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

    def _note(self, records: Records, entry: Entry, size: i64) -> None:
        """Count the entry, for a checkpoint to pay."""
        if isinstance(entry, Kept):
            records.copies += len(entry.queues)
            records.kept_octets += size
        elif isinstance(entry, Many):
            for at, one in enumerate(entry.entries):
                self._note(records, one, self._sizes[at])
        else:
            records.passing += size
            if isinstance(entry, Settled):
                records.settled.append(entry.position)

    def _payload(self, out: BytesWriter, entry: Entry) -> bytes:
        """Write the payload but for its last part, and return that."""
        if isinstance(entry, Kept):
            queues = entry.queues
            write_i32_be(out, i32(len(queues)))
            serials = entry.serials
            for at, queue in enumerate(queues):
                write_i64_be(out, queue)
                serial: i64 = 0 if serials is None else serials[at]
                write_i32_be(out, i32(_wrapped(serial)))
            return self._blob(out, entry.vhost, entry.message)
        if isinstance(entry, Settled):
            return _pair(out, entry.queue, entry.position)
        if isinstance(entry, Stepped):
            return _pair(out, entry.queue, entry.position)
        if isinstance(entry, Received):
            return _identifier(out, entry.session, entry.packet_id)
        if isinstance(entry, Released):
            return _identifier(out, entry.session, entry.packet_id)
        if isinstance(entry, Extended):
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
        out.append(u8(message.assurance + (RETAINED_FLAG if message.retained else 0)))
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

    def _many(self, entry: Many) -> bytes:
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


def kind_of(entry: Entry) -> i64:
    """The kind of the entry's record."""
    if isinstance(entry, Kept):
        return KEPT
    if isinstance(entry, Settled):
        return SETTLED
    if isinstance(entry, Stepped):
        return STEPPED
    if isinstance(entry, Received):
        return RECEIVED
    if isinstance(entry, Released):
        return RELEASED
    if isinstance(entry, RetainedSet):
        return RETAINED
    if isinstance(entry, Extended):
        return EXTENDED
    if isinstance(entry, Sequenced):
        return SEQUENCED
    assert isinstance(entry, Many) and entry.entries, f"{entry!r} does not belong in the log"
    return MANY


def _newer(entry: Entry) -> bool:
    """Whether there is something in a Many that came with version 2."""
    return isinstance(entry, Many) and any(isinstance(one, (Extended, Sequenced)) for one in entry.entries)


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
    """The record that ends a file, behind so many records and octets. It says the salt once more, far from the heads."""
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


#: Why a Reader stopped.
END: Final[i64] = 0
SHORT: Final[i64] = 1
BAD: Final[i64] = 2


class Reader:
    """Walks over records in octets, which are those of a file from `base` on.

    After `advance` has said True, `kind`, `position` and `octets[start:end]` are the record's. After it has said False,
    `at` is where the next record begins, and `stop` says why: END of the octets, SHORT (the record needs `needed` octets),
    or BAD (`reason`).
    """

    def __init__(self, seed: i64, last: i64) -> None:
        self.seed: i64 = seed
        self.octets = b""
        self.base: i64 = 0
        self.at: i64 = 0
        self.began: i64 = 0
        self.start: i64 = 0
        self.end: i64 = 0
        self.kind: i64 = 0
        self.position: i64 = 0
        #: The record's last position: one for each entry of a Many.
        self.last: i64 = last
        self.first_of_batch = False
        self.stop: i64 = END
        self.needed: i64 = 0
        self.reason = ""
        #: The octets were read before, and their checksums were right.
        self.trusting = False

    def load(self, octets: bytes, base: i64) -> None:
        """Go on in these octets."""
        self.octets = octets
        self.base = base
        self.at = 0

    def advance(self) -> bool:
        """Hot path. Raises TooNew."""
        octets = self.octets
        at: i64 = self.at
        left: i64 = len(octets) - at
        if left < HEADER:
            self.stop = SHORT if left else END
            self.needed = HEADER
            return False
        length: i64 = i64(read_i32_be(octets, at)) & _U32
        if length > PAYLOAD_MAX:
            return self._bad("a record's length is impossible")
        if left < HEADER + length:
            self.stop = SHORT
            self.needed = HEADER + length
            return False
        end: i64 = at + HEADER + length
        if not self.trusting and not self.right(at, end):
            return self._bad("a record's checksum is wrong")
        if octets[at + 8] != VERSION and octets[at + 8] != VERSION_2:
            raise TooNew(f"a record has version {octets[at + 8]}, and this version knows {VERSION_2}")
        kind: i64 = octets[at + 9]
        self.first_of_batch = kind & FIRST != 0
        kind &= ~FIRST
        if kind == 0 or kind > SEQUENCED:
            raise TooNew(f"a record has kind {kind}, which this version does not know")
        position: i64 = read_i64_be(octets, at + 16)
        if position <= self.last and not (kind == CLOSED and position == self.last):
            return self._bad(f"a record's position {position} comes after {self.last}")
        self.kind = kind
        self.position = position
        self.last = position
        if kind == MANY:
            self.last += count_of(octets, at + HEADER) - 1
        self.began = at
        self.start = at + HEADER
        self.end = end
        self.at = end
        return True

    def right(self, began: i64, end: i64) -> bool:
        """Whether the checksum of the record there is right."""
        octets = self.octets
        crc: i64 = crc32(octets[began + 8:end] if end - began < APART else memoryview(octets)[began + 8:end], self.seed)
        return crc == i64(read_i32_be(octets, began + 4)) & _U32

    def _bad(self, reason: str) -> bool:
        self.stop = BAD
        self.reason = reason
        return False

    def hop(self, wanted: i64) -> bool:
        """Go, by headers alone, to the record that holds the position. False when it is not there; or, with `at` less than
        a header before the end, when these octets end before."""
        octets = self.octets
        at: i64 = self.at
        size: i64 = len(octets)
        # (The smallest record is longer than that.)
        while size - at >= HEADER + 4:
            position: i64 = read_i64_be(octets, at + 16)
            kind: i64 = i64(octets[at + 9]) & ~FIRST
            if position > wanted or kind == CLOSED:
                return False
            last: i64 = position
            if kind == MANY:
                last += count_of(octets, at + HEADER) - 1
            if wanted <= last:
                self.at = at
                self.last = position - 1
                return True
            at += HEADER + (i64(read_i32_be(octets, at)) & _U32)
        self.at = at
        return False


def count_of(octets: bytes, start: i64) -> i64:
    """Entries of a Many whose payload begins there: what its record means, every one at a position of its own."""
    return i64(read_i32_be(octets, start)) & _U32


class Part:
    """One entry of a Many, where it stands."""

    def __init__(self, kind: i64, position: i64, start: i64, end: i64) -> None:
        self.kind: i64 = kind
        self.position: i64 = position
        self.start: i64 = start
        self.end: i64 = end


def parts(octets: bytes, position: i64, start: i64, end: i64) -> list[Part]:
    """The entries of a Many. Raises Damaged."""
    found: list[Part] = []
    left: i64 = count_of(octets, start)
    start += 4
    while left > 0 and start + 5 <= end:
        stop: i64 = start + 5 + (i64(read_i32_be(octets, start + 1)) & _U32)
        if stop > end:
            break
        found.append(Part(octets[start], position, start + 5, stop))
        start = stop
        position += 1
        left -= 1
    if left or start != end:
        raise Damaged(f"the entries of the record at position {position} do not fill it")
    return found


class Decoder:
    """Makes entries of payloads."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        #: Subtracted from wall clock ms, it is a message's time.
        self.clock: i64 = 0
        self._addresses: dict[bytes, tuple[str, Address]] = {}

    def entry(self, kind: i64, position: i64, octets: bytes, start: i64, end: i64) -> Entry:
        """The entry whose payload stands there. Raises Damaged, TooNew. Hot path."""
        size: i64 = end - start
        if kind == KEPT and size >= 4:
            left: i64 = i64(read_i32_be(octets, start)) & _U32
            start += 4
            if start + left * HOLDER <= end:
                queues: list[int] = []
                serials: list[int] | None = None
                while left > 0:
                    queues.append(read_i64_be(octets, start))
                    serial: i64 = i64(read_i32_be(octets, start + 8))
                    if serial:
                        if serials is None:
                            serials = [0] * (len(queues) - 1)
                        serials.append(serial)
                    elif serials is not None:
                        serials.append(0)
                    start += HOLDER
                    left -= 1
                vhost, message = self._message(octets, start, end)
                message.position = position
                return Kept(vhost, message, queues, serials)
        elif kind == SETTLED and size == 16:
            return Settled(read_i64_be(octets, start), read_i64_be(octets, start + 8))
        elif kind == STEPPED and size == 16:
            return Stepped(read_i64_be(octets, start), read_i64_be(octets, start + 8))
        elif kind == RECEIVED and size == 10:
            return Received(read_i64_be(octets, start), i64(read_i16_be(octets, start + 8)) & _U16)
        elif kind == RELEASED and size == 10:
            return Released(read_i64_be(octets, start), i64(read_i16_be(octets, start + 8)) & _U16)
        elif kind == EXTENDED and size == 16:
            return Extended(read_i64_be(octets, start), read_i64_be(octets, start + 8))
        elif kind == SEQUENCED and size >= 10:
            vhost_end: i64 = start + 10 + (i64(read_i16_be(octets, start + 8)) & _U16)
            if vhost_end <= end:
                return Sequenced(octets[start + 10:vhost_end].decode(), octets[vhost_end:end].decode("utf-8", "surrogateescape"),
                                 read_i64_be(octets, start))
        elif kind == RETAINED and size >= 4:
            names: i64 = start + 4 + (i64(read_i16_be(octets, start)) & _U16)
            blob: i64 = names + (i64(read_i16_be(octets, start + 2)) & _U16)
            if blob <= end:
                retained: Message | None = None
                if blob < end:
                    retained = self._message(octets, blob, end)[1]
                    retained.retained = True
                return RetainedSet(octets[start + 4:names].decode(), octets[names:blob].decode("utf-8", "surrogateescape"), retained)
        elif kind == MANY and size >= 4:
            return Many([self.entry(part.kind, part.position, octets, part.start, part.end)
                         for part in parts(octets, position, start, end)])
        raise Damaged(f"the record at position {position} holds no {KINDS[kind] if 0 < kind <= SEQUENCED else 'entry'}")

    def _message(self, octets: bytes, start: i64, end: i64) -> tuple[str, Message]:
        names: i64 = start + _BLOB
        if names > end:
            raise Damaged("a message is cut off")
        exchange: i64 = names + (i64(read_i16_be(octets, start + 14)) & _U16)
        key: i64 = exchange + (i64(read_i16_be(octets, start + 16)) & _U16)
        parameters: i64 = key + (i64(read_i16_be(octets, start + 18)) & _U16)
        content_start: i64 = parameters + (i64(read_i32_be(octets, start + 10)) & _U32)
        if content_start > end:
            raise Damaged("a message is cut off")
        spelling = octets[start + 14:parameters]
        known = self._addresses.get(spelling)
        if known is None:
            known = (octets[names:exchange].decode(),
                     Address(octets[exchange:key].decode("utf-8", "surrogateescape"),
                             octets[key:parameters].decode("utf-8", "surrogateescape")))
            if len(self._addresses) >= _ADDRESSES:
                self._addresses.clear()
            self._addresses[spelling] = known
        content = octets[content_start:end]
        tag: i64 = octets[start + 1]
        encoding: Encoding = PLAIN
        if tag:
            try:
                encoding = self._codecs.load(tag, octets[parameters:content_start], content)
            except ValueError as error:
                raise Damaged(f"the encoding of a message cannot be read: {error}") from error
        assurance: i64 = octets[start]
        message = Message(known[1], content, encoding, assurance & ~RETAINED_FLAG)
        message.retained = assurance >= RETAINED_FLAG
        expires: i64 = read_i64_be(octets, start + 2)
        if expires > 0:
            # A time that passed while nobody was here is over at the first tick.
            message.expires = max(expires - self.clock, 1)
        return known[0], message
