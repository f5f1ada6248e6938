"""The interface of the replicated log, and the engine that carries out a node's steps with it.

LogOwner and Standby yield the steps (contract.py). All calls of the log block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.replication.contract import (
    Append,
    Apply,
    LogSpan,
    LogTrimmed,
    LogUnreachable,
    OutcomeUnknown,
    Read,
    ReplicaFull,
    Result,
    Step,
    Steps,
)
from broker.replication.report import NodeReport


class ReplicatedLog(Protocol):
    """One partition of a cluster that speaks the Kafka protocol.

    The tip of the log is the offset that its next record will have. Each call blocks, so it belongs
    in a thread, never in the event loop. Three threads may call at a time: one appends, one reads,
    and one makes all other calls. The appending thread may also call `check`.
    """

    @property
    def identity(self) -> str:
        """A text that identifies the log.

        If the log is deleted and created again with the same name, it has another identity.
        """

    def expect(self, identity: str) -> None:
        """Check that the log has this identity; "" stands for any identity.

        Raises ReplicationError if the log has another identity.
        """

    @property
    def refusal(self) -> str:
        """The reason why batches must not be appended now; "" if batches may be appended.

        The reason is that the log could lose a batch, or cannot work at all. Any thread may read
        this property.
        """

    @property
    def chunk_size(self) -> int:
        """The largest payload of a chunk that the log accepts, in bytes, as of the last check.

        Any thread may read this property.
        """

    def check(self, now: bool = False) -> None:
        """Read the properties of the log, if a check is due, and update `refusal` and `chunk_size`.

        If `now` is True, read them even if no check is due. Raises LogUnreachable.
        """

    def append(self, data: bytes) -> int:
        """Append a record, and return its offset once the log has committed it.

        Raises OutcomeUnknown, or its subclass AppendRefused if the log refuses the record.
        """

    def read(self, offset: int) -> LogSpan:
        """Return records from an offset on, and the offset at which the log ends now.

        If the log has no record at the offset yet, the call waits a short time for one. Raises
        LogUnreachable, LogTrimmed.
        """

    def bounds(self) -> tuple[int, int]:
        """Return the offset of the log's first record, and the offset after its last record.

        Raises LogUnreachable.
        """

    def trim(self, offset: int) -> None:
        """Remove the records before an offset. Raises LogUnreachable."""

    def report(self, report: NodeReport) -> None:
        """Replace the report of this node (NodeReport) in the cluster. Raises LogUnreachable."""

    def own_report(self) -> NodeReport | None:
        """Return the report of this node; None if it has not reported. Raises LogUnreachable."""

    def reports(self) -> dict[str, NodeReport]:
        """Return the reports of all nodes of the cluster by name. Raises LogUnreachable."""

    def remove_report(self, node: str) -> None:
        """Remove the report of a node that does not run. Raises LogUnreachable."""

    def close(self) -> None:
        """Close the connections. No other call may follow."""


def carry_out(
    steps: Steps[Result],
    log: ReplicatedLog,
    apply: Callable[[Apply], None],
    sleep: Callable[[float], None],
) -> Result:
    """Carry out the steps that a generator yields, until it ends. Return its result.

    `steps` is a generator of LogOwner or Standby. `apply` makes a batch and a state durable, and
    may raise ReplicaFull. `sleep` waits for a number of seconds. An error that a step may have (see
    the table in contract.py) is thrown into the generator, which may continue. Any other error ends
    this call.
    """
    try:
        step = next(steps)
        while True:
            try:
                result = _carry_out(step, log, apply, sleep)
            except (OutcomeUnknown, LogUnreachable, LogTrimmed, ReplicaFull) as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        result_of_flow: Result = end.value
        return result_of_flow


def _carry_out(
    step: Step,
    log: ReplicatedLog,
    apply: Callable[[Apply], None],
    sleep: Callable[[float], None],
) -> int | LogSpan | None:
    """Carry out one step, and return its result: an offset, a span of records, or None."""
    if isinstance(step, Append):
        return log.append(step.data)
    if isinstance(step, Read):
        return log.read(step.offset)
    if isinstance(step, Apply):
        apply(step)
    else:
        sleep(step.seconds)
    return None
