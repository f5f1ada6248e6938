"""Tests of the judge, which decides for each record of the replicated log whether it is valid.

Some tests compare the judge with a second judge on random logs; the others test the judge alone.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from broker.replication.judge import ForeignLog, Judge, LogGap
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
from tests.replication.random_logs import NAME, OTHER_NAME, Author, RandomLog
from tests.replication.second_judge import COUNTS, STOP, VOID, Entry, verdicts

End = tuple[int, int, int]

#: (event, verdict) -> the minimum count in 1,000 random logs. Every verdict on an event must be
#: listed.
EXPECTED: Final = {
    ("claim", COUNTS): 2_200,
    ("claim with future seen", COUNTS): 150,
    ("claim with stale seen", VOID): 900,
    ("claim that lost a race", VOID): 600,
    ("late claim", VOID): 700,
    ("duplicate claim", VOID): 450,
    ("late claim of another name", STOP): 35,
    ("claim of another name", STOP): 35,
    ("claim of the future", STOP): 35,
    ("record of the future", STOP): 35,
    ("record of a loser", VOID): 300,
    ("record of a deposed owner", VOID): 650,
    ("record before the first claim", VOID): 80,
    ("record without epoch", VOID): 110,
    ("wrong nonce", VOID): 550,
    ("batch", COUNTS): 2_200,
    ("half batch", COUNTS): 1_000,
    ("beat", COUNTS): 950,
    ("mark", COUNTS): 800,
    ("call", VOID): 800,
}


def judged(judge: Judge, records: list[Entry]) -> tuple[list[str], End]:
    """Return the verdicts of the broker's judge, one for each record, and the end of the log."""
    given: list[str] = []
    for offset, record in records:
        try:
            given.append(COUNTS if judge.judge(offset, record) else VOID)
        except (LogGap, ForeignLog):
            given.append(STOP)
            break
    return given, (judge.state.epoch, judge.state.nonce, judge.state.last)


def agree(state: ClusterState, records: list[Entry], seed: int) -> list[str]:
    """Check that both judges, begun at this state, reach equal verdicts; return the verdicts."""
    judge = Judge(state)
    expected = verdicts(state, records)
    assert judged(judge, records) == expected, f"the judges differ on the log of seed {seed}"
    assert judge.void == expected[0].count(VOID)
    return expected[0]


def compare(count: int, first_seed: int) -> None:
    """Compare both judges on `count` random logs, each read from several starting records."""
    outcomes: Counter[tuple[str, str]] = Counter()
    beginnings: Counter[str] = Counter()
    epochs: Counter[int] = Counter()
    for seed in range(first_seed, first_seed + count):
        log = Author(seed).write()
        given = agree(ClusterState(NAME), log.records, seed)
        outcomes.update(zip(log.events, given, strict=False))
        _, (epoch, _, _) = verdicts(ClusterState(NAME), log.records)
        epochs[min(epoch, 5)] += 1
        chance = random.Random(f"beginnings {seed}")
        begin_at_a_state(log, given, chance, beginnings)
        begin_at_a_mark(log, given, chance, beginnings)
        begin_at_the_low_watermark(log, chance, beginnings)
        cut_a_part_out(log, chance, beginnings)
    thousands = count / 1_000
    assert set(outcomes) == set(EXPECTED)
    for outcome, least in EXPECTED.items():
        assert outcomes[outcome] >= least * thousands, outcome
    for epoch in range(6):
        assert epochs[epoch] >= 10 * thousands, epoch
    for beginning, least in (
        ("state", 900),
        ("mark", 450),
        ("low watermark, stopped", 600),
        ("part cut out, stopped", 300),
        ("part cut out, unnoticed", 300),
    ):
        assert beginnings[beginning] >= least * thousands, beginning


def begin_at_a_state(
    log: RandomLog, given: list[str], chance: random.Random, beginnings: Counter[str]
) -> None:
    """Check a reader that begins at a stored state, and count it in `beginnings`.

    The reader's verdicts must equal `given`, the verdicts of a reader of the whole log. If the
    stored state is after a record that stops readers, check nothing.
    """
    cut = chance.randrange(len(given) + 1)
    if STOP in given[:cut]:
        return
    _, (epoch, nonce, last) = verdicts(ClusterState(NAME), log.records[:cut])
    state = ClusterState(NAME, epoch, nonce, last)
    assert agree(state, log.records[cut:], log.seed) == given[cut:]
    beginnings["state"] += 1


