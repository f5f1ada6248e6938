"""The segment log: synced records are read again in order and by position, in many segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.codecs import Codecs
from broker.store.disk import (
    DamagedStore,
    DirectoryLocked,
    File,
    Lock,
    RealDisk,
    StoreError,
    TooNew,
)
from broker.store.entries import EntryGroup, MessageSettled, MessageStored, StoreEntry
from broker.store.files import (
    DATA_START,
    SEGMENT,
    SUM_MASK,
    Head,
    LogFile,
    read_head,
    total_balance,
)
from broker.store.layout import CLOSING_SIZE, SETTLED, STORED
from broker.store.log_reader import LogReader, read_record
from broker.store.ram import MemoryDisk
from broker.store.reading import Decoder
from broker.store.replay import Replay
from broker.store.segments import SegmentLog
from tests.store.logs import DIRECTORY, Log, digest, message, random_entry
from tests.store.simulated import SimulatedDisk


@given(st.randoms(use_true_random=False), st.integers(100, 5_000))
def test_a_log_read_again_gives_the_state_it_was_written_from(
    random: Random, segment_size: int
) -> None:
    disk = SimulatedDisk()
    for _ in range(3):
        log = Log(disk, segment_size)
        before = log.recovered
        assert not log.recovery.findings
        for _ in range(random.randrange(6)):
            log.put(*(random_entry(random, log) for _ in range(random.randrange(1, 5))))
        if random.random() < 0.5:
            log.log.close()
        again = Log(disk, segment_size)
        assert again.recovered == digest(log.state)
        assert (again.log.last, again.recovery.next) == (log.position, log.position + 1)
        assert not again.recovery.findings
        assert before is not None


def test_the_same_on_a_real_disk(tmp_path: Path) -> None:
    random, directory = Random(1), str(tmp_path / "log")
    log = Log(RealDisk(), 3_000, directory)
    for _ in range(60):
        log.put(*(random_entry(random, log) for _ in range(5)))
    log.put(MessageStored("/", message(bytes(range(256)) * 400), [3]))
    log.checkpoint()
    log.put(MessageStored("/", message(b"last"), [3]))
    again = Log(RealDisk(), 3_000, directory)
    assert again.recovered == digest(log.state) and not again.recovery.findings
    log.log.close()
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert names == sorted(file.name for file in log.log.files) and names[-1].startswith(
        "checkpoint-"
    )


def test_a_segment_is_called_by_its_first_position_and_rolls_when_it_is_full() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for _ in range(20):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    assert len(log.log.files) > 2
    for file, after in zip(log.log.files[1:], log.log.files, strict=False):
        assert file.first == after.last + 1 and file.previous_last == after.last
    for file in log.log.files:
        assert file.size <= 1_000 and file.name == f"{file.first:020d}.log"
        head = read_head(disk.contents()[file.path])
        assert head is not None and (head.first, head.salt) == (file.first, 7)


def test_a_batch_is_never_split_and_a_large_one_fills_a_segment_alone() -> None:
    log = Log(SimulatedDisk(), 1_000)
    log.put(*(MessageStored("/", message(b"x" * 100), [3]) for _ in range(30)))
    log.put(MessageStored("/", message(b"y"), [3]))
    assert [(int(file.first), int(file.last)) for file in log.log.files] == [(1, 30), (31, 31)]


@pytest.mark.parametrize("size", [10, 4_000, 70_000, 300_000])
def test_every_record_is_found_by_its_position_and_nothing_else_is(size: int) -> None:
    random, disk = Random(size), SimulatedDisk()
    log, wanted = Log(disk, 50_000), dict[int, tuple[int, bytes]]()
    decoder = Decoder(Codecs())

    def kept(number: int) -> StoreEntry:
        content = b"%d " % number + b"x" * random.randrange(size)
        wanted[number] = (int(STORED), content)
        return MessageStored("/", message(content), [3])

    for _ in range(40):
        position = log.position + 1
        if random.random() < 0.3:
            log.put(EntryGroup([kept(position), kept(position + 1), MessageSettled(3, 1)]))
            wanted[position + 2] = (int(SETTLED), b"")
            # A definition takes a position, but has no record in the log.
            log.position += random.randrange(3)
        else:
            log.put(kept(position))

    def check(log: Log, positions: list[int]) -> None:
        reader = LogReader(log.log)
        for position in positions:
            assert reader.read(position) == (position in wanted), position
            record = read_record(log.log, position)
            if position not in wanted:
                assert record is None
                continue
            kind, content = wanted[position]
            assert reader.kind == kind and record == (kind, reader.data[reader.start : reader.end])
            entry = decoder.entry(reader.kind, position, reader.data, reader.start, reader.end)
            if kind == STORED:
                assert isinstance(entry, MessageStored) and entry.message.content == content

    rising = list(range(log.position + 3))
    check(log, rising)
    check(log, random.sample(rising, len(rising)))
    log.log.close()
    check(Log(disk), rising[::-1])


def test_the_index_takes_less_than_twelve_bytes_a_position() -> None:
    log = Log(SimulatedDisk(), 1 << 20)
    for _ in range(200):
        log.put(*(MessageStored("/", message(b"x" * 100), [3]) for _ in range(10)))
    assert sum(16 * len(file._positions) for file in log.log.files) < 2 * log.position
    for _ in range(1_000):
        log.put(MessageSettled(3, 1))
    assert sum(16 * len(file._positions) for file in log.log.files) < 2 * log.position


def test_reading_goes_on_while_a_checkpoint_takes_the_place_of_the_files(tmp_path: Path) -> None:
    log = Log(RealDisk(), 2_000, str(tmp_path / "log"))
    for number in range(60):
        log.put(MessageStored("/", message(b"%d" % number), [3]))
    reader = LogReader(log.log)
    assert reader.read(5)
    log.checkpoint()
    for position in range(6, 61):
        assert reader.read(position)
        assert reader.data[reader.start : reader.end].endswith(b"%d" % (position - 1))


def test_the_torn_end_of_the_last_batch_is_cut_and_said() -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    log.put(MessageStored("/", message(b"one"), [3]))
    before = digest(log.state)
    [path] = disk.names
    whole = len(disk.names[path].now)
    log.put(MessageStored("/", message(b"two"), [3]), MessageStored("/", message(b"three"), [3]))
    contents = disk.contents()
    for size in range(whole + 1, len(contents[path])):
        torn = SimulatedDisk({path: contents[path][:size]})
        again = Log(torn)
        [finding] = again.recovery.findings_of("cut") if again.recovery.findings else [None]
        if finding is None:
            assert again.log.last == 2  # The file ends between two records, so no record is torn.
            continue
        assert finding.size > 0 and finding.offset + finding.size == size
        assert (
            len(torn.names[path].durable) == finding.offset + CLOSING_SIZE
            and finding.offset >= whole
        )
        assert again.recovered[0][0] == before[0][0] and again.log.last in (1, 2)
        assert again.recovery.next > again.log.last
        # The missing record is reported only once.
        assert not Log(torn).recovery.findings


def test_damage_before_a_later_batch_is_put_aside_and_the_rest_is_read() -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    for content in (b"one", b"two", b"three"):
        log.put(MessageStored("/", message(content), [3]))
    [path] = disk.names
    data = bytearray(disk.contents()[path])
    at = data.index(b"two")
    data[at] ^= 1
    harmed = SimulatedDisk({path: bytes(data)})
    # The second recovery finds the same damage, and does not copy it a second time.
    for _ in range(2):
        again = Log(harmed)
        assert [content for _, content, _ in again.recovered[0]] == [b"one", b"three"]
        [finding] = again.recovery.findings
        assert finding.kind == "quarantined" and finding.offset < at < finding.offset + finding.size
        assert b"two"[1:] in harmed.contents()[finding.copy]
        with pytest.raises(
            DamagedStore, match=r"the record at position 2 cannot be read .*checksum is wrong"
        ):
            read_record(again.log, 2)
        assert read_record(again.log, 3) is not None
    assert sum("quarantine" in name for name in harmed.names) == 1


def test_a_record_is_found_behind_damage_that_would_lead_astray() -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    starts = []
    for number in range(6):
        starts.append(DATA_START if not log.log.files else int(log.log.files[0].size))
        log.put(MessageStored("/", message(b"%d" % number), [3]))
    [path] = disk.names
    data = bytearray(disk.contents()[path])
    data[starts[2] : starts[2] + 4] = bytes(4)
    harmed = SimulatedDisk({path: bytes(data)})
    again = Log(harmed)
    assert [position for position in range(1, 7) if position in again.state.messages] == [
        1,
        2,
        4,
        5,
        6,
    ]
    for position in (6, 4, 5, 1):
        assert read_record(again.log, position) is not None
    # After the start, damage the length in the header of the record at position 5: the next record
    # then seems to begin after position 6.
    harmed.names[path].now[starts[4] : starts[4] + 4] = (40).to_bytes(4, "big")
    with pytest.raises(
        DamagedStore, match=f"the record at position 6 cannot be read .* at offset {starts[4]}"
    ):
        read_record(again.log, 6)
    assert read_record(again.log, 4) is not None and read_record(again.log, 7) is None


def test_a_missing_segment_is_reported() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(12):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    files = log.log.files
    assert len(files) > 2
    contents = disk.contents()
    del contents[files[1].path]
    [finding] = Log(SimulatedDisk(contents)).recovery.findings
    assert finding.kind == "missing" and finding.file == files[2].name
    contents = disk.contents()
    del contents[files[0].path]
    [finding] = Log(SimulatedDisk(contents)).recovery.findings
    assert finding.kind == "missing" and finding.file == files[1].name


def test_a_segment_is_read_without_its_heads() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 500)
    for _ in range(12):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    for file in log.log.files:
        contents = disk.contents()
        contents[file.path] = bytes(DATA_START) + contents[file.path][DATA_START:]
        again = Log(SimulatedDisk(contents), 500)
        assert again.recovered == digest(log.state)
        assert [finding.kind for finding in again.recovery.findings] == ["quarantined"]
    # If a file is recovered alone, its salt comes from its closing record, or from the caller.
    for closed, salt in ((True, 1), (False, 7)):
        disk = SimulatedDisk()
        log = Log(disk)
        log.put(MessageStored("/", message(b"x" * 100), [3]))
        if closed:
            log.log.close()
        [path] = disk.names
        again = Log(
            SimulatedDisk({path: bytes(DATA_START) + disk.contents()[path][DATA_START:]}), salt=salt
        )
        assert again.recovered == digest(log.state) and again.log.salt == 7


def test_bytes_of_a_message_that_look_like_a_record_are_never_read_as_one() -> None:
    inner = Log(SimulatedDisk(), 1 << 20, salt=1)
    for number in range(5, 40):
        inner.position = number * 3
        inner.put(MessageStored("/", message(b"false"), [3]))
    inodes = inner.log.disk.names.values()  # type: ignore[attr-defined]
    [fake] = [bytes(inode.now) for inode in inodes]
    disk = SimulatedDisk()
    log = Log(disk, 1 << 20, salt=2)
    log.put(MessageStored("/", message(b"one"), [3]))
    log.put(MessageStored("/", message(fake), [3]))
    log.put(MessageStored("/", message(b"two"), [3]))
    [path] = disk.names
    data = bytearray(disk.contents()[path])
    data[data.index(fake) - 30] ^= 1
    again = Log(SimulatedDisk({path: bytes(data)}))
    assert [content for _, content, _ in again.recovered[0]] == [b"one", b"two"]
    assert [finding.kind for finding in again.recovery.findings] == ["quarantined"]


def test_a_search_behind_damage_gives_up_before_it_takes_for_ever() -> None:
    """A start limits the bytes that it checks when it searches for the record after a damaged one.

    Here the damage is before a body that looks like the headers of many large records. Without a
    limit, the search would compute the checksum of each of these apparent records.
    """
    head = (
        (200_000).to_bytes(4, "big")
        + bytes(4)
        + b"\x01\x01"
        + bytes(6)
        + (10**6).to_bytes(8, "big")
    )
    disk = SimulatedDisk()
    log = Log(disk, 1 << 20)
    log.put(MessageStored("/", message(head * 20_000), [3]))
    log.put(MessageStored("/", message(b"two"), [3]))
    [path] = disk.names
    data = bytearray(disk.contents()[path])
    data[DATA_START + 3] ^= 1
    again = Log(SimulatedDisk({path: bytes(data)}))
    [finding] = again.recovery.findings
    assert (
        finding.kind == "quarantined" and finding.offset == DATA_START and not again.state.messages
    )


def test_a_newer_format_is_refused_with_a_clear_line() -> None:
    disk = SimulatedDisk()
    Log(disk).put(MessageStored("/", message(b"one"), [3]))
    [path] = disk.names
    data = disk.contents()[path]
    head = bytearray(data[:32])
    head[5] = 3
    head[12:16] = crc32(head[16:], crc32(head[:12])).to_bytes(4, "big")
    with pytest.raises(
        TooNew,
        match=r"log format is 3, and this version of Trellis reads only formats 1 to 2; use the",
    ):
        Log(SimulatedDisk({path: bytes(head) * 2 + data[DATA_START:]}))
    record = bytearray(data[DATA_START:])
    record[8] = 4
    log = Log(SimulatedDisk({path: data}))
    record[4:8] = crc32(record[8:], log.log.seed).to_bytes(4, "big")
    with pytest.raises(TooNew, match="a record has format version 4, and this version of"):
        Log(SimulatedDisk({path: data[:DATA_START] + bytes(record)}))


def test_a_file_under_another_name_is_refused() -> None:
    disk = SimulatedDisk()
    Log(disk).put(MessageStored("/", message(b"one"), [3]))
    [data] = disk.contents().values()
    with pytest.raises(StoreError, match=r"rename it to '0{19}1\.log'"):
        Log(SimulatedDisk({f"{DIRECTORY}/{5:020d}.log": data}))


def test_one_process_at_a_time_has_the_directory(tmp_path: Path) -> None:
    lock = Lock(str(tmp_path))
    with pytest.raises(
        DirectoryLocked, match=r"is in use by process \d+; stop that process, or choose another"
    ):
        Lock(str(tmp_path))
    lock.release()
    Lock(str(tmp_path)).release()


def test_progress_is_reported_in_bytes() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 2_000)
    for _ in range(60):
        log.put(MessageStored("/", message(b"x" * 100), [3]))
    seen: list[tuple[int, int]] = []

    class Deaf(Replay):
        def record(self, kind: int, position: int, data: bytes, start: int, end: int) -> None:
            pass

    recovery = SegmentLog(disk, DIRECTORY).open(
        Deaf(), lambda recovery: seen.append((int(recovery.bytes_read), int(recovery.bytes_total)))
    )
    assert len(seen) == recovery.files == len(log.log.files) and [
        done for done, _ in seen
    ] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] - DATA_START * recovery.files
    assert (recovery.records, recovery.messages) == (60, 60)


def test_a_segment_in_which_nothing_was_written_before_the_crash_leaves_no_gap() -> None:
    disk = SimulatedDisk()
    log = Log(disk)
    log.put(MessageStored("/", message(b"first"), [3]))
    # Positions of definitions are not in the log: the next segment begins behind them.
    log = Log(disk)
    log.position += 3
    log.put(MessageStored("/", message(b"torn"), [3]))
    disk.names[log.log.files[-1].path].truncate(int(DATA_START) + 10)
    log = Log(disk)
    assert [finding.kind for finding in log.recovery.findings] == ["cut"] and log.log.last == 1
    log.put(MessageStored("/", message(b"last"), [3]))
    assert not Log(disk).recovery.findings


@given(st.lists(st.integers(SUM_MASK - 9, SUM_MASK), min_size=3, max_size=9))
def test_the_balances_of_many_files_add_up_below_64_bits(balances: list[int]) -> None:
    files = []
    for number, balance in enumerate(balances, start=1):
        file = LogFile(SimulatedDisk(), DIRECTORY, Head(SEGMENT, 7, number, 0))
        file.balance = balance
        files.append(file)
    total = total_balance(files)
    assert 0 <= total <= SUM_MASK and (total - sum(balances)) % (SUM_MASK + 1) == 0


class NotedFile(File):
    """A file that calls a function when it is closed: when its last reference is deleted."""

    def __init__(self, closed: Callable[[], None]) -> None:
        self.closed = closed

    def __del__(self) -> None:
        self.closed()


def test_a_file_is_forgotten_before_it_is_closed() -> None:
    # Another thread may read from the file while it is closed, so the closed file must not be found
    # any more.
    file = LogFile(MemoryDisk(), "log", Head(SEGMENT, 1, 1, 0))
    open_then: list[bool] = []
    file.attach(NotedFile(lambda: open_then.append(file.is_open)))
    file.close_scan()
    assert open_then == [False]


class CountingDisk(SimulatedDisk):
    """A simulated disk that counts its reads."""

    reads = 0

    def ask(self, operation: str, path: str) -> None:
        self.reads += operation == "read"
        super().ask(operation, path)


def test_messages_read_one_after_the_other_share_reads_of_the_disk() -> None:
    disk = CountingDisk()
    log = Log(disk, 1 << 30)
    log.put(*(MessageStored("/", message(bytes(4_000)), [3]) for _ in range(160)))
    reader, before = LogReader(log.log), disk.reads
    assert all(reader.read(position) for position in range(1, 161))
    # A read fetches 64 KiB, so 160 records of 4 KB need about 10 reads.
    assert disk.reads - before <= 12
