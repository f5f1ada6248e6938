"""Compares the two Arrow readers: the broker's BatchView and the pipeline's segment reader.

The pipeline reads segments with its own code, because it may import nothing of the broker except
`matching`. Both readers get the same segments, intact and damaged, and must find the same rows.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="the extra [pipeline] is not installed")

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.messages.message import Address, Message
from broker.stream.arrow import END_OF_STREAM, encode_schema, view_batch
from broker.stream.template import COLUMNS
from pyspark_trellis import messages, segments
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.segments import SegmentScan, rows_of
from tests.pipeline.written import message, row
from tests.streams.test_template import FRAMES, ROW, content, encode

Rows = list[tuple[object, ...]]
#: The bytes before the first batch of a segment.
HEAD = encode_schema(1, 1, 0)


class Reading(NamedTuple):
    """The result of reading a segment up to its end or its first damage."""

    rows: Rows
    #: Position of each intact batch in the segment, in bytes.
    positions: list[int]


def read_by_broker(data: bytes) -> Reading:
    """Read a segment with the broker's reader."""
    rows: Rows = []
    positions: list[int] = []
    at = len(HEAD)
    while (batch := view_batch(data, at)) is not None and batch.is_intact():
        positions.append(at)
        rows += [
            tuple(batch.value(column, number) for column in COLUMNS)
            for number in range(int(batch.rows))
        ]
        at = int(batch.end)
    return Reading(rows, positions)


def read_by_pipeline(data: bytes, rows_per_task: int) -> Reading:
    """Read a segment with the pipeline's reader, in tasks of this many rows."""
    scan = SegmentScan(0)
    try:
        scan.read_headers(data, 0, len(data))
    except (messages.DamagedSegment, struct.error):
        assert scan.schema == HEAD
    rows: Rows = []
    for low in range(0, scan.end, rows_per_task):
        cut = scan.cut(low, min(low + rows_per_task, scan.end))
        part = pa.py_buffer(data[cut.start : cut.end])
        try:
            for batch in rows_of(cut, part, "a segment", list(COLUMNS), verify=True):
                rows += zip(*map(_plain, batch.columns), strict=True)
        except PipelineError:
            break
    return Reading(rows, scan.positions)


def _plain(column: pa.Array) -> list[Any]:
    """Return the values of a column; times are numbers, as in the broker's reader."""
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.int64())
    return list(column.to_pylist())


def compare(data: bytes, rows_per_task: int = 1 << 30) -> Reading:
    """Assert that both readers find the same rows; return them."""
    by_broker = read_by_broker(data)
    by_pipeline = read_by_pipeline(data, rows_per_task)
    assert by_pipeline.rows == by_broker.rows
    count = len(by_broker.positions)
    assert by_pipeline.positions[:count] == by_broker.positions
    return by_broker


def batches_of(rows: Sequence[dict[str, Any]], sizes: Sequence[int]) -> list[bytes]:
    """Return the rows as batches of these sizes, encoded by the broker."""
    batches: list[bytes] = []
    start = 0
    for size in sizes:
        part = rows[start : start + size]
        if not part:
            break
        published = []
        for each in part:
            properties = {
                name: value for name, value in each["properties"].items() if value is not None
            } | {
                name: each[key]
                for name, key in (("delivery_mode", "mode"), ("priority", "priority"))
                if each[key] is not None
            }
            address = Address(each["exchange"], each["topic"])
            body = content(each["body"], **properties)
            published.append(Message(address, body, FRAMES, each["qos"]))
        routed = [each["routed"] for each in part]
        batches += [bytes(one.data) for one in encode(published, routed, start)]
        start += len(part)
    return batches


def plain_segment(count: int, per_batch: int = 5) -> list[bytes]:
    """Return batches of rows with nulls, texts and times, written with pyarrow."""
    rows = [
        row(
            offset,
            f"a.{offset}",
            body=bytes([offset % 256]) * (offset % 11),
            app_id=None if offset % 3 else f"app-{offset}",
            priority=None if offset % 4 else offset % 256,
        )
        for offset in range(count)
    ]
    return [message(rows[at : at + per_batch]) for at in range(0, count, per_batch)]


@pytest.fixture(autouse=True)
def _every_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pipeline's reader return each batch alone.

    Usually it combines batches, and returns none of them if one is damaged.
    """
    monkeypatch.setattr(segments, "GATHERED_ROWS", 1)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=20),
    sizes=st.lists(st.integers(1, 7), min_size=20, max_size=20),
    rows_per_task=st.integers(1, 30),
    full=st.booleans(),
)
def test_generated_segments_have_the_same_rows(
    rows: list[dict[str, Any]], sizes: list[int], rows_per_task: int, full: bool
) -> None:
    parts = batches_of(rows, sizes)
    data = HEAD + b"".join(parts) + (END_OF_STREAM if full else b"")
    assert len(compare(data, rows_per_task).rows) == len(rows)


@pytest.mark.parametrize("rows_per_task", [1, 3, 5, 8, 100])
def test_a_segment_written_with_pyarrow_has_the_same_rows(rows_per_task: int) -> None:
    reading = compare(HEAD + b"".join(plain_segment(33)) + END_OF_STREAM, rows_per_task)
    assert len(reading.rows) == 33


def test_a_segment_without_batches_has_no_rows() -> None:
    for rest in (b"", END_OF_STREAM, bytes(4096), b"\xff" * 64, b"garbage, and more than a header"):
        assert compare(HEAD + rest) == Reading([], [])


def test_a_segment_torn_anywhere_has_the_same_rows() -> None:
    data = HEAD + b"".join(plain_segment(15)) + END_OF_STREAM
    ends = [*range(len(HEAD), len(data), 41), len(data)]
    counts = {len(compare(data[:end]).rows) for end in ends}
    assert counts == {0, 5, 10, 15}


def test_a_segment_torn_before_zeros_has_the_same_rows() -> None:
    data = HEAD + b"".join(plain_segment(10))
    for end in range(len(HEAD), len(data), 173):
        compare(data[:end] + bytes(8192))


def test_a_changed_byte_ends_both_readings_at_the_same_batch() -> None:
    parts = plain_segment(15)
    data = HEAD + b"".join(parts) + END_OF_STREAM
    second = len(HEAD) + len(parts[0])
    for at in range(second, second + len(parts[1]), 5):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        assert len(compare(bytes(changed)).rows) == 5, at


@pytest.mark.parametrize("seed", range(40))
def test_hostile_segments_have_the_same_rows(seed: int) -> None:
    """Damage a segment at random; both readers must still find the same rows.

    Bytes are changed, removed, repeated, exchanged and inserted.
    """
    rng = random.Random(seed)
    parts = plain_segment(20, 4)
    if rng.random() < 0.3:
        rng.shuffle(parts)
    data = bytearray(HEAD + b"".join(parts) + (END_OF_STREAM if rng.random() < 0.5 else b""))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(HEAD), len(data))
        size = rng.randrange(1, 300)
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size]
            case 3:
                data[at : at + size] = bytes(size)
            case 4:
                data[at:at] = rng.choice([END_OF_STREAM, rng.randbytes(size), parts[0]])
        if len(data) <= len(HEAD):
            data[len(HEAD) :] = b"\0"
    compare(bytes(data), rng.choice([3, 7, 1 << 30]))
