"""Rows that retention has removed from a broker's disk, read through the broker from its archive.

The broker fetches a file from the archive when a task reads the file's rows. To plan a query that
begins or ends at a time, Spark's driver reads the archived file with the rows of that time. To plan
any other query, the driver reads nothing from the archive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa

from pyspark_trellis import messages
from pyspark_trellis.journal import Piece
from pyspark_trellis.segments import Cut, SegmentScan, damaged, rows_of

#: Number of attempts to read rows. Each attempt waits several seconds for the archive.
ATTEMPTS: Final = 5


class SegmentServer(Protocol):
    """A broker that serves segments over HTTP."""

    @property
    def url(self) -> str:
        """The URL of the broker."""

    def fetch(self, path: str, attempts: int = 1) -> bytes:
        """Return the bytes at an HTTP path. Raises PipelineError."""


@dataclass(frozen=True)
class ArchivedPiece(Piece):
    """Rows of a file in the archive, which the broker serves as a segment at the HTTP path `path`.

    `cut` has no byte positions, because the task finds them in the data. `cut.first` is the first
    offset of the segment.
    """

    broker: SegmentServer
    path: str

    @property
    def where(self) -> str:
        return f"{self.broker.url}{self.path}"

    def data(self) -> pa.Buffer:
        return pa.py_buffer(self.broker.fetch(self.path, ATTEMPTS))

    def batches(self, columns: Sequence[str], verify: bool = True) -> Iterator[pa.RecordBatch]:
        data = self.data()
        try:
            size = messages.end_of(memoryview(data), 0, data.size)
        except (messages.DamagedSegment, struct.error) as error:
            raise damaged(self.where, error) from error
        whole = replace(self.cut, schema=bytes(data[:size]), start=size, end=data.size)
        return rows_of(whole, data.slice(size), self.where, columns, verify)


class ArchivedScan(SegmentScan):
    """A scan of a file in the archive. The scan reads nothing, so its cuts have no byte positions.

    `size` is the size of the file in bytes.
    """

    def cut(self, low: int, high: int) -> Cut:
        """Return a cut of the offsets from `low` up to, not including, `high`."""
        return Cut(b"", 0, 0, self.base, low, high)

    def sizes(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield one pair: the offset `high` and the size of the whole file."""
        yield high, self.size
