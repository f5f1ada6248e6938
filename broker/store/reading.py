"""Reading records: walking over them in octets, and making entries of them.

Reader.advance() --> Decoder.entry()
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.messages.message import PLAIN, Address, Encoding, Message
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
from broker.store.disk import DamagedStore, TooNew
from broker.store.layout import (
    BATCH_START,
    CLOSED,
    GROUP,
    HEADER_SIZE,
    KINDS,
    MESSAGE_HEADER_SIZE,
    PACKET_ID_HELD,
    PACKET_ID_RELEASED,
    PAYLOAD_MAX,
    PUBREC_RECEIVED,
    QUEUE_SIZE,
    RETAINED,
    RETAINED_FLAG,
    SEQUENCED,
    SETTLED,
    STORED,
    STREAM_EXTENDED,
    UNCOPIED_SIZE,
    VERSION,
    VERSION_2,
)

_U16: Final[i64] = 0xFFFF
_U32: Final[i64] = 0xFFFFFFFF
#: Addresses that a Decoder remembers, so that messages share them.
_ADDRESSES: Final = 65_536
#: Bytes of a group record's entry count, and bytes of the kind and length that stand before each of its entries.
COUNT: Final[i64] = 4
PART: Final[i64] = 5

#: Why a Reader stopped.
END: Final[i64] = 0
SHORT: Final[i64] = 1
BAD: Final[i64] = 2


class RecordReader:
    """Walks over records in octets, which are those of a file from `base` on.

    After `advance` has said True, `kind`, `position` and `octets[start:end]` are the record's.
    After it has said False, `at` is where the next record begins, and `stop` says why: END of the
    octets, SHORT (the record needs `needed` octets), or BAD (`reason`).
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
        if left < HEADER_SIZE:
            self.stop = SHORT if left else END
            self.needed = HEADER_SIZE
            return False
        length: i64 = i64(read_i32_be(octets, at)) & _U32
        if length > PAYLOAD_MAX:
            return self._bad("a record's length is impossible")
        if left < HEADER_SIZE + length:
            self.stop = SHORT
            self.needed = HEADER_SIZE + length
            return False
        end: i64 = at + HEADER_SIZE + length
        if not self.trusting and not self.right(at, end):
            return self._bad("a record's checksum is wrong")
        if octets[at + 8] != VERSION and octets[at + 8] != VERSION_2:
            raise TooNew(
                f"a record has version {octets[at + 8]}, and this version knows {VERSION_2}"
            )
        kind: i64 = octets[at + 9]
        self.first_of_batch = kind & BATCH_START != 0
        kind &= ~BATCH_START
        if kind == 0 or kind > SEQUENCED:
            raise TooNew(f"a record has kind {kind}, which this version does not know")
        position: i64 = read_i64_be(octets, at + 16)
        if position <= self.last and not (kind == CLOSED and position == self.last):
            return self._bad(f"a record's position {position} comes after {self.last}")
        last: i64 = position
        if kind == GROUP:
            count: i64 = count_of(octets, at + HEADER_SIZE) if length >= COUNT else 0
            if count == 0 or count * PART > length - COUNT:
                return self._bad("a group record's entry count is impossible")
            last += count - 1
        self.kind = kind
        self.position = position
        self.last = last
        self.began = at
        self.start = at + HEADER_SIZE
        self.end = end
        self.at = end
        return True

    def right(self, began: i64, end: i64) -> bool:
        """Whether the checksum of the record there is right."""
        octets = self.octets
        crc: i64 = crc32(
            octets[began + 8 : end]
            if end - began < UNCOPIED_SIZE
            else memoryview(octets)[began + 8 : end],
            self.seed,
        )
        return crc == i64(read_i32_be(octets, began + 4)) & _U32

    def _bad(self, reason: str) -> bool:
        self.stop = BAD
        self.reason = reason
        return False

    def hop(self, wanted: i64) -> bool:
        """Go, by headers alone, to the record that holds the position. False when it is not there;
        or, with `at` less than a header before the end, when these octets end before."""
        octets = self.octets
        at: i64 = self.at
        size: i64 = len(octets)
        # (The smallest record is longer than that.)
        while size - at >= HEADER_SIZE + 4:
            position: i64 = read_i64_be(octets, at + 16)
            kind: i64 = i64(octets[at + 9]) & ~BATCH_START
            if position > wanted or kind == CLOSED:
                return False
            last: i64 = position
            if kind == GROUP:
                last += count_of(octets, at + HEADER_SIZE) - 1
            if wanted <= last:
                self.at = at
                self.last = position - 1
                return True
            at += HEADER_SIZE + (i64(read_i32_be(octets, at)) & _U32)
        self.at = at
        return False


def count_of(octets: bytes, start: i64) -> i64:
    """Entries of a Many whose payload begins there: what its record means, every one at a position
    of its own.
    """
    return i64(read_i32_be(octets, start)) & _U32


class RecordPart:
    """One entry of a Many, where it stands."""

    def __init__(self, kind: i64, position: i64, start: i64, end: i64) -> None:
        self.kind: i64 = kind
        self.position: i64 = position
        self.start: i64 = start
        self.end: i64 = end