def begin_at_a_mark(
    log: RandomLog, given: list[str], chance: random.Random, beginnings: Counter[str]
) -> None:
    """Check a reader that begins at a mark: a record that carries the whole state.

    Its verdicts and its state must equal the verdicts and the state of a reader that has read the
    whole log.
    """
    marks = [
        (index, offset, record)
        for index, (offset, record) in enumerate(log.records[: len(given)])
        if isinstance(record, Mark) and given[index] == COUNTS
    ]
    if not marks:
        return
    index, offset, mark = chance.choice(marks)
    judge = Judge.at_mark(offset, mark)
    from_the_mark, end = judged(judge, log.records[index + 1 :])
    assert ([COUNTS, *from_the_mark], end) == verdicts(mark.state, log.records[index:]), log.seed
    assert from_the_mark == given[index + 1 :]
    # The verdicts and the whole state equal those of a reader that has read the whole log.
    full = Judge(ClusterState(NAME))
    judged(full, log.records)
    without_batches = replace(judge.state, number=0, position=0, batch_offset=-1)
    assert without_batches == full.state
    beginnings["mark"] += 1


def begin_at_the_low_watermark(
    log: RandomLog, chance: random.Random, beginnings: Counter[str]
) -> None:
    """Check that both judges reach equal verdicts on a trimmed log if they have no stored state.

    The judges begin at the first record of the trimmed log. If they stop, because records are
    missing, count it in `beginnings`.
    """
    cut = chance.randrange(len(log.records) + 1)
    given = agree(ClusterState(NAME), log.records[cut:], log.seed)
    beginnings["low watermark, stopped"] += STOP in given


def cut_a_part_out(log: RandomLog, chance: random.Random, beginnings: Counter[str]) -> None:
    """Remove records from the middle of a log, and check that both judges reach equal verdicts."""
    first = chance.randrange(len(log.records) + 1)
    last = min(len(log.records), first + chance.randrange(1, 10))
    given = agree(ClusterState(NAME), log.records[:first] + log.records[last:], log.seed)
    beginnings[f"part cut out, {'stopped' if STOP in given else 'unnoticed'}"] += 1


def test_judges_agree() -> None:
    compare(2_000, first_seed=0)


@pytest.mark.long
def test_judges_agree_on_many_logs() -> None:
    compare(20_000, first_seed=1_000_000)


# -- the judge alone


def claim(epoch: int, nonce: int, seen: int, name: str = NAME, salt: int = 7) -> Claim:
    state = ClusterState(name, salt=salt, format=epoch)
    return Claim(CLAIM, epoch, nonce, 1_000 * epoch, seen, state, bytes(DIGEST_SIZE))


def beat(epoch: int, nonce: int, wall: int = 0) -> LogRecord:
    return LogRecord(BEAT, epoch, nonce, wall)


def owned() -> Judge:
    """Return a judge that has read two claims and a beat after each: offsets 0 to 3, all valid."""
    judge = Judge(ClusterState(NAME))
    records = (claim(1, 11, -1), beat(1, 11), claim(2, 22, 1), beat(2, 22))
    assert all(judge.judge(offset, record) for offset, record in enumerate(records))
    return judge


def test_claims_in_force_give_the_state() -> None:
    judge = owned()
    assert judge.state == ClusterState(NAME, 2, 22, last=3, salt=7, format=2, wall=2_000)
    # The salt is the one in the first claim, even if a later claim has another salt.
    assert judge.judge(4, claim(3, 33, 3, salt=8))
    assert (judge.state.salt, judge.state.format) == (7, 3)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(claim(3, 33, 2), id="claim that has not seen the owner's last record"),
        pytest.param(claim(2, 22, 1), id="claim in force, appended twice"),
        pytest.param(claim(2, 33, 3), id="claim of the epoch in force"),
        pytest.param(claim(1, 11, 3), id="claim of an old epoch"),
        pytest.param(claim(0, 0, 3), id="claim of epoch 0"),
        pytest.param(beat(1, 11), id="beat of a deposed owner"),
        pytest.param(beat(2, 11), id="beat with another nonce"),
        pytest.param(Mark(MARK, 1, 11, 0, ClusterState(NAME)), id="mark of a deposed owner"),
        pytest.param(BatchChunk(BATCH, 1, 11, 0, 1, 0, 1, 0, -1, 9, b"x"), id="late batch"),
        pytest.param(LogRecord(CALL, 2, 22, 0), id="call"),
        pytest.param(LogRecord(CALL, 9, 22, 0), id="call of a higher epoch"),
    ],
)
def test_void_records_change_nothing(record: LogRecord) -> None:
    judge = owned()
    before = judge.state
    assert not judge.judge(4, record)
    assert judge.state == before
    assert judge.void == 1


