"""Brokers upload streams to an archive, and read rows from the archive after retention has removed
them from the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.dataset
import pytest
from pyarrow import parquet

from pyspark_trellis import read_table
from tests.archive.running import ArchivingBroker, body
from tests.archive.s3_server import S3Server

ROWS = 600


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "archive"
    path.mkdir()
    return path


def check_readers(broker: ArchivingBroker, end: int) -> None:
    """Check that each kind of reader gets all rows of the stream `s`, with the offsets below `end`.

    Some of the rows must be in the archive only, and some on the disk.
    """
    local = broker.get("streams")[0]["local"]
    assert 0 < local < end
    wanted = [(number, body(number)) for number in range(end)]
    assert broker.read(end) == wanted
    assert broker.read(end, 7) == wanted[7:]
    assert broker.read(end, "1h") == wanted
    [stream] = broker.get("streams")
    assert (stream["first"], stream["durable"]) == (0, end)
    segments = broker.get("streams/segments", queue="s")
    assert [one["first"] for one in segments] == [0, *(one["end"] for one in segments[:-1])]
    assert segments[-1]["end"] == end
    rows = broker.get("streams/rows", queue="s", offset=5, count=100)
    assert [row["payload"].encode() for row in rows] == [body(number) for number in range(5, 105)]
    assert broker.get("streams/rows", queue="s", time=1, count=1)[0]["offset"] == 0
    table = read_table(broker.url, ["offset", "body"], stream="s", user="guest", password="guest")
    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == wanted


def test_streams_are_uploaded_and_read_after_retention(tmp_path: Path, directory: Path) -> None:
    broker = ArchivingBroker(tmp_path / "data", f"file://{directory}")
    try:
        broker.declare()
        broker.publish(0, ROWS)
        state = broker.wait_uploaded()
        assert state["up"] and state["uploaded_segments"] > 5
        check_readers(broker, ROWS)

        exported = tmp_path / "rows.parquet"
        assert broker.trellis("stream", "export", "s", str(exported)).returncode == 0
        assert parquet.read_table(exported)["body"].to_pylist() == [body(n) for n in range(ROWS)]
        assert broker.trellis("stream", "archive").returncode == 0

        broker.stop()
        broker = ArchivingBroker(tmp_path / "data", f"file://{directory}")
        check_readers(broker, ROWS)
        assert broker.wait_uploaded()["uploaded_files"] == 1, (
            "the segment that was active is uploaded as well"
        )

        for number in (10**20 - 1, 1 << 63):
            name = f"archived-{number:020d}.arrow"
            status, reason = broker.refusal("streams/segment", queue="s", segment=name)
            assert (status, name in reason) == (410, True)
        first = broker.get("streams/segments", queue="s")[0]
        assert first["archived"]
        named = {"queue": "s", "segment": first["name"]}
        whole = broker.get_bytes("streams/segment", **named)
        assert broker.get_bytes("streams/segment", **named, start=100, end=300) == whole[100:300]

        archived = pyarrow.dataset.dataset(directory, partitioning="hive").to_table()
        assert archived["offset"].to_pylist() == list(range(archived.num_rows))
        assert archived["body"].to_pylist() == [body(n) for n in range(archived.num_rows)]
        broker.stop()
    finally:
        broker.kill()


def test_a_missing_file_of_the_archive_is_named_by_its_offsets(
    tmp_path: Path, directory: Path
) -> None:
    broker = ArchivingBroker(tmp_path / "data", f"file://{directory}")
    try:
        broker.declare()
        broker.publish(0, ROWS)
        broker.wait_uploaded()
        missing = sorted(directory.rglob("*.parquet"))[1]
        first, end = (int(number) for number in missing.name.split("-")[:2])
        missing.unlink()
        words = ("stream", "head", "s", "--count", str(ROWS))
        # The first reader finds out that the file is missing, and the list of files is read again.
        assert f"offset {first} of stream 's'" in broker.trellis(*words).stderr
        head = broker.trellis(*words)
        assert [len(head.stdout.splitlines()), head.returncode] == [first, 1]
        assert f"offsets {first} to {end - 1} of stream 's' are lost" in head.stderr
        rest = broker.trellis(*words, "--from", str(end))
        assert [len(rest.stdout.splitlines()), rest.returncode] == [ROWS - end, 0]
        exported = ("stream", "export", "s", str(tmp_path / "rows.parquet"))
        for bounds in ((), ("--from", str(first)), ("--until", str(end))):
            export = broker.trellis(*exported, *bounds)
            assert (export.returncode, export.stdout) == (1, "")
            assert f"offsets {first} to {end - 1} of stream 's'" in export.stderr
        broker.stop()
    finally:
        broker.kill()


@pytest.mark.long
def test_an_object_store_that_is_away_comes_back(tmp_path: Path, s3: S3Server) -> None:
    broker = ArchivingBroker(tmp_path / "data", s3.url("away"))
    try:
        broker.declare()
        broker.publish(0, ROWS)
        broker.wait_uploaded()
        s3.switch("down")
        broker.publish(ROWS, 2 * ROWS)
        state = broker.wait(lambda state: not state["up"] and state["waiting_segments"] > 5)
        assert "connect" in state["last_error"]
        local = broker.get("streams")[0]["local"]
        assert local <= ROWS, "retention must keep segments that were not uploaded"

        status, reason = broker.refusal("streams/rows", queue="s", offset=0)
        assert status == 503 and "did not deliver rows of stream 's'" in reason, reason
        channel = broker.channel()
        channel.basic_qos(prefetch_count=10)
        reading = channel.consume("s", arguments={"x-stream-offset": 0}, inactivity_timeout=60)
        s3.switch("up")
        for number in range(20):
            method, properties, data = next(reading)
            assert (properties.headers["x-stream-offset"], data) == (number, body(number))
            channel.basic_ack(method.delivery_tag)
        channel.connection.close()
        assert broker.wait_uploaded()["up"]
        assert broker.trellis("stream", "archive").returncode == 0
        check_readers(broker, 2 * ROWS)
        assert "archive_away" in broker.log and "archive_back" in broker.log
        broker.stop()
    finally:
        broker.kill()
        s3.switch("up")


@pytest.mark.long
def test_a_full_backlog_drops_the_oldest_segments(tmp_path: Path, directory: Path) -> None:
    away = tmp_path / "missing"
    broker = ArchivingBroker(
        tmp_path / "data", f"file://{away}", "--stream-archive-backlog", "200000"
    )
    try:
        broker.declare()
        broker.publish(0, ROWS)
        state = broker.wait(lambda state: not state["up"])
        assert state["waiting_bytes"] <= 200_000 and state["dropped_rows"] > 0
        assert "archive_rows_dropped" in broker.log
        assert broker.trellis("stream", "archive").returncode == 1
        local = broker.get("streams")[0]["local"]
        assert local > 0
        away.mkdir()
        broker.wait_uploaded()
        [stream] = broker.get("streams")
        assert stream["first"] == local, "the archive begins where the backlog ended"
        assert [offset for offset, _ in broker.read(ROWS)] == list(range(local, ROWS))
        status, reason = broker.refusal("streams/rows", queue="s", offset=0)
        assert status == 410 and f"the first available offset is {local}" in reason
    finally:
        broker.kill()


@pytest.mark.long
def test_a_deleted_stream_does_not_return_from_the_archive(tmp_path: Path, s3: S3Server) -> None:
    broker = ArchivingBroker(tmp_path / "data", s3.url("deleted"))
    try:
        for _ in range(2):
            broker.declare()
            broker.publish(0, ROWS)
            broker.wait_uploaded()
            check_readers(broker, ROWS)
            assert len(broker.read(ROWS, datetime.now(UTC) - timedelta(hours=1))) == ROWS
            channel = broker.channel()
            channel.queue_delete("s")
            channel.connection.close()
        broker.stop()
    finally:
        broker.kill()


@pytest.mark.long
def test_the_archive_of_another_data_directory_is_refused(tmp_path: Path, s3: S3Server) -> None:
    for data in ("one", "two"):
        broker = ArchivingBroker(tmp_path / data, s3.url("shared"))
        try:
            broker.declare()
            broker.publish(0, ROWS)
            if data == "one":
                broker.wait_uploaded()
                continue
            state = broker.wait(lambda state: state["refused_streams"] == 1)
            assert "the archive has other rows" in state["last_error"]
            assert broker.get("streams")[0]["local"] == 0, "retention must keep these rows"
            assert broker.read(ROWS) == [(number, body(number)) for number in range(ROWS)]
        finally:
            broker.kill()


@pytest.mark.long
def test_old_files_may_be_removed_from_the_archive(tmp_path: Path, directory: Path) -> None:
    broker = ArchivingBroker(tmp_path / "data", f"file://{directory}")
    try:
        broker.declare()
        broker.publish(0, ROWS)
        broker.wait_uploaded()
        files = sorted(directory.rglob("*.parquet"))
        assert broker.get("streams/rows", queue="s", offset=0, count=1)[0]["offset"] == 0
        for path in files[:3]:
            path.unlink()
        first = int(files[3].name.partition("-")[0])
        status, reason = broker.refusal("streams/rows", queue="s", offset=first - 1)
        assert status == 410 and "does not exist any more" in reason
        status, reason = broker.refusal("streams/rows", queue="s", offset=first - 1)
        assert status == 410 and f"the next row has offset {first}" in reason
        rows = broker.get("streams/rows", queue="s", offset="first", count=5)
        assert [row["offset"] for row in rows] == list(range(first, first + 5))
        assert [offset for offset, _ in broker.read(ROWS)] == list(range(first, ROWS))
        assert "archive_fetch_failed" in broker.log
    finally:
        broker.kill()