def parts(octets: bytes, position: i64, start: i64, end: i64) -> list[RecordPart]:
    """Return the entries of a group record.

    Raises DamagedStore if the group holds no entry, a record that is no entry, or bytes behind the
    last entry.
    """
    found: list[RecordPart] = []
    left: i64 = count_of(octets, start) if end - start >= COUNT else 0
    if left == 0:
        raise DamagedStore(f"the group record at position {position} holds no entry")
    start += COUNT
    while left > 0 and start + PART <= end:
        stop: i64 = start + PART + (i64(read_i32_be(octets, start + 1)) & _U32)
        if stop > end:
            break
        kind: i64 = octets[start]
        if kind < STORED or GROUP <= kind <= CLOSED or kind > SEQUENCED:
            raise DamagedStore(
                f"the group record at position {position} holds a record of kind {kind},"
                " which is no entry"
            )
        found.append(RecordPart(kind, position, start + PART, stop))
        start = stop
        position += 1
        left -= 1
    if left or start != end:
        raise DamagedStore(f"the entries of the record at position {position} do not fill it")
    return found


class Decoder:
    """Makes entries of payloads."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        #: Subtracted from wall clock ms, it is a message's time.
        self.clock: i64 = 0
        self._addresses: dict[bytes, tuple[str, Address]] = {}

    def entry(self, kind: i64, position: i64, octets: bytes, start: i64, end: i64) -> StoreEntry:
        """The entry whose payload stands there. Raises Damaged, TooNew. Hot path."""
        size: i64 = end - start
        if kind == STORED and size >= 4:
            left: i64 = i64(read_i32_be(octets, start)) & _U32
            start += 4
            if start + left * QUEUE_SIZE <= end:
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
                    start += QUEUE_SIZE
                    left -= 1
                vhost, message = self._message(octets, start, end)
                message.position = position
                return MessageStored(vhost, message, queues, serials)
        elif kind == SETTLED and size == 16:
            return MessageSettled(read_i64_be(octets, start), read_i64_be(octets, start + 8))
        elif kind == PUBREC_RECEIVED and size == 16:
            return PubrecReceived(read_i64_be(octets, start), read_i64_be(octets, start + 8))
        elif kind == PACKET_ID_HELD and size == 10:
            return PacketIdHeld(
                read_i64_be(octets, start), i64(read_i16_be(octets, start + 8)) & _U16
            )
        elif kind == PACKET_ID_RELEASED and size == 10:
            return PacketIdReleased(
                read_i64_be(octets, start), i64(read_i16_be(octets, start + 8)) & _U16
            )
        elif kind == STREAM_EXTENDED and size == 16:
            return StreamExtended(read_i64_be(octets, start), read_i64_be(octets, start + 8))
        elif kind == SEQUENCED and size >= 10:
            vhost_end: i64 = start + 10 + (i64(read_i16_be(octets, start + 8)) & _U16)
            if vhost_end <= end:
                return Sequenced(
                    octets[start + 10 : vhost_end].decode(),
                    octets[vhost_end:end].decode("utf-8", "surrogateescape"),
                    read_i64_be(octets, start),
                )
        elif kind == RETAINED and size >= 4:
            names: i64 = start + 4 + (i64(read_i16_be(octets, start)) & _U16)
            blob: i64 = names + (i64(read_i16_be(octets, start + 2)) & _U16)
            if blob <= end:
                retained: Message | None = None
                if blob < end:
                    retained = self._message(octets, blob, end)[1]
                    retained.retained = True
                return RetainedSet(
                    octets[start + 4 : names].decode(),
                    octets[names:blob].decode("utf-8", "surrogateescape"),
                    retained,
                )
        elif kind == GROUP:
            return EntryGroup(
                [
                    self.entry(part.kind, part.position, octets, part.start, part.end)
                    for part in parts(octets, position, start, end)
                ]
            )
        raise DamagedStore(
            f"the record at position {position} holds no {KINDS[kind] if 0 < kind <= SEQUENCED else 'entry'}"
        )

    def _message(self, octets: bytes, start: i64, end: i64) -> tuple[str, Message]:
        names: i64 = start + MESSAGE_HEADER_SIZE
        if names > end:
            raise DamagedStore("a message is cut off")
        exchange: i64 = names + (i64(read_i16_be(octets, start + 14)) & _U16)
        key: i64 = exchange + (i64(read_i16_be(octets, start + 16)) & _U16)
        parameters: i64 = key + (i64(read_i16_be(octets, start + 18)) & _U16)
        content_start: i64 = parameters + (i64(read_i32_be(octets, start + 10)) & _U32)
        if content_start > end:
            raise DamagedStore("a message is cut off")
        spelling = octets[start + 14 : parameters]
        known = self._addresses.get(spelling)
        if known is None:
            known = (
                octets[names:exchange].decode(),
                Address(
                    octets[exchange:key].decode("utf-8", "surrogateescape"),
                    octets[key:parameters].decode("utf-8", "surrogateescape"),
                ),
            )
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
                raise DamagedStore(f"the encoding of a message cannot be read: {error}") from error
        qos: i64 = octets[start]
        message = Message(known[1], content, encoding, qos & ~RETAINED_FLAG)
        message.retained = qos >= RETAINED_FLAG
        expires: i64 = read_i64_be(octets, start + 2)
        if expires > 0:
            # A time that passed while nobody was here is over at the first tick.
            message.expires = max(expires - self.clock, 1)
        return known[0], message
