"""Faults: full, broken and read-only disks, and changed bytes.

The result must be a clear error or a clean recovery, never a wrong message or a silent loss.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.checkpoint import Checkpointing
from broker.store.disk import Lock, Poisoned, RealDisk, StoreError, WriteFailed
from broker.store.entries import EntryGroup, MessageSettled, MessageStored, PubrecReceived
from broker.store.inspect import dump, repair, verify
from tests.store.logs import DIRECTORY, QUEUES, Log, digest, message, random_entry
from tests.store.simulated import SimulatedDisk

EXIST = {*QUEUES, 9}
#: The salt of the logs in this module. Recovery gets it if no head of a file is intact.
SALT = 7


class Fault:
    """A fault: after `nth` operations of a kind, the disk refuses the next `times` operations."""

    def __init__(
        self,
        disk: SimulatedDisk,
        operation: str,
        number: int,
        nth: int = 0,
        times: int = 1,
        path: str = "",
    ) -> None:
        self.operation, self.number, self.left, self.times, self.path = (
            operation,
            number,
            nth,
            times,
            path,
        )
        self.hit = 0
        disk.refuse = self

    def __call__(self, operation: str, path: str) -> int:
        if operation != self.operation or self.path not in path:
            return 0
        self.left -= 1
        if self.left < 0 and self.hit < self.times:
            self.hit += 1
            return self.number
        return 0


def filled(disk: SimulatedDisk, batches: int = 12, segment_size: int = 700, seed: int = 0) -> Log:
    random, log = Random(seed), Log(disk, segment_size)
    for _ in range(batches):
        log.put(*(random_entry(random, log) for _ in range(3)))
    return log


# -- writing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_write_that_fails_is_said_and_the_same_batch_may_be_written_later(
    operation: str, number: int
) -> None:
    for nth in range(8):
        disk = SimulatedDisk()
        log = filled(disk, segment_size=300)
        fault = Fault(disk, operation, number, nth)
        for content in range(10):
            log.add(MessageStored("/", message(b"%d" % content + b"x" * 100), [3]))
            records = log.recorder.take()
            failed = fault.hit
            try:
                log.log.append(records)
            except WriteFailed as error:
                failure = error
            if fault.hit > failed:
                assert (
                    failure.errno == number
                    and os.strerror(number) in str(failure)
                    and DIRECTORY in str(failure)
                )
                # After the failed batch, and after a crash, the log has all earlier batches and no
                # part of the failed one.
                crashed = Log(disk.crashed(Random(1), 1.0))
                assert crashed.recovered == digest(Log(SimulatedDisk(disk.contents())).state)
                assert crashed.log.last == records.first - 1 and not crashed.recovery.findings
                log.log.append(records)
            log.log.sync()
        assert fault.hit
        assert Log(disk).recovered == digest(log.state)


def test_a_write_that_fails_and_cannot_be_cut_back_poisons_the_log() -> None:
    disk = SimulatedDisk()
    log = filled(disk, segment_size=10_000)
    good = digest(log.state)
    log.add(MessageStored("/", message(b"new"), [3]))
    records = log.recorder.take()
    disk.refuse = lambda operation, path: errno.EIO if operation in ("write", "truncate") else 0
    with pytest.raises(
        Poisoned,
        match=r"cannot write .*: Input/output error, and cannot truncate the file: Input/output",
    ):
        log.log.append(records)
    disk.refuse = lambda operation, path: 0
    with pytest.raises(Poisoned):
        log.log.append(records)
    again = Log(disk)
    assert again.recovered == good and [finding.kind for finding in again.recovery.findings] == [
        "cut"
    ]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["sync", "syncdir"])
def test_a_sync_that_fails_is_never_tried_again(operation: str, number: int) -> None:
    for nth in range(4):
        disk = SimulatedDisk()
        log = filled(disk, segment_size=300)
        Fault(disk, operation, number, nth)

        def go_on(log: Log = log) -> None:
            for _ in range(30):
                log.put(MessageStored("/", message(b"x" * 100), [3]))

        with pytest.raises(Poisoned, match=r"cannot sync .*\. The store is stopped") as caught:
            go_on()
        before = len(disk.events)
        records = log.recorder.take()
        with pytest.raises(Poisoned, match=str(caught.value)[:40]):
            log.log.append(records)
        with pytest.raises(Poisoned, match=str(caught.value)[:40]):
            log.log.sync()
        log.log.close()
        assert len(disk.events) == before and log.log.poisoned
        assert Log(disk.crashed(Random(nth), 0.5)).log.last >= 30


@pytest.mark.parametrize("operation", ["write", "create", "rename", "open", "read", "remove"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_checkpoint_that_fails_leaves_the_log_as_it_was_and_able_to_write(
    operation: str, number: int
) -> None:
    hit = 0
    for nth in range(12):
        disk = SimulatedDisk()
        log = filled(disk, 20)
        checkpointing = Checkpointing(log.log, log.log.sealed(), EXIST)
        fault = Fault(disk, operation, number, nth)
        try:
            checkpointing.run()
        except StoreError as error:
            failure = error
        if fault.hit:
            assert os.strerror(number) in str(failure) and DIRECTORY in str(failure)
            assert not isinstance(failure, Poisoned) and not log.log.poisoned
        hit += fault.hit
        disk.refuse = lambda operation, path: 0
        assert not [name for name in disk.names if name.endswith(".tmp")]
        log.put(MessageStored("/", message(b"after"), [3]))
        assert Log(disk.crashed(Random(nth), 0.5)).recovered == digest(log.state)
        left = set(disk.names) - {file.path for file in log.log.files}
        assert len(left) == len(log.log.leftover) <= (operation == "remove" and fault.hit)
        while log.log.sealed()[-1].checkpoint:
            log.put(MessageStored("/", message(b"x" * 700), [3]))
        log.checkpoint()
        assert set(disk.names) == {file.path for file in log.log.files}, "nothing is left over"
    assert hit


@pytest.mark.parametrize("operation", ["sync", "syncdir"])
def test_a_checkpoint_whose_sync_fails_poisons_the_log_too(operation: str) -> None:
    disk = SimulatedDisk()
    log = filled(disk, 20)
    Fault(disk, operation, errno.EIO)
    with pytest.raises(Poisoned):
        log.checkpoint()
    with pytest.raises(Poisoned):
        log.put(MessageStored("/", message(b"after"), [3]))
    for kept in (0.0, 0.5, 1.0):
        crashed = Log(disk.crashed(Random(1), kept))
        assert crashed.log.last == log.position - 1


@pytest.mark.parametrize("operation", ["open", "read", "truncate", "sync", "remove", "mkdir"])
def test_a_log_that_cannot_be_opened_says_why_and_loses_nothing(operation: str) -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    path = log.log.files[-1].path
    whole = disk.contents()
    wanted = digest(log.state)
    disk.names[path].write(len(whole[path]), b"torn")
    disk.create(f"{DIRECTORY}/checkpoint-{1:020d}.log.tmp")
    Fault(disk, operation, errno.EIO)
    with pytest.raises(StoreError, match="Input/output error"):
        Log(disk)
    disk.refuse = lambda operation, path: 0
    assert Log(disk).recovered == wanted


# -- real directories


def test_a_directory_that_cannot_be_written_is_refused_with_a_clear_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write anywhere, but not in a directory that does not exist.
        with pytest.raises(StoreError, match=r"cannot create .*: No such file or directory"):
            Log(RealDisk(), directory=str(tmp_path / "none" / "log"))
        with pytest.raises(
            StoreError, match=r"cannot write .* in the data directory .*: No such file or directory"
        ):
            Lock(str(tmp_path / "none"))
        return
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StoreError, match=r"cannot create .*: Permission denied"):
        Log(RealDisk(), directory=str(tmp_path / "log"))
    with pytest.raises(StoreError, match=r"cannot write .*/lock' in the .*: Permission denied"):
        Lock(str(tmp_path))


def test_a_read_only_disk_is_refused_with_a_clear_line() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    disk.names[log.log.files[-1].path].write(int(log.log.files[-1].size), b"torn")
    disk.refuse = lambda operation, path: (
        0 if operation in ("open", "read", "mkdir") else errno.EROFS
    )
    with pytest.raises(StoreError, match="Read-only file system"):
        Log(disk)
    disk.refuse = lambda operation, path: 0
    log = Log(disk)
    disk.refuse = lambda operation, path: (
        0 if operation in ("open", "read", "mkdir") else errno.EROFS
    )
    log.add(MessageStored("/", message(b"x"), [3]))
    with pytest.raises(WriteFailed, match=r"cannot create .*: Read-only file system"):
        log.log.append(log.recorder.take())


def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    """Check that RealDisk raises OSError if a disk is full: the device /dev/full refuses writes."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this machine has no /dev/full")
    disk = RealDisk()
    full = disk.open("/dev/full", True)
    with pytest.raises(OSError, match="No space left on device"):
        full.write(0, b"x")
    assert disk.free(str(tmp_path)) > 0


