"""Reads the log in order: judges each record, and applies each batch to the data directory.

The stored state is always the state between two batches. So a follower that was stopped within a
batch reads the batch again from its first chunk.

The log may lose its last records (an unclean election of Kafka, a topic that was restored from a
backup), and get other records at their offsets. So a follower compares the last valid record with
the log before it reads on: at its start, after each time in which the log did not answer, and
before it believes a claim of its own. If the comparison fails, the follower stops (LogReplaced).

If the last valid record was trimmed, the log begins at a mark. The follower then requires that the
mark is of the same owner and names the same batch. Such a mark proves that the follower lacks no
record before the mark: the owner itself has appended all records after its claim, and its offsets
show if the log loses one of them.
"""

from __future__ import annotations

from broker.replication.assembly import BatchAssembly
from broker.replication.contract import (
    Apply,
    LogReplaced,
    LogSpan,
    LogTrimmed,
    ReceivedBatch,
    ReplicaFull,
    Sleep,
    Steps,
)
from broker.replication.formats import FORMATS, Formats
from broker.replication.judge import Judge
from broker.replication.read_sizes import ReadSizes
from broker.replication.records import (
    BatchChunk,
    Claim,
    ClusterState,
    ForeignRecord,
    LogRecord,
    Mark,
    decode,
)

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
        #: True if the last valid record was compared with the log, or if there is no valid record.
        #: No record is judged before that.
        self.is_verified = state.last < 0
        #: The last valid record; None if only the stored state knows the record.
        self._last_record: bytes | None = None
        #: The writer's wall clock in the last valid record, in ms of Unix time.
        self.last_wall = 0
        self._assembly = BatchAssembly()
        #: The sizes of the batches that this follower has read.
        self.sizes = ReadSizes(self.next)

    def take(self, span: LogSpan, until: int | None = None) -> Steps[bool]:
        """Judge the records of a span, and apply each batch that they complete.

        Return True if at least one of these records is valid (see `Judge`). Records at the offset
        `until` and after it are skipped. Raises FormatUnread at a claim after which batches have a
        format that this version of Trellis cannot read (formats.py).

        While `is_verified` is False, a span must begin at the offset of the last valid record; a
        span without records is ignored. Raises LogReplaced if the log has another record at this
        offset.
        """
        counted = False
        if not self.is_verified:
            self._verify(span)
        for offset, data in span.records:
            if offset < self.next or until is not None and offset >= until:
                continue
            record = self._decoded(offset, data)
            before = self.judge.state
            if self.judge.judge(offset, record):
                counted = True
                self._last_record = data
                self.last_wall = record.wall
                batch: ReceivedBatch | None = None
                if isinstance(record, BatchChunk):
                    self.sizes.add(len(record.payload))
                    batch = self._assembly.add(offset, record, before)
                    if batch is not None:
                        self.judge.completed(batch.number, batch.position, batch.offset)
                elif isinstance(record, Claim):
                    self._assembly.discard()
                    self._check_format(offset)
                elif isinstance(record, Mark):
                    self.sizes.mark(offset)
                if batch is not None or isinstance(record, Claim | Mark):
                    yield from self._apply(Apply(batch, self.judge.state))
            self.next = offset + 1
        return counted

    def _check_format(self, offset: int) -> None:
        """Raise FormatUnread if this version cannot read the batches from an offset on."""
        source = f"the replicated log from offset {offset} on"
        self.formats.check(self.judge.state.format, source)

    def doubt(self) -> None:
        """Compare the last valid record with the log again, before any further record is read.

        The records after this record are judged again, too: they were not valid, and the log may
        have other records in their places now.
        """
        last = self.judge.state.last
        self.next, self.is_verified = last + 1, last < 0

    @staticmethod
    def _decoded(offset: int, data: bytes) -> LogRecord:
        try:
            return decode(data)
        except ForeignRecord as error:
            raise ForeignRecord(
                f"the record at offset {offset} of the replicated log cannot be read: {error}"
            ) from error

    def _verify(self, span: LogSpan) -> None:
        """Compare the first record of a span with the last valid record that this node has read.

        Raises LogReplaced if they differ. Do nothing if the span has no records.
        """
        if not span.records:
            return
        offset, data = span.records[0]
        known = self._last_record
        assert offset == self.judge.state.last
        if not (self.judge.is_last(decode(data)) if known is None else data == known):
            raise LogReplaced(offset)
        self.is_verified = True

    def begin_at_mark(self, trimmed: LogTrimmed, first: tuple[int, bytes]) -> Steps[None]:
        """Continue at `first`, the first record of a trimmed log, which must be a mark.

        A mark is a record that contains the state of the log before it, and so names the last batch
        before it. Raises the given error `trimmed` if this node has not applied that batch, or if
        another owner has appended the mark: its epoch or nonce differs from the epoch and nonce
        that this node knows.
        """
        offset, data = first
        record, state = decode(data), self.judge.state
        if (
            not isinstance(record, Mark)
            or not record.state.follows(state)
            or (record.epoch, record.nonce) != (state.epoch, state.nonce)
        ):
            raise trimmed
        self.judge = Judge.at_mark(offset, record)
        self._check_format(offset)
        self.next, self.is_verified, self._last_record = offset + 1, True, data
        self.sizes.mark(offset)
        yield from self._apply(Apply(None, self.judge.state))

    def _apply(self, step: Apply) -> Steps[None]:
        while True:
            try:
                yield step
                return
            except ReplicaFull:
                yield Sleep(FULL_SECONDS)
