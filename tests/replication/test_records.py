"""Tests of the encoding of the log's records."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.records import (
    BATCH,
    BEAT,
    CALL,
    CLAIM,
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

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
STATES = st.builds(
    ClusterState,
    name=st.text(max_size=40).filter(lambda name: not any("\ud800" <= c <= "\udfff" for c in name)),
    epoch=U32,
    nonce=U64,
    last=I64,
    salt=U32,
    format=st.integers(0, 2**16 - 1),
    position=I64,
    number=I64,
    batch_offset=I64,
    wall=I64,
)
RECORDS = st.one_of(
    st.builds(LogRecord, st.sampled_from([BEAT, CALL]), U32, U64, I64),
    st.builds(
        Claim, st.just(CLAIM), U32, U64, I64, I64, STATES, st.binary(min_size=32, max_size=32)
    ),
    st.integers(1, 2**32 - 1).flatmap(
        lambda chunks: st.builds(
            BatchChunk,
            st.just(BATCH),
            U32,
            U64,
            I64,
            I64,
            st.integers(0, chunks - 1),
            st.just(chunks),
            I64,
            I64,
            I64,
            st.binary(max_size=200),
        )
    ),
    st.builds(Mark, st.just(MARK), U32, U64, I64, STATES),
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: LogRecord) -> None:
    assert decode(record.encode()) == record


def read_or_refuse(data: bytes) -> None:
    """Decode bytes; a refusal must be a ForeignRecord."""
    with suppress(ForeignRecord):
        assert decode(data).encode()[:4] == MAGIC


@given(RECORDS, st.data())
def test_changed_bytes_are_a_record_or_refused(record: LogRecord, data: st.DataObject) -> None:
    changed = bytearray(record.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(changed[: data.draw(st.integers(0, len(changed)))]))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    for start in (b"", MAGIC, MAGIC + bytes([VERSION])):
        read_or_refuse(start + data)


def test_a_newer_version_asks_for_an_upgrade() -> None:
    record = LogRecord(BEAT, 1, 2, 3).encode()
    with pytest.raises(ForeignRecord, match=r"format 2, .* upgrade this node"):
        decode(record[:4] + bytes([VERSION + 1]) + record[5:])
