"""Random replicated logs of several owners (active nodes), with some wrong and late records.

The author keeps the state of the log only to write plausible records. The tested judges decide
which records are valid.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from broker.replication.records import (
    BATCH,
    BEAT,
    CALL,
    CLAIM,
    DIGEST_SIZE,
    MARK,
    BatchChunk,
    Claim,
    ClusterState,
    LogRecord,
    Mark,
)

NAME: Final = "cluster"
OTHER_NAME: Final = "another"


@dataclass
class RandomLog:
    """A replicated log; `events` has a description of each record, such as "record of a loser"."""

    seed: int
    records: list[tuple[int, LogRecord]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


class Author:
    """Writes one random log: records of several owners, some of them wrong or late."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = RandomLog(seed)
        self.state = ClusterState(NAME)
        #: Epoch and nonce of each claim that the author meant to be valid, in the order of the log.
        self.owners: list[tuple[int, int]] = []
        self.offset = 0

    def write(self) -> RandomLog:
        """Return a log of up to about 40 records. Most of these logs begin with a claim."""
        harmless: list[tuple[int, Callable[[], None]]] = [
            (6, self.takeover),
            (3, self.race),
            (5, self.claim_with_stale_seen),
            (1, self.claim_with_future_seen),
            (4, self.late_claim),
            (3, self.duplicate_claim),
            (8, self.batch),
            (5, self.half_batch),
            (6, self.beat),
            (5, self.mark),
            (6, self.late_record),
            (4, self.wrong_nonce),
            (4, self.call),
            (1, self.record_without_epoch),
        ]
        fatal = [
            self.record_of_the_future,
            self.claim_of_the_future,
            self.claim_of_another_name,
            self.late_claim_of_another_name,
        ]
        weights = [weight for weight, _ in harmless]
        if self.random.random() < 0.1:
            self.record_without_epoch()
        if self.random.random() < 0.85:
            self.takeover()
        for _ in range(self.random.randrange(1, 30)):
            event = self.random.choices(harmless, weights)[0][1]
            if self.random.random() < 0.01:
                event = self.random.choice(fatal)
            event()
        if self.random.random() < 0.1:
            self.random.choice(fatal)()
            self.beat()
        return self.log

    # -- writing records

    def append(self, event: str, record: LogRecord, counts: bool = False) -> None:
        """Append a record to the log, and `event` to the descriptions of its records.

        `counts` is True if readers should accept the record as valid. The author's own state of the
        log then includes the record.
        """
        offset = self.offset
        self.log.records.append((offset, record))
        self.log.events.append(event)
        self.offset += 1 if self.random.random() < 0.9 else self.random.randrange(2, 5)
        if counts:
            self.state = replace(self.state, last=offset, wall=max(self.state.wall, record.wall))

    def wall(self) -> int:
        """Return a random time of the wall clock, which may be earlier than the time before."""
        return self.random.randrange(1_000)

    def nonce(self) -> int:
        """Return a random nonce: often one of 0, 1 and 2, so that nonces are equal at times."""
        return self.random.choice((0, 1, 2, self.random.getrandbits(64)))

    def claim(self, epoch: int, seen: int, name: str = NAME) -> Claim:
        """Return a claim of this epoch, with the author's state but a random salt and format."""
        state = replace(
            self.state,
            name=name,
            salt=self.random.randrange(3),
            format=self.random.randrange(3),
        )
        digest = self.random.randbytes(DIGEST_SIZE)
        return Claim(CLAIM, epoch, self.nonce(), self.wall(), seen, state, digest)

    def win(self, event: str, claim: Claim) -> None:
        """Append a claim that readers should accept; its writer becomes the owner of the log."""
        first = self.state.epoch == 0
        self.append(event, claim, counts=True)
        self.owners.append((claim.epoch, claim.nonce))
        self.state = replace(
            self.state,
            epoch=claim.epoch,
            nonce=claim.nonce,
            salt=claim.state.salt if first else self.state.salt,
            format=max(self.state.format, claim.state.format),
        )

    def any_record(self, epoch: int, nonce: int) -> LogRecord:
        """Return a record as the owner of the log writes it: a batch, a beat or a mark."""
        kind = self.random.choice((BATCH, BEAT, MARK))
        if kind == BATCH:
            return self.chunk(epoch, nonce, 0, 1)
        if kind == MARK:
            return Mark(MARK, epoch, nonce, self.wall(), self.state)
        return LogRecord(BEAT, epoch, nonce, self.wall())

    def chunk(self, epoch: int, nonce: int, index: int, chunks: int) -> BatchChunk:
        """Return one chunk of the owner's next batch."""
        state = self.state
        number, position = state.number + 1, state.position + 100
        head = (BATCH, epoch, nonce, self.wall())
        payload = b"p" * index
        return BatchChunk(
            *head, number, index, chunks, state.position, state.batch_offset, position, payload
        )

    # -- claims

    def right_seen(self) -> int:
        """Return a value for the field `seen` of a claim with which readers accept the claim.

        `seen` is the last offset that the writer of the claim has read. Readers accept the claim if
        they accept no record between `seen` and the claim.
        """
        return self.random.randrange(self.state.last, max(self.offset, self.state.last + 1))

    def takeover(self) -> None:
        self.win("claim", self.claim(self.state.epoch + 1, self.right_seen()))

    def race(self) -> None:
        """Append claims of several standbys for the next epoch; readers accept only the first."""
        seen, epoch = self.right_seen(), self.state.epoch + 1
        losers = [self.claim(epoch, seen) for _ in range(self.random.randrange(1, 3))]
        winner = self.claim(epoch, seen)
        self.win("claim", winner)
        for loser in losers:
            if loser.nonce == winner.nonce:
                continue
            self.append("claim that lost a race", loser)
            if self.random.random() < 0.5:
                self.append("record of a loser", self.any_record(loser.epoch, loser.nonce))

    def claim_with_stale_seen(self) -> None:
        if self.state.last >= 0:
            seen = self.random.choice((self.state.last - 1, self.random.randrange(-1, self.offset)))
            seen = min(seen, self.state.last - 1)
            self.append("claim with stale seen", self.claim(self.state.epoch + 1, seen))

    def claim_with_future_seen(self) -> None:
        seen = self.offset + self.random.randrange(5)
        self.win("claim with future seen", self.claim(self.state.epoch + 1, seen))

    def late_claim(self) -> None:
        epoch = self.random.randrange(self.state.epoch + 1)
        self.append("late claim", self.claim(epoch, self.random.randrange(-1, self.offset + 2)))

    def duplicate_claim(self) -> None:
        claims = [record for _, record in self.log.records if record.epoch <= self.state.epoch]
        claims = [record for record in claims if record.kind == CLAIM]
        if claims:
            self.append("duplicate claim", self.random.choice(claims[-3:]))

    def late_claim_of_another_name(self) -> None:
        if self.random.random() < 0.5:
            claim = self.claim(self.random.randrange(self.state.epoch + 1), self.offset, OTHER_NAME)
        elif self.state.last < 0:
            return
        else:
            claim = self.claim(self.state.epoch + 1, self.state.last - 1, OTHER_NAME)
        self.append("late claim of another name", claim)

    def claim_of_another_name(self) -> None:
        epoch = self.state.epoch + self.random.randrange(1, 3)
        self.append("claim of another name", self.claim(epoch, self.right_seen(), OTHER_NAME))

    def claim_of_the_future(self) -> None:
        epoch = self.state.epoch + self.random.randrange(2, 4)
        seen = self.random.randrange(-1, self.offset + 1)
        self.append("claim of the future", self.claim(epoch, seen))

    # Records of owners, and of nodes that wrongly consider themselves the owner.

    def batch(self) -> None:
        chunks = self.random.choice((1, 1, 2, 3))
        self.batch_part("batch", chunks, chunks)

    def half_batch(self) -> None:
        chunks = self.random.randrange(2, 4)
        self.batch_part("half batch", self.random.randrange(1, chunks), chunks)

    def batch_part(self, event: str, written: int, chunks: int) -> None:
        """Append the first `written` chunks of a batch, perhaps with other records between them."""
        epoch, nonce = self.state.epoch, self.state.nonce
        if epoch == 0:
            return
        first = self.offset
        records = [self.chunk(epoch, nonce, index, chunks) for index in range(written)]
        for index, record in enumerate(records):
            if index and self.random.random() < 0.3:
                self.random.choice((self.call, self.claim_with_stale_seen, self.late_record))()
            self.append(event, record, counts=True)
        if written == chunks:
            last = records[-1]
            self.state = replace(
                self.state, number=last.number, position=last.position, batch_offset=first
            )

    def beat(self) -> None:
        if self.state.epoch:
            beat = LogRecord(BEAT, self.state.epoch, self.state.nonce, self.wall())
            self.append("beat", beat, counts=True)

    def mark(self) -> None:
        if self.state.epoch:
            mark = Mark(MARK, self.state.epoch, self.state.nonce, self.wall(), self.state)
            self.append("mark", mark, counts=True)

    def late_record(self) -> None:
        """Append a record whose writer is not the owner any more: a later claim is in force."""
        if len(self.owners) > 1:
            epoch, nonce = self.random.choice(self.owners[:-1][-3:])
            self.append("record of a deposed owner", self.any_record(epoch, nonce))

    def wrong_nonce(self) -> None:
        nonce = self.nonce()
        if self.state.epoch and nonce != self.state.nonce:
            self.append("wrong nonce", self.any_record(self.state.epoch, nonce))

    def record_without_epoch(self) -> None:
        event = "record without epoch" if self.state.epoch else "record before the first claim"
        self.append(event, self.any_record(0, self.random.randrange(2)))

    def record_of_the_future(self) -> None:
        epoch = self.state.epoch + self.random.randrange(1, 3)
        nonce = self.random.choice((self.state.nonce, self.nonce()))
        self.append("record of the future", self.any_record(epoch, nonce))

    def call(self) -> None:
        epoch = self.random.randrange(self.state.epoch + 3)
        nonce = self.random.choice((self.state.nonce, self.nonce()))
        self.append("call", LogRecord(CALL, epoch, nonce, self.wall()))
