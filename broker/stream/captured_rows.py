"""The rows that a stream got since its last batch, and the batches that are encoded from them."""

from __future__ import annotations

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr


class CapturedRows:
    """The publications that a stream got since its last batch, from offset `base` on."""

    def __init__(self, base: i64) -> None:
        self.base: i64 = base
        #: The publications: messages, and PublishRuns of packets that are not parsed yet.
        self.items: list[object] = []
        #: For each item, the number of queues to which it was routed.
        self.routed = BytesWriter()
        #: (index, time in microseconds): items from that index on were published at that time.
        self.times: list[tuple[int, int]] = []
        self.end: i64 = base


class BatchPlace:
    """The segment file in which a batch is written, and the position in this file.

    A segment is named by its epoch and its base offset; `place` is the position, in bytes.
    """

    def __init__(self, epoch: int, segment_base: int, place: int) -> None:
        self.epoch = epoch
        self.segment_base = segment_base
        self.place = place


class EncodedBatch:
    """An encoded batch: `count` rows from offset `base` on.

    `first_at` and `last_at` are the publishing times of its first and last row, in microseconds.
    """

    def __init__(self, data: bytearray, base: i64, count: i64, first_at: i64, last_at: i64) -> None:
        self.data = data
        self.base: i64 = base
        self.count: i64 = count
        self.first_at: i64 = first_at
        self.last_at: i64 = last_at
        #: Where the batch must be written; None if the writer chooses the segment and the position.
        self.planned: BatchPlace | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchSink:
    """A receiver of encoded batches."""

    def add(self, encoded: EncodedBatch) -> None:
        """Take the next encoded batch of the stream."""
        raise NotImplementedError
