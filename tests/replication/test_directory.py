"""Tests of the data directory of a standby, with the real log and the real catalog."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.replication.contract import Apply, ReplicaDiverged, ReplicaFull
from broker.replication.directory import ReplicaDirectory
from broker.replication.errors import ReplicationError
from broker.replication.records import ClusterState, ForeignRecord
from broker.store.backup import copy_catalog
from broker.store.batch_records import Records
from broker.store.catalog import Catalog
from broker.store.codecs import Codecs
from broker.store.disk import Poisoned, StoreError
from broker.store.entries import (
    Defined,
    DeliveryCounted,
    DeliveryMark,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    Sequenced,
    StoreEntry,
    Undefined,
)
from broker.store.log_reader import LogReader
from broker.store.opening import OpenedStore, open_store
from broker.store.received import ReceivedRecords
from tests.replication.batches import Batches, Killed, encode_entries, kill_at, message
from tests.store.logs import Log, random_entry
from tests.store.simulated import SimulatedDisk

QUEUE = Defined("/", "queue", "q", {})
SEGMENT = 2_000


def stored(content: bytes = b"m", queue: int = 1) -> MessageStored:
    return MessageStored("/", message(content), [queue])


class Place:
    """A standby's data directory: files on a simulated disk, the catalog in a real directory."""

    def __init__(self, path: Path, disk: SimulatedDisk | None = None) -> None:
        self.path = str(path)
        self.disk = disk or SimulatedDisk()
        self.directory = self.open()

    def open(self) -> ReplicaDirectory:
        self.directory = ReplicaDirectory(self.disk, self.path, "broker", Codecs(), SEGMENT)
        return self.directory

    def apply(self, *steps: Apply) -> None:
        for step in steps:
            self.directory.apply(step)

    def crash(self, kept: float = 1.0, seed: int = 1) -> ReplicaDirectory:
        """Kill the node and open the directory again; each unsynced change is kept with the chance
        `kept`."""
        self.directory.catalog.close()
        self.disk = self.disk.crashed(random.Random(seed), kept)
        return self.open()

    def recover(self) -> OpenedStore:
        """Start a broker on the directory, as after a takeover."""
        self.directory.finish()
        self.directory.close()
        return open_store(self.disk, self.path, Codecs(), 1, pytest.fail, lambda _: None, SEGMENT)

    def contents(self) -> list[bytes]:
        """Close the directory; return the messages' contents by queue, the oldest message first."""
        opened = self.recover()
        reader = LogReader(opened.store.log)
        bodies: list[bytes] = []
        for positions in opened.survivors.copies.by_queue().values():
            for position in positions:
                entry = opened.store.read_stored(reader, position)
                assert entry is not None
                bodies.append(entry.message.content)
        assert not opened.recovery.findings
        opened.store.close()
        return bodies


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def log_bytes(disk: SimulatedDisk) -> bytes:
    return b"".join(data for path, data in sorted(disk.contents().items()) if "/log/" in path)


def stop_writes_after(disk: SimulatedDisk, count: int, operation: str = "write") -> None:
    left = [count]

    def refuse(call: str, path: str) -> int:
        left[0] -= call == operation
        return errno.ENOSPC if left[0] < 0 and call == operation else 0

    disk.refuse = refuse


# -- following


def test_a_directory_holds_the_owners_records_and_definitions(place: Place) -> None:
    batches = Batches()
    place.apply(
        batches.make(QUEUE, stored(b"one"), stored(b"two")),
        batches.make(MessageSettled(1, 2), stored(b"three")),
        batches.make(Defined("/", "queue", "r", {"a": b"\xff"})),
        batches.make(EntryGroup([stored(b"four", 6), MessageSettled(1, 3)])),
    )
    assert place.directory.state == batches.state
    assert place.contents() == [b"three", b"four"]
    catalog = Catalog(f"{place.path}/catalog.sqlite")
    assert [(n, e.name, e.definition) for n, e in catalog.load() if e.kind == "queue"] == [
        (1, "q", {}),
        (6, "r", {"a": b"\xff"}),
    ]
    catalog.close()


