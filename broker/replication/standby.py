"""A standby: follows the log, and claims it when the owner is silent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from broker.replication.contract import (
    ANSWER_GAP_MAX,
    EMPTY_SECONDS,
    POLL_SECONDS,
    Append,
    AppendRefused,
    Fenced,
    LogSpan,
    LogTrimmed,
    LogUnreachable,
    OutcomeUnknown,
    Read,
    Sleep,
    Steps,
    Timing,
)
from broker.replication.follower import Follower
from broker.replication.owner import ABORT_MARGIN, LogOwner
from broker.replication.records import CALL, CLAIM, Claim, ClusterState, LogRecord

#: Fraction of the silence after which a standby checks whether the log still commits records.
CALL_SHARE = 2 / 3
#: Number of records from which a standby estimates how far its clock is ahead of the owner's.
CLOCKS = 5


class Standby:
    """A node that does not own the log.

    The standby claims the log after a time without a record of the owner (`Timing.silence`). Time
    in which the log does not answer, or in which this node has not read the whole log, is not
    counted.

    A log may answer reads although it commits no record. So after two thirds of the silence, the
    standby appends a call, a record without content. The standby claims the log only after the log
    has acknowledged the call. If the log had stalled and recovers, the log first appends the
    waiting batch of the owner. The standby then reads this batch, and does not claim.
    """

    def __init__(
        self,
        follower: Follower,
        timing: Timing,
        clock: Callable[[], float],
        wall: Callable[[], int],
        new_nonce: Callable[[], int],
        digest: bytes,
    ) -> None:
        self.follower = follower
        #: Salt and format of the segment log that this node puts in the log's first claim.
        self.salt = 0
        self.format = 0
        #: Description of this node, for its claims: a text of at most 65,535 bytes.
        self.description = ""
        #: The number by which the owner can hand the log over to this node; 0 if it cannot. No
        #: other node, and no earlier process of this node, has the same number.
        self.handover_nonce = 0
        #: True while the node waits for the outcome of its claim.
        self.claiming = False
        self._timing = timing
        self._clock = clock
        self._wall = wall
        self._new_nonce = new_nonce
        self._digest = digest
        #: The owner's silence in seconds: the time since the last valid record (see `Judge`).
        #: Time in which the log did not answer, or this node had not read all of it, is left out.
        self.quiet = 0.0
        #: The time of the last answer of the log, if this answer showed that this node had read the
        #: whole log; else None.
        self._answered: float | None = None
        #: `_heard` is the time of the last answer of the log. `_empty_since` is the time at which a
        #: trimmed log was first found without a record; None once a record was read.
        self._heard = clock()
        self._empty_since: float | None = None
        #: The time at which the log acknowledged the call of this silence; None before the
        #: acknowledgement.
        self._call_acknowledged: float | None = None
        #: Milliseconds by which the wall clock of this node was ahead of the owner's wall clock,
        #: for each of the last records, at the time when this node read the record.
        self._clocks: deque[int] = deque(maxlen=CLOCKS)

    @property
    def clock_ahead(self) -> int:
        """Milliseconds by which the clock of this node is ahead of the owner's clock; 0 if unknown.

        The result is negative if the clock of this node is behind. A record that is read late shows
        too large a difference, so the result is the smallest difference of the last CLOCKS records.
        """
        return min(self._clocks) if len(self._clocks) == CLOCKS else 0

    @property
    def state(self) -> ClusterState:
        """The state of the log after the records read so far."""
        return self.follower.judge.state

    def follow(self) -> Steps[LogOwner]:
        """Follow the log until this node owns it.

        Raises ReplicationError if the node cannot continue.
        """
        while True:
            yield from self._read()
            if 0 < self.handover_nonce == self.state.nonce:
                return (yield from self._accept())
            if self.quiet < self._timing.silence * CALL_SHARE:
                yield Sleep(POLL_SECONDS)
            elif self._call_acknowledged is None:
                yield from self._call()
            elif (
                self.quiet < self._timing.silence
                or self._clock() < self._call_acknowledged + self._timing.beat
            ):
                yield Sleep(POLL_SECONDS)
            else:
                self.claiming = True
                owner = yield from self._claim()
                self.claiming = False
                if owner is not None:
                    return owner

    def _read(self) -> Steps[None]:
        """Read the next records, and update `quiet`, the time without a record of the owner.

        If a record is valid (see `Judge`), `quiet` begins at 0 again. If the log has no further
        record, the time since the last read is added to `quiet`.
        """
        try:
            span = yield from self._read_span()
        except LogUnreachable:
            self.follower.doubt()
            self._answered = None
            return
        if (yield from self.follower.take(span)):
            self._reset()
            if span.tip == self.follower.next:
                self._clocks.append(self._wall() - self.follower.last_wall)
        now = self._clock()
        if span.tip > self.follower.next or not self.follower.is_verified:
            self._answered = None
            return
        if self._answered is not None and now - self._answered <= ANSWER_GAP_MAX:
            self.quiet += now - self._answered
        self._answered = now

    def _read_span(self) -> Steps[LogSpan]:
        """Read the next records; if they were trimmed, the first records of the trimmed log.

        After a time in which the log did not answer, the result begins with the last valid record
        that this node has read, so that the follower can check that the log still has this record.
        In this case, the log is read twice: the first read, after this record, raises an error if
        the log has become shorter.
        """
        follower = self.follower
        if self._clock() > self._heard + ANSWER_GAP_MAX:
            follower.doubt()
        try:
            span: LogSpan = yield Read(follower.next)
            if not follower.is_verified:
                span = yield Read(self.state.last)
        except LogTrimmed as trimmed:
            span = yield from self._read_trimmed(trimmed)
        else:
            self._empty_since = None
        self._heard = self._clock()
        return span

    def _read_trimmed(self, trimmed: LogTrimmed) -> Steps[LogSpan]:
        """Read the first records of a log that was trimmed; begin at its first record, a mark.

        The owner may trim the log again before each of these reads. Raises LogTrimmed if this node
        lacks batches before the mark, or if the log stays empty.
        """
        while True:
            try:
                span: LogSpan = yield Read(trimmed.low)
            except LogTrimmed as again:
                trimmed = LogTrimmed(again.low, trimmed.offset)
                continue
            if span.records:
                yield from self.follower.begin_at_mark(trimmed, span.records[0])
            elif self._stays_empty():
                raise trimmed
            return span

    def _stays_empty(self) -> bool:
        """True if the trimmed log has had no record for more than EMPTY_SECONDS.

        The owner trims the log up to a mark, so a trimmed log should have at least this mark.
        """
        now = self._clock()
        if self._empty_since is None:
            self._empty_since = now
        return now > self._empty_since + EMPTY_SECONDS

    def _reset(self) -> None:
        """Restart the measurement of the owner's silence at 0 s, and require a new call."""
        self.quiet = 0.0
        self._answered = self._call_acknowledged = None

    def _call(self) -> Steps[None]:
        """Append a call, which tests whether the log commits records."""
        state = self.state
        try:
            yield Append(LogRecord(CALL, state.epoch, state.nonce, self._wall()).encode())
        except OutcomeUnknown:
            self._reset()
            return
        self._call_acknowledged = self._clock()

    def _claim(self) -> Steps[LogOwner | None]:
        """Append a claim, and read the log up to it.

        Return this node as the owner if the claim is valid, else None.
        """
        state, nonce = self.state, self._new_nonce()
        if state.epoch == 0:
            state = ClusterState(state.name, salt=self.salt, format=self.format)
        state = replace(state, owner=self.description)
        claim = Claim(
            CLAIM,
            state.epoch + 1,
            nonce,
            self._wall(),
            self.follower.next - 1,
            state,
            self._digest,
        )
        self._reset()
        sent = self._clock()
        try:
            offset: int = yield Append(claim.encode())
        except OutcomeUnknown:
            # The log may still append the claim later. Then the log has an owner that sends no
            # record: after another silence, a node claims the next epoch.
            return None
        # While the claim was on its way, the log may have lost records.
        self.follower.doubt()
        while self.follower.next <= offset:
            try:
                span = yield from self._read_span()
            except LogUnreachable:
                self.follower.doubt()
                yield Sleep(POLL_SECONDS)
                continue
            yield from self.follower.take(span, offset + 1)
            if not span.records and span.tip <= self.follower.next:
                yield Sleep(POLL_SECONDS)
        if (self.state.epoch, self.state.nonce) != (claim.epoch, nonce):
            return None
        return self._owner(sent)

    def _accept(self) -> Steps[LogOwner]:
        """Become the owner by a claim that the former owner appended in the name of this node.

        The lease does not begin with this claim, because the claim may be old. It begins with the
        first record of this node, a beat. Raises Fenced.
        """
        owner = self._owner(-self._timing.silence - ABORT_MARGIN)
        try:
            yield from owner.beat()
        except AppendRefused as error:
            raise Fenced(f"this node cannot begin to own the replicated log: {error}") from error
        return owner

    def _owner(self, sent: float) -> LogOwner:
        """Return a LogOwner for this node.

        `sent` is the time at which this node sent its last record, in seconds of the node's clock.
        """
        return LogOwner(
            self.follower.judge,
            self.state.last + 1,
            sent,
            self._timing,
            self._clock,
            self._wall,
        )
