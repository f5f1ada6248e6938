"""A second judge of the replicated log, written from the rules alone.

A judge gives each record of the log one of three verdicts: the record counts (it has an effect), or
it is void (readers ignore it), or the reader must stop. `broker.replication.judge` is the judge of
the broker. Tests compare the verdicts of both, so that a mistake in one judge shows. The two share
no code and no method. For each record, this judge looks at all earlier records again; it keeps no
state between records.

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
    a mark counts even if its state is not the reader's. A mark of a higher epoch stops a reader.
    The reader must not continue from the mark's state, because its directory lacks the data.
2.  A batch with the epoch and nonce of the claim in force always counts. The rules say "only if",
    and this judge reads "if and only if". So a batch counts even if batches before it are missing.
    The standby finds such a hole itself: it compares the batch's number, positions and chunk index
    with its directory.
3.  A chunk is a record, and each chunk of a batch counts alone. So half a batch raises the last
    offset that counts, and the `seen` of a claim must not be below this offset.
4.  Before the first claim no claim is in force. A batch, beat or mark of epoch 0 is void, even
    with nonce 0, which is the nonce of an empty state.
5.  A call is void whatever its epoch is. A call of a higher epoch would prove a gap too, but
    the rules name only batches, beats and claims as proofs.
6.  A correct writer never writes a claim whose `seen` is at or above the claim's own offset. If
    such a claim is in the log, no earlier record has an offset above its `seen`. So it counts if
    its epoch is right.
7.  A reader may begin in the middle of the log, with a stored state. A claim is void if its `seen`
    is below the last offset that counts in this state. So this reader agrees with a reader that
    has read the whole log.
8.  A claim with the name of another broker stops the reader. The rules do not mention this case.
    A claim of the next epoch must not count: the other broker's batches would then count too. It
    must not be void either: its batches have a higher epoch, and would stop all readers. A claim
    of an old epoch could be void. But a node may follow the wrong topic while its directory knows a
    higher epoch. If all claims in this topic were void, the node would claim the log of the other
    broker. So the reader stops in all these cases, as `broker.replication.judge` does.
9.  A claim with another salt, format or digest counts. In the rules, these fields do not decide
    which claim wins.
10. If a claim is in the log twice, because a client sent it twice, the second copy is void. The
    records of its writer count nevertheless.
11. A batch or beat of the epoch in force with another nonce is void. It proves no gap.
12. Gaps between the offsets of records prove nothing. A caller that has a stored state must itself
    check that the log does not begin above the next offset of this state.
13. A caller passes only records after the last offset of its state, in the order of their offsets.
14. A reader with a stored state first compares the record at the last offset of this state. It
    stops if the record cannot be the one after which the state was stored (`may_be_last`). The
    rules say that a node stops if the log has another record at this offset. They do not say how
    the node recognizes the record.
    A directory stores its state after a whole batch, a claim or a mark, so only these can be the
    last record.
"""

from __future__ import annotations

from typing import Final

from broker.replication.records import (
    BATCH,
    BEAT,
    CALL,
    CLAIM,
    MARK,
    BatchChunk,
    Claim,
    ClusterState,
    LogRecord,
    Mark,
)

COUNTS: Final = "counts"
VOID: Final = "void"
STOP: Final = "stop"

#: A record with its offset.
Entry = tuple[int, LogRecord]


def verdicts(state: ClusterState, records: list[Entry]) -> tuple[list[str], tuple[int, int, int]]:
    """Return a verdict (counts, void or stop) for each record, and the end of the log.

    The end is (epoch, nonce, offset of the last record with the verdict "counts"). Records after a
    record with the verdict "stop" get no verdict.
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


def may_be_last(state: ClusterState, record: LogRecord) -> bool:
    """True if a directory can have stored `state` when the last record it had read was `record`.

    The record must agree with `state` about the number and position of the last whole batch. If
    the record is a claim or a mark, these are in the writer's state, which the record contains. The
    only other possible record is the last chunk of that batch, which has its number and position.
    """
    if record.wall > state.wall:
        return False
    if isinstance(record, Claim | Mark):
        writer_state = record.state
        first = writer_state.batch_offset
        named = (
            writer_state.name,
            record.epoch,
            record.nonce,
            writer_state.number,
            writer_state.position,
        )
    elif isinstance(record, BatchChunk) and record.chunk + 1 == record.chunks:
        # The first chunk lies at the same place, or far enough before it for the chunks between.
        first = min(state.batch_offset, state.last - record.chunk)
        if record.chunks == 1:
            first = state.last
        named = (state.name, record.epoch, record.nonce, record.number, record.position)
    else:
        return False
    known = (state.name, state.epoch, state.nonce, state.number, state.position)
    return named == known and first == state.batch_offset


def proves_gap(record: LogRecord, epoch: int) -> bool:
    """True if this record, met in this epoch, proves that the reader lacks a part of the log."""
    highest_possible = epoch + 1 if record.kind == CLAIM else epoch
    return record.epoch > highest_possible


def counting(earlier: list[Entry], given: list[str]) -> list[Entry]:
    """Return the earlier records whose verdict in `given` is "counts"."""
    return [entry for entry, word in zip(earlier, given, strict=False) if word == COUNTS]


def in_force(state: ClusterState, counted: list[Entry]) -> tuple[int, int]:
    """Return (epoch, nonce) of the claim in force: the claim of the highest epoch in `counted`.

    `counted` are the records with the verdict "counts". Without a claim in them, the claim in force
    is that of `state`, the reader's first state.
    """
    claims = [(record.epoch, record.nonce) for _, record in counted if record.kind == CLAIM]
    return max(claims, default=(state.epoch, state.nonce))


def last_offset(state: ClusterState, counted: list[Entry]) -> int:
    """Return the highest offset of a record with the verdict "counts".

    `counted` are the records with this verdict. Without any, the offset is the last one in `state`,
    the reader's first state.
    """
    return max([state.last, *(offset for offset, _ in counted)])


def unseen(claim: Claim, state: ClusterState, counted: list[Entry]) -> bool:
    """True if the claim's writer had not read all earlier records with the verdict "counts".

    `state` is the state with which the reader began. `counted` has the records that the reader has
    read since then and that got the verdict "counts".
    """
    return any(offset > claim.seen for offset in [state.last, *(offset for offset, _ in counted)])
