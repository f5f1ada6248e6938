"""Reads the log in order: judges each record, and applies each batch to the data directory.

The stored state is always the state between two batches. So a follower that was stopped within a
batch reads the batch again from its first chunk.
"""

from __future__ import annotations

from broker.replication.assembly import BatchAssembly
from broker.replication.contract import (
    Apply,
    LogSpan,
    LogTrimmed,
    ReceivedBatch,
    ReplicaFull,
    Sleep,
    Steps,
)
from broker.replication.formats import FORMATS, Formats
from broker.replication.judge import Judge
from broker.replication.records import BatchChunk, Claim, ClusterState, Mark, decode

#: Seconds before the next attempt to apply a batch for which the disk was full.
FULL_SECONDS = 0.2


class Follower:
    """A reader of the log, which begins after a stored state and applies all valid batches."""

    def __init__(self, state: ClusterState, formats: Formats = FORMATS) -> None:
        self.judge = Judge(state)
        #: The formats of batches that this version reads.
        self.formats = formats
        #: The offset of the next record to read.
        self.next = state.last + 1
        #: The writer's wall clock in the last record that counts, in ms of Unix time.
        self.last_wall = 0
        self._assembly = BatchAssembly()

    def take(self, span: LogSpan, until: int | None = None) -> Steps[bool]:
        """Judge the records of a span, and apply each batch that they complete.

        Return True if at least one of these records is valid (counts, see `Judge`). Records at the
        offset `until` and after it are skipped. Raises FormatUnread at a claim after which batches
        have a format that this version of Trellis cannot read (formats.py).
        """
        counted = False
        for offset, data in span.records:
            if offset < self.next or until is not None and offset >= until:
                continue
            record = decode(data)
            before = self.judge.state
            if self.judge.judge(offset, record):
                counted = True
                self.last_wall = record.wall
                batch: ReceivedBatch | None = None
                if isinstance(record, BatchChunk):
                    batch = self._assembly.add(offset, record, before)
                    if batch is not None:
                        self.judge.completed(batch.number, batch.position, batch.offset)
                elif isinstance(record, Claim):
                    self._assembly.discard()
                    self.formats.check(self.judge.state.format, f"the log from offset {offset} on")
                if batch is not None or isinstance(record, Claim | Mark):
                    yield from self._apply(Apply(batch, self.judge.state))
            self.next = offset + 1
        return counted

    def begin_at_mark(self, trimmed: LogTrimmed, first: tuple[int, bytes]) -> Steps[None]:
        """Continue at `first`, the first record of a trimmed log, which must be a mark.

        A mark is a record that contains the state of the log before it, and so names the last batch
        before it. Raises `trimmed` if this node has not applied that batch.
        """
        offset, data = first
        record, state = decode(data), self.judge.state
        if not isinstance(record, Mark) or (state.name, state.number, state.batch_offset) != (
            record.state.name,
            record.state.number,
            record.state.batch_offset,
        ):
            raise trimmed
        self.judge = Judge.at_mark(offset, record)
        self.formats.check(self.judge.state.format, f"the log from offset {offset} on")
        self.next = offset + 1
        yield from self._apply(Apply(None, self.judge.state))

    def _apply(self, step: Apply) -> Steps[None]:
        while True:
            try:
                yield step
                return
            except ReplicaFull:
                yield Sleep(FULL_SECONDS)
