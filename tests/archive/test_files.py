"""Tests that segments which are uploaded as Parquet files and fetched again have the same rows."""

from __future__ import annotations

import io
from bisect import bisect_right
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from broker.store.disk import RealDisk
from broker.stream.segments import Segment
from tests.archive.writing import DAY, Writing, rows_of_files
from trellis.archive import contract
from trellis.archive.listing import StreamListing
from trellis.archive.names import ArchivedFile, day_of, parse_day, parse_file, stream_path
from trellis.archive.progress import ProgressFile, read_progress
from trellis.archive.restoring import restore_file
from trellis.archive.storage import ArchiveAway, ArchiveStorage
from trellis.archive.uploading import UnfitRows, Uploader
from trellis.settings.archive_location import ArchiveLocation, check_archive, parse_location


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Writing:
    """Return a stream with full segments, whose rows have properties, nulls and unusual headers."""
    return Writing(tmp_path_factory.mktemp("data"))


class Archive:
    """An archive in a directory, with the uploader and the file list of the archive's worker."""

    def __init__(self, path: Path, file_bytes: int = 64 << 20) -> None:
        (path / "archive").mkdir()
        self.path = path / "archive"
        self.storage = ArchiveStorage(ArchiveLocation("file", str(self.path)))
        self.uploader = Uploader(self.storage, path, file_bytes)
        self.listing = StreamListing(self.storage, stream_path("/", "s", 1))

    def upload(self, segment: Segment, number: int) -> int:
        """Upload a segment as segment number `number`; return how many files were written."""
        self.listing.clear()
        message = contract.Upload(
            1,
            self.listing.stream,
            number,
            segment.path,
            int(segment.base),
            int(segment.end),
            int(segment.size),
            int(segment.first_at),
            int(segment.last_at),
        )
        return self.uploader.upload(message, self.listing).files

    def files(self) -> list[ArchivedFile]:
        self.listing.clear()
        return self.listing.page(0, 1_000)

    def restore(self, file: ArchivedFile, number: int) -> tuple[Segment, bytes]:
        path = self.path.parent / "restored.arrow"
        with self.storage.open(f"{self.listing.stream}/{file.path}") as source:
            segment = restore_file(source, path, number, file.first, file.end)
        return segment, path.read_bytes()


def test_a_segment_is_restored_with_the_same_rows(writing: Writing, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for segment in writing.segments:
        assert archive.upload(segment, writing.number) == 1
    assert len(archive.files()) == len(writing.segments) > 3
    for file, segment in zip(archive.files(), writing.segments, strict=True):
        assert (file.first, file.end) == (segment.base, segment.end)
        assert (file.from_us, file.to_us) == (segment.first_at, segment.last_at)
        restored, data = archive.restore(file, writing.number)
        table = pa.ipc.open_stream(io.BytesIO(data)).read_all()
        table.validate(full=True)
        original = pa.ipc.open_stream(Path(segment.path)).read_all()
        assert table.replace_schema_metadata(None).equals(original.replace_schema_metadata(None))
        # The broker reads the fetched file like a segment that it has written itself.
        assert restored.size == len(data) - 8
        known = Segment(RealDisk(), restored.path, 0, file.first)
        assert known.load_index(restored.encode_index(), len(data))
        assert writing.read(known) == original["body"].to_pylist()


def test_an_upload_may_be_repeated(writing: Writing, tmp_path: Path) -> None:
    archive = Archive(tmp_path, file_bytes=4_000)
    segment = writing.segments[0]
    assert archive.upload(segment, writing.number) == len(archive.files()) > 3
    rows = rows_of_files(archive.path)
    assert archive.upload(segment, writing.number) == 0
    random = Random(1)
    for _ in range(10):
        # Simulate a crash that loses two files, and a later version that writes files of another
        # size.
        for file in random.sample(archive.files(), 2):
            (archive.path / archive.listing.stream / file.path).unlink()
        archive.uploader = Uploader(archive.storage, tmp_path, random.randrange(1_000, 9_000))
        assert archive.upload(segment, writing.number) > 0
        assert rows_of_files(archive.path) == rows


def test_other_rows_at_the_same_offsets_are_refused(writing: Writing, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.upload(writing.segments[0], writing.number)
    other = Writing(tmp_path / "other", seed=2, days=(0.1,))
    with pytest.raises(UnfitRows, match="to another prefix"):
        archive.upload(other.segments[0], other.number)


def test_a_damaged_segment_is_refused(writing: Writing, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    other = Writing(tmp_path / "other", seed=3)
    segment = other.segments[1]
    data = bytearray(Path(segment.path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(segment.path).write_bytes(data)
    with pytest.raises(UnfitRows, match="is damaged at byte"):
        archive.upload(segment, other.number)
    assert archive.files() == []


def test_the_segment_of_another_stream_is_not_uploaded(writing: Writing, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    with pytest.raises(FileNotFoundError):
        archive.upload(writing.segments[0], writing.number + 1)


def test_files_are_partitioned_by_day(tmp_path: Path) -> None:
    times = [0, 0.4, 0.9, 1.2, 1.9, 1.8, 0.7, 2.5]  # Days; the clock is set back twice.
    writing = Writing(tmp_path / "data", days=times)
    archive = Archive(tmp_path)
    for segment in writing.segments:
        archive.upload(segment, writing.number)
    files = archive.files()
    assert [file.first for file in files] == [0, *(file.end for file in files[:-1])]
    days = [file.day for file in files]
    assert days == sorted(days), "a file's day never decreases with its offsets"
    assert len(set(days)) == 3
    for file in files:
        table = parquet.read_table(
            archive.path / archive.listing.stream / file.path, partitioning=None
        )
        micros = table["published_at"].cast(pa.int64()).to_pylist()
        assert (file.from_us, file.to_us) == (min(micros), max(micros))
        assert all(day_of(time) <= file.day for time in micros)
    latest = max(file.to_us for file in files)
    for moment in (0, *(file.from_us for file in files), latest):
        first = archive.listing.since_time(moment)
        assert first == next((file.first for file in files if file.to_us >= moment), -1)
    assert archive.listing.since_time(latest + 1) == -1


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2), st.integers(0, 20)), max_size=30))
@settings(max_examples=50)
def test_a_listing_finds_what_a_search_of_all_files_finds(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int, int]]
) -> None:
    root = tmp_path_factory.mktemp("archive")
    storage = ArchiveStorage(ArchiveLocation("file", str(root)))
    files: list[ArchivedFile] = []
    first = day = 0
    for rows, days, gap in parts:
        first, day = first + (gap if gap > 15 else 0), day + days
        time = day * DAY + first
        name = ArchivedFile(first, first + rows, time, time + rows, 0, day_of(time))
        path = root / "s" / name.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        files.append(name)
        first += rows
    listing = StreamListing(storage, "s")
    assert listing.first_offset() == (files[0].first if files else -1)
    firsts = [file.first for file in files]
    for offset in range(first + 2):
        at = bisect_right(firsts, offset) - 1
        known = files[at] if at >= 0 and offset < files[at].end else None
        assert listing.covering(offset) == known
        later = [file for file in files if file.end > offset]
        assert listing.page(offset, 3) == later[:3]
        before = [file.day for file in files if file.first < offset]
        assert listing.day_before(offset) == (before[-1] if before else "")
    assert listing.overlapping(0, first) == files


