"""Tests of the files of streams on a node that follows the replicated log."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.replication import payload
from broker.store.disk import WriteFailed
from broker.store.stream_contract import ShippedRows
from broker.stream.arrow import END_OF_STREAM
from broker.stream.replica import StreamDiffers, StreamReplica
from tests.replication.stream_cluster import Cluster
from tests.store.simulated import SimulatedDisk

FIRST = "/streams/%2F/s/0000000001-00000000000000000000.arrow"


class Copy:
    """A standby's copy of one stream, and an owner that publishes to the stream.

    `ship` returns the rows of a batch; a test writes them to `streams`, the standby's files.
    """

    def __init__(self, path: Path, segment_bytes: int = 100_000) -> None:
        self.cluster = Cluster(0, path)
        arguments = {
            "x-queue-type": "stream",
            "x-stream-max-segment-size-bytes": segment_bytes,
        }
        self.cluster.home.vhost.declare_queue("s", True, arguments)
        self.disk = SimulatedDisk()
        self.streams = StreamReplica(self.disk, "/streams")

    def ship(self, *bodies: bytes) -> list[ShippedRows]:
        """Publish messages at the owner (the active node); return the stream rows of the batch."""
        for body in bodies:
            self.cluster.client.publish("", "s", body)
        self.cluster.home.store.sync()
        batch = self.cluster.log[-1].batch
        assert batch is not None
        return payload.decode(batch.payload).rows

    def replace_stream(self, *bodies: bytes) -> list[ShippedRows]:
        """Delete the stream, create it again, and return the rows of a batch of the new stream."""
        self.cluster.home.vhost.delete_queue(self.cluster.streams()["s"])
        self.cluster.home.store.sync()
        self.cluster.home.vhost.declare_queue("s", True, {"x-queue-type": "stream"})
        return self.ship(*bodies)

    def open(self) -> None:
        self.streams = StreamReplica(self.disk, "/streams")

    def change(self, data: bytes) -> None:
        """Replace the content of the first segment, while the node is stopped."""
        self.disk = SimulatedDisk(self.disk.contents() | {FIRST: data})
        self.open()

    def check(self, end: int) -> None:
        number = int(self.cluster.streams()["s"].number)
        self.streams.check("/", "s", number, end)

    @property
    def content(self) -> bytes:
        return self.disk.contents()[FIRST]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_rows_that_are_there_are_not_written_again(copy: Copy) -> None:
    batches = [copy.ship(b"a", b"b"), copy.ship(b"c")]
    for rows in batches:
        copy.streams.write(rows)
    copy.check(3)
    for _ in range(2):
        before = len(copy.disk.events)
        for rows in batches:
            copy.streams.write(rows)
        assert len(copy.disk.events) == before
        copy.open()


def test_half_a_batch_is_cut_back_and_written_again(copy: Copy) -> None:
    copy.streams.write(copy.ship(b"a"))
    rows = copy.ship(b"b" * 500)
    copy.streams.write(rows)
    whole = copy.content
    for size in (len(whole) - 1, len(whole) - 400, len(whole) - len(rows[0].data) + 1):
        copy.change(whole[:size])
        copy.streams.write(rows)
        assert copy.content == whole
    copy.change(whole[:-1] + b"x")
    copy.streams.write(rows)
    assert copy.content == whole
    copy.change(whole[:-7])
    with pytest.raises(StreamDiffers, match="rows in the files end at offset 1, "):
        copy.check(2)


def test_other_rows_in_the_file_stop_the_node(copy: Copy) -> None:
    first, second = copy.ship(b"a"), copy.ship(b"b")
    copy.streams.write(first)
    copy.streams.write(second)
    altered = bytearray(first[0].data)
    altered[-1] ^= 1
    first[0].data = altered
    with pytest.raises(StreamDiffers, match="the replicated log has damaged rows from offset 0 on"):
        copy.streams.write(first)
    second[0].place -= 8
    with pytest.raises(StreamDiffers, match="has other rows from offset 1 on"):
        copy.streams.write(second)


def test_rows_behind_a_gap_stop_the_node(copy: Copy) -> None:
    copy.streams.write(copy.ship(b"a"))
    copy.ship(b"lost")
    with pytest.raises(StreamDiffers, match="and the active segment ends at byte"):
        copy.streams.write(copy.ship(b"b"))


def test_rows_for_a_finished_segment_stop_the_node(copy: Copy) -> None:
    copy.streams.write(copy.ship(b"a"))
    copy.change(copy.content + END_OF_STREAM)
    with pytest.raises(StreamDiffers, match="which already has its end marker"):
        copy.streams.write(copy.ship(b"b"))


def test_data_behind_the_last_row_stops_a_takeover(copy: Copy) -> None:
    copy.streams.write(copy.ship(b"a"))
    whole = copy.content
    for end in (b"", END_OF_STREAM[:4], END_OF_STREAM):
        copy.change(whole + end)
        copy.check(1)
    copy.change(whole + b"more")
    with pytest.raises(StreamDiffers, match="has data after its last row"):
        copy.check(1)


def test_rows_without_the_files_before_them_are_skipped_and_stop_a_takeover(copy: Copy) -> None:
    copy.ship(b"a")
    copy.streams.write(copy.ship(b"b"))
    assert copy.disk.contents() == {}
    with pytest.raises(StreamDiffers, match="all rows before offset 2 are missing"):
        copy.check(2)


def test_rows_of_segments_that_a_later_batch_has_removed_are_skipped(tmp_path: Path) -> None:
    copy = Copy(tmp_path, 4_096)
    first, second = copy.ship(b"a" * 2_000), copy.ship(b"b" * 2_000)
    copy.streams.write(first)
    copy.streams.write(second)
    files = copy.disk.contents()
    assert files.pop(FIRST) and files.pop(f"{FIRST}.index")
    copy.disk = SimulatedDisk(files)
    copy.open()
    copy.streams.write(first)
    copy.streams.write(second)
    assert copy.disk.contents() == files
    copy.check(2)


def test_files_of_another_stream_of_the_same_name(copy: Copy) -> None:
    old, new = copy.ship(b"old"), copy.replace_stream(b"new")
    copy.streams.write(old)
    before = copy.content
    copy.streams.write(new)
    assert copy.content != before
    copy.check(1)
    after = copy.content
    copy.open()
    copy.streams.write(old)
    assert copy.content == after


@pytest.mark.parametrize("refused", range(8))
def test_a_batch_with_an_old_and_a_new_stream_of_one_name_is_written_again(
    copy: Copy, refused: int
) -> None:
    """Check that a batch which a crash may have interrupted can be written again.

    Before the second attempt, the file of the old stream may have been removed already.
    """
    rows = [*copy.ship(b"old"), *copy.replace_stream(b"new")]
    copy.streams.write(rows)
    whole = copy.disk.contents()
    copy.disk = SimulatedDisk()
    copy.open()
    changes = iter(range(100))

    def refuse(operation: str, path: str) -> int:
        if operation not in ("mkdir", "create", "write"):
            return 0
        return errno.ENOSPC if next(changes) == refused else 0

    copy.disk.refuse = refuse
    with pytest.raises(WriteFailed):
        copy.streams.write(rows)
    copy.streams.write(rows)
    assert copy.disk.contents() == whole
    copy.open()
    copy.streams.write(rows)
    assert copy.disk.contents() == whole


@pytest.mark.parametrize("ending", ["index", "topics"])
def test_the_index_and_the_summary_of_an_older_stream_of_the_same_name_are_removed(
    copy: Copy, ending: str
) -> None:
    """Check that a new stream removes the files derived from a removed segment of the same name.

    A crash may undo the removal of such a file, although the removal of the segment is durable.
    """
    copy.ship(b"old")
    new = copy.replace_stream(b"new")
    copy.disk = SimulatedDisk({f"{FIRST}.{ending}": b"derived"})
    copy.open()
    copy.streams.write(new)
    assert list(copy.disk.contents()) == [FIRST]


def test_a_segment_that_cannot_be_made_is_made_later(copy: Copy) -> None:
    rows = copy.ship(b"a")
    refused = [""]

    def refuse(operation: str, path: str) -> int:
        return errno.ENOSPC if operation == refused[0] else 0

    copy.disk.refuse = refuse
    for refused[0] in ("create", "write", "mkdir"):
        with pytest.raises(WriteFailed):
            copy.streams.write(rows)
    refused[0] = ""
    copy.streams.write(rows)
    copy.check(1)


def test_waiting_rows_count_in_the_size_of_a_batch(copy: Copy) -> None:
    """Check that the size of a batch includes `row_overhead` bytes for each row.

    A node of a cluster keeps the encoded rows of a batch until the batch is written.
    """
    home = copy.cluster.home
    sizes = []
    for overhead in (0, 256):
        home.store.row_overhead = overhead
        home.vhost.declare_queue(f"s{overhead}", True, {"x-queue-type": "stream"})
        home.store.sync()
        for _ in range(10):
            copy.cluster.client.publish("", f"s{overhead}", b"body")
        sizes.append(home.opened.store.unwritten_bytes)
        home.store.sync()
    assert sizes[0] >= 40 and sizes[1] - sizes[0] == 10 * 256
