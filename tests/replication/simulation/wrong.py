"""Wrong nodes: each has one deliberate design mistake, which the simulation's checks must find.

The owner is the node whose claim of the replicated log is in force. Its lease is the time after
its last acknowledged record in which it may act.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from broker.replication.contract import (
    Append,
    Apply,
    Fenced,
    LogSpan,
    LogUnreachable,
    OutcomeUnknown,
    ReceivedBatch,
    ReplicaFull,
    Sleep,
    Steps,
)
from broker.replication.follower import Follower
from broker.replication.formats import FORMATS, Formats
from broker.replication.judge import Judge
from broker.replication.owner import LogOwner
from broker.replication.records import CLAIM, BatchChunk, Claim, ClusterState, LogRecord, decode
from broker.replication.standby import Standby
from tests.replication.simulation.directory import Directory, Entry
from tests.replication.simulation.node import CHUNK, Node


class BaseOwner(LogOwner):
    """Base class of owners that are wrong on purpose; `of` makes one from a right owner."""

    @classmethod
    def of(cls, owner: LogOwner) -> LogOwner:
        return cls(owner.judge, owner.next, owner.sent, owner.timing, owner._clock, owner._wall)


class UncomparedOffset(Node):
    """A wrong node: the owner does not compare the offset of its record with the expected one.

    So it does not notice the records of other nodes in between.
    """

    def own(self, owner: LogOwner) -> None:
        class Wrong(BaseOwner):
            def _read_between(self, offset: int) -> Steps[None]:
                self.next = offset
                yield from ()

        super().own(Wrong.of(owner))


class LeaseFromAnswer(Node):
    """A wrong node: the owner's lease begins too late.

    It begins when the answer to a record arrives, and not when the record was sent.
    """

    def own(self, owner: LogOwner) -> None:
        class Wrong(BaseOwner):
            def _append(self, record: LogRecord) -> Steps[int]:
                offset = yield from super()._append(record)
                self.renew(self._clock())
                return offset

        super().own(Wrong.of(owner))


class LeaseOnceATurn(Node):
    """A wrong node: the owner tests its lease too rarely.

    It tests the lease at the beginning of a turn of the event loop, and not before each flush.
    """

    def turn(self) -> None:
        self._tested = super().may_act()
        super().turn()

    def may_act(self) -> bool:
        return self.owner is not None and getattr(self, "_tested", False)


class DiskFirst(Node):
    """A wrong node: the owner writes a batch to its directory before the log has the batch."""

    def ship(self, owner: LogOwner, entries: list[Entry]) -> Steps[ReceivedBatch]:
        state, payload = owner.judge.state, self.encode(entries)
        batch = ReceivedBatch(state.number + 1, owner.next, state.position, entries[-1][1], payload)
        after = replace(
            state, number=batch.number, position=batch.position, batch_offset=batch.offset
        )
        with suppress(ReplicaFull):
            yield Apply(batch, after)
        return (yield from super().ship(owner, entries))


class ShippedAgain(Node):
    """A wrong node: after its disk was full, the owner appends a batch a second time."""

    def write_locally(self, owner: LogOwner, batch: ReceivedBatch) -> Steps[None]:
        while True:
            try:
                yield Apply(batch, owner.judge.state)
                return
            except ReplicaFull:
                yield Sleep(0.1)
                batch = yield from owner.ship(batch.payload, batch.position, CHUNK)


class OwnSalt(Node):
    """A wrong node: each node chooses a salt for its segment log itself.

    In a correct design, all nodes use the salt in the first claim of the replicated log. So they
    write the same bytes to their segment logs.
    """

    def start(self) -> None:
        if not self.directory.salt:
            self.directory.salt = self.world.random.getrandbits(32)
        super().start()


class _EarlyClaim(Standby):
    def _claim(self) -> Steps[LogOwner | None]:
        state, nonce = self.state, self._new_nonce()
        if state.epoch == 0:
            state = ClusterState(state.name, salt=self.salt)
        claim = Claim(CLAIM, state.epoch + 1, nonce, 0, self.follower.next - 1, state, self._digest)
        self._reset()
        sent = self._clock()
        try:
            offset: int = yield Append(claim.encode())
        except OutcomeUnknown:
            return None
        judge = Judge(replace(self.state, epoch=claim.epoch, nonce=nonce, last=offset))
        return LogOwner(judge, offset + 1, sent, self._timing, self._clock, self._wall)


class ClaimWithoutReading(Node):
    """A wrong node: a standby owns the log as soon as its claim is appended.

    It does not read the records up to its claim, one of which may make the claim void.
    """

    standby_type = _EarlyClaim


class _Unanswered(Standby):
    def _read(self) -> Steps[None]:
        try:
            span = yield from self._read_span()
        except LogUnreachable:
            span = LogSpan([], self.follower.next)
        if (yield from self.follower.take(span)):
            self._reset()
        now = self._clock()
        if self._answered is not None:
            self.quiet += now - self._answered
        self._answered = now

    def _call(self) -> Steps[None]:
        self._call_acknowledged = self._clock() - self._timing.beat
        yield from ()


class SilenceWithoutAnswers(Node):
    """A wrong node: a standby mistakes a log that does not answer for an owner that is silent.

    It also sends no call (an empty record that tests if the log commits) before it takes over.
    """

    standby_type = _Unanswered


def judged_by(wrong: type[Judge]) -> type[Node]:
    """Return a class of nodes that judge records with this judge, which is wrong on purpose."""

    class WrongFollower(Follower):
        def __init__(self, state: ClusterState, formats: Formats = FORMATS) -> None:
            super().__init__(state, formats)
            self.judge = wrong(state)

    class WrongNode(Node):
        follower_type = WrongFollower

    return WrongNode


class TrustingFollower(Follower):
    """A wrong follower: it reads on without a check that the log still has the last record that it
    read.
    """

    def __init__(self, state: ClusterState, formats: Formats = FORMATS) -> None:
        super().__init__(state, formats)
        self.is_verified = True

    def doubt(self) -> None:
        """Do nothing. A correct follower compares its last record with the log again."""


class UnseenJudge(Judge):
    """A wrong judge: it accepts a claim although the writer had not read all valid records before
    the claim.

    The offsets of the unread records are above the claim's `seen`.
    """

    def _claim(self, claim: Claim) -> bool:
        return super()._claim(replace(claim, seen=1 << 60))


class CredulousJudge(Judge):
    """A wrong judge: it accepts batches of earlier owners, although a later claim is in force."""

    def judge(self, offset: int, record: LogRecord) -> bool:
        if isinstance(record, BatchChunk) and record.epoch < self.state.epoch:
            record = replace(record, epoch=self.state.epoch, nonce=self.state.nonce)
        return super().judge(offset, record)


class GaplessJudge(Judge):
    """A wrong judge: it ignores a record with an unknown higher epoch. A correct judge stops the
    reader.
    """

    def judge(self, offset: int, record: LogRecord) -> bool:
        limit = self.state.epoch + isinstance(record, Claim)
        return record.epoch <= limit and super().judge(offset, record)


class LowWatermark(Node):
    """A wrong node: a node that lacks trimmed records continues instead of ending.

    The node begins at the low watermark (the first offset after the trim) with an empty state.
    """

    def start(self) -> None:
        low = self.world.log.low
        if self.directory.state.last + 1 < low:
            self.directory.state = ClusterState("broker", last=low - 1)
        super().start()

    class LowFollower(TrustingFollower):
        """A wrong follower: it reads on at the low watermark, without a comparison of records."""

        def __init__(self, state: ClusterState, formats: Formats = FORMATS) -> None:
            super().__init__(state, formats)
            self.judge = GaplessJudge(state)

    follower_type = LowFollower


class _HalfBatches(Follower):
    def take(self, span: LogSpan, until: int | None = None) -> Steps[bool]:
        for offset, data in span.records:
            record = decode(data)
            held = self._assembly._chunks
            if isinstance(record, Claim) and held and self.next <= offset:
                payload = b"".join(chunk.payload for chunk in held)
                whole = payload[: payload.rfind(b"]") + 1].rstrip(b"]") + b"]]"
                entries = _readable(whole)
                if entries:
                    batch = ReceivedBatch(
                        held[0].number,
                        self._assembly._offset,
                        held[0].position_before,
                        entries[-1][1],
                        json.dumps(entries).encode(),
                    )
                    self.judge.completed(batch.number, batch.position, batch.offset)
                    yield from self._apply(Apply(batch, self.judge.state))
        return (yield from super().take(span, until))


def _readable(payload: bytes) -> list[Any]:
    try:
        return list(json.loads(payload))
    except ValueError:
        return []


class HalfBatchKept(Node):
    """A wrong node: a claim does not make an incomplete batch void.

    The chunks of the batch that have arrived are applied.
    """

    follower_type = _HalfBatches


class _MiddleOfBatch(Follower):
    def take(self, span: LogSpan, until: int | None = None) -> Steps[bool]:
        counted = yield from super().take(span, until)
        yield from self._apply(Apply(None, self.judge.state))
        return counted


class ResumedWithinBatch(Node):
    """A wrong node: the state is stored after each read, even between two chunks of a batch.

    So a node that starts again resumes in the middle of a batch.
    """

    follower_type = _MiddleOfBatch


class _Uncut(Directory):
    def open(self) -> None:
        self.synced = len(self.log)


class HalfLocalBatchKept(Node):
    """A wrong node: a start keeps entries of a batch that is perhaps only partly applied.

    The right start removes these entries from the local log.
    """

    directory_type = _Uncut


class _MarkedWithEnd(Directory):
    def open(self) -> None:
        if self.log_end > self.state.position:
            self.state = replace(self.state, position=self.log_end)
        super().open()

    def apply(self, step: Apply) -> Iterator[None]:
        batch = step.batch
        if batch is not None and batch.position <= self.state.position:
            self.state = replace(step.state, position=self.state.position)
            return
        yield from super().apply(step)


class CatalogMarkedWithEnd(Node):
    """A wrong node: the catalog's position is the end of the local log.

    The right position is the end of the last applied batch. With the wrong one, all batches in the
    local log count as applied, although the catalog may lack the definitions of the last one.
    """

    directory_type = _MarkedWithEnd


class _Eager(Directory):
    def write_log(self, batch: ReceivedBatch) -> Iterator[None]:
        yield from super().write_log(batch)
        if batch.number % 10 == 0:
            self.checkpoint()


class EarlyCheckpoint(Node):
    """A wrong node: it makes a checkpoint too early.

    At that time, the catalog does not have the state after the last entry of the local log.
    """

    directory_type = _Eager


class WritingStart(Node):
    """A wrong node: at its start, it writes to the local log too early.

    At that time, the node has not read the whole replicated log.
    """

    def opened(self) -> None:
        end = self.directory.log_end
        if end and self.directory.live():
            oldest = min(self.directory.live())
            self.directory.log.append(("settle", end + 1, 0, oldest))
            self.directory.synced += 1


class TrimBeforeMark(Node):
    """A wrong node: the log is trimmed to the last offset that all nodes have read.

    The right offset is the offset of a mark: a record with the whole state, where a reader may
    begin.
    """

    def trim(self, owner: LogOwner) -> None:
        offsets = [node.synced for node in self.cluster.listed]
        known = [offset for offset in offsets if offset is not None]
        if len(known) == len(offsets) and min(known) > self.world.log.low:
            self.world.log.trim(min(known))
            self.cluster.trimmed(min(known))


class TrimBehindListed(Node):
    """A wrong node: the owner trims the log up to the newest mark, and waits for no other node.

    A mark is a record with the whole state. A right owner waits until all nodes in the list of
    nodes have read the mark.
    """

    def trim(self, owner: LogOwner) -> None:
        if owner.marks:
            self.world.log.trim(owner.marks[-1])
            self.cluster.trimmed(owner.marks[-1])


class NeverHandsOver(Node):
    """A wrong node: an owner keeps serving clients after it was fenced.

    Another node may own the log by then.
    """

    def end(self, error: Exception) -> None:
        if isinstance(error, Fenced) and self.owner is not None:
            owner = self.owner
            owner._fenced = False
            owner.renew(self.world.now + 5)
            return
        super().end(error)


class _ActsAtOnce(Standby):
    def _accept(self) -> Steps[LogOwner]:
        yield Sleep(0.0)
        return self._owner(self._clock())


class ActsBeforeItsFirstRecord(Node):
    """A wrong node: a successor acts as soon as it reads the claim in its name.

    That claim may be old, so the successor must first append a record of its own.
    """

    standby_type = _ActsAtOnce


class ActsAfterHandover(Node):
    """A wrong node: an owner continues to act after it has handed the log over."""

    def hand_over(self, owner: LogOwner) -> Steps[None]:
        yield from owner.hand_over(self.successor, "successor")
        owner._fenced, self.successor = False, 0
        owner.renew(owner.sent)
        yield Sleep(0.6)
        raise Fenced("the log was handed over")


class HandsOverTooEarly(Node):
    """A wrong node: an owner that is about to hand the log over confirms messages too early.

    It confirms the messages of its last batch, which the log does not have yet.
    """

    def publish(self, identity: int) -> None:
        successor, self.successor = self.successor, 0
        super().publish(identity)
        self.successor = successor
        if successor and self.pending:
            for entry in self.pending:
                if entry[0] == "store":
                    self.outbox.append(("confirm", entry[3]))


class ConfirmsUnshipped(Node):
    """A wrong node: an owner whose disk is full confirms too much when it hands the log over.

    It confirms the messages that came after its last batch, which the log does not have.
    """

    def hand_over_unwritten(self, owner: LogOwner) -> Steps[None]:
        for kind, _, _, identity in self.pending:
            if kind == "store":
                self.outbox.append(("confirm", identity))
        yield from super().hand_over_unwritten(owner)
