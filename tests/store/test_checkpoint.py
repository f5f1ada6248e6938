"""Checkpoints keep live records with their positions, and drop all other records.

A checkpoint is made when it saves enough space.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.checkpoint import DONE, Checkpointing
from broker.store.checkpoint_schedule import FILES_MAX, begin_checkpoint, files_worth_checkpoint
from broker.store.disk import DamagedStore
from broker.store.entries import (
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    StoreEntry,
)
from broker.store.files import FileScan
from broker.store.log_reader import read_record
from tests.store.logs import DIRECTORY, QUEUES, Digest, Log, digest, message, random_entry
from tests.store.simulated import SimulatedDisk

EXIST = {*QUEUES, 9}


def without(state: Digest, gone: set[int]) -> Digest:
    """Return the state without the messages of the queues and sessions numbered in `gone`."""
    copies, stepped, received, retained, marks, counts = state
    left = tuple(
        (position, content, tuple(queue for queue in queues if queue not in gone))
        for position, content, queues in copies
    )
    return (
        tuple(copy for copy in left if copy[2]),
        frozenset(one for one in stepped if one[0] not in gone),
        frozenset(one for one in received if one[0] not in gone),
        retained,
        frozenset(one for one in marks if one[0] not in gone),
        frozenset(one for one in counts if one[0][0] not in gone),
    )


@given(st.randoms(use_true_random=False), st.sets(st.sampled_from(sorted(EXIST))))
def test_state_is_equal_after_checkpoints_made_while_the_log_grows(
    random: Random, gone: set[int]
) -> None:
    disk = SimulatedDisk()
    log = Log(disk, random.choice((300, 1_000, 4_000)))
    checkpointing: Checkpointing | None = None
    for _ in range(random.randrange(5, 40)):
        log.put(*(random_entry(random, log) for _ in range(random.randrange(1, 4))))
        sealed = log.log.sealed()
        if checkpointing is None and sealed and not sealed[-1].checkpoint:
            checkpointing = Checkpointing(
                log.log,
                sealed[: random.randrange(1, len(sealed) + 1)]
                if not sealed[0].checkpoint
                else sealed,
                EXIST - gone,
            )
        if checkpointing is not None and not any(
            checkpointing.step() for _ in range(random.randrange(3))
        ):
            if checkpointing.stage == DONE:
                checkpointing = None
    again = Log(disk)
    assert not again.recovery.findings
    assert without(again.recovered, gone) == without(digest(log.state), gone)
    # Readers that opened the log before and after the checkpoint find all positions.
    for position in log.state.messages:
        if set(log.state.messages[position].queues) - gone:
            assert (
                read_record(log.log, position) is not None
                and read_record(again.log, position) is not None
            )
    if log.log.last:
        again.checkpoint(
            holder_numbers=EXIST - gone
        ) if again.log.sealed() and not again.log.sealed()[-1].checkpoint else None
        assert without(Log(disk).recovered, gone) == without(digest(log.state), gone)


def records(log: Log) -> list[tuple[int, int]]:
    """Return (kind, position) of all records of the first file."""
    file = log.log.files[0]
    scan, entries = FileScan(file.file(), 64, file.size, file.seed, 0), []
    while scan.advance():
        entries.append((int(scan.reader.kind), int(scan.reader.position)))
    return entries


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ([MessageStored("/", message(b"a"), [3]), MessageSettled(3, 1)], []),
        ([MessageStored("/", message(b"a"), [3, 4]), MessageSettled(3, 1)], [(1, 1)]),
        (
            [
                MessageStored("/", message(b"a"), [3, 4]),
                MessageSettled(4, 1),
                MessageSettled(3, 1),
                MessageSettled(3, 1),
            ],
            [],
        ),
        (
            [MessageStored("/", message(b"a"), [3]), MessageSettled(4, 1), MessageSettled(3, 77)],
            [(1, 1)],
        ),
        ([MessageStored("/", message(b"a"), [77])], []),
        ([MessageStored("/", message(b"a"), [])], []),
        ([MessageStored("/", message(b"a"), [3]), PubrecReceived(3, 1)], [(1, 1), (3, 2)]),
        (
            [
                MessageStored("/", message(b"a"), [3, 4]),
                PubrecReceived(3, 1),
                MessageSettled(3, 1),
                PubrecReceived(77, 1),
                PubrecReceived(3, 99),
            ],
            [(1, 1)],
        ),
        ([PacketIdHeld(9, 1), PacketIdHeld(9, 2), PacketIdReleased(9, 1)], [(4, 2)]),
        (
            [PacketIdHeld(9, 1), PacketIdReleased(9, 1), PacketIdHeld(9, 1), PacketIdHeld(9, 1)],
            [(4, 4)],
        ),
        ([PacketIdHeld(77, 1), PacketIdReleased(9, 1)], []),
        (
            [
                RetainedSet("/", "k", message(b"a")),
                RetainedSet("/", "k", message(b"b")),
                RetainedSet("/", "l", message(b"c")),
            ],
            [(6, 2), (6, 3)],
        ),
        (
            [
                RetainedSet("/", "k", message(b"a")),
                RetainedSet("/", "k", None),
                RetainedSet("v", "k", message(b"a")),
            ],
            [(6, 3)],
        ),
        (
            [
                EntryGroup(
                    [
                        MessageStored("/", message(b"a"), [3]),
                        MessageStored("/", message(b"b"), [3]),
                        MessageSettled(3, 1),
                    ]
                ),
                MessageSettled(3, 77),
            ],
            [(1, 2)],
        ),
        (
            [
                EntryGroup(
                    [
                        MessageStored("/", message(b"a"), [3, 4]),
                        PacketIdHeld(9, 1),
                        RetainedSet("/", "k", message(b"a")),
                    ]
                ),
                MessageSettled(3, 1),
            ],
            [(1, 1), (4, 2), (6, 3)],
        ),
    ],
)
def test_checkpoint_keeps_live_entries(
    entries: list[StoreEntry], left: list[tuple[int, int]]
) -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    log.put(*entries)
    last = log.position
    log.log.close()
    log = Log(disk)
    log.checkpoint()
    assert records(log) == [*left, (8, last)]
    assert log.log.last == log.log.files[0].last == last
    again = Log(disk)
    assert again.recovery.next == last + 1
    assert without(again.recovered, {77}) == without(digest(log.state), {77})


def test_a_settlement_behind_the_checkpoint_still_finds_its_message() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(10):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    log.checkpoint()
    log.put(MessageSettled(3, 2))
    again = Log(disk)
    assert 2 not in again.state.messages and 3 in again.state.messages


def test_directory_has_only_the_checkpoint_and_later_files() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(10):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    last = log.log.sealed()[-1].last
    log.checkpoint()
    assert disk.list(DIRECTORY) == [f"{last + 1:020d}.log", f"checkpoint-{last:020d}.log"]
    assert set(disk.durable) == set(disk.names)


def test_each_step_reads_or_writes_a_bounded_piece() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1 << 20)
    for _ in range(30):
        log.put(*(MessageStored("/", message(b"x" * 100), [3]) for _ in range(300)))
    log.put(*(MessageStored("/", message(b"x" * 600_000), [3]) for _ in range(2)))
    log.put(MessageStored("/", message(b"x"), [3]))
    checkpointing = Checkpointing(log.log, log.log.sealed(), EXIST)
    writes = len(disk.events)
    steps = 0
    while checkpointing.step():
        assert len(disk.events) - writes <= 5
        writes = len(disk.events)
        steps += 1
    assert steps > 2 * 9_000 // 400
    assert checkpointing.bytes_done <= checkpointing.bytes_total
    assert Log(disk).recovered == digest(log.state)


def test_a_checkpoint_pays_when_half_of_the_full_files_is_dead() -> None:
    log = Log(SimulatedDisk(), 20_000)
    for _ in range(190):
        log.put(MessageStored("/", message(b"x" * 1_000), [3]))
    assert len(log.log.sealed()) >= 5 and not files_worth_checkpoint(log.log)
    for position in range(1, 80):
        log.put(MessageSettled(3, position))
    assert not files_worth_checkpoint(log.log)
    for position in range(80, 110):
        log.put(MessageSettled(3, position))
    for _ in range(20):
        # These messages fill the file that has the settlements, so it is sealed.
        log.put(MessageStored("/", message(b"x" * 1_000), [3]))
    files = files_worth_checkpoint(log.log)
    assert files == log.log.sealed()
    before = log.log.size
    Checkpointing(log.log, files, EXIST).run()
    assert log.log.size < before * 0.6 and not files_worth_checkpoint(log.log)
    [checkpoint, *_] = log.log.files
    assert checkpoint.settled == 0 and checkpoint.copies == len(
        [position for position in log.state.messages if position <= checkpoint.last]
    )
    log.put(MessageSettled(3, 110), MessageSettled(3, 111))
    assert checkpoint.settled == 2


def test_settlements_in_the_file_that_is_written_count_as_soon_as_they_are_durable() -> None:
    log = Log(SimulatedDisk(), 20_000)
    for _ in range(40):
        log.put(MessageStored("/", message(b"x" * 1_000), [3]))
    sealed = log.log.sealed()
    log.add(*(MessageSettled(3, position) for position in range(1, 41)))
    log.log.append(log.recorder.take())
    assert log.log.sealed() == sealed and not files_worth_checkpoint(log.log)
    log.log.sync()
    assert log.log.sealed() == sealed and files_worth_checkpoint(log.log)
    log.checkpoint()
    assert log.log.files[0].copies == 0, "the checkpoint omits what a later file settles"
    assert Log(log.log.disk, 20_000).recovered == digest(log.state)


def test_a_deleted_queue_counts_when_the_log_is_told() -> None:
    log = Log(SimulatedDisk(), 20_000)
    for _ in range(60):
        log.put(MessageStored("/", message(b"x" * 1_000), [3]))
    assert not files_worth_checkpoint(log.log)
    for position in range(1, 61):
        log.log.settle(3, position)
    assert files_worth_checkpoint(log.log)


@pytest.mark.parametrize("kind", ["retained", "identifiers", "messages"])
def test_a_log_does_not_grow_for_ever_while_little_is_live(kind: str) -> None:
    log = Log(SimulatedDisk(), 10_000)
    copied = written = 0
    for number in range(3_000):
        if kind == "retained":
            log.put(RetainedSet("/", f"k{number % 5}", message(b"x" * 100)))
        elif kind == "identifiers":
            log.put(PacketIdHeld(9, number % 10), PacketIdReleased(9, (number + 5) % 10))
        else:
            log.put(
                EntryGroup(
                    [
                        MessageStored("/", message(b"x" * 100), [3]),
                        MessageSettled(3, max(log.position - 19, 1)),
                    ]
                )
            )
        files = files_worth_checkpoint(log.log)
        if files:
            written += sum(int(file.size) for file in files if not file.checkpoint)
            Checkpointing(log.log, files, EXIST).run()
            copied += int(log.log.files[0].size)
        assert log.log.size < 40_000
    assert 0 < copied < written / 2


def test_a_log_of_live_things_is_not_copied_again_and_again() -> None:
    log = Log(SimulatedDisk(), 10_000)
    checkpoints = 0
    for number in range(2_000):
        log.put(RetainedSet("/", f"k{number}", message(b"x" * 100)))
        files = files_worth_checkpoint(log.log)
        if files:
            checkpoints += 1
            Checkpointing(log.log, files, EXIST).run()
    assert log.log.size > 300_000 and 2 <= checkpoints <= 12


def test_many_small_files_become_one() -> None:
    disk = SimulatedDisk()
    for number in range(FILES_MAX + 2):
        log = Log(disk, 100_000)
        log.put(MessageStored("/", message(b"%d" % number), [3]))
        log.log.close()
    log = Log(disk, 100_000)
    before = digest(log.state)
    assert files_worth_checkpoint(log.log) == log.log.files
    Checkpointing(log.log, files_worth_checkpoint(log.log), EXIST).run()
    assert len(disk.names) == 1 and Log(disk).recovered == before


def test_damage_that_appears_later_stops_the_checkpoint_and_nothing_is_removed() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(10):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    first = log.log.files[0]
    for position in range(1, 9):
        log.log.settle(3, position)
    assert files_worth_checkpoint(log.log)
    disk.names[first.path].now[100] ^= 1
    before = disk.contents()
    with pytest.raises(
        DamagedStore,
        match=r"no checkpoint is made, because .* is damaged: "
        r"at offset 64, a record's checksum is wrong. "
        r"Nothing was removed",
    ):
        log.checkpoint()
    assert disk.contents() == before and not files_worth_checkpoint(log.log)
    # The log can still be written, and recovery quarantines the damage; then a checkpoint omits it.
    log.put(MessageStored("/", message(b"later"), [3]))
    again = Log(disk, 500)
    assert [finding.kind for finding in again.recovery.findings] == ["quarantined"]
    again.checkpoint()
    last = Log(disk, 500)
    assert last.recovered == again.recovered and not last.recovery.findings


def test_file_that_cannot_be_quarantined_is_kept() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(10):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    disk.names[log.log.files[0].path].now[100] ^= 1
    disk.refuse = lambda operation, path: (
        28 if "quarantine" in path and operation == "create" else 0
    )
    for refusing in (True, False):
        again = Log(disk, 500)
        [finding] = again.recovery.findings
        assert (
            "not copied to the quarantine: No space left on device" in finding.reason
        ) == refusing and bool(finding.copy) != refusing
        for position in range(1, 11):
            again.log.settle(3, position)
        assert bool(files_worth_checkpoint(again.log)) != refusing
        disk.refuse = lambda operation, path: 0


def test_incomplete_checkpoint_is_ignored_while_the_replaced_files_exist() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(10):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    before = disk.contents()
    log.checkpoint()
    [checkpoint] = [path for path in disk.names if "checkpoint" in path]
    data = disk.contents()[checkpoint]
    for harmed in (data[:-1], data[:200], data[:40], b"", bytes(32) * 2 + data[64:]):
        again = Log(SimulatedDisk({**before, checkpoint: harmed}))
        assert again.recovered == digest(log.state)
        assert [finding.kind for finding in again.recovery.findings] == ["ignored"]
    # If the replaced files are missing, recovery reads the intact part of the checkpoint, and
    # reports the rest.
    after = {path: kept for path, kept in before.items() if path in disk.names}
    again = Log(SimulatedDisk({**after, checkpoint: data[:-1]}))
    assert again.recovered == digest(log.state) and [
        finding.kind for finding in again.recovery.findings
    ] == ["quarantined"]
    again = Log(SimulatedDisk({**after, checkpoint: data[:400]}))
    assert set(again.recovered[0]) < set(digest(log.state)[0]) and again.recovery.findings


def test_files_that_a_checkpoint_replaced_are_removed_when_the_log_is_opened() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(10):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    before = disk.contents()
    log.checkpoint()
    both = SimulatedDisk(
        {**before, **disk.contents(), f"{DIRECTORY}/checkpoint-{3:020d}.log.tmp": b"x"}
    )
    again = Log(both)
    assert again.recovered == digest(log.state) and not again.recovery.findings
    assert set(both.names) == set(disk.names) and set(again.recovery.removed) == {
        path.rpartition("/")[2] for path in before if path not in disk.names
    } | {f"checkpoint-{3:020d}.log.tmp"}


@pytest.mark.parametrize(("staying", "going"), [(100, 6_000), (30, 1_000), (1_000, 1_000)])
def test_space_is_freed_for_any_sizes_of_live_and_dead_entries(staying: int, going: int) -> None:
    log = Log(SimulatedDisk(), 20_000)
    read = checkpoints = 0
    for number in range(800):
        log.add(MessageStored("/", message(b"s" * staying), [3]))
        gone = log.add(MessageStored("/", message(b"g" * going), [4]))
        log.put(MessageSettled(4, gone))
        checkpointing = begin_checkpoint(log.log, EXIST)
        if checkpointing is not None:
            checkpointing.run()
            read += int(checkpointing.bytes_done)
            checkpoints += checkpointing.completed
        live = sum(len(one.message.content) + 80 for one in log.state.messages.values())
        if number > 20:
            assert log.log.size < 2.6 * live + 6 * 20_000
    assert checkpoints >= 2 and read < 12 * 800 * (staying + going + 300)
    assert Log(log.log.disk).recovered == digest(log.state)


def test_much_that_is_large_is_not_copied_for_little_that_is_small() -> None:
    log = Log(SimulatedDisk(), 20_000)
    for _ in range(100):
        log.put(
            MessageStored("/", message(b"x" * 3_000), [3]),
            *(MessageStored("/", message(b"y"), [4]) for _ in range(4)),
        )
    for position in range(1, 501):
        if position % 5 != 1:
            log.put(MessageSettled(4, position))
    for _ in range(8):
        log.put(MessageStored("/", message(b"x" * 3_000), [3]))
    assert files_worth_checkpoint(log.log)
    before = log.log.disk.contents()  # type: ignore[attr-defined]
    checkpointing = begin_checkpoint(log.log, EXIST)
    assert checkpointing is not None
    checkpointing.run()
    assert not checkpointing.completed
    assert log.log.disk.contents() == before  # type: ignore[attr-defined]
    assert begin_checkpoint(log.log, EXIST) is None
    for position in range(1, 501, 5):
        log.put(MessageSettled(3, position))
    for _ in range(8):
        log.put(MessageStored("/", message(b"x" * 3_000), [3]))
    checkpointing = begin_checkpoint(log.log, EXIST)
    assert checkpointing is not None
    checkpointing.run()
    assert checkpointing.completed and log.log.size < 60_000
