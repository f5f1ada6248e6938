"""A second judge of the replicated log, written from the rules alone.

A judge decides for each record of the log: the record counts, or it is void (readers ignore it), or
the reader must stop. `broker.replication.judge` is the judge of the broker. Tests compare both, so
that a mistake in one of them shows. The two share no code and no method. For each record, this
judge looks at all earlier records again; it keeps no state between records.

Records are of these kinds. A claim is a standby's request to own the log; it begins an epoch, and
`seen` is the last offset that its writer has read. The claim in force is the last claim that
counts; its writer is the owner. The owner writes batches, beats (nothing but a sign of life) and
marks (the whole state). Any node may write a call, to test the log.

The rules, in brief:

-   A claim counts if two conditions hold. Its epoch is that of the claim in force + 1. No record
    that counts has an offset above the claim's `seen`. Any other claim is void.
-   A batch, a beat or a mark counts if its epoch and nonce are those of the claim in force.
-   A call is void.
-   A reader stops at a record that proves that earlier records are missing. This is a claim more
    than one epoch above the claim in force, or a batch, beat or mark of a higher epoch.

Where the rules are ambiguous, this judge reads them as follows:

1.  A mark is a beat, "a beat that carries the whole state". Its state has no part in the verdict:
    a mark counts even if its state is not the reader's. A mark of a higher epoch stops a reader,
    which has no right to go on from the mark's state: its directory lacks the data.
2.  "Only if" is read as "if and only if": a batch that has epoch and nonce of the claim in force
    counts, even if its number, its positions or its chunk index do not follow those before. The
    standby finds such a hole, because it compares them with its directory.
3.  A chunk is a record: each chunk of a batch counts alone, so half a batch moves the last offset
    that counts, and a claim must have seen it.
4.  Before the first claim no claim is in force. A batch, beat or mark of epoch 0 is void, even
    with nonce 0, which is the nonce of an empty state.
5.  A call is void whatever its epoch is. A call of a higher epoch would prove a gap too, but
    the rules name only batches, beats and claims as proofs.
6.  `seen` at or above the claim's own offset is impossible for an honest writer. No record behind
    it counts, so the claim wins.
7.  `seen` is compared with the last offset that counts in the reader's first state too, so that a
    reader which begins in the middle agrees with one that has read everything.
8.  A claim with the name of another broker stops the reader; the rules do not mention this case.
    If such a claim would win, it can neither count nor be void: the other broker's batches would
    count too, or they would stop all readers. If it would lose, it could be void. But a node with
    the wrong topic, whose directory knows a higher epoch, would then take the log's own claims for
    old ones, and claim the log. So the reader stops here too, as the judge under test does.
9.  A claim with another salt, format or digest counts. In the rules, these fields do not decide
    which claim wins.
10. If a claim is in the log twice, because a client sent it twice, the second copy is void. The
    records of its writer count nevertheless.
11. A batch or beat of the epoch in force with another nonce is void. It proves no gap.
12. Gaps between the offsets of records prove nothing. A caller that has a stored state must itself
    check that the log does not begin above the next offset of this state.
13. A caller passes only records after the last offset of its state, in the order of their offsets.
"""

from __future__ import annotations

from typing import Final

from broker.replication.records import (
    BATCH,
    BEAT,
    CALL,
    CLAIM,
    MARK,
    Claim,
    ClusterState,
    LogRecord,
)

COUNTS: Final = "counts"
VOID: Final = "void"
STOP: Final = "stop"

#: A record with its offset.
Entry = tuple[int, LogRecord]


def verdicts(state: ClusterState, records: list[Entry]) -> tuple[list[str], tuple[int, int, int]]:
    """Return a verdict (counts, void or stop) for each record, and the end of the log.

    The end is (epoch, nonce, offset of the last record that counts). Records after a "stop" get no
    verdict.
    """
    given: list[str] = []
    for index in range(len(records)):
        given.append(verdict(state, records[:index], given, records[index]))
        if given[-1] == STOP:
            break
    counted = counting(records, given)
    return given, (*in_force(state, counted), last_offset(state, counted))


def verdict(state: ClusterState, earlier: list[Entry], given: list[str], entry: Entry) -> str:
    """Return the verdict on one record; `given` has the verdicts on all earlier records."""
    counted = counting(earlier, given)
    epoch, nonce = in_force(state, counted)
    _, record = entry
    if record.kind == CALL:
        return VOID
    if proves_gap(record, epoch):
        return STOP
    if isinstance(record, Claim):
        if record.state.name != state.name:
            return STOP
        wins = record.epoch == epoch + 1 and not unseen(record, state, counted)
        return COUNTS if wins else VOID
    assert record.kind in (BATCH, BEAT, MARK)
    is_owners = epoch > 0 and (record.epoch, record.nonce) == (epoch, nonce)
    return COUNTS if is_owners else VOID


def proves_gap(record: LogRecord, epoch: int) -> bool:
    """True if this record, met in this epoch, proves that the reader lacks a part of the log."""
    highest_possible = epoch + 1 if record.kind == CLAIM else epoch
    return record.epoch > highest_possible


def counting(earlier: list[Entry], given: list[str]) -> list[Entry]:
    """Return the earlier records whose verdict in `given` is that they count."""
    return [entry for entry, word in zip(earlier, given, strict=False) if word == COUNTS]


def in_force(state: ClusterState, counted: list[Entry]) -> tuple[int, int]:
    """Return epoch and nonce of the claim in force: the claim of the highest epoch."""
    claims = [(record.epoch, record.nonce) for _, record in counted if record.kind == CLAIM]
    return max(claims, default=(state.epoch, state.nonce))


def last_offset(state: ClusterState, counted: list[Entry]) -> int:
    """Return the highest offset of a record that counts."""
    return max([state.last, *(offset for offset, _ in counted)])


def unseen(claim: Claim, state: ClusterState, counted: list[Entry]) -> bool:
    """True if the writer of this claim had not read all records that count."""
    return any(offset > claim.seen for offset in [state.last, *(offset for offset, _ in counted)])
