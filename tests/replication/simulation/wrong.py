"""Nodes with one design mistake each. The simulation's checks must find each mistake."""

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
    Read,
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


class _Owner(LogOwner):
    """Base class of the wrong owners; `of` converts the right owner when its claim is in force."""

    @classmethod
    def of(cls, owner: LogOwner) -> LogOwner:
        return cls(owner.judge, owner.next, owner.sent, owner.timing, owner._clock, owner._wall)


class UncomparedOffset(Node):
    """The owner does not compare the offset of its append with the expected one."""

    def own(self, owner: LogOwner) -> None:
        class Wrong(_Owner):
            def _read_between(self, offset: int) -> Steps[None]:
                self.next = offset
                yield from ()

        super().own(Wrong.of(owner))


class LeaseFromAnswer(Node):
    """The lease begins when the answer arrives, not when the record was sent."""

    def own(self, owner: LogOwner) -> None:
        class Wrong(_Owner):
            def _append(self, record: LogRecord) -> Steps[int]:
                offset = yield from super()._append(record)
                self.sent = self._clock()
                return offset

        super().own(Wrong.of(owner))


class LeaseOnceATurn(Node):
    """The lease is tested at the beginning of a turn, and not before each flush."""

    def turn(self) -> None:
        self._tested = super().may_act()
        super().turn()

    def may_act(self) -> bool:
        return self.owner is not None and getattr(self, "_tested", False)


class DiskFirst(Node):
    """The owner writes a batch to its directory before the log has it."""

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
    """The owner ships a batch again after its disk was full."""

    def write_locally(self, owner: LogOwner, batch: ReceivedBatch) -> Steps[None]:
        while True:
            try:
                yield Apply(batch, owner.judge.state)
                return
            except ReplicaFull:
                yield Sleep(0.1)
                batch = yield from owner.ship(batch.payload, batch.position, CHUNK)


class OwnSalt(Node):
    """Each node chooses a salt for its segment log itself."""

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
    """A standby owns the log as soon as the log has its claim, without reading up to the claim."""

    standby_type = _EarlyClaim


class _Unanswered(Standby):
    def _read(self) -> Steps[None]:
        try:
            span: LogSpan = yield Read(self.follower.next)
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
    """Silence counts while the log does not answer, and no call asks whether it commits."""

    standby_type = _Unanswered


def judged_by(wrong: type[Judge]) -> type[Node]:
    """Return a node that judges records by a wrong rule."""

    class WrongFollower(Follower):
        def __init__(self, state: ClusterState, formats: Formats = FORMATS) -> None:
            super().__init__(state, formats)
            self.judge = wrong(state)

    class WrongNode(Node):
        follower_type = WrongFollower

    return WrongNode


class UnseenJudge(Judge):
    """A claim replaces the owner although counting records have offsets above the claim's
    `seen`.
    """

    def _claim(self, claim: Claim) -> bool:
        return super()._claim(replace(claim, seen=1 << 60))


class CredulousJudge(Judge):
    """Batches of deposed owners count."""

    def judge(self, offset: int, record: LogRecord) -> bool:
        if isinstance(record, BatchChunk) and record.epoch < self.state.epoch:
            record = replace(record, epoch=self.state.epoch, nonce=self.state.nonce)
        return super().judge(offset, record)


class GaplessJudge(Judge):
    """A record of an unknown higher epoch is void, and does not stop the reader."""

    def judge(self, offset: int, record: LogRecord) -> bool:
        limit = self.state.epoch + isinstance(record, Claim)
        return record.epoch <= limit and super().judge(offset, record)


class LowWatermark(Node):
    """After a trim a node begins at the low watermark with an empty state, and judges on."""

    def start(self) -> None:
        low = self.world.log.low
        if self.directory.state.last + 1 < low:
            self.directory.state = ClusterState("broker", last=low - 1)
        super().start()

    follower_type = judged_by(GaplessJudge).follower_type


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
    """A claim does not void an incomplete batch: the chunks that have arrived are applied."""

    follower_type = _HalfBatches


class _MiddleOfBatch(Follower):
    def take(self, span: LogSpan, until: int | None = None) -> Steps[bool]:
        counted = yield from super().take(span, until)
        yield from self._apply(Apply(None, self.judge.state))
        return counted


class ResumedWithinBatch(Node):
    """The state is stored after each read, so that a node resumes in the middle of a batch."""

    follower_type = _MiddleOfBatch


class _Uncut(Directory):
    def open(self) -> None:
        self.synced = len(self.log)


class HalfLocalBatchKept(Node):
    """A start keeps, in the local log, the entries of a batch that is not certainly applied."""

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
    """The catalog's mark is the end of the log, not the last applied batch."""

    directory_type = _MarkedWithEnd


class _Eager(Directory):
    def write_log(self, batch: ReceivedBatch) -> Iterator[None]:
        yield from super().write_log(batch)
        if batch.number % 10 == 0:
            self.checkpoint()


class EarlyCheckpoint(Node):
    """A checkpoint is made although the catalog lacks the state after the last entry of the log."""

    directory_type = _Eager


class WritingStart(Node):
    """A start writes to the local log before the node has read the whole log."""

    def opened(self) -> None:
        end = self.directory.log_end
        if end and self.directory.live():
            oldest = min(self.directory.live())
            self.directory.log.append(("settle", end + 1, 0, oldest))
            self.directory.synced += 1


class TrimBeforeMark(Node):
    """The log is trimmed to the last offset that all nodes have read, and not to a mark."""

    def trim(self, owner: LogOwner) -> None:
        offsets = [node.synced for node in self.cluster.listed]
        known = [offset for offset in offsets if offset is not None]
        if len(known) == len(offsets) and min(known) > self.world.log.low:
            self.world.log.trim(min(known))
            self.cluster.trimmed(min(known))


class TrimBehindListed(Node):
    """The log is trimmed to the newest mark, even if a listed node has not read up to it."""

    def trim(self, owner: LogOwner) -> None:
        if owner.marks:
            self.world.log.trim(owner.marks[-1])
            self.cluster.trimmed(owner.marks[-1])


class NeverHandsOver(Node):
    """An owner that is fenced keeps serving clients."""

    def end(self, error: Exception) -> None:
        if isinstance(error, Fenced) and self.owner is not None:
            owner = self.owner
            owner._fenced = False
            owner.sent = self.world.now + 5
            return
        super().end(error)


class _ActsAtOnce(Standby):
    def _accept(self) -> Steps[LogOwner]:
        yield Sleep(0.0)
        return self._owner(self._clock())


class ActsBeforeItsFirstRecord(Node):
    """A successor acts when it reads the claim in its name, which may be old."""

    standby_type = _ActsAtOnce


class ActsAfterHandover(Node):
    """A wrong node that continues to act as the owner after it has handed the log over."""

    def hand_over(self, owner: LogOwner) -> Steps[None]:
        yield from owner.hand_over(self.successor, "successor")
        owner._fenced, self.successor = False, 0
        yield Sleep(0.6)
        raise Fenced("the log was handed over")


class HandsOverTooEarly(Node):
    """An owner hands the log over, and then ships the batch that is left."""

    def publish(self, identity: int) -> None:
        successor, self.successor = self.successor, 0
        super().publish(identity)
        self.successor = successor
        if successor and self.pending:
            for entry in self.pending:
                if entry[0] == "store":
                    self.outbox.append(("confirm", entry[3]))
