"""The owner of the log: appends batches and beats, and knows how long it may act."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from broker.lease import Lease
from broker.replication.contract import (
    ANSWER_GAP_MAX,
    CHUNK_SIZE,
    POLL_SECONDS,
    Append,
    AppendRefused,
    Fenced,
    LogSpan,
    LogUnreachable,
    OutcomeUnknown,
    Read,
    ReceivedBatch,
    Sleep,
    Steps,
    Timing,
)
from broker.replication.judge import Judge
from broker.replication.records import (
    BATCH,
    BEAT,
    CLAIM,
    DIGEST_SIZE,
    MARK,
    BatchChunk,
    Claim,
    ClusterState,
    LogRecord,
    Mark,
    decode,
)

#: Seconds between the earliest possible claim of a successor and the moment at which the old owner
#: aborts all of its connections.
ABORT_MARGIN: Final = 0.3


class LogOwner:
    """The node whose claim is in force. At most one append is in flight.

    The owner expects that its records get consecutive offsets. If the offset of a record is higher
    than expected, other nodes have appended records in between, and the owner first reads and
    judges these records. After Fenced the node must end.
    """

    def __init__(
        self,
        judge: Judge,
        next_offset: int,
        sent: float,
        timing: Timing,
        clock: Callable[[], float],
        wall: Callable[[], int],
    ) -> None:
        """Make the owner of the log: the claim in force is a claim of this node.

        `next_offset` is the offset that the next record is expected to have. `clock` returns a
        monotonic time in seconds, `wall` returns Unix time in ms. `sent` is the time at which the
        claim in force was sent, in seconds of `clock`.
        """
        self.judge = judge
        self.timing = timing
        #: The offset that the next record is expected to have.
        self.next = next_offset
        #: The time for which this node may act. The event loop calls `lease.lasts`.
        self.lease = Lease(clock)
        #: Offsets of the acknowledged marks that may still be in the log, in order.
        self.marks: list[int] = []
        self._claim = (judge.state.epoch, judge.state.nonce)
        #: The last record of this node; None before its first record after the claim.
        self._last_record: bytes | None = None
        #: True once the log has refused a record of this node, until this node claims the log
        #: again: the log may have the record nevertheless, or get it later (AppendRefused).
        self.in_doubt = False
        #: Number of seconds, from the sending of the last acknowledged record, within which no
        #: other node can own the log. If the next record is acknowledged later, the owner compares
        #: its last record with the log. The number is two beat intervals, so that an owner without
        #: batches, whose records are one beat interval apart, compares nothing. See `_verify` for
        #: the upper limit.
        self._trust_seconds = min(2 * timing.beat, timing.silence - ANSWER_GAP_MAX)
        self._clock = clock
        self._wall = wall
        self._fenced = False
        self.renew(sent)

    @property
    def epoch(self) -> int:
        """The epoch of the claim by which this node owns the log."""
        return self._claim[0]

    def may_act(self) -> bool:
        """True if the owner may deliver, answer and expire messages now.

        Test this before each such action, because the node may have been paused since the last
        test. While this is True, no standby can own the log: the owner's lease begins when the
        owner sends a record; a standby begins to wait only when it reads this record, and it waits
        longer than the lease (`Timing.silence`).
        """
        return self.lease.lasts()

    def renew(self, sent: float) -> None:
        """Begin the lease anew at the time at which an acknowledged record was sent.

        `sent` is in seconds of `clock`.
        """
        #: The time at which the last acknowledged record was sent, in seconds of `clock`.
        self.sent = sent
        if not self._fenced:
            self.lease.extend(sent + self.timing.lease)

    def _fence(self) -> None:
        """End the lease for good: this node does not own the log any more."""
        self._fenced = True
        self.lease.end()

    @property
    def abort_at(self) -> float:
        """Time in seconds of `clock` at which the owner must abort all connections.

        This is ABORT_MARGIN seconds after the earliest time at which a successor may claim the log.
        """
        return self.sent + self.timing.silence + ABORT_MARGIN

    def beat_is_due(self) -> bool:
        """True if the owner has appended no record for a beat interval (`Timing.beat`)."""
        return self._clock() >= self.sent + self.timing.beat

    def ship(
        self, payload: bytes, position: int, chunk_size: int = CHUNK_SIZE
    ) -> Steps[ReceivedBatch]:
        """Append a batch to the log in chunks. Return the batch once the log has all chunks.

        `payload` is the encoded batch, `position` is the position of its last entry, and
        `chunk_size` is the largest size of a chunk in bytes. Write the batch to the data directory,
        and confirm it, only after this call. If the write fails because the disk is full, repeat
        only the write, not this call. Raises Fenced.

        Raises AppendRefused if the log refuses a chunk as too large. In this case the caller must
        call `claim_again`, and repeat this call with smaller chunks. Readers of the log drop the
        chunks of the first call, because the new claim follows them.
        """
        state = self.judge.state
        epoch, nonce = self._claim
        parts = [payload[at : at + chunk_size] for at in range(0, len(payload), chunk_size)]
        first = -1
        for index, part in enumerate(parts or [b""]):
            offset = yield from self._append(
                BatchChunk(
                    BATCH,
                    epoch,
                    nonce,
                    self._wall(),
                    state.number + 1,
                    index,
                    max(1, len(parts)),
                    state.position,
                    state.batch_offset,
                    position,
                    part,
                )
            )
            first = offset if index == 0 else first
        self.judge.completed(state.number + 1, position, first)
        return ReceivedBatch(state.number + 1, first, state.position, position, payload)

    def beat(self) -> Steps[None]:
        """Append a beat, a record that only shows that the owner still runs.

        Raises Fenced, AppendRefused.
        """
        yield from self._append(LogRecord(BEAT, *self._claim, self._wall()))

    def mark(self) -> Steps[None]:
        """Append a mark, a record with the state of the log.

        Once the log before the mark is trimmed, readers begin at the mark. Call this between two
        batches. Raises Fenced, AppendRefused.
        """
        offset = yield from self._append(Mark(MARK, *self._claim, self._wall(), self.judge.state))
        self.marks.append(offset)

    def hand_over(self, nonce: int, description: str) -> Steps[None]:
        """Claim the log in the name of a successor, which owns the log from then on.

        `nonce` is the number in the successor's report, `description` the successor's description
        (NodeDescription). Call this after the last batch. Raises Fenced.
        """
        state = replace(self.judge.state, owner=description)
        claim = Claim(
            CLAIM,
            state.epoch + 1,
            nonce,
            self._wall(),
            self.next - 1,
            state,
            bytes(DIGEST_SIZE),
        )
        try:
            yield from self._append(claim)
        except AppendRefused as error:
            self._fence()
            text = f"Kafka refused the claim for the successor ({error}), but the successor may own"
            raise Fenced(f"{text} the replicated log; the node ends") from error
        self._fence()

    def raise_format(self, number: int, nonce: int) -> Steps[None]:
        """Write batches in a newer format from now on (the format `number`; see formats.py).

        The method appends a claim in the name of this node; the claim names the format. All nodes
        must be able to read the format. `nonce` is a random number that no other claim has. Call
        this method between two batches. Raises Fenced, AppendRefused.
        """
        yield from self._claim_anew(replace(self.judge.state, format=number), nonce)

    def claim_again(self, nonce: int) -> Steps[None]:
        """Claim the log again in the name of this node, so that a refused record never becomes
        valid.

        Call this after AppendRefused, before any other record (`in_doubt`). If the refused record
        reaches the log after the new claim, the record is void, because it belongs to the earlier
        claim. If the refused record reached the log before the new claim, the new claim is void,
        because its `seen` is below the offset of this record, and the node ends. `nonce` is a
        random number that no other claim has. Raises Fenced, AppendRefused.
        """
        yield from self._claim_anew(self.judge.state, nonce)

    def _claim_anew(self, state: ClusterState, nonce: int) -> Steps[None]:
        epoch, seen = self.epoch + 1, self.next - 1
        wall, digest = self._wall(), bytes(DIGEST_SIZE)
        yield from self._append(Claim(CLAIM, epoch, nonce, wall, seen, state, digest))
        self._claim = (epoch, nonce)
        self.in_doubt = False

    def trimmable(self, synced: Iterable[int | None]) -> int | None:
        """Return the offset of the mark up to which the log may be trimmed; None if there is none.

        `synced` has for each listed standby the offset at which it would begin to read, or None if
        the standby has not reported one. While a standby has not reported, the log may not be
        trimmed.
        """
        least: int | None = None
        for offset in synced:
            if offset is None:
                return None
            least = offset if least is None else min(least, offset)
        trim_offset: int | None = None
        for mark in self.marks:
            if least is None or mark <= least:
                trim_offset = mark
        return trim_offset

    def _append(self, record: LogRecord) -> Steps[int]:
        """Append a record; return its offset once the log has it and this node still owns the log.

        Raises Fenced, AppendRefused.
        """
        if self._fenced:
            raise Fenced("this node does not own the replicated log any more")
        if self.in_doubt and record.kind != CLAIM:
            raise AssertionError("the log has refused a record, so the next one must be a claim")
        sent, data = self._clock(), record.encode()
        try:
            offset: int = yield Append(data)
        except AppendRefused:
            self.in_doubt = True
            raise
        except OutcomeUnknown as error:
            self._fence()
            text = f"the outcome of an append to the replicated log is unknown ({error})"
            raise Fenced(f"{text}; the node ends") from error
        if offset < self.next:
            self._fence()
            raise Fenced(
                f"a new record of this node is at offset {offset} of the replicated log, which had "
                f"records up to offset {self.next - 1}: the log lost records, so the node ends"
            )
        if offset > self.next or self._clock() > self.sent + self._trust_seconds:
            yield from self._verify()
        yield from self._read_between(offset)
        if not self.judge.judge(offset, record):
            if self.in_doubt:
                self._fence()
                raise Fenced(
                    f"the replicated log has a record of this node before offset {offset}, "
                    "although Kafka had refused that record as too large: other nodes may have "
                    "read the record, so the node ends"
                )
            raise AssertionError("the judge ignored a record of this node, whose claim is in force")
        self.next, self._last_record = offset + 1, data
        self.renew(sent)
        return offset

    def _verify(self) -> Steps[None]:
        """Compare the previous record of this node with the log. Raises Fenced if the log lost it.

        Called after a late append, and if a new record has a higher offset than expected. An append
        is late if it was acknowledged more than `_trust_seconds` after the previous record was
        sent. After a late append, the expected offset proves nothing: the log may have lost
        records, and a successor may have appended as many records of its own. A successor claims
        the log after `Timing.silence`, in which it counts the time between two answers of the log.
        If the log loses records between these two answers, the claim can come up to ANSWER_GAP_MAX
        earlier than `silence` after the loss. So `_trust_seconds` is at most `silence` less
        ANSWER_GAP_MAX.
        """
        offset = self.judge.state.last
        while True:
            try:
                span: LogSpan = yield Read(offset)
            except LogUnreachable:
                span = LogSpan([], offset)
            if span.records:
                break
            yield Sleep(POLL_SECONDS)
        record, known = span.records[0][1], self._last_record
        if not (self.judge.is_last(decode(record)) if known is None else record == known):
            self._fence()
            raise Fenced(
                f"the replicated log has another record at offset {offset} than the record that "
                "this node appended: the log lost records, so the node ends"
            )

    def _read_between(self, offset: int) -> Steps[None]:
        """Judge the records that other nodes appended before an offset. Raises Fenced."""
        while self.next < offset:
            try:
                span: LogSpan = yield Read(self.next)
            except LogUnreachable:
                yield Sleep(POLL_SECONDS)
                continue
            for record_offset, data in span.records:
                if not self.next <= record_offset < offset:
                    continue
                self.judge.judge(record_offset, decode(data))
                self.next = record_offset + 1
                state = self.judge.state
                if (state.epoch, state.nonce) != self._claim:
                    self._fence()
                    raise Fenced(
                        f"another node owns the replicated log since offset {record_offset}, with "
                        f"epoch {state.epoch}; this node had epoch {self.epoch}"
                    )
            if not span.records:
                yield Sleep(POLL_SECONDS)
