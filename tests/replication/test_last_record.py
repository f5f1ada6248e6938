"""Tests of the check that the log still has the last record of a stored state.

The judge of the broker and the second judge must answer alike, on random logs and their forks. A
fork of a log has lost the last records of the log, and has other records in their place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from broker.replication.judge import Judge
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
from tests.replication.random_logs import NAME, Author
from tests.replication.second_judge import COUNTS, STOP, Entry, may_be_last, verdicts


def stored_states(records: list[Entry]) -> list[tuple[int, ClusterState]]:
    """Return each state that a directory stores while it reads a log, and the index of its record.

    A directory stores its state after each claim, mark and whole batch.
    """
    states: list[tuple[int, ClusterState]] = []
    judge, first = Judge(ClusterState(NAME)), -1
    given, _ = verdicts(ClusterState(NAME), records)
    for index, ((offset, record), word) in enumerate(zip(records, given, strict=False)):
        if word == STOP:
            break
        counts = judge.judge(offset, record)
        assert counts is (word == COUNTS)
        if not counts:
            continue
        if isinstance(record, BatchChunk):
            first = offset if record.chunk == 0 else first
            if whole(record):
                judge.completed(record.number, record.position, first)
        if record.kind != BEAT and (not isinstance(record, BatchChunk) or whole(record)):
            states.append((index, judge.state))
    return states


def whole(record: BatchChunk) -> bool:
    return record.chunk + 1 == record.chunks


def agreed(state: ClusterState, record: LogRecord) -> bool:
    """True if the record may be the last one of the state; assert that both judges agree."""
    verdict = Judge(state).is_last(record)
    assert verdict == may_be_last(state, record), (state, record)
    return verdict


def compare(count: int, first_seed: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + count):
        log = Author(seed).write()
        fork = Author(seed + 10_000_000).write()
        for index, state in stored_states(log.records):
            assert agreed(state, log.records[index][1]), f"seed {seed}, record {index}"
            outcomes[log.events[index]] += 1
            for other in (*log.records, *fork.records):
                # The log may have two copies of a claim, which are equal.
                if other[1] == log.records[index][1]:
                    continue
                if not agreed(state, other[1]):
                    outcomes["other"] += 1
                else:  # Another record of the same owner, after the same batch.
                    assert (other[1].epoch, other[1].nonce) == (state.epoch, state.nonce)
                    assert other[1].kind in (CLAIM, BATCH, MARK)
    thousands = count / 1_000
    for event, least in (("claim", 2_200), ("mark", 800), ("batch", 1_000), ("other", 200_000)):
        assert outcomes[event] >= least * thousands, outcomes


def test_both_judges_know_the_last_record_of_a_state() -> None:
    compare(60, first_seed=0)


OWNED: Final = ClusterState(NAME, 2, 22, last=9, position=70, number=4, batch_offset=9, wall=500)
#: The state before the batch at offset 9.
BEFORE: Final = replace(OWNED, last=8, position=60, number=3, batch_offset=5)
BATCH_9: Final = BatchChunk(BATCH, 2, 22, 500, 4, 0, 1, 60, 5, 70, b"x")
MARKED: Final = replace(OWNED, last=12)
MARK_12: Final = Mark(MARK, 2, 22, 500, OWNED)
CLAIM_12: Final = Claim(CLAIM, 2, 22, 400, 11, replace(OWNED, epoch=1, nonce=11), bytes(32))
TWO_CHUNKS: Final = replace(OWNED, last=11)
CHUNK_11: Final = replace(BATCH_9, chunk=1, chunks=2)


@pytest.mark.parametrize(
    ("state", "record"),
    [
        pytest.param(OWNED, BATCH_9, id="batch"),
        pytest.param(TWO_CHUNKS, CHUNK_11, id="last chunk of a batch, after a void record"),
        pytest.param(MARKED, MARK_12, id="mark"),
        pytest.param(MARKED, CLAIM_12, id="claim"),
    ],
)
def test_the_last_record_of_a_state_is_accepted(state: ClusterState, record: LogRecord) -> None:
    assert agreed(state, record)
    for changed in ({"epoch": 3}, {"epoch": 1}, {"nonce": 23}, {"wall": 501}):
        assert not agreed(state, replace(record, **changed)), changed


@pytest.mark.parametrize(
    ("state", "record"),
    [
        pytest.param(OWNED, replace(BATCH_9, number=5), id="another batch"),
        pytest.param(OWNED, replace(BATCH_9, position=71), id="batch with another end"),
        pytest.param(OWNED, replace(BATCH_9, chunks=2), id="first chunk of two"),
        pytest.param(OWNED, CHUNK_11, id="second chunk without room for the first"),
        pytest.param(TWO_CHUNKS, BATCH_9, id="batch of one chunk"),
        pytest.param(OWNED, LogRecord(BEAT, 2, 22, 500), id="beat"),
        pytest.param(MARKED, LogRecord(BEAT, 2, 22, 500), id="beat in place of a mark"),
        pytest.param(MARKED, LogRecord(CALL, 2, 22, 500), id="call"),
        pytest.param(MARKED, Mark(MARK, 2, 22, 500, BEFORE), id="mark before the batch"),
        pytest.param(MARKED, replace(CLAIM_12, state=BEFORE), id="claim before the batch"),
        pytest.param(MARKED, replace(MARK_12, state=replace(OWNED, name="b")), id="another broker"),
    ],
)
def test_another_record_is_refused(state: ClusterState, record: LogRecord) -> None:
    assert not agreed(state, record)


@pytest.mark.long
def test_the_same_on_many_logs() -> None:
    compare(20_000, first_seed=1_000_000)
