"""The judge: decides for each record of the log whether it is valid.

Only a valid record has an effect. The kinds of records are in records.py. Every reader begins at
the same state and reads the same records, so every reader reaches the same decisions, from the log
alone:

1. A claim is valid, and in force, if its epoch is the epoch in force + 1, and no valid record has
   an offset above `seen`, the last offset that the writer of the claim had read. Every other
   claim is void. So a claim that arrives late, from a node that was paused or read an old end
   of the log, does not depose an owner that still acts.
2. A batch, a beat or a mark is valid if it has the epoch and the nonce of the claim in force.
3. A call is never valid.
4. A claim with an epoch above the epoch in force + 1, or another record with an epoch above the
   epoch in force, proves that the reader lacks a claim. The reader must stop (LogGap). If it
   ignored such a record, it could claim an old epoch, and confirm messages beside the real owner.
"""

from __future__ import annotations

from dataclasses import replace

from broker.replication.errors import ReplicationError
from broker.replication.records import (
    CALL,
    REMEDY,
    BatchChunk,
    Claim,
    ClusterState,
    LogRecord,
    Mark,
)


class LogGap(ReplicationError):
    """Raised if the reader lacks records of the log before the records to judge."""


class ForeignLog(ReplicationError):
    """Raised if the log belongs to a broker with another name."""


class Judge:
    """Decides for each record of the log whether it is valid. Only a valid record has an effect.

    The records must be judged in the order of their offsets. The judge also keeps the state of the
    log.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        #: Number of records that were not valid.
        self.void = 0

    @staticmethod
    def at_mark(offset: int, mark: Mark) -> Judge:
        """Return a judge that begins at a mark, because the log before the mark is trimmed.

        The mark must be valid, as the first record of a trimmed log is. A mark that a deposed owner
        appended late is not valid: its epoch is out of date, but this judge would take the epoch
        for the epoch in force.
        """
        return Judge(
            replace(
                mark.state,
                epoch=mark.epoch,
                nonce=mark.nonce,
                last=offset,
                wall=max(mark.wall, mark.state.wall),
            )
        )

    def judge(self, offset: int, record: LogRecord) -> bool:
        """Return True if the record at this offset is valid, and update the state.

        Raises LogGap if the reader lacks a part of the log, ForeignLog if the log
        belongs to a broker of another name.
        """
        state = self.state
        if record.kind == CALL:
            self.void += 1
            return False
        if isinstance(record, Claim):
            counts = self._claim(record)
        else:
            if record.epoch > state.epoch:
                raise LogGap(
                    f"the replicated log lacks a claim: the record at offset {offset} has epoch "
                    f"{record.epoch}, and the epoch in force is {state.epoch}; {REMEDY}"
                )
            # Before the first claim, no claim is in force.
            counts = state.epoch > 0 and record.epoch == state.epoch and record.nonce == state.nonce
        if not counts:
            self.void += 1
            return False
        self.state = self.state.after_record(offset, record.wall)
        return True

    def _claim(self, claim: Claim) -> bool:
        """Put a claim in force if it is valid, and return True; return False if the claim is void.

        Raises LogGap or ForeignLog, as `judge` does.
        """
        state = self.state
        if claim.state.name != state.name:
            raise ForeignLog(
                f"the Kafka topic belongs to the broker '{claim.state.name}', and this node is a "
                f"node of '{state.name}': give each broker a topic of its own"
            )
        if claim.epoch > state.epoch + 1:
            raise LogGap(
                f"the replicated log lacks a claim: the next claim has epoch {claim.epoch}, and "
                f"the epoch in force is {state.epoch}; {REMEDY}"
            )
        if claim.epoch != state.epoch + 1 or state.last > claim.seen:
            return False
        first = state.epoch == 0
        self.state = replace(
            state,
            epoch=claim.epoch,
            nonce=claim.nonce,
            salt=claim.state.salt if first else state.salt,
            format=max(state.format, claim.state.format),
            owner=claim.state.owner,
        )
        return True

    def is_last(self, record: LogRecord) -> bool:
        """True if `record` is the last valid record of the stored state.

        The log may have lost this record in the meantime, and may have another record at its
        offset (`ClusterState.last`). A state is stored only after a batch, a claim or a mark, so
        the state names the batch that its last record ends or follows. (A record with the epoch and
        nonce of the state is not enough. A deposed owner may have appended such a record late.)
        """
        state = self.state
        if (record.epoch, record.nonce) != (state.epoch, state.nonce) or record.wall > state.wall:
            return False
        if isinstance(record, BatchChunk):
            is_whole = record.chunk == record.chunks - 1
            first = state.last - record.chunk
            begins = (
                state.batch_offset == first if record.chunk == 0 else state.batch_offset <= first
            )
            batch = (record.number, record.position) == (state.number, state.position)
            return is_whole and begins and batch
        return isinstance(record, Claim | Mark) and record.state.follows(state)

    def completed(self, number: int, position: int, batch_offset: int) -> None:
        """Record the last whole batch: its number, last position, and first chunk's offset."""
        self.state = self.state.after_batch(number, position, batch_offset)
