"""The batch of the store on disk: what one write makes durable, and in which order."""

from __future__ import annotations

from librt.strings import read_i64_be
from mypy_extensions import i64, mypyc_attr

from broker.store.batch_records import Records
from broker.store.catalog import Catalog, CatalogUnwritten
from broker.store.contract import Ticket, WriteBatch
from broker.store.disk import StoreError
from broker.store.entries import (
    StoreEntry,
    Undefined,
)
from broker.store.paged_messages import PagedMessages
from broker.store.segments import SegmentLog
from broker.store.stream_contract import ShippedRows


class ShippingRefused(StoreError):
    """Raised if a batch cannot be appended to the replicated log now: the log could lose the batch,
    or refuses its records as too large. The write of the batch may be repeated.
    """


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchShipping:
    """Appends batches to a replicated log. Only the owner of a cluster's log has such an object."""

    def require_safe_log(self) -> None:
        """Raise ShippingRefused if the log could lose a batch now, or cannot work at all."""

    def ship(self, batch: DurableBatch) -> bytes:
        """Append a batch to the replicated log. Return the node's state after the batch.

        Called before the batch is written to the disk, and again for the same batch only if the
        call raised ShippingRefused. May block.
        """
        raise NotImplementedError

    def written(self) -> None:
        """Record that the disk of this node now has the batch that was shipped last."""
        raise NotImplementedError

    def wall(self) -> float:
        """Return the highest wall clock in the replicated log, as Unix time in seconds.

        The clock of the owner must not go behind this time.
        """
        return 0.0


class DurableBatch(WriteBatch):
    """Records for the log and changes for the catalog, which are made durable together.

    `write` may be repeated after WriteFailed, CatalogUnwritten or ShippingRefused. After any other
    StoreError the store is stopped.
    """

    def __init__(
        self,
        tickets: list[Ticket],
        last: i64,
        records: Records,
        changes: list[tuple[int, StoreEntry]],
        log: SegmentLog,
        catalog: Catalog,
    ) -> None:
        super().__init__(tickets, last)
        self.records = records
        self.changes = changes
        self.paged = PagedMessages()
        self._log = log
        self._catalog = catalog
        #: Appends this batch to the replicated log; None without a cluster.
        self.shipping: BatchShipping | None = None
        #: The state of this node of a cluster after the batch; empty until the replicated log has
        #: the batch, and without a cluster.
        self.replica_state = b""
        #: True once the local log has the records.
        self.logged = False
        self._cataloged = False
        #: The encoded rows of streams, from their encoding until the replicated log has them.
        self.rows: list[ShippedRows] = []
        #: Size of the rows of streams, in bytes.
        self.stream_bytes = 0
        #: The directory of the files of streams.
        self.stream_root = ""
        #: Two i64 for each released message of a deleted queue: the number of its queue and its
        #: position.
        self.released = b""

    @property
    def size(self) -> int:
        return int(self.records.size) + self.stream_bytes

    def write(self) -> None:
        if self.shipping is not None and not self.replica_state:
            self.shipping.require_safe_log()
            self.records.complete(self._log.seed)
            self.rows = [rows for share in self.stream_writes for rows in share.prepare()]
            self.replica_state = self.shipping.ship(self)
            self.rows = []
        if not self.logged:
            self.write_streams()
            self._log.append(self.records)
            self._log.sync()
            self.logged = True
            self.records.parts.clear()
        if self.replica_state:
            self._remove_garbage()
        if not self._cataloged:
            self._write_catalog()
            self._cataloged = True
        if self.shipping is not None:
            self.shipping.written()
        if not self.replica_state:
            for garbage in self.garbage:
                garbage.remove(self._log.disk, self.stream_root)

    def _remove_garbage(self) -> None:
        """Remove files of streams on a node of a cluster, before the catalog has the new state.

        If the node crashes before the catalog has this state, it reads the batch again, and repeats
        the removal.
        """
        for garbage in self.garbage:
            garbage.remove_own(self._log.disk, self.stream_root)

    def _write_catalog(self) -> None:
        log = self._log
        if self.replica_state:
            self._write_replica()
        elif self.changes:
            self._catalog.write(self.changes, int(log.last))
            log.noted_rolls = log.rolls
        elif log.noted_rolls != log.rolls:
            self._note_segment()
        self._count_removed()

    def _write_replica(self) -> None:
        """Write the catalog of a node of a cluster, with the node's state after the batch, if due.

        The write is due in three cases: the batch has definitions; the log has begun a new segment;
        or STATE_BATCHES batches came without a write. After a crash, the node reads the batches
        since the last write again from the replicated log. Checkpoints and drops of dead files do
        not affect these batches: they use full segments only, and the last write covers all full
        segments.

        While the node reads batches again, its local log may be ahead of this batch.
        """
        log = self._log
        log.unstored_batches += 1
        if (
            self.changes
            or log.noted_rolls != log.rolls
            or log.unstored_batches >= log.unstored_batches_max
        ):
            position = min(int(log.last), int(self.last))
            self._catalog.write(self.changes, position, self.replica_state)
            log.noted_rolls = log.rolls
            log.unstored_batches = 0

    def _note_segment(self) -> None:
        """Record in the catalog that the log has a new segment, so that its loss would be noticed.

        If the catalog cannot be written now, the next batch tries again.
        """
        log = self._log
        try:
            self._catalog.write([], int(log.last))
        except CatalogUnwritten:
            return
        log.noted_rolls = log.rolls

    def _count_removed(self) -> None:
        """Count entries as no longer live if they are about objects that this batch removes.

        Such objects are queues, sessions and streams.
        """
        self.count_released(self.released)
        self.released = b""
        log = self._log
        for _, entry in self.changes:
            if isinstance(entry, Undefined):
                log.liveness.remove_holder(log.files, entry.number)

    def count_released(self, released: bytes) -> None:
        """Count messages of deleted queues as settled.

        `released` has two i64 for each message: the number of its queue and its position.
        """
        at: i64 = 0
        while at < len(released):
            self._log.settle(read_i64_be(released, at), read_i64_be(released, at + 8))
            at += 16
