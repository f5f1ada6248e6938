"""The encoding of the replicated log's records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.replication.records import (
    BATCH,
    BATCH_OVERHEAD,
    BEAT,
    CALL,
    CLAIM,
    DIGEST_SIZE,
    KINDS,
    MAGIC,
    MARK,
    VERSION,
    BatchChunk,
    Claim,
    ClusterState,
    ForeignRecord,
    LogRecord,
    Mark,
    decode,
)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


SIGNED = st.integers(-(2**63), 2**63 - 1)
STATES = st.builds(
    ClusterState,
    st.text(max_size=50),
    unsigned(32),
    unsigned(64),
    SIGNED,
    unsigned(32),
    unsigned(16),
    SIGNED,
    SIGNED,
    SIGNED,
    SIGNED,
)
HEAD = (unsigned(32), unsigned(64), SIGNED)
DIGESTS = st.binary(min_size=DIGEST_SIZE, max_size=DIGEST_SIZE)
CHUNK = BatchChunk(BATCH, 1, 2, 3, 4, 0, 1, 5, 6, 7, b"payload")
CHUNKS = st.builds(
    BatchChunk,
    st.just(BATCH),
    *HEAD,
    SIGNED,
    unsigned(31),
    st.integers(2**31, 2**32 - 1),
    SIGNED,
    SIGNED,
    SIGNED,
    st.binary(max_size=200),
) | st.builds(
    lambda chunk, chunks: replace(CHUNK, chunk=min(chunk, chunks - 1), chunks=chunks),
    unsigned(32),
    st.integers(1, 2**32 - 1),
)
RECORDS: st.SearchStrategy[LogRecord] = st.one_of(
    st.builds(LogRecord, st.sampled_from((BEAT, CALL)), *HEAD),
    st.builds(Claim, st.just(CLAIM), *HEAD, SIGNED, STATES, DIGESTS),
    st.builds(Mark, st.just(MARK), *HEAD, STATES),
    CHUNKS,
)

BEAT_BYTES = LogRecord(BEAT, 1, 2, 3).encode()
MARK_BYTES = Mark(MARK, 1, 2, 3, ClusterState("name")).encode()
CLAIM_BYTES = Claim(CLAIM, 1, 2, 3, 4, ClusterState("name"), bytes(DIGEST_SIZE)).encode()
CHUNK_BYTES = CHUNK.encode()


def decode_or_refuse(data: bytes) -> LogRecord | None:
    """Return the record in these bytes, or None if `decode` raises ForeignRecord."""
    try:
        return decode(data)
    except ForeignRecord:
        return None


@given(RECORDS)
def test_records_survive_the_encoding(record: LogRecord) -> None:
    again = decode(record.encode())
    assert again == record
    assert type(again) is type(record)


@given(STATES)
def test_states_survive_the_encoding(state: ClusterState) -> None:
    assert ClusterState.decode(state.encode()) == state


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda kind, rest: MAGIC + bytes([VERSION, kind]) + rest,
            st.sampled_from((*KINDS, 0, 99)),
            st.binary(min_size=15, max_size=200),
        ),
    )
)
@example(b"")
@example(MAGIC)
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    record = decode_or_refuse(data)
    if record is not None and data[4] == VERSION:
        assert record.encode() == data


@given(RECORDS, st.data())
def test_damaged_records_are_records_or_refused(record: LogRecord, data: st.DataObject) -> None:
    damaged = bytearray(record.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(unsigned(8))
    decode_or_refuse(bytes(damaged))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_state_or_refused(data: bytes) -> None:
    try:
        state = ClusterState.decode(data)
    except ForeignRecord:
        return
    assert state.encode() == data


@pytest.mark.parametrize("whole", [BEAT_BYTES, MARK_BYTES, CLAIM_BYTES])
def test_records_have_an_exact_length(whole: bytes) -> None:
    for length in range(len(whole)):
        assert decode_or_refuse(whole[:length]) is None
    assert decode_or_refuse(whole + b"x") is None


def test_a_chunk_is_its_head_and_its_payload() -> None:
    assert len(CHUNK_BYTES) == BATCH_OVERHEAD + len(b"payload")
    for length in range(BATCH_OVERHEAD):
        assert decode_or_refuse(CHUNK_BYTES[:length]) is None
    empty = decode(CHUNK_BYTES[:BATCH_OVERHEAD])
    assert isinstance(empty, BatchChunk) and empty.payload == b""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"JSON" + BEAT_BYTES[4:], "begins with b'JSON' instead of b'TRLC'"),
        (MAGIC + bytes([VERSION + 1]) + BEAT_BYTES[5:], "upgrade this node"),
        (MAGIC + bytes([VERSION, 99]) + BEAT_BYTES[6:], "unknown kind 99"),
        (BEAT_BYTES + b"x", "the record of kind 'beat' has 1 bytes too many"),
        (BEAT_BYTES[:-1], "fewer than its header of "),
        (MARK_BYTES[:-1] + b"\xff", "the state of the cluster is malformed"),
        (
            replace(CHUNK, chunk=1).encode(),
            "chunk number 1, but the number of chunks in its batch is 1",
        ),
        (
            replace(CHUNK, chunks=0).encode(),
            "chunk number 0, but the number of chunks in its batch is 0",
        ),
    ],
)
def test_foreign_records_say_why(data: bytes, reason: str) -> None:
    with pytest.raises(ForeignRecord, match=reason):
        decode(data)
