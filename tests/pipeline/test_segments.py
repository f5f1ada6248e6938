"""Tests of segments without Spark: headers, indexes, checksums, and combining small batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from broker.store.disk import RealDisk
from broker.stream.arrow import SCHEMA_SIZE, view_batch
from broker.stream.segments import Segment
from pyspark_trellis import segments
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import Directory
from pyspark_trellis.segments import SegmentName, SegmentScan
from pyspark_trellis.source import JournalRows, JournalTask
from tests.pipeline.written import Row, Writer, journal, row

THIN: Final = StructType().add("topic", StringType()).add("offset", LongType())


def some(count: int, base: int = 0) -> list[Row]:
    return [row(base + at, f"t.{at % 3}", body=b"%d" % at) for at in range(count)]


def read(
    path: Path, low: int, high: int, rows: int = 1 << 20, **options: Any
) -> list[tuple[str, int]]:
    """Return the rows from offset `low` up to `high`, read by tasks of at most `rows` rows."""
    reader = JournalRows(THIN, {name: str(value) for name, value in options.items()})
    pairs = []
    for piece in Directory(str(path)).pieces(low, high, rows):
        for batch in reader.of(JournalTask((piece,))):
            assert batch.schema == reader.selected.wanted
            pairs += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return pairs


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_any_range_in_pieces_of_any_size_is_whole(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = journal(tmp_path, some(120), 7, 40)
    for _ in range(200):
        low = rng.randrange(120)
        high = rng.randrange(low, 121)
        expected = [(each["topic"], each["offset"]) for each in rows[low:high]]
        assert read(tmp_path, low, high, rng.randrange(1, 60)) == expected
        assert read(tmp_path, low, high, pattern="*.1") == [
            each for each in expected if each[0] == "t.1"
        ]


def test_small_batches_come_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(tmp_path, some(100), 1, 100)
    [piece] = Directory(str(tmp_path)).pieces(0, 100)
    assert [batch.num_rows for batch in piece.batches(["offset"])] == [100]
    monkeypatch.setattr(segments, "GATHERED_ROWS", 30)
    assert [batch.num_rows for batch in piece.batches(["offset"])] == [30, 30, 30, 10]
    monkeypatch.setattr(segments, "GATHERED_BYTES", 10_000)
    sizes = [batch.num_rows for batch in piece.batches(["offset"])]
    assert sum(sizes) == 100
    assert max(sizes) < 10


def test_damage_is_named_with_file_and_offset_however_few_columns_are_read(tmp_path: Path) -> None:
    """A changed byte of a batch gives an error with the file and the offset.

    If checksums are checked, any changed byte is found, whichever columns are read.
    """
    journal(tmp_path, some(21), 7, 21)
    [piece] = Directory(str(tmp_path)).pieces(0, 21)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    begin = end_of(whole, SCHEMA_SIZE)
    end = end_of(whole, begin)
    for at in (*range(begin, begin + 2_000, 7), end - 1):
        damage(path, at)
        with pytest.raises(PipelineError) as caught:
            list(piece.batches(["offset"]))
        line = str(caught.value)
        assert line.startswith(f"{path} is damaged: the batch at byte {begin}, with offset 7: ")
        assert line.endswith("; run `trellis store verify` for details")
        path.write_bytes(whole)
    damage(path, whole.index(b"guest", begin))
    with pytest.raises(PipelineError, match="the checksum is wrong"):
        read(tmp_path, 0, 21)
    assert len(read(tmp_path, 0, 21, verify="false")) == 21
    assert len(read(tmp_path, 0, 7)) == 7
    with pytest.raises(PipelineError, match="option verify is 'maybe', but must be true or false"):
        read(tmp_path, 0, 21, verify="Maybe")


def end_of(data: bytes, at: int) -> int:
    """Return the end of the batch at position `at`, as the broker computes it."""
    batch = view_batch(data, at)
    assert batch is not None
    return int(batch.end)


def test_wherever_a_segment_is_torn_it_ends_with_its_last_whole_batch(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(some(5))
    whole = len(writer.path.read_bytes())
    writer.write(some(5, 5))
    data = writer.path.read_bytes()
    for end in (*range(whole, len(data), 97), len(data) - 1):
        writer.path.write_bytes(data[:end])
        assert Directory(str(tmp_path)).bounds() == (0, 5, 1)
        assert [offset for _, offset in read(tmp_path, 0, 5)] == list(range(5))
    # After the file had grown, the machine failed before the data was written.
    writer.path.write_bytes(data[:whole] + bytes(4096))
    assert Directory(str(tmp_path)).bounds() == (0, 5, 1)
    for end in range(0, SCHEMA_SIZE, 97):
        writer.path.write_bytes(data[:end])
        assert Directory(str(tmp_path)).bounds() == (0, 0, 0)


def divided(stream: Directory) -> tuple[list[tuple[int, int]], int]:
    """Return (first offset, end offset) of each task, and how many bytes all tasks read."""
    cuts = [piece.cut for piece in stream.pieces(50, 2950, 70)]
    return [(cut.low, cut.high) for cut in cuts], sum(cut.end - cut.start for cut in cuts)


def test_a_full_segment_is_known_by_its_index_and_its_batches_are_not_looked_at(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path)
    known = Segment(RealDisk(), str(writer.path), 1, 0)
    for base in range(0, 3000, 100):
        place = writer.path.stat().st_size
        writer.write(some(100, base))
        known.add_batch(base, 100, place, writer.path.stat().st_size - place, 1, 1)
    writer.finish()
    scanned = Directory(str(tmp_path))
    assert scanned.bounds() == (0, 3000, 1)
    index = writer.path.with_name(f"{writer.path.name}.index")
    index.write_bytes(known.encode_index())
    indexed = Directory(str(tmp_path))
    assert indexed.bounds() == scanned.bounds()
    for low, high in ((0, 3000), (1234, 1235), (2999, 3000), (50, 2950)):
        assert [offset for _, offset in read(tmp_path, low, high, 100)] == list(range(low, high))
    rows, data = divided(scanned)
    assert rows == [(low, min(low + 70, 2950)) for low in range(50, 2950, 70)]
    assert divided(indexed)[0] == rows, "a repeated batch is divided as before"
    assert divided(indexed)[1] > data, "the index knows fewer positions"
    for wrong in (
        index.read_bytes()[:-1],
        index.read_bytes()[:20],
        b"",
        bytes(64),
    ):  # None of these is a valid index, so the pipeline reads the segment itself.
        index.write_bytes(wrong)
        assert divided(Directory(str(tmp_path))) == (rows, data)


def test_heads_are_read_from_parts_of_a_segment_as_from_the_whole(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1, 40)
    for base in range(40, 140, 10):
        writer.write(some(10, base))
    data = writer.path.read_bytes()
    whole, parts = SegmentScan(40), SegmentScan(40)
    whole.read_headers(data, 0, len(data))
    assert (whole.end, whole.size, len(whole.positions)) == (140, len(data), 10)
    rng = random.Random(2)
    while parts.size < len(data):
        parts.read_headers(
            data[parts.size : parts.size + rng.randrange(2_500, 9_000)], parts.size, len(data)
        )
    assert parts == whole
    assert segments.name_of(writer.path.name) == SegmentName(1, 40)
    assert segments.name_of(f"{writer.path.name}.index") is None
