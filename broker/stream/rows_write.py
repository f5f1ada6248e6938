"""The rows of one stream in one batch of the store.

RowsWrite.prepare  on a node of a cluster: rows --> batches, which are shipped before `write`
RowsWrite.write    in the writer's thread: rows --> batches --> SegmentWriter.append, sync;
                      a full segment is finished, and the next segment is created
RowsWrite.settle   in the event loop: the durable rows are added to the list of segments
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.store.disk import WriteFailed
from broker.store.stream_contract import ShippedRows, StreamWrite
from broker.stream.captured_rows import BatchSink, CapturedRows, EncodedBatch
from broker.stream.local_segments import LocalSegments
from broker.stream.segment_writer import SegmentWriter, WrittenBatch

#: Number of rows of a batch after which the writer's thread pauses (`Disk.pause`). Compiled code
#: does not release the interpreter lock by itself, and a write to the disk releases it too shortly
#: to wake the event loop. Without this pause, the loop waited for several batches: at 700,000
#: messages per second with a journal, the 99th percentile of latencies was 4.2 ms, and 1.5 ms with
#: a pause of 50 us.
PAUSE_ROWS: Final[i64] = 1_024
#: Number of rows above which the writer makes no pauses, because publishers send faster than the
#: writer works: then the throughput counts more than the latency.
PAUSE_ROWS_MAX: Final[i64] = 32_768


class EncodedRows(BatchSink):
    """A sink that keeps all batches in memory until the replicated log has them."""

    def __init__(self) -> None:
        self.batches: list[EncodedBatch] = []

    def add(self, encoded: EncodedBatch) -> None:
        self.batches.append(encoded)


def shipped(local: LocalSegments, batch: EncodedBatch) -> ShippedRows:
    """Return a batch in the form in which a cluster's owner sends it to the other nodes.

    The batch must have its place in the stream's files (`SegmentWriter.plan`).
    """
    planned = batch.planned
    assert planned is not None, "the batch has no place yet"
    return ShippedRows(
        local.vhost,
        local.name,
        local.number,
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

    def __init__(self, segment_writer: SegmentWriter, pauses: bool) -> None:
        self.written: list[WrittenBatch] = []
        self.unwritten: list[EncodedBatch] = []
        self._segment_writer = segment_writer
        #: True if the thread pauses after each long batch, so that the event loop can run.
        self._pauses = pauses

    def add(self, encoded: EncodedBatch) -> None:
        self.unwritten.append(encoded)
        if len(self.unwritten) == 1:
            try:
                self.flush()
            except WriteFailed:
                return  # RowsWrite.write flushes again at the end, and raises then.
            if self._pauses and encoded.count >= PAUSE_ROWS:
                self._segment_writer.disk.pause()

    def flush(self) -> None:
        """Write the waiting batches. Raises WriteFailed if a failed write can be repeated later."""
        while self.unwritten:
            self.written.append(self._segment_writer.append(self.unwritten[0]))
            del self.unwritten[0]


class RowsWrite(StreamWrite):
    """The rows of one stream in one batch of the store.

    `write` may be repeated after WriteFailed.
    """

    def __init__(self, local: LocalSegments, captured: CapturedRows, size: i64) -> None:
        self.local = local
        self.size: i64 = size
        self.end: i64 = captured.end
        self._captured: CapturedRows | None = captured
        pauses = captured.end - captured.base <= PAUSE_ROWS_MAX
        self._appender = BatchAppender(local.segment_writer, pauses)

    def prepare(self) -> list[ShippedRows]:
        captured, self._captured = self._captured, None
        if captured is not None:
            encoded = EncodedRows()
            self.local.row_writer.write(captured, encoded)
            self._appender.unwritten = encoded.batches
        local, batches = self.local, self._appender.unwritten
        local.segment_writer.plan(batches)
        return [shipped(local, batch) for batch in batches]

    def write(self) -> None:
        """Write the batch's rows to the stream's segments, and sync them. Runs in the writer's
        thread.
        """
        captured, self._captured = self._captured, None
        if captured is not None:
            self.local.row_writer.write(captured, self._appender)
        self._appender.flush()
        self.local.segment_writer.sync()

    def settle(self) -> None:
        """Add the written batches, now durable, to the stream's segments, so that readers see them.

        Runs in the event loop's thread.
        """
        self.local.extend(self._appender.written)
