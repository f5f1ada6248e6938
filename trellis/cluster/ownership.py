"""The owner of the replicated log: the active node appends batches, beats and marks to the log.

To ship a batch is to append it to the log. A beat is a record without content. A mark is a record
at which a reader may begin. The owner is fenced once another node owns the log: a fenced node must
end its process.

    thread "store"     ship, write to the local disk, confirm (durable_store_writer.py)
    thread "beat"      appends a beat whenever the owner has sent no record for a while
    thread "fence"     aborts all connections when another node may have taken over
    thread "report"    reports the state of this node (reporting.py)
    thread "retention" appends marks, and trims the log (retention.py)
    event loop         asks `may_act` before its agenda and before each flush (turn.py)

The process ends at once, without a clean stop, if another node owns the log, or if the outcome of
an append is unknown. The publishers of a batch that was not confirmed yet then get no confirm for
it, from any node. If the log refuses a chunk of a batch as too large, the owner claims the log
again, so that the refused chunk never becomes valid, and appends the batch in smaller chunks. If
the disk cannot be written for long, the owner hands the log over (disk_watch.py).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.replication.contract import (
    CHUNK_LEAST,
    AppendRefused,
    Apply,
    LogUnreachable,
    Result,
    Steps,
)
from broker.replication.engine import ReplicatedLog, carry_out
from broker.replication.formats import FORMATS, Formats
from broker.replication.owner import LogOwner
from broker.replication.read_sizes import ReadSizes
from broker.replication.records import BATCH_OVERHEAD
from broker.replication.report import NodeReport
from broker.store.durable_batch import BatchShipping, DurableBatch, ShippingRefused
from trellis import logs
from trellis.cluster.clock import boot_seconds
from trellis.cluster.disk_watch import DiskWatch
from trellis.cluster.format_upgrade import FormatUpgrade
from trellis.cluster.reporting import Reporting
from trellis.cluster.retention import LogRetention, NodeListStore, Retention

#: Seconds between two checks by the fence thread whether a successor may act.
FENCE_SECONDS: Final = 0.02
#: The beat thread checks whether a beat is due 4 times in each beat interval.
BEAT_PART: Final = 4


class Ownership(BatchShipping):
    """The replicated log as its owner uses it, after the owner's claim.

    `end` ends the process, for a reason; `end` does not return to the caller. `abort` aborts all
    client connections. A thread makes one call of `abort` when the log has acknowledged no record
    for so long that a standby may have taken over.
    """

    def __init__(
        self,
        owner: LogOwner,
        log: ReplicatedLog,
        end: Callable[[str], None],
        clock: Callable[[], float] = boot_seconds,
        formats: Formats = FORMATS,
    ) -> None:
        self.owner = owner
        #: The formats of batches that this version reads and writes.
        self.formats = formats
        self.log = log
        #: The largest payload of a chunk in bytes: the size that the log last named
        #: (`_named_size`), or less if the log has refused chunks since.
        self._chunk_size = self._named_size = log.chunk_size
        #: True while the log refuses the beats as too large.
        self._beats_refused = False
        #: Aborts all client connections. The fence thread calls it.
        self.abort: Callable[[], None] = _do_nothing
        self._end = end
        self._clock = clock
        #: Held by the thread that appends a record: only one may append at a time.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        #: Notices that the disk cannot be written.
        self.disk = DiskWatch(owner.timing.silence, clock, end)
        #: Number of batches that the log acknowledged, and the total of the seconds that their
        #: appends took.
        self.appended = 0
        self.append_seconds = 0.0
        #: Total size in bytes of the payloads of the acknowledged batches.
        self.shipped = 0
        #: Trims the log; None until the broker is restored.
        self.retention: LogRetention | None = None
        self._reporting: Reporting | None = None
        self._threads = [
            threading.Thread(target=self._run_beats, name="beat", daemon=True),
            threading.Thread(target=self._run_fence, name="fence", daemon=True),
        ]

    def start(self) -> None:
        """Begin to append beats, and to watch whether a standby may have taken over."""
        for thread in self._threads:
            thread.start()

    def may_act(self) -> bool:
        """True if the owner may deliver, answer and expire messages now."""
        return self.owner.may_act()

    @property
    def lease_left(self) -> float:
        """Seconds for which the owner may still act if the log acknowledges no further record."""
        owner = self.owner
        return max(0.0, owner.sent + owner.timing.lease - self._clock())

    @property
    def unreported(self) -> str:
        """The names, one per line, of nodes for which the log is kept and that sent no report."""
        return "" if self.retention is None else "\n".join(self.retention.unreported)

    # -- in the writer's thread

    def require_safe_log(self) -> None:
        if self.log.refusal:
            raise ShippingRefused(self.log.refusal)

    def ship(self, batch: DurableBatch) -> bytes:
        """Append a batch to the log; return the encoded state of the log after the batch.

        Ends the process if another node owns the log, or if the outcome of the append is unknown.
        Raises ShippingRefused if the log refuses the batch even in small chunks, or cannot take
        batches now (`ReplicatedLog.refusal`).
        """
        while True:
            with self._lock:
                try:
                    return self._ship(batch)
                except AppendRefused as error:
                    refused = error
            # Without the lock, so that the thread of the beats can append meanwhile.
            self._choose_smaller_chunks(refused)

    def _ship(self, batch: DurableBatch) -> bytes:
        self._leave_doubt()
        written = self.formats.of(self.owner.judge.state.format)
        content = written.encode(batch.changes, batch.records.parts, batch.rows, batch.garbage)
        if self.log.chunk_size != self._named_size:
            self._chunk_size = self._named_size = self.log.chunk_size
        began = self._clock()
        self._carry_out(self.owner.ship(content, int(batch.last), self._chunk_size))
        self.disk.shipped()
        self.appended += 1
        self.append_seconds += self._clock() - began
        self.shipped += len(content)
        return self.owner.judge.state.encode()

    def _choose_smaller_chunks(self, refused: AppendRefused) -> None:
        """Choose a smaller chunk size, because the log has refused a record. May block.

        Take the size that the log names now. If that size is not smaller than the refused payload,
        because a hosted Kafka does not show its limit, take half of the refused payload, and at
        least CHUNK_LEAST bytes. Raises ShippingRefused if the refused payload was not larger than
        CHUNK_LEAST bytes, or if the log cannot take batches now (`ReplicatedLog.refusal`).
        """
        with suppress(LogUnreachable):
            self.log.check(now=True)
        self.require_safe_log()
        payload, named = refused.size - BATCH_OVERHEAD, self.log.chunk_size
        if payload <= CHUNK_LEAST:
            raise ShippingRefused(str(refused)) from refused
        size = named if named < payload else max(CHUNK_LEAST, payload // 2)
        self._chunk_size, self._named_size = size, named
        logs.warning("cluster_chunks_smaller", bytes=size, reason=refused)

    def _leave_doubt(self) -> None:
        """If the log has refused the last record, claim the log again.

        After the claim, the refused record can never become valid. Raises AppendRefused if the log
        refuses the claim, too.
        """
        if self.owner.in_doubt:
            self._carry_out(self.owner.claim_again(_new_nonce()))

    def written(self) -> None:
        self.disk.written()

    def wall(self) -> float:
        return self.owner.judge.state.wall / 1000

    # -- in any thread but the loop's

    def keep(
        self,
        report: Callable[[], NodeReport],
        node: str,
        limits: Retention,
        nodes: NodeListStore,
        read: ReadSizes,
    ) -> None:
        """Begin to report this node, and to trim the log within `limits`.

        Trimming removes the oldest records of the log. `report` returns the report of this node,
        whose name is `node`. `nodes` is the list of all nodes for which the log is kept. `read` has
        the sizes of the batches that this node has read as a standby.
        """
        self._reporting = Reporting(self.log, report, _note_name_taken)
        self._reporting.start()
        self.retention = LogRetention(
            node,
            self.owner,
            self.log,
            limits,
            nodes,
            self._clock,
            lambda: self.shipped,
            self._mark,
            read,
        )
        self.retention.upgrade = FormatUpgrade(
            node, self.owner, self.formats.newest, self._raise_format
        )
        self.retention.start()

    def _mark(self) -> None:
        with self._lock:
            self._leave_doubt()
            self._carry_out(self.owner.mark())

    def _raise_format(self, number: int) -> None:
        with self._lock:
            self._carry_out(self.owner.raise_format(number, _new_nonce()))

    def hand_over(self, successor: NodeReport) -> None:
        """Claim the log in the name of a standby, so that this node no longer owns it.

        Call this after the last batch of this node. Ends the process if another node owns the log.
        """
        with self._lock:
            self._carry_out(self.owner.hand_over(successor.nonce, successor.description))
            self._stopped.set()

    def _carry_out(self, steps: Steps[Result]) -> Result:
        """Append and read records of the log as `steps` requests, and return the result of `steps`.

        Ends the process if an append or a read fails. Only AppendRefused is passed to the caller.
        """
        try:
            return carry_out(steps, self.log, _refuse_apply, self._sleep)
        except AppendRefused:
            raise
        except BaseException as error:
            self._end(str(error) or repr(error))
            raise

    def _sleep(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    # -- in threads of its own

    def _run_beats(self) -> None:
        timing = self.owner.timing
        while not self._stopped.wait(timing.beat / BEAT_PART):
            self.disk.look()
            if self.owner.beat_is_due():
                self._beat()

    def _beat(self) -> None:
        with self._lock:
            if not self.owner.beat_is_due() or self._stopped.is_set():
                return
            try:
                self._leave_doubt()
                self._carry_out(self.owner.beat())
                self._beats_refused = False
            except AppendRefused as error:
                if not self._beats_refused:
                    logs.error(
                        "cluster_beats_refused",
                        reason=error,
                        note="this node serves no client until the log accepts its records",
                    )
                self._beats_refused = True

    def _run_fence(self) -> None:
        """Abort all client connections when a standby may have claimed the log and may act."""
        aborted = 0.0
        while not self._stopped.wait(FENCE_SECONDS):
            due = self.owner.abort_at
            if self._clock() >= due and due != aborted:
                aborted = due
                self.abort()

    def stop(self) -> None:
        """Append no further record, and close the log."""
        self._stopped.set()
        for part in (self.retention, self._reporting):
            if part is not None:
                part.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self.log.close()


def _new_nonce() -> int:
    """Return a new nonce: a random number, not 0, that practically no other claim has."""
    return secrets.randbits(63) | 1


def _do_nothing() -> None:
    """Do nothing: the default of `abort` before the owner has clients."""


def _note_name_taken(reason: str) -> None:
    """Log that another node has this node's name. The other node stops; this node goes on."""
    logs.error("cluster_name_taken", reason=reason)


def _refuse_apply(step: Apply) -> None:
    raise AssertionError("the owner was asked to apply a batch, which is a step of standbys only")
