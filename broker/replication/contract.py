"""The contract of replication: the steps that an engine carries out, and their results.

The engine does all input and output of a node. `LogOwner` and `Standby` are generators: they yield
a step, such as Read, and the engine sends the result back, or throws an error. The engine of the
server carries steps out in a thread and may block. The engine of a simulation may delay, lose or
reorder steps, and may stop the node between any two steps.

    step                     result                                 errors
    Append(data)             offset of the record                   OutcomeUnknown, AppendRefused
    Read(offset)             LogSpan: records from this offset on   LogUnreachable, LogTrimmed
    Apply(batch, state)      None: batch and state are durable      ReplicaFull
    Sleep(seconds)           None
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from broker.replication.errors import ReplicationError
from broker.replication.records import REMEDY, ClusterState
from broker.replication.timing import BEAT, LEASE, SILENCE, check_times

Result = TypeVar("Result")


class OutcomeUnknown(Exception):
    """Raised if the outcome of an append is unknown.

    The log may have the record now, or get the record later.
    """


class AppendRefused(OutcomeUnknown):
    """Raised if the log has answered that a record of `size` bytes is too large.

    The engine does not send the record again. Nevertheless, the outcome is unknown: the engine may
    have sent the record earlier, without an answer, and this earlier attempt may have appended the
    record, or may append it later. The owner of the log can make sure that the record never becomes
    valid (`LogOwner.claim_again`).
    """

    def __init__(self, text: str, size: int) -> None:
        super().__init__(text)
        self.size = size


class LogUnreachable(Exception):
    """Raised if the log does not answer. The engine may repeat the step."""


class ReplicaFull(Exception):
    """Raised if a batch cannot be applied, because the disk of the replica is full.

    The engine may repeat the step.
    """


class LogTrimmed(ReplicationError):
    """Raised if the records to read, from `offset` on, were trimmed.

    The log now begins at the offset `low`.
    """

    def __init__(self, low: int, offset: int) -> None:
        super().__init__(
            f"cannot read the replicated log at offset {offset}: the log now begins at offset "
            f"{low}; {REMEDY}"
        )
        self.low = low
        self.offset = offset


class Fenced(ReplicationError):
    """Raised if another node owns the log, or may own it.

    This node must end, and confirm nothing more.
    """


class ReplicaDiverged(ReplicationError):
    """Raised if the data directory differs from the replicated log.

    The remedy is to seed the node (`trellis cluster seed`).
    """


class LogReplaced(ReplicaDiverged):
    """Raised if the log has another record at the offset of the last record that a node has read.

    So the log has lost records, and has got other records since. The data directory of the node may
    have confirmed messages that the log lacks.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"the replicated log has another record at offset {offset} than the record that this "
            "node has read: the log lost records, and got other records since; keep the data "
            "directories of all nodes; either begin a new topic with the directory that has the "
            f"messages to keep (`trellis cluster adopt`), or {REMEDY}"
        )


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A whole batch, as read from the log."""

    number: int
    #: Offset of the first chunk.
    offset: int
    #: Position of the last entry before the batch, and position of the last entry of the batch.
    position_before: int
    position: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The result of a read: records, and the offset that the next record of the log will have."""

    #: Records with their consecutive offsets.
    records: list[tuple[int, bytes]]
    #: The offset that the next record of the log will have.
    tip: int


@dataclass(frozen=True, slots=True)
class Append:
    """A step that the engine carries out for a node: append a record to the replicated log.

    The step ends when the log has committed the record. Its result is the offset of the record.
    """

    data: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """A step that the engine carries out for a node: read the replicated log from `offset` on.

    Its result is a LogSpan. The engine decides how many records it reads, but reads at least one
    record if the log has a record at `offset`.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Apply:
    """A step that the engine carries out for a node: make a batch durable in the data directory.

    The state after the batch becomes durable together with it. If `batch` is None, only the state
    is stored. A stored state is always a state between two batches. If the node crashes within this
    step, the directory still has the state before the batch. So the node reads and applies the
    batch again, which is safe even if a part of the batch is already in the directory.
    """

    batch: ReceivedBatch | None
    state: ClusterState


@dataclass(frozen=True, slots=True)
class Sleep:
    """A step that the engine carries out for a node: wait for a number of seconds."""

    seconds: float


Step = Append | Read | Apply | Sleep
#: The generator type of LogOwner and Standby: a sequence of steps with a result. The engine sends
#: the result of each step into the generator.
Steps = Generator[Step, Any, Result]


@dataclass(frozen=True, slots=True)
class Timing:
    """The time limits of a cluster, in seconds; they must be the same on all nodes."""

    #: A standby claims the log after it has read no record of the owner for this time.
    silence: float = SILENCE
    #: The owner may act until this time has passed since it sent its last acknowledged record.
    lease: float = LEASE
    #: The owner appends a beat if it has sent no record for this time.
    beat: float = BEAT

    def __post_init__(self) -> None:
        """Raise ReplicationError unless the times fit together (`check_times`)."""
        check_times(self.silence, self.lease, self.beat)


#: Seconds between two reads of a standby that has read all records.
POLL_SECONDS: Final = 0.05
#: If two answers of the log are at most this many seconds apart, a standby assumes that the log
#: could have answered all the time between them.
ANSWER_GAP_MAX: Final = 0.6
#: Seconds for which a trimmed log may seem to have no record: a new leader of the log may report an
#: old end for a moment.
EMPTY_SECONDS: Final = 5.0
#: Default for the largest payload of a chunk in bytes.
CHUNK_SIZE: Final = 8 << 20
#: Lower limit of the chunk size in bytes (the chunk size is the largest payload of a chunk). With
#: smaller chunks, a batch of some MB would be divided into thousands of records.
CHUNK_LEAST: Final = 64 << 10
