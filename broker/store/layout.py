"""How records stand in the log: numbers that who writes them and who reads them share.
(docs/storage.md is the format; all numbers big-endian.)

    record    length u32 | crc u32 | version u8 | kind u8 | node u8 | shard u8 | epoch u32 | position u64 | payload
    payload   of a Kept: queues u32, (queue u64, serial i32) ..., blob     (the blob is opaque to who only moves it)
    blob      assurance u8 (+ 4: retained) | tag u8 | expires i64 | lengths: parameters u32, vhost u16, exchange u16, key u16 | 0 u16 |
              vhost, exchange, key, parameters, content

The checksum (docs/decisions/0007) starts from the log's seed, so what looks like a record inside a
message is none.
"""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

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
#: The file was finished in order here. Its payload: records u64, octets u64 before it, salt u32. It
#: takes no position.
CLOSED: Final[i64] = 8
EXTENDED: Final[i64] = 9
SEQUENCED: Final[i64] = 10
#: Octets of the record that closes a file.
CLOSING: Final[i64] = HEADER + 20
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
)
#: Added to the assurance of a message that was retained.
RETAINED_FLAG: Final[i64] = 4
#: Serials of a queue, after which they begin anew: a multiple of the number of MQTT's packet
#: identifiers. (They have a sign.)
SERIALS: Final[i64] = 65_535 * 32_768
#: Octets of each queue that a Kept names.
HOLDER: Final[i64] = 12
#: Added to the kind of the first record of a batch: all that stands before it in the file was
#: durable already.
FIRST: Final[i64] = 0x80

#: Octets of a file between two places that its index knows.
STRIDE: Final[i64] = 4_096
#: Contents from here on are not copied into the batch, but written from where they are.
APART: Final[i64] = 16_384
#: Octets of a blob before the names.
BLOB: Final[i64] = 22
#: What a record looks like from its version to the upper half of its epoch; used to find one again
#: behind damage.
LIKENESS: Final = re.compile(rb"[\x01\x02][\x01-\x0a\x81-\x8a]\0\0\0\0\0\0")
