"""The data directory of a standby, which follows the replicated log.

The directory holds the same definitions as the directory of the owner, and in its local log the
same records at the same positions. Both local logs have the same salt, the number from which
checksums start. The node's state (ClusterState) is stored in the catalog, in one transaction with
the definitions of a batch.

Most batches without definitions do not write the catalog (durable_batch.py). So after a crash, the
local log may be ahead of the stored state. The node then reads these batches again. If the local
log already has the records of a batch, they are compared, and not appended again. If the local log
ends within a batch, it is cut back to the end of the previous batch. The files of streams are
treated in the same way (broker/stream/replica.py).

Opening the directory changes no record and no definition; recovery only ends the last file with a
closing record, and cuts off an incomplete record. `take_over` gives the open log, catalog and live
records (warm_survivors.py) to the broker, when the node owns the replicated log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from broker.replication.compaction import LogCompaction
from broker.replication.contract import Apply, ReceivedBatch, ReplicaDiverged, ReplicaFull
from broker.replication.errors import ReplicationError
from broker.replication.formats import FORMATS, Formats
from broker.replication.payload import Payload
from broker.replication.records import REMEDY, ClusterState
from broker.replication.warm_survivors import WarmSurvivors
from broker.store.batch_records import Records
from broker.store.catalog import Catalog, CatalogUnwritten
from broker.store.codecs import Codecs
from broker.store.disk import TRANSIENT, DamagedStore, Disk, StoreError, WriteFailed
from broker.store.durable import DurableStore
from broker.store.durable_batch import DurableBatch
from broker.store.entries import HOLDERS, Defined, StoreEntry, Undefined
from broker.store.files import FileScan, LogFile, file_holding
from broker.store.findings import MISSING, QUARANTINED, WRONG
from broker.store.opening import CATALOG, LOG, STREAMS, OpenedStore, has_log, opened_store
from broker.store.received import ReceivedRecords
from broker.store.replay import Recovery, ignore_progress, missing_end
from broker.store.segments import SEGMENT_SIZE, SegmentLog
from broker.stream.removal import SegmentRemoval
from broker.stream.replica import ReplicaWrite, StreamDiffers, StreamReplica

#: Findings of a recovery after which a directory cannot follow the log.
_DAMAGE: Final = (QUARANTINED, MISSING, WRONG)


class PreparedBatch:
    """A received batch that is to be written, and its records.

    `was_logged` is True if the local log had the records before the node received the batch.
    """

    def __init__(self, number: int, batch: DurableBatch, records: bytes) -> None:
        self.number = number
        self.batch = batch
        self.records = records
        self.was_logged = batch.logged and bool(records)


class ReplicaDirectory:
    """The open data directory of a node that does not own the replicated log.

    `state` is the stored state, from which the node begins to read.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        name: str,
        codecs: Codecs,
        segment_size: int = SEGMENT_SIZE,
        formats: Formats = FORMATS,
    ) -> None:
        """Open the data directory at `path`, which the caller has locked, for the broker `name`.

        Raises StoreError; ReplicationError if the directory is damaged or not of this cluster.
        """
        self.path = path
        self._disk = disk
        self._codecs = codecs
        self._segment_size = segment_size
        self._formats = formats
        with_log = has_log(disk, f"{path}/{LOG}")
        self.catalog = Catalog(f"{path}/{CATALOG}", with_log)
        self._log: SegmentLog | None = None
        self._compaction: LogCompaction | None = None
        self._warm: WarmSurvivors | None = None
        #: Numbers of the definitions that can hold messages.
        self._holder_numbers: set[int] = set()
        self._received = ReceivedRecords(codecs, 0)
        #: True while the log may have live records that are not counted as live, because the object
        #: that holds them is defined in a batch that was read later. In a copy of the directory of
        #: a running node (`trellis cluster seed`), the log is newer than the catalog.
        self._uncounted = False
        #: The batch whose write failed because the disk was full.
        self._stopped: PreparedBatch | None = None
        #: True once the broker has the log and the catalog.
        self._taken_over = False
        self._streams = StreamReplica(disk, f"{path}/{STREAMS}")
        #: The ends of the streams in the log: stream number -> offset.
        self._stream_ends: dict[int, int] = {}
        try:
            self.state = self._stored_state(name, with_log)
            if with_log:
                self._open_log(self.state.salt)
        except BaseException:
            self.catalog.close()
            raise

    # -- opening

    def _stored_state(self, name: str, with_log: bool) -> ClusterState:
        stored = self.catalog.replica_state
        if not stored:
            if with_log or self.catalog.last:
                raise ReplicationError(
                    f"the data directory '{self.path}' holds data of a broker without a cluster: "
                    "begin a new cluster with it (`trellis cluster adopt`), or give this node an "
                    "empty data directory or a copy of another node's (`trellis cluster seed`)"
                )
            return ClusterState(name)
        state = ClusterState.decode(stored)
        if state.name != name:
            raise ReplicationError(
                f"the data directory '{self.path}' belongs to the broker '{state.name}', and this "
                f"node is a node of '{name}': correct cluster.name or data.dir"
            )
        self._formats.check(state.format, f"the data directory '{self.path}'")
        return state

    def _open_log(self, salt: int) -> SegmentLog:
        """Open the local log, and scan it for the live records (survivors)."""
        self._holder_numbers = {
            number for number, entry in self.catalog.load() if entry.kind in HOLDERS
        }
        warm = self._warm = WarmSurvivors(self._holder_numbers, self.catalog.last)
        log = SegmentLog(self._disk, f"{self.path}/{LOG}", self._segment_size, salt)
        self._check(log.open(warm.survivors, ignore_progress))
        if log.salt != salt:
            raise self._diverged(f"the local log has salt {log.salt}, the cluster has salt {salt}")
        self._stream_ends = {number: end for number, (end, _) in warm.survivors.streams.items()}
        warm.follow(log)
        self._received = ReceivedRecords(self._codecs, log.seed)
        self._log = log
        self._compaction = LogCompaction(log, self._holder_numbers)
        self._uncounted = False
        return log

    def _make_log(self, salt: int) -> SegmentLog:
        """Store the state with the salt of the cluster's logs, then make the local log.

        The state is stored first, because a directory that has a log and no state counts as the
        directory of a broker without a cluster.
        """
        self.store_state(replace(self.state, salt=salt))
        return self._open_log(salt)

    def _check(self, recovery: Recovery) -> None:
        """Raise ReplicaDiverged if a part of the local log is damaged or missing."""
        missing = missing_end(recovery, self.catalog.log_position)
        damage = [missing] if missing is not None else []
        damage += [finding for finding in recovery.findings if finding.kind in _DAMAGE]
        if damage:
            raise self._diverged(str(damage[0]))

    def _diverged(self, reason: str) -> ReplicaDiverged:
        return ReplicaDiverged(
            f"the data directory '{self.path}' differs from the replicated log: {reason}; {REMEDY}"
        )

    # -- following

    def apply(self, step: Apply) -> None:
        """Make a batch and the state after it durable. May block.

        Raises ReplicaFull if the disk is full: the caller may repeat the call. After any other
        error the node must end.
        """
        batch, state = step.batch, step.state
        try:
            if batch is not None and batch.number > self.state.number:
                self._apply(batch, state)
            else:
                self.store_state(state)
        except CatalogUnwritten as error:
            raise ReplicaFull(str(error)) from error
        except WriteFailed as failure:
            if failure.errno in TRANSIENT:
                raise ReplicaFull(str(failure)) from failure
            raise
        self.state = state

    def store_state(self, state: ClusterState) -> None:
        """Store the state of this node in the catalog, between two batches. Raises StoreError."""
        self.catalog.write([], self.catalog.log_position, state.encode())
        self.state = state

    def _apply(self, batch: ReceivedBatch, state: ClusterState) -> None:
        prepared = self._stopped
        if prepared is None or prepared.number != batch.number:
            prepared = self._stopped = self._prepare(batch, state)
        changes = prepared.batch.changes
        ahead = self._log is not None and int(self._log.last) > batch.position
        for position, entry in changes:
            if isinstance(entry, Defined) and entry.kind in HOLDERS:
                number = entry.definition.get("number")
                self._holder_numbers.add(number if isinstance(number, int) else position)
                self._uncounted |= ahead or prepared.was_logged
        try:
            prepared.batch.write()
        except StreamDiffers as error:
            raise self._diverged(f"batch {batch.number}: {error}") from error
        self._stopped = None
        removed = {int(entry.number) for _, entry in changes if isinstance(entry, Undefined)}
        self._keep_warm(prepared, removed)
        if self._uncounted and not ahead and self._log is not None:
            self._log.close()
            self._open_log(int(self._log.salt))

    def _keep_warm(self, prepared: PreparedBatch, removed: set[int]) -> None:
        """Update the survivors (live records) after a batch is durable.

        `removed` are the numbers of the queues, sessions and streams that the batch has removed.
        """
        warm = self._warm
        assert warm is not None
        if not prepared.was_logged:
            warm.add(prepared.records, self._received)
        self._holder_numbers -= removed
        warm.remove_holders(removed)

    def _prepare(self, batch: ReceivedBatch, state: ClusterState) -> PreparedBatch:
        """Return the batch to write, without its records if the local log already has them."""
        if batch.number != self.state.number + 1 or batch.position_before != self.state.position:
            raise self._diverged(
                f"batch {batch.number} follows position {batch.position_before}, and the directory "
                f"has batch {self.state.number} with position {self.state.position}"
            )
        content = self._formats.decode(batch.payload)
        log = self._log or self._make_log(state.salt)
        try:
            records = self._received.read(content.records, batch.position_before)
        except DamagedStore as error:
            raise self._diverged(f"batch {batch.number}: {error}") from error
        self._check_positions(batch, records, content.changes)
        logged = self._has(log, batch, records, content.records)
        prepared = DurableBatch(
            [], batch.position, records, content.changes, self._log or log, self.catalog
        )
        prepared.logged = logged
        self._add_streams(prepared, content)
        prepared.replica_state = state.encode()
        return PreparedBatch(batch.number, prepared, content.records)

    def _add_streams(self, batch: DurableBatch, content: Payload) -> None:
        """Add to `batch` the stream rows in `content`, and the files of streams to remove.

        After a crash, the files may already have the rows. StreamReplica then compares the rows,
        and writes nothing.
        """
        batch.stream_root = self._streams.root
        if content.rows:
            batch.stream_writes = [ReplicaWrite(self._streams, content.rows)]
            for rows in content.rows:
                end = max(self._stream_ends.get(rows.stream, 0), rows.base + rows.count)
                self._stream_ends[rows.stream] = end
        batch.garbage = list(content.garbage)
        for _, entry in content.changes:
            if isinstance(entry, Undefined) and int(entry.number) in self._stream_ends:
                number = int(entry.number)
                batch.garbage.append(SegmentRemoval(entry.vhost, entry.name, number, [], True))
                self._streams.release(number)

    def _check_positions(
        self, batch: ReceivedBatch, records: Records, changes: list[tuple[int, StoreEntry]]
    ) -> None:
        """Raise ReplicaDiverged if an entry of a batch has a position outside the batch's range."""
        last = max(int(records.last), changes[-1][0] if changes else 0)
        if last > batch.position or changes and changes[0][0] <= batch.position_before:
            raise self._diverged(f"batch {batch.number} has entries outside its range of positions")

    def _has(self, log: SegmentLog, batch: ReceivedBatch, records: Records, data: bytes) -> bool:
        """True if the local log has all records of a batch.

        If the log ends within the batch, remove the part of the batch that the log has.
        """
        end, number = int(log.last), batch.number
        if not records.count:
            if batch.position_before < end <= batch.position:
                raise self._diverged(f"batch {number} lacks position {end} of the local log")
            return True
        if end >= records.last:
            self._compare(log, batch, records, data)
            return True
        if end >= records.first:
            self._cut(log, int(records.first))
        elif end > batch.position_before:
            raise self._diverged(f"batch {number} lacks position {end} of the local log")
        return False

    def _compare(
        self, log: SegmentLog, batch: ReceivedBatch, records: Records, data: bytes
    ) -> None:
        """Raise ReplicaDiverged if the log has other records at the positions of a batch.

        All records of a batch are in one file. If the log no longer has the file, because of a
        checkpoint or because the file was dead, nothing is compared.
        """
        file = file_holding(log.files, records.first)
        if file is None or file.checkpoint or records.first > file.last:
            return
        if log.open_file(file).read(_offset(log, file, int(records.first)), len(data)) != data:
            raise self._diverged(
                f"the directory's log has other records than batch {batch.number} at the positions "
                f"{records.first} to {records.last}"
            )

    def _cut(self, log: SegmentLog, position: int) -> None:
        """Remove the records from a position on from the local log, and open the log again."""
        file = log.files[-1]
        offset = _offset(log, file, position)
        log.close()
        try:
            writable = self._disk.open(file.path, True)
            writable.truncate(offset)
            writable.sync()
            writable.close()
        except OSError as error:
            raise StoreError(f"cannot truncate '{file.path}': {error.strerror or error}") from error
        self._open_log(int(log.salt))

    @property
    def stored_state(self) -> ClusterState:
        """The stored state: after a crash, this node reads the log from offset `last` + 1 on."""
        stored = self.catalog.replica_state
        return ClusterState.decode(stored) if stored else ClusterState(self.state.name)

    def compact(self) -> bool:
        """Do one step of the work that frees disk space.

        Return True if another step should follow, False if nothing is to be done.

        A step takes a few milliseconds at most. Raises StoreError.
        """
        log = self._log
        if log is None or self._uncounted or log.last > self.state.position:
            # A file of the log may look dead although it has live records, which are not counted
            # yet.
            return False
        assert self._compaction is not None and self._warm is not None
        return self._warm.release(log) or self._compaction.step()

    @property
    def survivor_bytes(self) -> int:
        """The estimated memory of the survivors in bytes. Any thread may read this property."""
        warm = self._warm
        return 0 if warm is None else warm.memory_bytes

    # -- the end

    def finish(self) -> None:
        """Store the state, because this node owns the replicated log now.

        Raises ReplicaDiverged if the local log is ahead of the replicated log.
        """
        self._finish(list(self.catalog.load()))

    def _finish(self, definitions: list[tuple[int, Defined]]) -> None:
        if self._log is not None and self._log.last > self.state.position:
            raise self._diverged(
                f"the directory's log ends at position {self._log.last}, after the last batch of "
                f"the replicated log (position {self.state.position}); if the replicated log has "
                "lost records, `trellis cluster adopt` begins a new log with this directory"
            )
        self._check_streams(definitions)
        self.store_state(self.state)

    def take_over(self, report: Callable[[str], None]) -> OpenedStore:
        """Return the open store of this directory, because this node owns the replicated log now.

        The log is not read again. `report` is called with a sentence about each lost message.
        Afterwards this object is not used any more. Raises ReplicaDiverged, StoreError.
        """
        definitions = list(self.catalog.load())
        self._finish(definitions)
        log, warm = self._warmed({n for n, entry in definitions if entry.kind in HOLDERS})
        if self._compaction is not None:
            self._compaction.cancel()
        recovery = Recovery()
        recovery.files = len(log.files)
        recovery.last = log.last
        position = max(int(log.last), self.catalog.last, self.state.position)
        recovery.next = position + 1
        numbers = warm.survivors.holder_numbers
        store = DurableStore(log, self.catalog, self._codecs, position, numbers, report)
        self._taken_over, self._warm = True, None
        return opened_store(store, definitions, warm.survivors, recovery)

    def _warmed(self, numbers: set[int]) -> tuple[SegmentLog, WarmSurvivors]:
        """Return the open local log and its survivors, for a takeover.

        `numbers` are the numbers of all objects in the catalog that can hold messages.
        """
        log = self._log or self._make_log(int(self.state.salt))
        if self._uncounted or numbers - self._holder_numbers:
            log.close()
            log = self._open_log(int(log.salt))
        warm = self._warm
        assert warm is not None
        removed = self._holder_numbers - numbers
        self._holder_numbers -= removed
        warm.remove_holders(removed)
        while warm.release(log):
            pass
        return log, warm

    def _check_streams(self, definitions: list[tuple[int, Defined]]) -> None:
        """Raise ReplicaDiverged unless a stream's rows end at the offset that the log records."""
        for number, entry in definitions:
            end = self._stream_ends.get(number, 0) if entry.kind == "queue" else 0
            if end:
                try:
                    self._streams.check(entry.vhost, entry.name, number, end)
                except StreamDiffers as error:
                    raise self._diverged(str(error)) from error

    def close(self) -> None:
        """Close the files, unless `take_over` has given them to the broker."""
        if self._taken_over:
            return
        if self._compaction is not None:
            self._compaction.cancel()
        if self._log is not None and not self._log.poisoned:
            self._log.close()
        self.catalog.close()


def _offset(log: SegmentLog, file: LogFile, position: int) -> int:
    """Return the byte offset in `file` of its first record at `position` or later."""
    scan = FileScan(log.open_file(file), file.offset_of(position), file.size, file.seed, 0)
    while scan.advance() and scan.reader.last < position:
        pass
    return int(scan.record_start)
