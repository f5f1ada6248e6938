"""A run of small entries that one record of the log holds as a group.

In a turn of the event loop, clients acknowledge many messages one after the other. A group of these
entries takes one header and one checksum, and 21 bytes for each entry. As a record of its own, an
entry takes 40 bytes.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64, u8

#: Largest number of entries in a run. If a record is damaged, all its entries are lost, so a long
#: run is divided.
RUN_MAX: Final[i64] = 64
#: Size of the payload of a settlement and of a PUBREC: a queue and a position, in bytes.
NUMBERS_SIZE: Final = 16


class MemberRun:
    """Settlements and PUBRECs at consecutive positions, encoded as members of a group."""

    def __init__(self) -> None:
        #: The position of the first entry, and the number of entries.
        self.first: i64 = 0
        self.count: i64 = 0
        self._out = BytesWriter()

    @property
    def size(self) -> i64:
        """Size of the encoded entries in bytes."""
        return len(self._out)

    def accepts(self, position: i64) -> bool:
        """True if the run is not empty, and an entry at this position can join it."""
        return position == self.first + self.count and 0 < self.count < RUN_MAX

    def add(self, kind: i64, queue: i64, position: i64) -> None:
        """Add an entry of this kind about the message at `position` in `queue`. Hot path."""
        self.count += 1
        out = self._out
        out.append(u8(kind))
        write_i32_be(out, NUMBERS_SIZE)
        write_i64_be(out, queue)
        write_i64_be(out, position)

    def take(self) -> bytes:
        """Return the encoded entries, and empty the run."""
        data = self._out.getvalue()
        self._out.truncate(0)
        self.count = 0
        return data
