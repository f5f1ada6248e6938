"""The rows of one stream in one batch of the store.

ArchiveWrite.prepare  on a node of a cluster: rows --> batches, which are shipped before `write`
ArchiveWrite.write    in the writer's thread: rows --> batches --> SegmentWriter.append, sync;
                      a full segment is finished, and the next segment is created
ArchiveWrite.settle   in the event loop: the durable rows are added to the list of segments
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.store.disk import WriteFailed
from broker.store.stream_contract import ShippedRows, StreamWrite
from broker.stream.archive import Archive, SegmentWriter, WrittenBatch
from broker.stream.captured_rows import BatchSink, CapturedRows, EncodedBatch


class EncodedRows(BatchSink):
    """A sink that keeps all batches in memory until the log of a cluster has them."""

    def __init__(self) -> None:
        self.batches: list[EncodedBatch] = []

    def add(self, encoded: EncodedBatch) -> None:
        self.batches.append(encoded)


def shipped(archive: Archive, batch: EncodedBatch) -> ShippedRows:
    """Return a batch in the form in which a cluster's owner sends it to the other nodes.

    The batch must have its place in the stream's files (`SegmentWriter.plan`).
    """
    planned = batch.planned
    assert planned is not None, "the batch has no place yet"
    return ShippedRows(
        archive.vhost,
        archive.name,
        archive.number,
        planned.epoch,
        planned.segment_base,
        planned.place,
        int(batch.base),
        int(batch.count),
        batch.data,
    )


class BatchAppender(BatchSink):
    """A sink that writes each batch as soon as it is built, so that memory holds few batches.

    If a write fails, the failed batch and all later batches are kept until `flush` writes them.
    """

    def __init__(self, segment_writer: SegmentWriter) -> None:
        self.written: list[WrittenBatch] = []
        self.unwritten: list[EncodedBatch] = []
        self._segment_writer = segment_writer

    def add(self, encoded: EncodedBatch) -> None:
        self.unwritten.append(encoded)
        if len(self.unwritten) == 1:
            try:
                self.flush()
            except WriteFailed:
                return  # ArchiveWrite.write flushes again at the end, and raises then.

    def flush(self) -> None:
        """Write the waiting batches. Raise WriteFailed if a failed write can be repeated later."""
        while self.unwritten:
            self.written.append(self._segment_writer.append(self.unwritten[0]))
            del self.unwritten[0]


class ArchiveWrite(StreamWrite):
    """The rows of one stream in one batch of the store.

    `write` may be repeated after WriteFailed.
    """

    def __init__(self, archive: Archive, captured: CapturedRows, size: i64) -> None:
        self.archive = archive
        self.size: i64 = size
        self.end: i64 = captured.end
        self._captured: CapturedRows | None = captured
        self._appender = BatchAppender(archive.segment_writer)

    def prepare(self) -> list[ShippedRows]:
        captured, self._captured = self._captured, None
        if captured is not None:
            encoded = EncodedRows()
            self.archive.row_writer.write(captured, encoded)
            self._appender.unwritten = encoded.batches
        archive, batches = self.archive, self._appender.unwritten
        archive.segment_writer.plan(batches)
        return [shipped(archive, batch) for batch in batches]

    def write(self) -> None:
        """Write the batch's rows to the stream's segments, and sync them. Runs in the writer's
        thread.
        """
        captured, self._captured = self._captured, None
        if captured is not None:
            self.archive.row_writer.write(captured, self._appender)
        self._appender.flush()
        self.archive.segment_writer.sync()

    def settle(self) -> None:
        """Add the durable rows to the archive. Runs in the event loop's thread."""
        self.archive.extend(self._appender.written)