def test_names() -> None:
    file = ArchivedFile(5, 9, 1_700_000_000_000_000, 1_700_000_000_000_001, 7, "2023-11-14")
    day, _, name = file.path.partition("/")
    assert parse_file(parse_day(day) or "", name, 7) == file
    assert parse_file("2023-11-14", f".{name}.partial", 7) is None
    assert parse_day("day=today") is None
    assert day_of(int(datetime(2024, 2, 29, tzinfo=UTC).timestamp() * 1e6)) == "2024-02-29"
    assert stream_path("/", "a/b", 3) == "%2F/stream=a%2Fb/number=3"


def test_progress_survives_torn_lines_and_another_archive(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path, "file:///a")
    for entry in ((1, 0, 10), (2, 5, 20), (1, 0, 30), (3, 0, 1), (3, -1, -1)):
        progress.add(*entry)
    with (tmp_path / "progress").open("ab") as file:
        file.write(b"2 5\n\0\0\0\n2 5 x\n")
    assert read_progress(tmp_path, "file:///a") == {1: (0, 30), 2: (5, 20)}
    assert read_progress(tmp_path, "file:///b") == {}
    ProgressFile(tmp_path, "file:///a")
    lines = (tmp_path / "progress").read_text().splitlines()
    assert sorted(lines) == ["1 0 30", "2 5 20", "file:///a"]
    ProgressFile(tmp_path, "file:///b")
    assert read_progress(tmp_path, "file:///b") == {}


def test_a_missing_directory_is_an_archive_that_is_away(tmp_path: Path) -> None:
    storage = ArchiveStorage(ArchiveLocation("file", str(tmp_path / "missing")))
    with pytest.raises(ArchiveAway, match="does not exist; create it, or mount its disk"):
        storage.days("s")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("file:///a/b/", ArchiveLocation("file", "/a/b")),
        ("s3://bucket", ArchiveLocation("s3", "bucket")),
        ("s3://bucket/a/b/", ArchiveLocation("s3", "bucket/a/b")),
        (
            "s3://bucket/a?endpoint=http://h:9000&region=eu-1",
            ArchiveLocation("s3", "bucket/a", "http://h:9000", "eu-1"),
        ),
    ],
)
def test_locations(url: str, location: ArchiveLocation) -> None:
    assert parse_location(url) == location


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/a", "must be"),
        ("file:///", "must be"),
        ("file://host/a", "must be"),
        ("gs://bucket", "must be"),
        ("s3:///a", "must be"),
        ("s3://key:secret@bucket/a", "must not contain credentials"),
        ("s3://bucket?token=1", "unknown option 'token'"),
        ("s3://bucket?endpoint=h:9000", "not the URL of a host"),
        ("s3://bucket?endpoint=http://h/?a=1", "not the URL of a host"),
        ("s3://bucket?endpoint=https://key:secret@host", "must not contain credentials"),
        ("s3://bucket?endpoint=http://host:abc", r"an invalid URL \(Port .* 'abc'\); it must be"),
        ("s3://[bucket", r"an invalid URL \(Invalid IPv6 URL\); it must be"),
    ],
)
def test_wrong_locations(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_archive(url)
