"""A second judge of the replicated log: the law in another form, to compare with the first one.

The law is in docs/decisions/0017-the-replicated-log.md. This judge keeps no running state: for each
record it looks at the whole log before it. It is slow, and meant to be read beside the law. Where
the law leaves a choice, this judge reads it so:

- A claim of an epoch at or below the one in force is void, also if its writer owns the log.
- A record of the epoch in force with another nonce is void: it belongs to a claim that lost.
- A claim that is void because of `seen` leaves its epoch free for a later claim.
- A call never counts and never proves a gap, whatever epoch it names.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.replication.records import BATCH, BEAT, CLAIM, MARK, Claim, ClusterState, LogRecord

COUNTS: Final = "counts"
VOID: Final = "void"
#: The reader lacks a part of the log, or reads the log of another broker.
STOP: Final = "stop"

OWNED: Final = (BATCH, BEAT, MARK)


class Verdict(NamedTuple):
    """A record of a log, and the word of the law about the record."""

    offset: int
    record: LogRecord
    word: str


def in_force(start: ClusterState, before: list[Verdict]) -> tuple[int, int]:
    """Return epoch and nonce of the last claim that counts."""
    claims = [one.record for one in before if one.word == COUNTS and one.record.kind == CLAIM]
    return (claims[-1].epoch, claims[-1].nonce) if claims else (start.epoch, start.nonce)


def last_that_counts(start: ClusterState, before: list[Verdict]) -> int:
    """Return the offset of the last record that counts."""
    return max((one.offset for one in before if one.word == COUNTS), default=start.last)


def word_for(start: ClusterState, before: list[Verdict], record: LogRecord) -> str:
    """Return what the law says about a record that follows these ones."""
    epoch, nonce = in_force(start, before)
    if isinstance(record, Claim):
        if record.state.name != start.name or record.epoch >= epoch + 2:
            return STOP
        overtaken = (
            any(one.word == COUNTS and one.offset > record.seen for one in before)
            or start.last > record.seen
        )
        return COUNTS if record.epoch == epoch + 1 and not overtaken else VOID
    if record.kind in OWNED:
        if record.epoch > epoch:
            return STOP
        return COUNTS if (record.epoch, record.nonce) == (epoch, nonce) else VOID
    return VOID


def verdicts(start: ClusterState, log: list[tuple[int, LogRecord]]) -> list[Verdict]:
    """Judge a log that follows a state, up to the first record at which the reader must stop."""
    said: list[Verdict] = []
    for offset, record in log:
        said.append(Verdict(offset, record, word_for(start, said, record)))
        if said[-1].word == STOP:
            break
    return said
