"""Streams on the nodes of a simulated cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.replication.contract import Apply, ReplicaDiverged
from broker.replication.directory import ReplicaDirectory
from broker.replication.payload import Payload
from broker.store.disk import Disk
from broker.store.durable_batch import DurableBatch, ShippingRefused
from broker.store.stream_contract import ShippedRows, StreamGarbage
from broker.stream.replica import StreamCopy, StreamReplica
from tests.replication.stream_cluster import Cluster, Node, story
from tests.store.simulated import SimulatedDisk


def check(first: int, count: int, path: Path) -> None:
    kills = takeovers = seeds = 0
    for seed in range(first, first + count):
        cluster = story(seed, path / str(seed))
        kills += cluster.kills
        takeovers += cluster.takeovers
        seeds += cluster.seeds
    assert kills > count and takeovers > 3 * count and seeds > 0


def test_all_nodes_have_the_same_rows_in_the_same_files(tmp_path: Path) -> None:
    check(0, 8, tmp_path)


class RefusedBatches(Cluster):
    """A cluster whose log refuses batches at random, after the owner has encoded their rows."""

    refused = 0
    _refuses = False

    def write(self) -> None:
        self._refuses = True
        super().write()
        self._refuses = False

    def take_over(self, node: Node) -> None:
        self._refuses = False
        super().take_over(node)

    def ship(self, batch: DurableBatch) -> bytes:
        if self._refuses and self.random.random() < 0.4:
            self.refused += 1
            raise ShippingRefused("the log refuses the batch")
        return super().ship(batch)


def test_rows_of_a_refused_batch_are_written_once(tmp_path: Path) -> None:
    for seed in range(4):
        cluster = story(seed, tmp_path / str(seed), cluster_type=RefusedBatches)
        assert isinstance(cluster, RefusedBatches) and cluster.refused > 5


@pytest.mark.parametrize("seed", [85, 432, 787])
def test_two_streams_of_one_name_are_kept_apart(seed: int, tmp_path: Path) -> None:
    """Check a cluster that deletes a stream and declares another stream with the same name.

    In the histories of these seeds, one batch has rows of both streams, and after a crash the old
    stream's index still exists.
    """
    story(seed, tmp_path / "nodes")


@pytest.mark.long
@pytest.mark.parametrize("first", range(10, 3_010, 50))
def test_the_same_with_many_seeds(first: int, tmp_path: Path) -> None:
    check(first, 50, tmp_path)


# -- wrong designs


class OwnRetention(ReplicaDirectory):
    """Wrong on purpose: a standby that removes old segments without a record of the owner."""

    def apply(self, step: Apply) -> None:
        super().apply(step)
        assert isinstance(self._disk, SimulatedDisk)
        names = [path for path in self._disk.names if path.endswith(".arrow")]
        streams = sorted({path.rpartition("/")[0] for path in names})
        for stream in streams:
            own = sorted(path for path in names if path.startswith(f"{stream}/"))
            for path in own[:-4]:
                self._disk.remove(path)


class RemovedByName(ReplicaDirectory):
    """Wrong on purpose: a standby that removes segments by their file names alone.

    A segment may belong to a newer stream of the same name.
    """

    def _add_streams(self, batch: DurableBatch, content: Payload) -> None:
        super()._add_streams(batch, content)
        batch.garbage = [ByName(one) for one in batch.garbage]


class ByName(StreamGarbage):
    def __init__(self, garbage: StreamGarbage) -> None:
        self._garbage = garbage

    def remove_own(self, disk: Disk, root: str) -> None:
        self._garbage.remove(disk, root)


class HalfKeptCopy(StreamCopy):
    def write(self, rows: ShippedRows) -> None:
        active = self.writer.written
        if active is None or self._disk.open(active.path, False).size() <= rows.place:
            super().write(rows)


class HalfKeptStreams(StreamReplica):
    def _open(self, vhost: str, name: str, number: int) -> StreamCopy:
        return HalfKeptCopy(self._disk, self.root, vhost, name, number, self._writing)


class HalfKept(ReplicaDirectory):
    """Wrong on purpose: a node that mistakes half of a batch's rows in a file for the whole batch.

    So the node never writes the second half.
    """

    def _add_streams(self, batch: DurableBatch, content: Payload) -> None:
        if not isinstance(self._streams, HalfKeptStreams):
            self._streams = HalfKeptStreams(self._disk, self._streams.root)
        super()._add_streams(batch, content)


class AppendedFirst(Cluster):
    """Wrong on purpose: an owner that appends rows to its files before the log has the rows."""

    def ship(self, batch: DurableBatch) -> bytes:
        batch.write_streams()
        return super().ship(batch)


class OwnPlaces(Cluster):
    """Wrong on purpose: a standby that begins new segments later than the owner does.

    So the standby's rows are at other offsets in its files.
    """

    def ship(self, batch: DurableBatch) -> bytes:
        for rows in batch.rows:
            rows.epoch = 1
        return super().ship(batch)


@pytest.mark.parametrize(
    ("replica_type", "cluster_type", "first"),
    [
        (OwnRetention, Cluster, 1),
        (RemovedByName, Cluster, 12),
        (HalfKept, Cluster, 0),
        (ReplicaDirectory, AppendedFirst, 0),
        (ReplicaDirectory, OwnPlaces, 0),
    ],
)
def test_a_wrong_design_is_caught(
    replica_type: type[ReplicaDirectory], cluster_type: type[Cluster], first: int, tmp_path: Path
) -> None:
    """Search the seeds from `first` on until a seed finds the error of this wrong design.

    `first` is chosen shortly before a seed that finds the error, so that the search is short.
    """
    for seed in range(first, first + 40):
        try:
            story(seed, tmp_path / str(seed), replica_type, cluster_type)
        except (AssertionError, ReplicaDiverged):
            return
    raise AssertionError(f"{replica_type} and {cluster_type} kept all promises")