# -- changed bytes


def harm(random: Random, data: bytes) -> bytes:
    """Return the data with one random damage.

    The damage is a flipped bit, random bytes, zero bytes, a missing end, inserted bytes, or bytes
    copied from another part of the data.
    """
    there = bytearray(data)
    at = random.randrange(len(there))
    kind = random.randrange(6)
    length = random.randrange(1, 200)
    if kind == 0:
        there[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        there[at : at + length] = random.randbytes(len(there[at : at + length]))
    elif kind == 2:
        there[at : at + length] = bytes(len(there[at : at + length]))
    elif kind == 3:
        del there[at:]
    elif kind == 4:
        there[at:at] = random.randbytes(length)
    else:
        # Bytes from elsewhere in the file, perhaps with complete records.
        source = random.randrange(len(there))
        piece = there[source : source + length * 3]
        there[at : at + len(piece)] = piece
    return bytes(there)


def entries_of(disk: SimulatedDisk) -> dict[str, str]:
    """Return position -> entry of each record."""
    lines = dump(disk, DIRECTORY, contents=True)
    return dict(
        line.split(" ", 1)
        for line in lines
        if not line.startswith("--") and not line.endswith(" closed")
    )


@given(st.integers(0, 1 << 32), st.integers(1, 3))
def test_changed_bytes_are_never_read_and_always_reported(seed: int, times: int) -> None:
    random, disk = Random(seed), SimulatedDisk()
    log = filled(disk, random.randrange(1, 14), random.choice((400, 5_000)), seed)
    if random.random() < 0.5:
        log.log.close()
    if random.random() < 0.3:
        log = Log(disk)
        log.checkpoint()
    if random.random() < 0.3:
        log.put(MessageStored("/", message(b"last"), [3]))
    wanted, before = digest(log.state), disk.contents()
    known = entries_of(disk)
    for _ in range(times):
        path = random.choice(sorted(disk.names))
        if disk.names[path].now:
            disk.names[path] = type(disk.names[path])(harm(random, bytes(disk.names[path].now)))
    changed = disk.contents() != before

    foretold = [
        str(finding)
        for finding in verify(SimulatedDisk(disk.contents()), DIRECTORY, SALT)
        if finding.kind != "fine"
    ]
    again = Log(disk)
    findings = again.recovery.findings
    # Each entry that is read was written at its position. Single entries are compared, because a
    # checkpoint splits groups of entries.
    entries = entries_of(disk)
    assert all(known.get(position) == entry for position, entry in entries.items())
    # The findings, also those of `verify`, report all damage and nothing else.
    if again.recovered != wanted:
        assert findings or _lost_its_end(before, disk, log)
    if findings:
        assert changed
    assert [str(finding).partition(", copied to")[0] for finding in findings] == foretold or len(
        foretold
    ) >= len(findings)
    assert again.recovery.next > again.log.last
    # Positions of lost records are not used again, except for unconfirmed records at the end.
    assert (
        again.recovery.next > log.log.last
        or any(finding.kind in ("cut", "missing") for finding in findings)
        or _lost_its_end(before, disk, log)
    )
    # A second recovery restores the same state, and after a repair, `verify` has no finding.
    once_more = Log(disk)
    assert once_more.recovered == again.recovered
    recovered = again.recovered
    list(repair(disk, DIRECTORY, SALT))
    assert [
        str(finding) for finding in verify(disk, DIRECTORY, SALT) if finding.kind != "fine"
    ] == []
    assert Log(disk).recovered == recovered


def _lost_its_end(before: dict[str, bytes], disk: SimulatedDisk, log: Log) -> bool:
    """True if the last file is shorter than before.

    If the file was cut between two records, only the catalog shows that records are missing.
    """
    last = log.log.files[-1].path
    return len(disk.names[last].now if last in disk.names else b"") < len(before[last])


# -- verify, dump, repair


def test_a_record_that_makes_no_sense_is_reported_and_the_others_are_read() -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    log.put(
        MessageStored("/", message(b"one"), [3]),
        MessageStored("/", message(b"two"), [3]),
        MessageSettled(3, 1),
    )
    [path] = disk.names
    data = disk.names[path].now
    # Offset of the byte with the key's length.
    at = data.index(b"two") - len("key") - len("amq.topic") - len("/") - 4
    data[at] = 0xEE
    start = data.index((2).to_bytes(8, "big")) - 16
    size = 24 + int.from_bytes(data[start : start + 4], "big")
    data[start + 4 : start + 8] = crc32(data[start + 8 : start + size], log.log.seed).to_bytes(
        4, "big"
    )
    for findings in (list(verify(disk, DIRECTORY)), Log(disk).recovery.findings):
        assert [str(finding) for finding in findings if finding.kind != "fine"] == [
            (
                f"wrong: {path.rpartition('/')[2]}: the record at position 2: the record ends "
                "within the message that it stores"
            )
        ]
    assert not Log(disk).state.messages


def test_a_group_record_without_entries_is_reported_and_the_records_behind_it_are_read() -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    log.put(MessageStored("/", message(b"one"), [3]))
    log.put(EntryGroup([MessageSettled(3, 1), PubrecReceived(3, 1)]))
    log.put(MessageStored("/", message(b"two"), [3]))
    [path] = disk.names
    data = disk.names[path].now
    start = data.index((2).to_bytes(8, "big"), data.index(b"one")) - 16
    size = 24 + int.from_bytes(data[start : start + 4], "big")
    data[start + 24 : start + 28] = bytes(4)
    data[start + 4 : start + 8] = crc32(data[start + 8 : start + size], log.log.seed).to_bytes(
        4, "big"
    )
    expected = ("quarantined", start, size, "a group record's entry count is impossible")
    for findings in (list(verify(disk, DIRECTORY)), Log(disk).recovery.findings):
        assert [
            (finding.kind, finding.offset, finding.size, finding.reason)
            for finding in findings
            if finding.kind != "fine"
        ] == [expected]
    assert [live.message.content for live in Log(disk).state.messages.values()] == [b"one", b"two"]


def test_a_settlement_of_something_later_is_reported_by_verify() -> None:
    disk = SimulatedDisk()
    Log(disk).put(MessageSettled(3, 5), EntryGroup([PubrecReceived(3, 2)]))
    assert [finding.reason for finding in verify(disk, DIRECTORY) if finding.kind == "wrong"] == [
        (
            "the record at position 1: the record settles the message at position 5, but a record "
            "can settle only an earlier message"
        ),
        (
            "the record at position 2: the record is a PUBREC for the message at position 2, but a "
            "PUBREC must follow its message"
        ),
    ]


def test_verify_changes_nothing_and_reports_the_actions_of_recovery() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    files = log.log.files
    data = disk.names[files[1].path].now
    data[200] ^= 1
    disk.names[files[-1].path].now.extend(b"torn")
    before, events = disk.contents(), len(disk.events)
    findings = list(verify(disk, DIRECTORY))
    assert disk.contents() == before and len(disk.events) == events
    kinds = [finding.kind for finding in findings]
    assert (
        kinds.count("quarantined") == 1
        and kinds.count("cut") == 1
        and kinds.count("fine") == len(files)
    )
    [cut] = [finding for finding in findings if finding.kind == "cut"]
    begin = f"cut: {files[-1].name} at offset {files[-1].size}"
    assert str(cut) == f"{begin}, 4 bytes: a record is cut off"


def test_dump_has_a_line_for_each_record_and_each_unreadable_part() -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    log.put(MessageStored("/", message(b"secret", "a.b"), [3, 4]), MessageSettled(3, 1))
    log.put(MessageSettled(4, 1))
    [path] = disk.names
    lines = list(dump(disk, DIRECTORY))
    assert lines[1:] == [
        "1 kept vhost=/ exchange='amq.topic' key='a.b' queues=[3, 4] qos=1 expires=0 bytes=6",
        "2 settled queue=3 of=1",
        "3 settled queue=4 of=1",
    ]
    assert "secret" not in "".join(lines) and "content=b'secret'" in "".join(
        dump(disk, DIRECTORY, contents=True)
    )
    disk.names[path].now[70] ^= 1
    lines = list(dump(disk, DIRECTORY))
    assert lines[1].startswith("-- at 64: a record's checksum is wrong; ")
    assert lines[2:] == ["2 settled queue=3 of=1", "3 settled queue=4 of=1"]


def test_repair_writes_damaged_files_again_and_keeps_readable_records() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 700)
    log.put(MessageStored("/", message(b"stays" + b"x" * 100), [3]))
    random = Random(0)
    for _ in range(20):
        log.put(*(random_entry(random, log) for _ in range(3)))
    log.checkpoint(3)
    for file in log.log.files[:-1]:
        disk.names[file.path].now[70] ^= 1
    del disk.names[log.log.files[2].path]
    wanted = Log(SimulatedDisk(disk.contents())).recovered
    findings = list(repair(disk, DIRECTORY))
    assert {finding.file for finding in findings if finding.kind == "repaired"} >= {
        log.log.files[0].name,
        log.log.files[1].name,
    }
    assert {finding.kind for finding in verify(disk, DIRECTORY)} == {"fine"}
    again = Log(disk)
    assert again.recovered == wanted and not again.recovery.findings
    again.put(MessageStored("/", message(b"goes on"), [3]))
    again.checkpoint()
    assert not Log(disk).recovery.findings
