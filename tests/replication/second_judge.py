"""A second judge of the replicated log, written from the rules alone.

The purpose of this judge is to disagree with `broker.replication.judge` where one of the two is
wrong. So the two share no code and no method: this judge keeps no running state, and looks back
over all earlier records for each record, to find the claim in force and the last record that
counts.

The rules, in brief. A claim counts if its epoch is the epoch in force + 1 and no record that counts
has an offset above the claim's `seen`; any other claim is void. A batch, a beat or a mark counts if
its epoch and nonce are those of the claim in force. A call is void. A record that only a reader
with a gap can meet stops the reader: a claim more than one epoch above the one in force, or
another record (but a call) of a higher epoch.

Where the rules are ambiguous, this judge reads them as follows:

1.  A mark is a beat, "a beat that carries the whole state". Its state has no part in the verdict:
    a mark counts even if its state is not the reader's. A mark of a higher epoch stops a reader,
    which has no right to go on from the mark's state: its directory lacks the data.
2.  "Only if" is read as "if and only if": a batch that has epoch and nonce of the claim in force
    counts, though its number, its positions or its chunk index fit nothing before it. To find
    such a hole is the task of the standby, which compares them with its directory.
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
8.  The rules do not say what a claim of another broker's name is. "One partition per broker" is
    broken. A claim of another name that would win stops the reader: if it counted, the other
    broker's batches would count too, and if it was void, the batches that follow would stop all
    readers. For a claim of another name that loses, the rules allow two readings. "Every other
    claim is void" would let the log's own broker go on. This judge read it so at first. It now
    stops, as the judge under test does: a node with the wrong topic also finds the log's own
    claims to be old, if its directory knows a higher epoch, and must not go on to claim that log.
9.  A claim of another salt, format or digest counts. The rules make salt and format part of the
    state, and digests part of the claim, but give neither a part in who wins.
10. A second claim with epoch and nonce of the claim in force (a client that sent it twice) is
    void, and its writer's records count all the same.
11. A batch or beat of the epoch in force with another nonce is void. It proves no gap.
12. Gaps between offsets prove nothing. That the log begins above the next offset of a stored state
    must be found by comparing offsets before anything is judged.
13. Records at or below the state's last offset are not to be judged again: a caller passes
    records behind the state only, in the order of their offsets.
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
    """Return a verdict for each record, and epoch, nonce and last counting offset at the end.

    A "stop" is the last verdict: records after it are not judged.
    """
    given: list[str] = []
    for index in range(len(records)):
        given.append(verdict(state, records[:index], given, records[index]))
        if given[-1] == STOP:
            break
    counted = counting(records, given)
    return given, (*in_force(state, counted), last_offset(state, counted))


def verdict(state: ClusterState, earlier: list[Entry], given: list[str], entry: Entry) -> str:
    """Return the verdict on one record, which follows earlier records with the verdicts `given`."""
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
    """True if a record that counts has an offset above the last one that the claimant had read."""
    return any(offset > claim.seen for offset in [state.last, *(offset for offset, _ in counted)])
