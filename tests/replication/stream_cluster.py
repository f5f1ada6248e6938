"""A simulated cluster with streams: real brokers and real directories on simulated disks.

The log is a list of batches. `tests/replication/simulation` tests which node owns the log.
Processes are killed at single operations of their disks, and disks lose and tear writes.
"""

from __future__ import annotations

import errno
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from broker.replication import payload
from broker.replication.contract import Apply, ReceivedBatch, ReplicaFull
from broker.replication.directory import ReplicaDirectory
from broker.replication.records import ClusterState
from broker.store.backup import copy_catalog
from broker.store.disk import WriteFailed
from broker.store.durable_batch import BatchShipping, DurableBatch, ShippingRefused
from broker.store.findings import CUT
from broker.stream.arrow import END_OF_STREAM
from broker.stream.queue import StreamQueue
from tests.replication.batches import Killed, kill_at
from tests.replication.survivors import compare
from tests.store.homes import Home
from tests.store.simulated import SimulatedDisk
from tests.streams.tables import rows_of
from trellis.server.recovery import codecs

#: Size of a segment of the log in bytes: small, so that the log has several.
LOG_SEGMENT = 3_000
#: The arguments of all streams: small segments, and a small size of the whole stream.
STREAM = {
    "x-queue-type": "stream",
    "x-stream-max-segment-size-bytes": 6_000,
    "x-max-length-bytes": 40_000,
}
#: The first state of each node.
FIRST = ClusterState("broker", epoch=1, nonce=5, last=0, salt=7, format=1)


