"""Tests of the judge: two judges agree, and the rules one by one."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from broker.replication.judge import ForeignLog, Judge, LogGap
from broker.replication.records import (
    BATCH,
    BEAT,
    CALL,
    CLAIM,
    KINDS,
    MARK,
    Claim,
    ClusterState,
    LogRecord,
    Mark,
)
from tests.replication.logs import NAME, begun_late, random_log
from tests.replication.second_judge import COUNTS, STOP, VOID, verdicts

Log = list[tuple[int, LogRecord]]


def judged(start: ClusterState, log: Log) -> tuple[list[str], list[ClusterState]]:
    """Return the words of the first judge, and the state before each record and after the last."""
    judge = Judge(start)
    words: list[str] = []
    states = [start]
    for offset, record in log:
        try:
            words.append(COUNTS if judge.judge(offset, record) else VOID)
        except (LogGap, ForeignLog):
            words.append(STOP)
            break
        states.append(judge.state)
    return words, states


def compare(first: int, count: int) -> Counter[str]:
    """Let both judges judge random logs, from their beginning and from a later one."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        start, log = random_log(seed)
        words, states = judged(start, log)
        late, rest = begun_late(Random(seed), states, log[: len(states)])
        for begin, records in ((start, log), (late, rest)):
            said = verdicts(begin, records)
            words, after = judged(begin, records)
            assert words == [one.word for one in said], f"seed {seed}"
            counted = [one for one in said if one.word == COUNTS]
            assert after[-1].last == (counted[-1].offset if counted else begin.last)
            seen.update(f"{KINDS[one.record.kind]} {one.word}" for one in said)
    return seen


def test_two_judges_agree() -> None:
    seen = compare(0, 2_000)
    assert set(seen) == {
        *("claim counts", "claim void", "claim stop", "call void"),
        *(f"{kind} {word}" for kind in ("batch", "beat", "mark") for word in (COUNTS, VOID, STOP)),
    }
    assert min(seen.values()) > 30, seen


@pytest.mark.long
@pytest.mark.parametrize("first", range(2_000, 22_000, 2_000))
def test_two_judges_agree_on_many_logs(first: int) -> None:
    compare(first, 2_000)


def claim(epoch: int, nonce: int, seen: int, salt: int = 5) -> Claim:
    return Claim(CLAIM, epoch, nonce, 0, seen, ClusterState(NAME, salt=salt), bytes(32))


def beat(epoch: int, nonce: int) -> LogRecord:
    return LogRecord(BEAT, epoch, nonce, 0)


def test_the_first_claim_of_the_next_epoch_wins() -> None:
    words, states = judged(
        ClusterState(NAME),
        [(0, claim(1, 7, -1)), (1, claim(1, 8, -1)), (2, beat(1, 8)), (3, beat(1, 7))],
    )
    assert words == [COUNTS, VOID, VOID, COUNTS]
    assert (states[-1].epoch, states[-1].nonce, states[-1].last) == (1, 7, 3)


def test_a_claim_that_did_not_see_the_last_beat_is_void() -> None:
    words, _ = judged(
        ClusterState(NAME),
        [(0, claim(1, 7, -1)), (1, beat(1, 7)), (2, claim(2, 8, 0)), (3, beat(1, 7))],
    )
    assert words == [COUNTS, COUNTS, VOID, COUNTS]


def test_records_that_do_not_count_may_stand_behind_what_a_claim_has_seen() -> None:
    call = LogRecord(CALL, 1, 0, 0)
    words, _ = judged(
        ClusterState(NAME), [(0, claim(1, 7, -1)), (1, call), (2, beat(1, 9)), (3, claim(2, 8, 0))]
    )
    assert words == [COUNTS, VOID, VOID, COUNTS]


@pytest.mark.parametrize("record", [beat(3, 7), claim(4, 7, 0)])
def test_an_unknown_epoch_stops_the_reader(record: LogRecord) -> None:
    judge = Judge(ClusterState(NAME, 2, 6, 10))
    with pytest.raises(LogGap, match="seed this node"):
        judge.judge(11, record)


def test_the_log_of_another_broker_stops_the_reader() -> None:
    other = Claim(CLAIM, 1, 7, 0, -1, ClusterState("another"), bytes(32))
    with pytest.raises(ForeignLog, match=r"'another'.*'broker'.*topic of its own"):
        Judge(ClusterState(NAME)).judge(0, other)


def test_only_the_first_claim_gives_the_salt() -> None:
    _, states = judged(ClusterState(NAME), [(0, claim(1, 7, -1, 5)), (1, claim(2, 8, 0, 6))])
    assert [state.salt for state in states] == [0, 5, 5]


def test_a_reader_begins_at_a_mark() -> None:
    state = ClusterState(NAME, 3, 7, 40, salt=5, position=100, number=9, batch_offset=38, wall=50)
    judge = Judge.at_mark(41, Mark(MARK, 3, 7, 60, state))
    assert (judge.state.last, judge.state.wall, judge.state.number) == (41, 60, 9)
    assert judge.judge(42, beat(3, 7)) and not judge.judge(43, beat(2, 6))
    assert BATCH in KINDS
