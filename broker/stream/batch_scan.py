"""A scan over the batches of a segment's file."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.store.disk import File
from broker.stream.arrow import (
    BATCH_HEADER_SIZE,
    BatchView,
    batch_size,
    view_batch,
)

#: Number of bytes read at once.
_READ_SIZE: Final[i64] = 1 << 20


class BatchScan:
    """A scan over the intact batches of a segment's file, from `place` on."""

    def __init__(self, file: File, place: i64, size: i64) -> None:
        #: The place of the next batch: its byte position in the file.
        self.place: i64 = place
        self._file = file
        self._size: i64 = size
        self._data = b""
        #: The byte position of `_data` in the file.
        self._start: i64 = place

    def next(self) -> BatchView | None:
        """Return the batch at `place`; None if there is no batch with a correct checksum."""
        while True:
            at: i64 = self.place - self._start
            batch = view_batch(self._data, at)
            if batch is not None:
                if not batch.is_intact():
                    return None
                self.place = self._start + batch.end
                return batch
            available: i64 = len(self._data) - at
            needed: i64 = batch_size(self._data, at) if available > 0 else _READ_SIZE
            if needed == 0 or available >= needed or self.place + available >= self._size:
                return None
            self._data = self._file.read(self.place, max(needed, _READ_SIZE))
            self._start = self.place
            if len(self._data) <= available:
                return None

    def find(self, least: i64, marks: list[int]) -> BatchView | None:
        """Return the next intact batch whose first offset is `least` or higher; None if there is
        none.

        Damage is skipped: after a damaged batch, the search goes on at the end of this batch
        according to its header, then at the places in `marks`. All other bytes are skipped, because
        the body of a message may contain bytes that look like a batch.
        """
        while self.place < self._size:
            here = self.place
            batch = self.next()
            if batch is not None and batch.base >= least:
                return batch
            if batch is None:
                end_place = here + batch_size(self._file.read(here, BATCH_HEADER_SIZE), 0)
                self.place = end_place
                if end_place == here or end_place >= self._size or self.next() is None:
                    end_place = min((mark for mark in marks if mark > here), default=self._size)
                self.place = end_place
        return None