def test_a_batch_may_be_empty(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(), batches.make(QUEUE, stored(b"1")), batches.make())
    place.apply(batches.make(stored(b"2")), batches.make())
    place.crash()
    assert place.directory.state.number == 2
    assert place.directory.state.position == 2


def test_a_removed_definition_is_removed(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored()), batches.make(Undefined("/", "queue", "q", 1)))
    assert place.contents() == []


@pytest.mark.parametrize("seed", range(30))
def test_received_records_have_the_counts_that_their_encoder_has(seed: int) -> None:
    chance = random.Random(seed)
    log = Log(SimulatedDisk())
    for _ in range(chance.randrange(1, 60)):
        log.add(random_entry(chance, log))
    log.add(Sequenced("/", "producer", 7))
    sent = log.recorder.take()
    sent.complete(log.log.seed)
    data = b"".join(sent.parts)
    received = ReceivedRecords(Codecs(), log.log.seed).read(data, 0)
    assert counts(received) == counts(sent)


def counts(records: Records) -> list[object]:
    return [
        records.size,
        records.count,
        records.first,
        records.last,
        records.marks,
        records.copies,
        records.balance,
        records.settled.getvalue(),
        records.noted.getvalue(),
        [(position, type(entry)) for position, entry in records.keyed],
        records.stored_size,
        records.transient_size,
    ]


def test_all_kinds_of_entries_are_followed(place: Place) -> None:
    batches = Batches()
    entries: list[StoreEntry] = [
        QUEUE,
        Defined("/", "session", "s", {}),
        stored(b"kept"),
        PubrecReceived(1, 3),
        DeliveryMark(1, 0, 3),
        DeliveryCounted(1, 3, 2),
        PacketIdHeld(2, 9),
        PacketIdHeld(2, 10),
        PacketIdReleased(2, 10),
        RetainedSet("/", "t", message(b"retained", "t")),
        Sequenced("/", "p", 44),
    ]
    place.apply(*[batches.make(entry) for entry in entries])
    opened = place.recover()
    survivors = opened.survivors
    assert [(key, position) for key, position in survivors.retained.items()]
    assert opened.store.sequences == {("/", "p"): 44}
    assert opened.store.position == len(entries)
    opened.store.close()


# -- the state, and crashes


def test_the_state_is_stored_with_definitions_and_new_segments_only(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE))
    first = batches.state
    assert place.directory.stored_state == first
    place.apply(batches.make(stored()))  # The first record begins a segment of the log.
    second = batches.state
    place.apply(batches.make(stored()), batches.make(stored()))
    assert place.directory.stored_state == second
    place.apply(batches.make(stored(b"x" * SEGMENT)))
    assert place.directory.stored_state == batches.state == place.directory.state


def test_the_state_is_stored_after_many_batches(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored()))
    log = place.directory._log
    assert log is not None
    log.unstored_batches_max = 3
    for number in range(2, 8):
        place.apply(batches.make(stored()))
        assert place.directory.stored_state.number == (number - 1) // 3 * 3 + 1


def test_batches_that_are_read_again_are_not_appended_again(place: Place) -> None:
    batches = Batches()
    steps = [batches.make(QUEUE, stored(b"1")), *(batches.make(stored(b"%d" % n)) for n in (2, 3))]
    place.apply(*steps)
    before = log_bytes(place.disk)
    again = place.crash()
    assert again.state == steps[0].state
    closed = log_bytes(place.disk)
    assert closed.startswith(before)
    place.apply(*steps[1:])
    assert log_bytes(place.disk) == closed
    place.apply(batches.make(stored(b"4")))
    assert place.contents() == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("part", range(1, 4))
