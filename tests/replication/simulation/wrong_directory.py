"""Nodes with the real replica directory, each with one deliberate design mistake.

The checks of the simulation must find each mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from broker.replication import payload
from broker.replication.contract import Apply, ReceivedBatch
from broker.replication.directory import PreparedBatch, ReplicaDirectory
from broker.replication.records import ClusterState
from broker.store.batch_records import Records
from broker.store.entries import MessageSettled
from broker.store.segments import SegmentLog
from tests.replication.batches import encode_entries
from tests.replication.simulation import wrong
from tests.replication.simulation.node import Node
from tests.replication.simulation.real import RealDirectory, RealNode


def with_replica(wrong_type: type[ReplicaDirectory]) -> type[Node]:
    """Return a class of nodes with this type of directory, which is wrong on purpose."""

    class WrongDirectory(RealDirectory):
        replica_type = wrong_type

    class WrongNode(RealNode):
        directory_type = WrongDirectory

    return WrongNode


class HalfKept(ReplicaDirectory):
    """Wrong on purpose: a node that mistakes half of a batch in its local log for the whole batch.

    So the node never writes the second half.
    """

    def _has(self, log: SegmentLog, batch: ReceivedBatch, records: Records, data: bytes) -> bool:
        return records.count == 0 or log.last >= records.first


class MarkedWithEnd(ReplicaDirectory):
    """Wrong on purpose: a node that considers a batch applied if its log has the batch's records.

    The catalog may still lack the definitions of that batch.
    """

    def _apply(self, batch: ReceivedBatch, state: ClusterState) -> None:
        if self._log is None or batch.position > self._log.last:
            super()._apply(batch, state)


class SurvivorsBegunEarly(ReplicaDirectory):
    """Wrong on purpose: a node that scans its log only once, with an old catalog.

    So the survivors (live records) lack the messages of queues that were not in the catalog during
    the first scan.
    """

    @property
    def _uncounted(self) -> bool:
        return False

    @_uncounted.setter
    def _uncounted(self, value: bool) -> None:
        """Ignore the value. A correct directory stores here that it must scan its log again."""


class SurvivorsLate(ReplicaDirectory):
    """Wrong on purpose: a node that updates its survivors (live records) one batch too late."""

    _late: PreparedBatch | None = None

    def _keep_warm(self, prepared: PreparedBatch, removed: set[int]) -> None:
        late, self._late = self._late, prepared
        if late is not None:
            super()._keep_warm(late, removed)

    def _open_log(self, salt: int) -> SegmentLog:
        self._late = None
        return super()._open_log(salt)


class SurvivorsOfHalfBatch(ReplicaDirectory):
    """Wrong on purpose: a node whose survivors include records that were cut off its log.

    After a crash, the node cuts off the records of an incomplete batch. Survivors are live records.
    """

    def _cut(self, log: SegmentLog, position: int) -> None:
        warm = self._warm
        super()._cut(log, position)
        self._warm = warm


class DiskFirst(wrong.DiskFirst, RealNode):
    """Wrong on purpose: an owner that writes a batch to its directory before the log has it."""


class ResumedWithinBatch(RealNode):
    """Wrong on purpose: a follower that stores its state even between two chunks of a batch."""

    follower_type = wrong.ResumedWithinBatch.follower_type


class ShippedAgain(wrong.ShippedAgain, RealNode):
    """Wrong on purpose: an owner that appends a batch a second time after its disk was full."""


class OwnSalt(RealNode):
    """Wrong on purpose: a node that chooses the salt of its segment log itself."""

    def apply(self, step: Apply) -> Iterator[None]:
        salt = int(self.name[-1]) + 1
        return super().apply(Apply(step.batch, replace(step.state, salt=salt)))


class WritingStart(RealNode):
    """Wrong on purpose: a node that settles the oldest message before it has read the whole log."""

    def opened(self) -> None:
        replica, state = self.directory.replica, self.directory.state
        live = self.directory.live() if state.number else {}
        if not live or replica is None or replica._log is None:
            return
        log, oldest = replica._log, min(live)
        settled = MessageSettled(self.directory.queue_of[oldest], oldest)
        content = payload.decode(encode_entries([(int(log.last) + 1, settled)], state.salt))
        log.append(replica._received.read(content.records, int(log.last)))
        log.sync()
