"""Encoding of entries as records of the log. (layout.py has the format, reading.py decodes.)

Recorder.add(position, entry)   once for each entry
Recorder.take() --> Records     once for each batch: the bytes of one write to the log
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, u8

from broker.messages.message import Encoding, Message
from broker.store.batch_records import SUMMED_SIZE, Records
from broker.store.codecs import Codecs
from broker.store.disk import StoreError
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
from broker.store.files import SUM_MASK, entry_hash
from broker.store.layout import (
    BATCH_START,
    GROUP,
    HEADER_SIZE,
    INDEX_STRIDE,
    PAYLOAD_MAX,
    PUBREC_RECEIVED,
    RETAINED_FLAG,
    SETTLED,
    STORED,
    UNCOPIED_SIZE,
    VERSION,
    version_of,
)
from broker.store.member_run import MemberRun
from broker.store.record_parts import (
    encoded_names,
    record_kind,
    wrapped_annotation,
    write_member_head,
    write_numbers,
    write_packet_id,
    write_u16,
)

#: The highest delivery count that is stored.
COUNT_MAX: Final[i64] = (1 << 31) - 1
#: Size in bytes of the head of a group's member: the member's kind and its length.
MEMBER_HEAD_SIZE: Final = 5
#: Size in bytes at which a part of a batch ends and the next part begins. Each part is copied once,
#: in the event loop. Without this bound, a batch of 64 MiB would be copied in one turn. This takes
#: 30 ms, and most of this time is spent on page faults of the new memory.
PART_SIZE: Final[i64] = 2 << 20


class Recorder:
    """An encoder of entries, which collects the records of the next batch."""

    def __init__(self, codecs: Codecs, seed: i64) -> None:
        self._codecs = codecs
        #: The seed of the checksums, and `zlib.crc32`. An attribute costs less than a global name.
        self._seed = int(seed)
        self._crc32 = crc32
        #: The wall clock minus the broker's clock, in ms: added to an expiry time before it is
        #: written.
        self.clock: i64 = 0
        #: The present record without its length and checksum; one object for all records.
        self._head = BytesWriter()
        self._out = BytesWriter()
        self._records = Records()
        #: Acknowledgements that are not in `_out` yet: they become one record.
        self._run = MemberRun()
        #: Offset of the last record in `marks`.
        self._marked: i64 = -INDEX_STRIDE
        #: Sizes of the members of the last EntryGroup, in bytes.
        self._sizes: list[int] = []
        #: Encoding of the last message, with the codec's tag and parameters for it.
        self._encoding: Encoding | None = None
        self._tag: i64 = 0
        self._parameters = b""

    @property
    def count(self) -> int:
        """Number of records that were encoded since the last `take`."""
        return int(self._records.count) + (1 if self._run.count > 0 else 0)

    @property
    def size(self) -> int:
        """Size of the records that were encoded since the last `take`, in bytes."""
        return int(self._records.size + self._run.size)

    def take(self) -> Records:
        """Return the records that were encoded since the last call, and begin a new batch."""
        if self._run.count > 0:
            self._write_run()
        records = self._records
        if len(self._out):
            records.parts.append(self._out.getvalue())
        self._out = BytesWriter()
        self._records = Records()
        self._marked = -INDEX_STRIDE
        return records

    def add(self, position: i64, entry: StoreEntry) -> None:
        """Encode an entry. Hot path.

        Raises StoreError, and adds nothing, if the entry is too large for a record.
        """
        if self._run.count > 0:
            self._write_run()
        records = self._records
        content = b""
        members: list[bytes] = []
        members_size: i64 = 0
        last: i64 = position
        kind: i64 = record_kind(entry)
        newest: i64 = kind
        if isinstance(entry, EntryGroup):
            members, newest = self._encode_group(entry)
            last = position + len(entry.entries) - 1
            for part in members:
                members_size += len(part)
            if members_size < SUMMED_SIZE:
                content = b"".join(members)
        head = self._begin_record(version_of(newest), kind, position)
        if kind != GROUP:
            content = self._write_payload(head, entry)
        size: i64
        if members_size < SUMMED_SIZE:
            size = self._write_record(position, head, content)
        else:
            size = self._write_unsummed(position, head, members, members_size)
        records.last = last
        self._count(records, position, entry, size)

    def add_message(
        self,
        position: i64,
        vhost: str,
        message: Message,
        queues: list[int],
        annotations: list[int] | None,
    ) -> None:
        """Encode a `MessageStored` of these values. Raises StoreError like `add`. Hot path."""
        if self._run.count > 0:
            self._write_run()
        records = self._records
        head = self._begin_record(VERSION, STORED, position)
        content = self._write_stored(head, vhost, message, queues, annotations)
        size: i64 = self._write_record(position, head, content)
        _count_copies(records, position, queues)
        records.stored_size += size

    def add_settled(self, position: i64, queue: i64, settled: i64) -> None:
        """Encode a `MessageSettled` of the message at position `settled` in `queue`. Hot path."""
        run = self._run
        if not run.accepts(position):
            self._begin_run(position)
        run.add(SETTLED, queue, settled)
        write_numbers(self._records.settled, queue, settled)

    def add_pubrec(self, position: i64, queue: i64, message: i64) -> None:
        """Encode a `PubrecReceived` for the message at position `message` in `queue`. Hot path."""
        run = self._run
        if not run.accepts(position):
            self._begin_run(position)
        run.add(PUBREC_RECEIVED, queue, message)
        write_numbers(self._records.noted, queue, message)

    def _begin_run(self, position: i64) -> None:
        """Write the present run, and begin a run whose first entry has this position."""
        if self._run.count > 0:
            self._write_run()
        self._run.first = position

    def _write_run(self) -> None:
        """Write the run as one record: a group, or a plain record if the run has one entry."""
        records, run = self._records, self._run
        position, count = run.first, run.count
        members = run.take()
        head = self._begin_record(VERSION, GROUP if count > 1 else i64(members[0]), position)
        if count > 1:
            write_i32_be(head, i32(count))
            self._write_record(position, head, members)
            records.last = position + count - 1
            records.transient_size += len(members)
        else:
            records.transient_size += self._write_record(position, head, members[MEMBER_HEAD_SIZE:])

    def _begin_record(self, version: i64, kind: i64, position: i64) -> BytesWriter:
        """Return a writer with the start of a record: the part from version to position."""
        head = self._head
        head.truncate(0)
        first: i64 = BATCH_START << 16 if self._records.count == 0 else 0
        write_i32_be(head, i32(version << 24 | kind << 16 | first))
        write_i32_be(head, 0)
        write_i64_be(head, position)
        return head

    def _write_record(self, position: i64, head: BytesWriter, content: bytes) -> i64:
        """Write length and checksum of a record, then `head` and `content`. Return its size."""
        records = self._records
        size: i64 = len(head) + len(content) + 8
        if size > PAYLOAD_MAX:
            raise _too_large(size)
        uncopied = len(content) >= UNCOPIED_SIZE
        if content and not uncopied:
            head.write(content)
        tail = head.getvalue()
        crc: i64 = self._crc32(tail, self._seed)
        if uncopied:
            crc = crc32(content, crc)
        out = self._out
        write_i32_be(out, i32(size - HEADER_SIZE))
        write_i32_be(out, i32(crc - (1 << 32) if crc >= 1 << 31 else crc))
        out.write(tail)
        if uncopied:
            records.parts.append(out.getvalue())
            records.parts.append(content)
            self._out = BytesWriter()
        elif len(out) >= PART_SIZE:
            records.parts.append(out.getvalue())
            self._out = BytesWriter()
        self._count_record(position, size)
        return size

    def _write_unsummed(
        self, position: i64, head: BytesWriter, content: list[bytes], content_size: i64
    ) -> i64:
        """Write a record with a long content. `Records.complete` later computes the checksum.

        The content is not copied here. Return the size of the record in bytes.
        """
        size: i64 = len(head) + content_size + 8
        if size > PAYLOAD_MAX:
            raise _too_large(size)
        records = self._records
        if len(self._out):
            records.parts.append(self._out.getvalue())
        self._out = BytesWriter()
        begun = BytesWriter()
        write_i32_be(begun, i32(size - HEADER_SIZE))
        write_i32_be(begun, 0)
        begun.write(head.getvalue())
        first = len(records.parts)
        records.parts.append(begun.getvalue())
        records.parts += content
        records.unsummed.append((first, len(records.parts)))
        self._count_record(position, size)
        return size

    def _count_record(self, position: i64, size: i64) -> None:
        """Add a record of `size` bytes to the number, size and index of the records."""
        records = self._records
        if records.count == 0:
            records.first = position
        records.count += 1
        offset: i64 = records.size
        records.size = offset + size
        records.last = position
        if offset - self._marked >= INDEX_STRIDE:
            self._marked = offset
            records.marks.append((position, offset))

    def _count(self, records: Records, position: i64, entry: StoreEntry, size: i64) -> None:
        """Add an entry to the counts that schedule checkpoints and find dead files."""
        if isinstance(entry, MessageStored):
            _count_copies(records, position, entry.queues)
            records.stored_size += size
        elif isinstance(entry, EntryGroup):
            for at, member in enumerate(entry.entries):
                self._count(records, position + at, member, self._sizes[at])
        else:
            records.transient_size += size
            if isinstance(entry, MessageSettled):
                write_numbers(records.settled, entry.queue, entry.position)
            elif isinstance(entry, (PubrecReceived, DeliveryCounted)):
                write_numbers(records.noted, entry.queue, entry.position)
            else:
                records.keyed.append((position, entry))

    def _write_payload(self, out: BytesWriter, entry: StoreEntry) -> bytes:
        """Write the payload of an entry except its last part; return the last part.

        The last part is the content of the entry's message, or the name of a producer. It is b"" if
        the whole payload was written.
        """
        if isinstance(entry, MessageStored):
            return self._write_stored(
                out, entry.vhost, entry.message, entry.queues, entry.annotations
            )
        if isinstance(entry, MessageSettled):
            return write_numbers(out, entry.queue, entry.position)
        if isinstance(entry, PubrecReceived):
            return write_numbers(out, entry.queue, entry.position)
        if isinstance(entry, PacketIdHeld):
            return write_packet_id(out, entry.session, entry.packet_id)
        if isinstance(entry, PacketIdReleased):
            return write_packet_id(out, entry.session, entry.packet_id)
        if isinstance(entry, StreamExtended):
            return write_numbers(out, entry.stream, entry.end)
        if isinstance(entry, DeliveryMark):
            write_numbers(out, entry.queue, entry.mark)
            write_u16(out, entry.rank)
            return b""
        if isinstance(entry, DeliveryCounted):
            write_numbers(out, entry.queue, entry.position)
            write_i32_be(out, i32(min(entry.count, COUNT_MAX)))
            return b""
        if isinstance(entry, Sequenced):
            scope = entry.scope.encode()
            write_i64_be(out, entry.sequence)
            write_u16(out, len(scope))
            out.write(scope)
            return entry.producer.encode("utf-8", "surrogateescape")
        if isinstance(entry, RetainedSet):
            vhost, key = entry.vhost.encode(), entry.key.encode("utf-8", "surrogateescape")
            write_u16(out, len(vhost))
            write_u16(out, len(key))
            out.write(vhost)
            out.write(key)
            if entry.message is not None:
                return self._write_message(out, entry.vhost, entry.message)
        return b""

    def _write_stored(
        self,
        out: BytesWriter,
        vhost: str,
        message: Message,
        queues: list[int],
        annotations: list[int] | None,
    ) -> bytes:
        """Write the payload of a `MessageStored` except the content, and return the content."""
        write_i32_be(out, i32(len(queues)))
        if annotations is None:
            for queue in queues:
                write_i64_be(out, queue)
                write_i32_be(out, 0)
        else:
            for at, queue in enumerate(queues):
                write_i64_be(out, queue)
                write_i32_be(out, i32(wrapped_annotation(annotations[at])))
        return self._write_message(out, vhost, message)

    def _write_message(self, out: BytesWriter, vhost: str, message: Message) -> bytes:
        """Write a message except its content, and return the encoded content. Hot path.

        The names (exchange and routing key) are encoded once for each `Address`, which caches them.
        The recorder caches the tag and the parameters of the encoding of the last message.
        """
        encoding = message.encoding
        content = message.content
        if encoding is not self._encoding:
            tag, parameters, written = self._codecs.dump(encoding, content)
            # Do not cache parameters for a changed content: they are for this message only.
            self._encoding = encoding if written is content else None
            self._tag, self._parameters = tag, parameters
            content = written
        parameters = self._parameters
        address = message.address
        names = address.stored_names
        if not names:
            names = address.stored_names = encoded_names(vhost, address)
        expires: i64 = message.expires
        out.append(u8(message.qos + (RETAINED_FLAG if message.retained else 0)))
        out.append(u8(self._tag))
        write_i64_be(out, expires + self.clock if expires > 0 else 0)
        write_i32_be(out, i32(len(parameters)))
        out.write(names)
        if parameters:
            out.write(parameters)
        return content

    def prepare(self, entry: MessageStored) -> None:
        """Encode an entry as a member of the group to which the entry is added later."""
        part = BytesWriter()
        content = self._write_payload(part, entry)
        size: i64 = len(part) + len(content)
        if size <= PAYLOAD_MAX:
            out = BytesWriter()
            write_member_head(out, STORED, size)
            out.write(part.getvalue())
            entry.head, entry.content = out.getvalue(), content

    def _encode_group(self, entry: EntryGroup) -> tuple[list[bytes], i64]:
        """Return the parts of a group's payload, and the highest kind of its members.

        The payload is: count u32; for each member, kind u8, length u32, payload. The highest kind
        tells a reader whether it can read the group. Members that were encoded before this call all
        have the lowest kind, STORED, so their kinds need not be compared.
        """
        sizes = self._sizes = []
        parts: list[bytes] = []
        out = BytesWriter()
        write_i32_be(out, i32(len(entry.entries)))
        newest: i64 = 0
        for member in entry.entries:
            if isinstance(member, MessageStored) and member.head:
                sizes.append(len(member.head) + len(member.content))
                if len(out):
                    parts.append(out.getvalue())
                    out = BytesWriter()
                parts.append(member.head)
                parts.append(member.content)
                continue
            kind: i64 = record_kind(member)
            assert kind != GROUP, "an EntryGroup cannot hold another one"
            newest = max(newest, kind)
            part = BytesWriter()
            content = self._write_payload(part, member)
            size: i64 = len(part) + len(content)
            if size > PAYLOAD_MAX:
                raise _too_large(size)
            sizes.append(int(size) + MEMBER_HEAD_SIZE)
            write_member_head(out, kind, size)
            out.write(part.getvalue())
            out.write(content)
        parts.append(out.getvalue())
        return parts, newest


def _count_copies(records: Records, position: i64, queues: list[int]) -> None:
    records.copies += len(queues)
    balance: i64 = records.balance
    for queue in queues:
        balance += entry_hash(queue, position)
    records.balance = balance & SUM_MASK


def _too_large(size: i64) -> StoreError:
    return StoreError(
        f"cannot store an entry of {size} bytes: a record holds at most {PAYLOAD_MAX} bytes"
    )