def test_half_a_batch_in_the_local_log_is_cut_back(place: Place, part: int) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored(b"1")))
    sound = place.disk.contents()
    step = batches.make(*(stored(b"%d" % n) for n in range(2, 6)))
    place.apply(step)
    whole = place.disk.contents()
    [path] = [path for path in whole if "/log/" in path]
    size = (len(whole[path]) - len(sound[path])) // 4
    place.directory.catalog.close()
    sound[path] = whole[path][: len(sound[path]) + part * size]
    place.disk = SimulatedDisk(sound)
    directory = place.open()
    assert directory.state.number == 1
    place.apply(step, batches.make(stored(b"6")))
    assert place.contents() == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_after_a_crash_at_any_operation_the_same_batches_lead_to_the_same_data(
    tmp_path: Path, kept: float
) -> None:
    for at in range(1, 80):
        (tmp_path / str(at)).mkdir()
        place, batches = Place(tmp_path / str(at)), Batches()
        steps = [batches.make(QUEUE, *(stored(b"%d" % n) for n in range(3)))]
        steps += [
            batches.make(*(stored(b"%d" % n + b"x" * 300) for n in range(3 * k, 3 * k + 3)))
            for k in range(1, 6)
        ]
        kill_at(place.disk, at)
        with suppress(Killed):
            place.apply(*steps)
        place.crash(kept, at)
        done = place.directory.state.number
        assert done <= len(steps)
        place.apply(*steps[done:])
        assert [int(content.rstrip(b"x")) for content in place.contents()] == list(range(18))


def test_a_full_disk_delays_a_batch_and_the_batch_is_written_once(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored(b"1")))
    step = batches.make(stored(b"2"))
    stop_writes_after(place.disk, 0)
    for _ in range(3):
        with pytest.raises(ReplicaFull):
            place.apply(step)
    assert place.directory.state.number == 1
    place.disk.refuse = lambda operation, path: 0
    place.apply(step, batches.make(stored(b"3")))
    assert place.contents() == [b"1", b"2", b"3"]


def test_a_full_disk_between_log_and_catalog_delays_the_batch(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored(b"1")))
    database = place.directory.catalog._db
    [pages] = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    big = Defined("/", "queue", "big", {"x": "x" * 100_000})
    step = batches.make(big, stored(b"2"))
    for _ in range(2):
        with pytest.raises(ReplicaFull):
            place.apply(step)
    database.execute("PRAGMA max_page_count = 1000000")
    place.apply(step)
    assert place.directory.stored_state == batches.state
    assert place.contents() == [b"1", b"2"]


def test_a_failed_sync_stops_the_node(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored(b"1")))
    stop_writes_after(place.disk, 0, "sync")
    with pytest.raises(Poisoned):
        place.apply(batches.make(stored(b"2")))


# -- divergence


def test_a_batch_that_does_not_follow_the_state_is_refused(place: Place) -> None:
    batches = Batches()
    first = batches.make(QUEUE, stored())
    batches.make(stored())
    with pytest.raises(ReplicaDiverged, match="follows position 3"):
        place.apply(first, batches.make(stored()))


def test_a_batch_with_another_salt_is_refused(place: Place) -> None:
    other = Batches(salt=5)
    step = other.make(QUEUE, stored())
    with pytest.raises(ReplicaDiverged, match="checksum"):
        place.apply(Apply(step.batch, replace(step.state, salt=6)))


def test_a_directory_with_another_salt_is_refused(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored()))
    place.directory.store_state(replace(batches.state, salt=6))
    with pytest.raises(ReplicaDiverged, match="salt"):
        place.crash()


def test_other_records_at_the_positions_of_a_batch_stop_the_node(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored(b"1")))
    fork = Batches()
    fork.state = batches.state
    place.apply(batches.make(stored(b"mine")))
    place.crash()
    with pytest.raises(ReplicaDiverged, match="other records than batch 2"):
        place.apply(fork.make(stored(b"their")))


def test_a_record_where_the_owner_has_a_definition_stops_the_node(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored(b"1")))
    fork = Batches()
    fork.state = batches.state
    place.apply(batches.make(stored(b"mine")))
    place.crash()
    with pytest.raises(ReplicaDiverged, match="batch 2 lacks position 3 of the local log"):
        place.apply(fork.make(Defined("/", "queue", "r", {})))


def test_a_local_log_ahead_of_the_replicated_log_is_not_opened(place: Place) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, stored(b"1")))
    place.apply(batches.make(stored(b"2")))
    place.crash()
    with pytest.raises(ReplicaDiverged, match="after the last batch"):
        place.directory.finish()


def test_entries_outside_of_the_positions_of_their_batch_are_refused(place: Place) -> None:
    batches = Batches()
    step = batches.make(QUEUE, stored())
    assert step.batch is not None
    with pytest.raises(ReplicaDiverged, match="outside"):
        place.apply(Apply(replace(step.batch, position=1), step.state))


