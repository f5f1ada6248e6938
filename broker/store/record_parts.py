"""Parts of records: numbers, names, the header of a record, and the record that closes a file."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64, u8

from broker.messages.message import Address
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
from broker.store.layout import (
    ANNOTATION_MODULUS,
    BATCH_START,
    CLOSED,
    DELIVERY_COUNTED,
    DELIVERY_MARK,
    GROUP,
    HEADER_SIZE,
    PACKET_ID_HELD,
    PACKET_ID_RELEASED,
    PUBREC_RECEIVED,
    RETAINED,
    SEQUENCED,
    SETTLED,
    STORED,
    STREAM_EXTENDED,
    VERSION,
)

_U16: Final[i64] = 0xFFFF


def record_kind(entry: StoreEntry) -> i64:
    """Return the kind of the record for an entry, which must not be a definition."""
    if isinstance(entry, MessageStored):
        return STORED
    if isinstance(entry, MessageSettled):
        return SETTLED
    if isinstance(entry, PubrecReceived):
        return PUBREC_RECEIVED
    if isinstance(entry, PacketIdHeld):
        return PACKET_ID_HELD
    if isinstance(entry, PacketIdReleased):
        return PACKET_ID_RELEASED
    if isinstance(entry, RetainedSet):
        return RETAINED
    if isinstance(entry, StreamExtended):
        return STREAM_EXTENDED
    if isinstance(entry, Sequenced):
        return SEQUENCED
    if isinstance(entry, DeliveryMark):
        return DELIVERY_MARK
    if isinstance(entry, DeliveryCounted):
        return DELIVERY_COUNTED
    assert isinstance(entry, EntryGroup) and entry.entries, f"{entry!r} has no kind of record"
    return GROUP


def encoded_names(vhost: str, address: Address) -> bytes:
    """Return the lengths of virtual host, exchange and routing key, followed by these names."""
    host = vhost.encode()
    exchange = address.exchange.encode("utf-8", "surrogateescape")
    key = address.key.encode("utf-8", "surrogateescape")
    out = BytesWriter()
    write_u16(out, len(host))
    write_u16(out, len(exchange))
    write_u16(out, len(key))
    write_i16_be(out, 0)
    out.write(host)
    out.write(exchange)
    out.write(key)
    return out.getvalue()


def wrapped_annotation(annotation: i64) -> i64:
    """Return an annotation in the range of a signed 32-bit number.

    Numbers above the range start again at 1, and numbers below it at -1.
    """
    if annotation > 0:
        return (annotation - 1) % ANNOTATION_MODULUS + 1
    return -((-annotation - 1) % ANNOTATION_MODULUS + 1) if annotation < 0 else 0


def write_numbers(out: BytesWriter, queue: i64, position: i64) -> bytes:
    """Write a payload that consists of the number of a queue and a position.

    Return b"": no last part of the payload remains for the caller to write.
    """
    write_i64_be(out, queue)
    write_i64_be(out, position)
    return b""


def write_packet_id(out: BytesWriter, session: i64, packet_id: i64) -> bytes:
    """Write a payload that consists of the number of a session and a packet identifier.

    Return b"": no last part of the payload remains for the caller to write.
    """
    write_i64_be(out, session)
    write_u16(out, packet_id)
    return b""


def write_member_head(out: BytesWriter, kind: i64, size: i64) -> None:
    """Write the head of a group's member, its kind and the size of its payload."""
    out.append(u8(kind))
    write_i32_be(out, i32(size))


def write_u16(out: BytesWriter, number: i64) -> None:
    """Write a number as 16 bits without sign. Raises StoreError if the number does not fit."""
    if number > _U16 or number < 0:
        raise StoreError(
            f"cannot store an entry: {number} does not fit into 16 bits, so a name is longer than"
            " 65,535 bytes, or a packet identifier is invalid"
        )
    write_i16_be(out, i16(number - (1 << 16) if number >= 1 << 15 else number))


def write_header(size: i64, crc: i64, out: BytesWriter) -> None:
    """Write the length and the checksum of a record that has `size` bytes with its header."""
    write_i32_be(out, i32(size - HEADER_SIZE))
    write_i32_be(out, i32(crc - (1 << 32) if crc >= 1 << 31 else crc))


def closing_record(position: i64, records: i64, size: i64, salt: i64, seed: i64) -> bytes:
    """Return the record that ends a file of `records` records and `size` bytes, up to `position`.

    The record repeats the salt of the log, in case both heads of the file are damaged.
    """
    tail = BytesWriter()
    write_i32_be(tail, i32(VERSION << 24 | (CLOSED | BATCH_START) << 16))
    write_i32_be(tail, 0)
    write_i64_be(tail, position)
    write_i64_be(tail, records)
    write_i64_be(tail, size)
    write_i32_be(tail, i32(salt - (1 << 32) if salt >= 1 << 31 else salt))
    body = tail.getvalue()
    out = BytesWriter()
    write_header(len(body) + 8, crc32(body, seed), out)
    out.write(body)
    return out.getvalue()