class Cluster(BatchShipping):
    """A replicated log, its three nodes, and a model of the rows in the log.

    The owner (the active node) appends its batches to the log by calling this object.
    """

    def __init__(
        self, seed: int, path: Path, replica_type: type[ReplicaDirectory] = ReplicaDirectory
    ) -> None:
        self.random = random.Random(seed)
        self.replica_type = replica_type
        self.log: list[Apply] = []
        self.state = FIRST
        self.nodes = [Node(self, path / f"node{number}") for number in range(3)]
        #: (stream name, stream number) -> bodies by offset of the rows in the log.
        self.rows: dict[tuple[str, int], list[bytes]] = {}
        #: (stream name, stream number) -> bodies by offset, including rows that are not in the log
        #: yet.
        self.pending: dict[tuple[str, int], list[bytes]] = {}
        #: (stream name, stream number) -> offset after the last row whose publisher has its
        #: confirm.
        self.confirmed: dict[tuple[str, int], int] = {}
        self.kills = self.takeovers = self.seeds = 0
        #: True if the owner is killed when it ships the next batch, before the log has it.
        self.kills_before_ship = False
        self._serial = 0
        self.owner = self.nodes[0]
        self.take_over(self.owner)

    # -- the log

    def ship(self, batch: DurableBatch) -> bytes:
        if self.kills_before_ship:
            self.kills_before_ship = False
            raise Killed
        content = payload.encode(batch.changes, batch.records.parts, batch.rows, batch.garbage)
        state, offset = self.state, self.state.last + 1
        number, position = state.number + 1, int(batch.last)
        received = ReceivedBatch(number, offset, state.position, position, content)
        self.state = replace(
            state, number=number, last=offset, batch_offset=offset, position=position
        )
        self.log.append(Apply(received, self.state))
        self.rows = {key: list(bodies) for key, bodies in self.pending.items()}
        return self.state.encode()

    def written(self) -> None:
        """Do nothing when a batch is on the owner's disk.

        A real owner appends beats (records without content) between batches; this cluster has none.
        """

    # -- the owner

    def take_over(self, node: Node) -> None:
        """Let a node read the whole log, and then become its owner (the active node)."""
        self.takeovers += 1
        node.catch_up(len(self.log))
        assert node.replica is not None
        different = compare(node.replica, node.disk, LOG_SEGMENT)
        assert not different, "\n".join(different)
        opened = node.replica.take_over(pytest.fail) if self.random.random() < 0.7 else None
        if opened is None:
            node.replica.finish()
            node.replica.close()
        node.replica = None
        node.home = Home(
            node.path, disk=node.disk, segment_size=LOG_SEGMENT, shipping=self, opened=opened
        )
        node.home.slow_disk = True
        assert not [one for one in node.home.broker.streams.findings if one.kind != CUT]
        assert not node.home.complaints
        self.owner = node
        self.pending = {key: list(bodies) for key, bodies in self.rows.items()}
        node.home.durable()
        self.client = node.home.amqp()

    @property
    def home(self) -> Home:
        home = self.owner.home
        assert home is not None
        return home

    def streams(self) -> dict[str, StreamQueue]:
        queues = self.home.vhost.queues
        return {name: queue for name, queue in queues.items() if isinstance(queue, StreamQueue)}

    def publish(self) -> None:
        """Publish to streams, or delete them, at random; declare missing ones; write the batch."""
        vhost = self.home.vhost
        for _ in range(self.random.randint(1, 4)):
            name = self.random.choice(("s", "s", "t", "u"))
            if name not in self.streams():
                vhost.declare_queue(name, True, STREAM)
                self.pending[self._key(name)] = []
            elif name != "s" and self.random.random() < 0.15:
                del self.pending[self._key(name)]
                vhost.delete_queue(self.streams()[name])
                continue
            self._publish_rows(name)
        self.write()

    def _key(self, name: str) -> tuple[str, int]:
        return name, int(self.streams()[name].number)

    def _publish_rows(self, name: str) -> None:
        for _ in range(self.random.choice((1, 1, 3, 8))):
            self._serial += 1
            body = b"%d " % self._serial + bytes(self.random.choice((0, 10, 900, 3_000)))
            self.client.publish("", name, body)
            self.pending[self._key(name)].append(body)

    def write(self) -> None:
        """Append a batch of the owner to the log, and write the batch to the owner's disk.

        At random, kill the owner meanwhile.
        """
        home, disk = self.home, self.owner.disk
        self.kills_before_ship = self.random.random() < 0.03
        if self.random.random() < 0.15:
            kill_at(disk, self.random.randint(1, 25))
        batch = home.store.take()
        try:
            self.owner.write(batch.write)
        except Killed:
            self.fail_over()
            return
        self.kills_before_ship = False
        disk.refuse, disk.done = lambda operation, path: 0, lambda operation, path: None
        home.store.written(batch)
        home.broker.agenda.turn()
        self.confirmed = {key: len(bodies) for key, bodies in self.rows.items()}

    def fail_over(self) -> None:
        """Kill the owner (the active node), and let a random node become the owner."""
        self.kills += 1
        self.kills_before_ship = False
        self.owner.crash()
        self.take_over(self.random.choice(self.nodes))

    # -- the whole history

    def run(self, steps: int) -> None:
        for _ in range(steps):
            chance = self.random.random()
            if chance < 0.55:
                self.publish()
            elif chance < 0.9:
                standby = self.random.choice([one for one in self.nodes if one is not self.owner])
                standby.follow(self.random.randint(1, 4))
            elif chance < 0.95:
                self.fail_over()
            else:
                self.seed()
        self.publish()
        self.check()

    def seed(self) -> None:
        """Replace the directory of a standby by a copy of the active node's directory.

        The active node continues to write while its directory is copied.
        """
        self.seeds += 1
        owner = self.owner
        node = self.random.choice([one for one in self.nodes if one is not owner])
        copy = owner.path.with_name("copy.sqlite")
        copy.unlink(missing_ok=True)
        copy_catalog(f"{owner.path}/catalog.sqlite", str(copy))
        self._go_on(owner)
        files = {path: data for path, data in owner.disk.contents().items() if "/log/" in path}
        self._go_on(owner)
        for name in ("u", "t", "s"):
            self._copy_stream(owner, name, files)
        if node is self.owner:
            return  # The seeded node took over meanwhile.
        here, there = str(owner.path), str(node.path)
        node.seed(copy, {path.replace(here, there): data for path, data in files.items()})

    def _copy_stream(self, owner: Node, name: str, files: dict[str, bytes]) -> None:
        """Copy the segments of a stream, the newest first, as `trellis cluster seed` does."""
        names, prefix = owner.disk.names, f"{owner.path}/streams/%2F/{name}/"
        segments = [path for path in names if path.startswith(prefix) and path.endswith(".arrow")]
        segments.sort(reverse=True)
        for at, path in enumerate(segments):
            index = names.get(f"{path}.index")
            if self.random.random() < 0.1:
                self._go_on(owner)
            segment = names.get(path)
            if segment is not None:
                files[path] = bytes(segment.now)
                if index is not None and names.get(f"{path}.index") is index:
                    files[f"{path}.index"] = bytes(index.now)
            elif at == 0:
                self._copy_stream(owner, name, files)
                return
            if self.random.random() < 0.1:
                self._go_on(owner)

    def _go_on(self, owner: Node) -> None:
        for _ in range(self.random.randint(0, 3)):
            if self.owner is owner:
                self.publish()

    # -- checks

    def check(self) -> None:
        """Check all rows of all nodes, and that the files of all nodes have the same bytes."""
        expected = self.files_of(self.owner)
        for node in self.nodes:
            if node is not self.owner:
                node.catch_up(len(self.log))
                files = self.files_of(node)
                assert segments_of(files) == segments_of(expected), "two directories differ"
                both = files.keys() & expected.keys()
                assert all(files[path] == expected[path] for path in both), "two indexes differ"
        for node in self.nodes:
            if node is not self.owner:
                self.owner.crash()
                self.take_over(node)
            self.check_rows()

    def files_of(self, node: Node) -> dict[str, bytes]:
        """Return the files of all existing streams, each without the end-of-stream mark of Arrow.

        Nodes write that mark at different times: a new owner when it begins, and a standby when it
        gets the first row of the next segment, or later if the disk is full.
        """
        directories = [f"/streams/%2F/{name}/" for name in self.streams()]
        return {
            path.removeprefix(str(node.path)): without_end(data)
            for path, data in node.disk.contents().items()
            if path.endswith((".arrow", ".index")) and any(part in path for part in directories)
        }

    def check_rows(self) -> None:
        assert {self._key(name) for name in self.streams()} == set(self.rows)
        for name, queue in self.streams().items():
            bodies = self.rows[self._key(name)]
            assert self.confirmed.get(self._key(name), 0) <= len(bodies)
            first = int(queue.local.first_offset)
            numbered = [(row["offset"], row["body"]) for row in rows_of(queue)]
            assert numbered == list(enumerate(bodies))[first:]
            assert int(queue.local.end) == len(bodies)


