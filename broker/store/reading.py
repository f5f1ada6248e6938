"""Decoding of records: from the bytes of a file to records, from a record to its entry.

RecordReader.advance() --> kind, position, payload --> Decoder.entry() --> StoreEntry
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.messages.message import PLAIN, Address, Encoding, Message
from broker.store.codecs import Codecs
from broker.store.disk import DamagedStore, TooNew
from broker.store.entries import (
    DeliveryCounted,
    DeliveryMark,
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
from broker.store.layout import (
    BATCH_START,
    CLOSED,
    COUNTED_SIZE,
    DELIVERY_COUNTED,
    DELIVERY_MARK,
    GROUP,
    HEADER_SIZE,
    KIND_MAX,
    KINDS,
    MARK_SIZE,
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
    VERSION_3,
)

_U16: Final[i64] = 0xFFFF
_U32: Final[i64] = 0xFFFFFFFF
#: Largest number of addresses that a Decoder caches, so that messages share addresses.
_ADDRESSES: Final = 65_536
#: Size of a group's count of members, and of the kind and length before each member, in bytes.
COUNT_SIZE: Final[i64] = 4
MEMBER_HEADER_SIZE: Final[i64] = 5

#: Values of `RecordReader.stop`: end of the data, more data needed, damage.
END: Final[i64] = 0
SHORT: Final[i64] = 1
BAD: Final[i64] = 2


class RecordReader:
    """A reader of records in `data`, which are the bytes of a file from offset `base` on.

    After `advance` returned True, `kind`, `position` and the payload `data[start:end]` belong to
    the record. After `advance` returned False, `at` is the index of the next record in `data`, and
    `stop` is the reason: END of the data, SHORT (the record needs `needed` bytes) or BAD
    (`reason`).
    """

    def __init__(self, seed: i64, last: i64) -> None:
        self.seed: i64 = seed
        self.data = b""
        self.base: i64 = 0
        self.at: i64 = 0
        self.record_start: i64 = 0
        self.start: i64 = 0
        self.end: i64 = 0
        self.kind: i64 = 0
        self.position: i64 = 0
        #: The last position of the record: a group has one position for each member.
        self.last: i64 = last
        self.first_of_batch = False
        self.stop: i64 = END
        self.needed: i64 = 0
        self.reason = ""
        #: True while data whose checksums were correct before is read again.
        self.skip_checksums = False

    def load(self, data: bytes, base: i64) -> None:
        """Continue with these bytes of the file, which begin at offset `base`."""
        self.data = data
        self.base = base
        self.at = 0

    def advance(self) -> bool:
        """Go to the next record; return False if there is none. Hot path.

        Raises TooNew if the format or the kind of the record is unknown.
        """
        data = self.data
        at: i64 = self.at
        left: i64 = len(data) - at
        if left < HEADER_SIZE:
            self.stop = SHORT if left else END
            self.needed = HEADER_SIZE
            return False
        length: i64 = i64(read_i32_be(data, at)) & _U32
        if length > PAYLOAD_MAX:
            return self._bad("a record's length is impossible")
        if left < HEADER_SIZE + length:
            self.stop = SHORT
            self.needed = HEADER_SIZE + length
            return False
        end: i64 = at + HEADER_SIZE + length
        if not self.skip_checksums and not self.is_intact(at, end):
            return self._bad("a record's checksum is wrong")
        if not VERSION <= i64(data[at + 8]) <= VERSION_3:
            raise TooNew(
                f"a record has format version {data[at + 8]}, and this version of Trellis reads"
                f" only versions up to {VERSION_3}"
            )
        kind: i64 = data[at + 9]
        self.first_of_batch = kind & BATCH_START != 0
        kind &= ~BATCH_START
        if kind == 0 or kind > KIND_MAX:
            raise TooNew(f"a record has kind {kind}, which this version of Trellis does not know")
        position: i64 = read_i64_be(data, at + 16)
        if position <= self.last and not (kind == CLOSED and position == self.last):
            return self._bad(f"a record's position {position} is not above {self.last}")
        last: i64 = position
        if kind == GROUP:
            count: i64 = group_size(data, at + HEADER_SIZE) if length >= COUNT_SIZE else 0
            if count == 0 or count * MEMBER_HEADER_SIZE > length - COUNT_SIZE:
                return self._bad("a group record's entry count is impossible")
            last += count - 1
        self.kind = kind
        self.position = position
        self.last = last
        self.record_start = at
        self.start = at + HEADER_SIZE
        self.end = end
        self.at = end
        return True

    def is_intact(self, began: i64, end: i64) -> bool:
        """True if the checksum of the record at `data[began:end]` is correct."""
        data = self.data
        crc: i64 = crc32(
            data[began + 8 : end]
            if end - began < UNCOPIED_SIZE
            else memoryview(data)[began + 8 : end],
            self.seed,
        )
        return crc == i64(read_i32_be(data, began + 4)) & _U32

    def _bad(self, reason: str) -> bool:
        self.stop = BAD
        self.reason = reason
        return False

    def seek(self, wanted: i64) -> bool:
        """Go to the record that holds the position `wanted`, and return True. Read only headers.

        Return False if no record in `data` holds the position. If `data` ends before the position,
        `at` is then the index from which the search must continue with further data.
        """
        data = self.data
        at: i64 = self.at
        size: i64 = len(data)
        # Every record is at least this long.
        while size - at >= HEADER_SIZE + 4:
            position: i64 = read_i64_be(data, at + 16)
            kind: i64 = i64(data[at + 9]) & ~BATCH_START
            if position > wanted or kind == CLOSED:
                return False
            last: i64 = position
            if kind == GROUP:
                last += group_size(data, at + HEADER_SIZE) - 1
            if wanted <= last:
                self.at = at
                self.last = position - 1
                return True
            at += HEADER_SIZE + (i64(read_i32_be(data, at)) & _U32)
        self.at = at
        return False


def group_size(data: bytes, start: i64) -> i64:
    """Return the number of entries in the group record whose payload begins at `start`.

    A group record holds several entries of which a crash leaves all or none. The entries have
    consecutive positions.
    """
    return i64(read_i32_be(data, start)) & _U32


class GroupMember:
    """One entry in an encoded group record: its kind and position, and where its payload is.

    The payload is the bytes from `start` to `end` in the bytes that were decoded.
    """

    def __init__(self, kind: i64, position: i64, start: i64, end: i64) -> None:
        self.kind: i64 = kind
        self.position: i64 = position
        self.start: i64 = start
        self.end: i64 = end


def group_members(data: bytes, position: i64, start: i64, end: i64) -> list[GroupMember]:
    """Return the entries of the group record whose payload is `data[start:end]`.

    The first entry has the position `position`. Raises DamagedStore if the group has no entry, an
    entry has an impossible kind, or the entries do not fill the payload exactly.
    """
    members: list[GroupMember] = []
    left: i64 = group_size(data, start) if end - start >= COUNT_SIZE else 0
    if left == 0:
        raise DamagedStore(f"the group record at position {position} holds no entry")
    start += COUNT_SIZE
    while left > 0 and start + MEMBER_HEADER_SIZE <= end:
        stop: i64 = start + MEMBER_HEADER_SIZE + (i64(read_i32_be(data, start + 1)) & _U32)
        if stop > end:
            break
        kind: i64 = data[start]
        if kind < STORED or GROUP <= kind <= CLOSED or kind > KIND_MAX:
            raise DamagedStore(
                f"the group record at position {position} holds a record of kind {kind},"
                " which cannot be in a group"
            )
        members.append(GroupMember(kind, position, start + MEMBER_HEADER_SIZE, stop))
        start = stop
        position += 1
        left -= 1
    if left or start != end:
        raise DamagedStore(
            f"a group record and its members differ in size: the member at position {position} is"
            " missing, cut off or unexpected"
        )
    return members


class Decoder:
    """A decoder that makes entries from the payloads of records."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        #: The wall clock minus the broker's clock, in ms: subtracted from stored expiry times.
        self.clock: i64 = 0
        self._addresses: dict[bytes, tuple[str, Address]] = {}

    def entry(self, kind: i64, position: i64, data: bytes, start: i64, end: i64) -> StoreEntry:
        """Return the entry with the payload `data[start:end]`.

        Raises DamagedStore if the payload cannot be decoded, TooNew if a message's encoding is
        unknown. Hot path.
        """
        size: i64 = end - start
        if kind == STORED and size >= 4:
            left: i64 = i64(read_i32_be(data, start)) & _U32
            start += 4
            if start + left * QUEUE_SIZE <= end:
                queues: list[int] = []
                annotations: list[int] | None = None
                while left > 0:
                    queues.append(read_i64_be(data, start))
                    annotation: i64 = i64(read_i32_be(data, start + 8))
                    if annotation:
                        if annotations is None:
                            annotations = [0] * (len(queues) - 1)
                        annotations.append(annotation)
                    elif annotations is not None:
                        annotations.append(0)
                    start += QUEUE_SIZE
                    left -= 1
                vhost, message = self._message(data, start, end)
                message.position = position
                return MessageStored(vhost, message, queues, annotations)
        elif kind == SETTLED and size == 16:
            return MessageSettled(read_i64_be(data, start), read_i64_be(data, start + 8))
        elif kind == PUBREC_RECEIVED and size == 16:
            return PubrecReceived(read_i64_be(data, start), read_i64_be(data, start + 8))
        elif kind == PACKET_ID_HELD and size == 10:
            return PacketIdHeld(read_i64_be(data, start), i64(read_i16_be(data, start + 8)) & _U16)
        elif kind == PACKET_ID_RELEASED and size == 10:
            return PacketIdReleased(
                read_i64_be(data, start), i64(read_i16_be(data, start + 8)) & _U16
            )
        elif kind == STREAM_EXTENDED and size == 16:
            return StreamExtended(read_i64_be(data, start), read_i64_be(data, start + 8))
        elif kind == DELIVERY_MARK and size == MARK_SIZE:
            return DeliveryMark(
                read_i64_be(data, start),
                i64(read_i16_be(data, start + 16)) & _U16,
                read_i64_be(data, start + 8),
            )
        elif kind == DELIVERY_COUNTED and size == COUNTED_SIZE:
            return DeliveryCounted(
                read_i64_be(data, start),
                read_i64_be(data, start + 8),
                i64(read_i32_be(data, start + 16)),
            )
        elif kind == SEQUENCED and size >= 10:
            scope_end: i64 = start + 10 + (i64(read_i16_be(data, start + 8)) & _U16)
            if scope_end <= end:
                return Sequenced(
                    data[start + 10 : scope_end].decode(),
                    data[scope_end:end].decode("utf-8", "surrogateescape"),
                    read_i64_be(data, start),
                )
        elif kind == RETAINED and size >= 4:
            names: i64 = start + 4 + (i64(read_i16_be(data, start)) & _U16)
            message_start: i64 = names + (i64(read_i16_be(data, start + 2)) & _U16)
            if message_start <= end:
                retained: Message | None = None
                if message_start < end:
                    retained = self._message(data, message_start, end)[1]
                    retained.retained = True
                return RetainedSet(
                    data[start + 4 : names].decode(),
                    data[names:message_start].decode("utf-8", "surrogateescape"),
                    retained,
                )
        elif kind == GROUP:
            return EntryGroup(
                [
                    self.entry(member.kind, member.position, data, member.start, member.end)
                    for member in group_members(data, position, start, end)
                ]
            )
        raise DamagedStore(
            f"the record at position {position} cannot be decoded: its kind is "
            f"'{KINDS[kind] if 0 < kind <= KIND_MAX else 'unknown'}'"
        )

    def _message(self, data: bytes, start: i64, end: i64) -> tuple[str, Message]:
        names: i64 = start + MESSAGE_HEADER_SIZE
        if names > end:
            raise DamagedStore("the record ends within the message that it stores")
        exchange: i64 = names + (i64(read_i16_be(data, start + 14)) & _U16)
        key: i64 = exchange + (i64(read_i16_be(data, start + 16)) & _U16)
        parameters: i64 = key + (i64(read_i16_be(data, start + 18)) & _U16)
        content_start: i64 = parameters + (i64(read_i32_be(data, start + 10)) & _U32)
        if content_start > end:
            raise DamagedStore("the record ends within the message that it stores")
        address_bytes = data[start + 14 : parameters]
        known = self._addresses.get(address_bytes)
        if known is None:
            known = (
                data[names:exchange].decode(),
                Address(
                    data[exchange:key].decode("utf-8", "surrogateescape"),
                    data[key:parameters].decode("utf-8", "surrogateescape"),
                ),
            )
            if len(self._addresses) >= _ADDRESSES:
                self._addresses.clear()
            self._addresses[address_bytes] = known
        content = data[content_start:end]
        tag: i64 = data[start + 1]
        encoding: Encoding = PLAIN
        if tag:
            try:
                encoding = self._codecs.load(tag, data[parameters:content_start], content)
            except ValueError as error:
                raise DamagedStore(
                    f"the stored message has an invalid encoding: {error}"
                ) from error
        qos: i64 = data[start]
        message = Message(known[1], content, encoding, qos & ~RETAINED_FLAG)
        message.retained = qos >= RETAINED_FLAG
        expires: i64 = read_i64_be(data, start + 2)
        if expires > 0:
            # A message that expired while the broker was stopped expires at the first tick.
            message.expires = max(expires - self.clock, 1)
        return known[0], message
