"""The encoded records of one batch of the log."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import BytesWriter
from mypy_extensions import i64

from broker.store.entries import (
    StoreEntry,
)

#: Size in bytes of a record's length and checksum. The checksum covers the bytes after them.
SUM_END: Final = 8
#: Size in bytes from which the checksum of a group's record is computed in the writer's thread.
SUMMED_SIZE: Final[i64] = 1 << 20


class Records:
    """The encoded records of one batch, their number and sizes, and the changes of the log's
    counts.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        #: Records whose checksum is missing: the indexes in `parts` of the record's first part and
        #: of the part after its last part. `complete` computes the checksum.
        self.unsummed: list[tuple[int, int]] = []
        self.size: i64 = 0
        self.count: i64 = 0
        #: The first and the last position. Each member of an EntryGroup has a position, too.
        self.first: i64 = 0
        self.last: i64 = 0
        #: (position, offset) of the first record and some later records, for the index of the file.
        self.marks: list[tuple[int, int]] = []
        #: Number of (message, queue) pairs, size of the records of messages in bytes, and size of
        #: the other records, which serve only until a checkpoint.
        self.copies: i64 = 0
        self.stored_size: i64 = 0
        self.transient_size: i64 = 0
        #: Sum of the `entry_hash` of the (message, queue) pairs.
        self.balance: i64 = 0
        #: Queue i64 and position i64 of each settlement, and of each PubrecReceived and
        #: DeliveryCounted.
        self.settled = BytesWriter()
        self.noted = BytesWriter()
        #: Entries that replace the previous entry with the same key, with their positions.
        self.keyed: list[tuple[int, StoreEntry]] = []

    def complete(self, seed: i64) -> None:
        """Compute the missing checksums, and join the parts of these records.

        `seed` is the number from which the checksums of the log start (SegmentLog.seed). The thread
        that writes the records calls this method, because the work grows with the size of a
        transaction. The event loop runs meanwhile: `crc32` of a long part releases the interpreter
        lock.
        """
        if not self.unsummed:
            return
        parts: list[bytes] = []
        done = 0
        for first, end in self.unsummed:
            parts += self.parts[done:first]
            head = self.parts[first]
            joined = _joined(self.parts, first + 1, end)
            crc: i64 = crc32(head[SUM_END:], seed)
            for part in joined:
                crc = crc32(part, crc)
            parts.append(head[:4] + int(crc).to_bytes(4, "big") + head[SUM_END:])
            parts += joined
            done = end
        self.parts = parts + self.parts[done:]
        self.unsummed = []


def _joined(parts: list[bytes], first: int, end: int) -> list[bytes]:
    """Return parts[first:end], joined into longer parts of at least SUMMED_SIZE bytes each.

    A joined part ends with the part that brings it to SUMMED_SIZE bytes. The last joined part may
    be shorter.
    """
    joined: list[bytes] = []
    size: i64 = 0
    for at in range(first, end):
        size += len(parts[at])
        if size >= SUMMED_SIZE:
            joined.append(b"".join(parts[first : at + 1]))
            first, size = at + 1, 0
    if first < end:
        joined.append(b"".join(parts[first:end]))
    return joined