def test_a_newer_payload_is_refused(place: Place) -> None:
    batches = Batches()
    step = batches.make(QUEUE)
    assert step.batch is not None
    with pytest.raises(ForeignRecord, match="install the version"):
        place.apply(Apply(replace(step.batch, payload=b"\x09"), step.state))


def test_a_damaged_directory_does_not_follow(place: Place) -> None:
    batches = Batches()
    place.apply(*[batches.make(QUEUE, *[stored(b"x" * 300)] * 9), batches.make(stored())])
    place.directory.close()
    contents = place.disk.contents()
    [*_, path] = sorted(path for path in contents if "/log/" in path)
    first = sorted(path for path in contents if "/log/" in path)[0]
    assert first != path
    contents[first] = contents[first][:200] + b"?" + contents[first][201:]
    place.disk = SimulatedDisk(contents)
    with pytest.raises(ReplicaDiverged, match="trellis cluster seed"):
        place.open()


def test_a_directory_of_another_broker_is_refused(place: Place) -> None:
    place.directory.store_state(ClusterState("other", epoch=1))
    with pytest.raises(ReplicationError, match="belongs to the broker 'other'"):
        place.crash()


def test_a_directory_with_data_of_no_cluster_is_refused(tmp_path: Path) -> None:
    catalog = Catalog(f"{tmp_path}/catalog.sqlite")
    catalog.write([(1, QUEUE)], 0)
    catalog.close()
    with pytest.raises(ReplicationError, match="without a cluster"):
        Place(tmp_path)


def test_only_a_state_is_stored_at_once(place: Place) -> None:
    state = ClusterState("broker", epoch=3, nonce=1, last=9, salt=4)
    place.apply(Apply(None, state))
    assert place.crash().state == state


def test_a_damaged_state_stops_the_start(place: Place) -> None:
    place.directory.store_state(ClusterState("broker", epoch=1))
    place.directory.catalog._db.execute("UPDATE replica SET sum = sum + 1")
    with pytest.raises(StoreError, match="table replica is invalid"):
        place.crash()


def test_a_definition_before_its_batch_is_refused(place: Place) -> None:
    batches = Batches()
    first, second = batches.make(QUEUE, stored()), batches.make(stored())
    assert first.batch is not None and second.batch is not None
    place.apply(first)
    with pytest.raises(ReplicaDiverged, match="outside"):
        place.apply(Apply(replace(second.batch, payload=payload_of(1)), second.state))


def payload_of(position: int) -> bytes:
    """Return the payload of a batch with a definition at a position."""
    return encode_entries([(position, QUEUE)], 99)


def test_copy_of_the_directory_of_a_running_node_keeps_messages_of_queues_that_it_reads_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "running").mkdir()
    (tmp_path / "copy").mkdir()
    running, batches = Place(tmp_path / "running"), Batches()
    running.apply(batches.make(QUEUE, stored(b"first")))
    copy_catalog(f"{running.path}/catalog.sqlite", str(tmp_path / "copy" / "catalog.sqlite"))
    second = batches.state.position + 1
    later = [batches.make(Defined("/", "queue", "second", {}))]
    later += [
        batches.make(*(stored(b"%d" % (10 * at + n) + b"x" * 100, second) for n in range(10)))
        for at in range(10)
    ]
    settled = [MessageSettled(second, at) for at in range(second + 1, second + 60)]
    running.apply(*later)
    copy = Place(tmp_path / "copy", SimulatedDisk(running_files(running, tmp_path)))
    while copy.directory.compact():
        pass
    for step in later:
        copy.apply(step)
        while copy.directory.compact():
            pass
    copy.apply(batches.make(*settled))
    while copy.directory.compact():
        pass
    expected = [b"first", *(b"%d" % n + b"x" * 100 for n in range(59, 100))]
    assert copy.contents() == expected


def running_files(place: Place, tmp_path: Path) -> dict[str, bytes]:
    """Return a copy of a running standby's files: path below `tmp_path` / "copy" -> content."""
    return {
        path.replace(place.path, str(tmp_path / "copy")): data
        for path, data in place.disk.contents().items()
    }
