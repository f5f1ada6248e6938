"""The layout of records in the log: constants that the encoder and the decoder share.

docs/storage.md describes the format. All numbers are big-endian.

    record    length u32 | crc u32 | version u8 | kind u8 | node u8 | shard u8 | epoch u32 |
              position u64 | payload
    payload   of STORED: queues u32, (queue u64, annotation i32) ..., message
    message   qos u8 (+ 4: retained) | codec tag u8 | expires i64 | sizes: parameters u32,
              vhost u16, exchange u16, key u16 | 0 u16 | vhost, exchange, key, parameters, content

A checkpoint copies messages without decoding them. The checksum (docs/decisions/0007) starts from
the seed of the log, so bytes within a message that look like a record do not count as a record.
"""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

#: The version of most records, of records about streams and producers, and of records about
#: deliveries.
VERSION: Final[i64] = 1
VERSION_2: Final[i64] = 2
VERSION_3: Final[i64] = 3
#: Size of a record without its payload, and of the largest payload, in bytes.
HEADER_SIZE: Final[i64] = 24
PAYLOAD_MAX: Final[i64] = 1 << 30

#: Kinds of records, one for each subclass of StoreEntry that the log holds.
STORED: Final[i64] = 1
SETTLED: Final[i64] = 2
PUBREC_RECEIVED: Final[i64] = 3
PACKET_ID_HELD: Final[i64] = 4
PACKET_ID_RELEASED: Final[i64] = 5
RETAINED: Final[i64] = 6
GROUP: Final[i64] = 7
#: The last record of a file that was closed in order. The record has no position of its own.
#: Payload: number of records u64, their size in bytes u64, salt u32.
CLOSED: Final[i64] = 8
STREAM_EXTENDED: Final[i64] = 9
SEQUENCED: Final[i64] = 10
DELIVERY_MARK: Final[i64] = 11
DELIVERY_COUNTED: Final[i64] = 12
#: The highest number of a kind of record.
KIND_MAX: Final[i64] = DELIVERY_COUNTED
#: Size of a CLOSED record in bytes.
CLOSING_SIZE: Final[i64] = HEADER_SIZE + 20
#: The names of the kinds, by number, as `trellis store` shows them.
KINDS: Final = (
    "",
    "kept",
    "settled",
    "stepped",
    "received",
    "released",
    "retained",
    "many",
    "closed",
    "extended",
    "sequenced",
    "marked",
    "counted",
)
#: Number that is added to the stored QoS if the message was published with the retain flag.
RETAINED_FLAG: Final[i64] = 4
#: Annotations are stored modulo this number, which fits into 31 bits. It is a multiple of 65,535,
#: the number of MQTT's packet identifiers.
ANNOTATION_MODULUS: Final[i64] = 65_535 * 32_768
#: Size of each (queue, annotation) pair of a STORED record, in bytes.
QUEUE_SIZE: Final[i64] = 12
#: Size of the payload of a DELIVERY_MARK record, and of a DELIVERY_COUNTED record, in bytes.
MARK_SIZE: Final[i64] = 18
COUNTED_SIZE: Final[i64] = 20
#: The bit that is added to the kind of the first record of a batch. The bit means that all bytes
#: before the record were durable when the batch was written.
BATCH_START: Final[i64] = 0x80

#: Smallest distance between two records in the index of a file, in bytes.
INDEX_STRIDE: Final[i64] = 4_096
#: Size in bytes from which on a content is written without being copied into the batch.
UNCOPIED_SIZE: Final[i64] = 16_384
#: Size of a stored message before its names, in bytes.
MESSAGE_HEADER_SIZE: Final[i64] = 22
#: The pattern of a record's bytes 8 to 15, from version to epoch. A search for the next record
#: after damage uses it.
RECORD_PATTERN: Final = re.compile(rb"[\x01-\x03][\x01-\x0c\x81-\x8c]\0\0\0\0\0\0")


def version_of(kind: i64) -> i64:
    """Return the version of a record: the version of the format that introduced its kind.

    For a group, `kind` is the highest kind of its members.
    """
    if kind > SEQUENCED:
        return VERSION_3
    return VERSION_2 if kind > CLOSED else VERSION