@pytest.mark.parametrize("nonce", [0, 22])
@pytest.mark.parametrize("kind", [BATCH, BEAT, MARK, CLAIM])
def test_records_out_of_reach_stop_the_reader(kind: int, nonce: int) -> None:
    judge = owned()
    before = judge.state
    records: dict[int, LogRecord] = {
        BATCH: BatchChunk(BATCH, 3, nonce, 0, 1, 0, 1, 0, -1, 9, b"x"),
        BEAT: beat(3, nonce),
        MARK: Mark(MARK, 3, nonce, 0, ClusterState(NAME, 3, nonce, 3)),
        CLAIM: claim(4, nonce, 3),
    }
    with pytest.raises(LogGap, match="trellis cluster seed"):
        judge.judge(4, records[kind])
    assert judge.state == before


@pytest.mark.parametrize(("epoch", "seen"), [(3, 3), (4, 3), (3, 2), (1, -1)])
def test_another_brokers_claim_stops_the_reader(epoch: int, seen: int) -> None:
    judge = owned()
    before = judge.state
    with pytest.raises(ForeignLog, match=f"the Kafka topic belongs to the broker '{OTHER_NAME}'"):
        judge.judge(4, claim(epoch, 33, seen, OTHER_NAME))
    assert judge.state == before


@pytest.mark.parametrize("kind", [BATCH, BEAT, MARK])
def test_no_record_counts_before_the_first_claim(kind: int) -> None:
    judge = Judge(ClusterState(NAME))
    records: dict[int, LogRecord] = {
        BATCH: BatchChunk(BATCH, 0, 0, 0, 1, 0, 1, 0, -1, 9, b"x"),
        BEAT: beat(0, 0),
        MARK: Mark(MARK, 0, 0, 0, ClusterState(NAME)),
    }
    assert not judge.judge(0, records[kind])
    # No record has counted so far, so the first claim of a node that has read nothing is valid.
    assert judge.judge(1, claim(1, 11, -1))


def test_half_a_batch_must_be_seen_too() -> None:
    judge = owned()
    assert judge.judge(4, BatchChunk(BATCH, 2, 22, 0, 1, 0, 2, 0, -1, 9, b"x"))
    assert not judge.judge(5, claim(3, 33, 3))
    assert judge.judge(6, claim(3, 33, 4))
    assert (judge.state.number, judge.state.batch_offset) == (0, -1)


def test_void_records_need_not_be_seen() -> None:
    judge = owned()
    assert not judge.judge(4, beat(1, 11))
    assert not judge.judge(5, LogRecord(CALL, 2, 22, 0))
    assert judge.judge(6, claim(3, 33, 3))


def test_a_whole_batch_is_noted() -> None:
    judge = owned()
    judge.completed(1, 120, 3)
    state = judge.state
    assert (state.number, state.position, state.batch_offset) == (1, 120, 3)
    assert (state.epoch, state.nonce, state.last) == (2, 22, 3)


def test_the_wall_clock_never_goes_back() -> None:
    judge = owned()
    assert judge.judge(4, beat(2, 22, wall=9_000))
    assert judge.judge(5, beat(2, 22, wall=5_000))
    assert judge.state.wall == 9_000
    later = Mark(MARK, 2, 22, 6_000, judge.state)
    assert Judge.at_mark(6, later).state == replace(judge.state, last=6)


def test_a_mark_of_a_deposed_owner_is_no_beginning() -> None:
    # An owner may not know yet that it is deposed: Kafka acknowledges its mark nevertheless.
    mark = Mark(MARK, 1, 11, 0, ClusterState(NAME, 1, 11, last=1))
    assert not owned().judge(4, mark)
    # A reader that begins at this mark stops at the first record of the real owner.
    with pytest.raises(LogGap):
        Judge.at_mark(4, mark).judge(5, beat(2, 22))