class Node:
    """A node: its catalog in a real directory, its other files on a simulated disk."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster = cluster
        self.path = path
        path.mkdir()
        self.disk = SimulatedDisk()
        self.home: Home | None = None
        self.replica: ReplicaDirectory | None = None
        self.open()
        assert self.replica is not None
        self.replica.apply(Apply(None, FIRST))

    def open(self) -> None:
        self.replica = self.cluster.replica_type(
            self.disk, str(self.path), "broker", codecs(), LOG_SEGMENT
        )

    def crash(self) -> None:
        """Lose what was not synced, and follow the log from the stored state."""
        if self.home is not None:
            self.home.crash()
        if self.replica is not None:
            self.replica.catalog.close()
        self.home = self.replica = None
        chance = self.cluster.random
        self.disk = self.disk.crashed(chance, chance.choice((0.0, 0.5, 1.0)))
        self.open()

    def write(self, write: object) -> None:
        """Repeat the call of `write` until it succeeds.

        The disk may be full during some calls, and the log may refuse the batch.
        """
        assert callable(write)
        chance = self.cluster.random
        if self.disk.refuse("", "") == 0 and chance.random() < 0.1:
            refusals = [chance.randint(1, 3)]
            kept = self.disk.refuse

            def refuse(operation: str, path: str) -> int:
                if operation in ("write", "create") and refusals[0] and chance.random() < 0.4:
                    refusals[0] -= 1
                    return errno.ENOSPC
                return kept(operation, path)

            self.disk.refuse = refuse
        while True:
            try:
                write()
                return
            except (ReplicaFull, ShippingRefused, WriteFailed):
                continue

    def follow(self, count: int) -> None:
        """Apply the next `count` batches of the log. At random, kill the process meanwhile."""
        assert self.replica is not None
        if self.cluster.random.random() < 0.3:
            kill_at(self.disk, self.cluster.random.randint(1, 20))
        try:
            for _ in range(count):
                self._apply_next()
        except Killed:
            self.cluster.kills += 1
            self.crash()
        self.disk.refuse, self.disk.done = lambda operation, path: 0, lambda operation, path: None

    def _apply_next(self) -> None:
        assert self.replica is not None
        number = self.replica.state.number
        if number < len(self.cluster.log):
            step, replica = self.cluster.log[number], self.replica
            self.write(lambda: replica.apply(step))

    def catch_up(self, number: int) -> None:
        assert self.replica is not None
        while self.replica.state.number < number:
            self.follow(10)

    def seed(self, catalog: Path, files: dict[str, bytes]) -> None:
        assert self.replica is not None
        self.replica.catalog.close()
        shutil.rmtree(self.path)
        self.path.mkdir()
        shutil.copy(catalog, self.path / "catalog.sqlite")
        self.disk = SimulatedDisk(files)
        self.open()


def segments_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return only the segments of `files`, without the indexes.

    Two right directories may differ in their indexes, because a start writes a missing index.
    """
    return {path: data for path, data in files.items() if path.endswith(".arrow")}


def without_end(data: bytes) -> bytes:
    """Return the data of a segment without the end-of-stream mark of Arrow.

    A crash may have torn the mark, so also remove a part of it.
    """
    sizes = range(len(END_OF_STREAM), 0, -1)
    mark_size = next((size for size in sizes if data.endswith(END_OF_STREAM[:size])), 0)
    return data[: len(data) - mark_size]


def story(
    seed: int,
    path: Path,
    replica_type: type[ReplicaDirectory] = ReplicaDirectory,
    cluster_type: type[Cluster] = Cluster,
) -> Cluster:
    """Run the history of one seed, and return the cluster.

    Raises AssertionError or ReplicaDiverged if a node does not keep the promises of a cluster.
    """
    path.mkdir()
    cluster = cluster_type(seed, path, replica_type)
    try:
        cluster.run(60)
    finally:
        for node in cluster.nodes:
            for part in (node.home, node.replica):
                if part is not None:
                    part.catalog.close()
    return cluster
