"""Tests that a power loss never loses rows of a stream that are durable.

The log of the store says up to which row a stream is durable.
"""

from __future__ import annotations

import errno
from random import Random

import pytest
from librt.strings import write_i32_le

from broker.messages.message import Address, Message
from broker.store.disk import Poisoned, WriteFailed
from broker.stream.captured_rows import CapturedRows
from broker.stream.local_segments import LocalSegments
from broker.stream.recovery import StreamRecovery
from broker.stream.row_codecs import RowCodecs
from broker.stream.rows_write import RowsWrite
from protocols.amqp.codec.journal_codec import AmqpHeaderCodec
from tests.store.simulated import SimulatedDisk
from tests.streams.tables import rows_in
from tests.streams.test_template import FRAMES, content

DIRECTORY = "/data/streams/%2F/s"


def body(number: int) -> bytes:
    return b"%d" % number + bytes(number * 37 % 900)


def captured(base: int, count: int) -> CapturedRows:
    rows = CapturedRows(base)
    rows.times = [(0, 1_700_000_000_000_000 + base)]
    for number in range(base, base + count):
        rows.items.append(Message(Address("", "s"), content(body(number)), FRAMES, 1))
        write_i32_le(rows.routed, 1)
    rows.end = base + count
    return rows


def local_segments(disk: SimulatedDisk) -> LocalSegments:
    codecs = RowCodecs()
    codecs.header_codec = AmqpHeaderCodec()
    segments = LocalSegments(disk, "/data/streams", "/", "s", 7, codecs)
    segments.segment_writer.segment_size = 9_000
    return segments


def judge(disk: SimulatedDisk, end: int) -> StreamRecovery:
    recovery = StreamRecovery(disk, DIRECTORY, 7, end)
    assert all(finding.kind == "cut" for finding in recovery.findings), [
        str(finding) for finding in recovery.findings
    ]
    rows = [row for segment in recovery.segments for row in rows_in(disk.contents()[segment.path])]
    assert [(row["offset"], row["body"]) for row in rows] == [
        (number, body(number)) for number in range(end)
    ]
    return recovery


@pytest.mark.parametrize("seed", range(40))
def test_the_rows_that_the_log_knows_of_survive(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk()
    stream = local_segments(disk)
    #: (number of disk events, end): after these events, the log may have this end of the stream.
    synced = [(0, 0)]
    end = 0
    for _ in range(random.randrange(2, 9)):
        count = random.randrange(1, 9)
        portion = RowsWrite(stream, captured(end, count), 0)
        end += count
        portion.write()
        portion.settle()
        synced.append((len(disk.events), end))
    for _ in range(6):
        stop = random.randrange(len(disk.events) + 1)
        again = SimulatedDisk()
        for event in disk.events[:stop]:
            again.replay(event)
        known = max(there for at, there in synced if at <= stop)
        before = max((there for at, there in synced if there < known), default=0)
        # The last batch of the log may be torn: then the log covers only a part of the last rows.
        owed = random.choice((known, known, random.randint(before, known)))
        crashed = again.crashed(random, random.choice((0.0, 0.5, 0.9, 1.0)))
        judge(crashed, owed)
        # A second power loss during the repair must not change the result.
        judge(crashed.crashed(random, random.choice((0.0, 0.5, 1.0))), owed)


class ProcessEnd(BaseException):
    """Raised when the disk reaches the operation at which the simulated process ends."""


def interrupted(disk: SimulatedDisk, end: int, after: int) -> bool:
    """Run a recovery, and end it after `after` disk operations; return True if it completed.

    `end` is the number of durable rows of the stream.
    """
    left = after

    def count(operation: str, path: str) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise ProcessEnd
        return 0

    disk.refuse = count
    try:
        StreamRecovery(disk, DIRECTORY, 7, end)
    except ProcessEnd:
        return False
    finally:
        disk.refuse = lambda operation, path: 0
    return True


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("damage", [False, True])
def test_a_start_that_ends_anywhere_is_made_good_by_the_next_one(damage: bool, kept: float) -> None:
    """A start that repairs a stream is ended after each of its disk operations in turn.

    The next start must find all intact rows. With `damage`, the repair copies the intact batches of
    a segment; without `damage`, it cuts the last batch.
    """
    random = Random(repr((damage, kept)))
    disk = SimulatedDisk()
    stream = local_segments(disk)
    stream.segment_writer.segment_size = 1 << 20
    for base in range(0, 40, 5):
        portion = RowsWrite(stream, captured(base, 5), 0)
        portion.write()
        portion.settle()
    [path] = disk.names
    files = disk.contents()
    data = bytearray(files[path])
    if damage:
        data[stream.segments[0].place_of(10) + 3_000] ^= 1
    end, lost = (40, range(5, 10)) if damage else (38, range(0))
    after = 0
    while True:
        disk = SimulatedDisk({path: bytes(data)})
        ended = interrupted(disk, end, after)
        for _ in range(2):
            disk = disk.crashed(random, kept)
            recovery = StreamRecovery(disk, DIRECTORY, 7, end)
            rows = [
                row
                for segment in recovery.segments
                for row in rows_in(disk.contents()[segment.path])
            ]
            first = (
                next(offset for offset in range(end) if rows[offset]["offset"] != offset)
                if damage
                else 0
            )
            lost = range(first, first + 5) if damage else lost
            assert [(row["offset"], row["body"]) for row in rows] == [
                (at, body(at)) for at in range(end) if at not in lost
            ]
            assert sum(int(segment.end - segment.base) for segment in recovery.segments) == len(
                rows
            )
            assert len([name for name in disk.list(DIRECTORY) if name.endswith(".arrow")]) == len(
                recovery.segments
            )
        if ended:
            break
        after += 1
    assert after > 10


@pytest.mark.parametrize("operation", ["write", "sync", "create", "syncdir"])
def test_a_disk_that_refuses_leaves_the_stream_whole(operation: str) -> None:
    """One disk operation of a stream fails; no durable row may be lost.

    A write that failed on a full disk is repeated. After a failed sync, nothing more is written.
    """
    for at in range(1, 12):
        disk = SimulatedDisk()
        stream = local_segments(disk)
        calls = 0

        def refuse(what: str, path: str, at: int = at) -> int:
            nonlocal calls
            calls += what == operation
            return 28 if what == operation and calls == at else 0

        disk.refuse = refuse
        end = 0
        poisoned = False
        for _ in range(6):
            portion = RowsWrite(stream, captured(end, 5), 0)
            for _ in range(3):
                try:
                    portion.write()
                except WriteFailed:
                    continue
                except Poisoned:
                    poisoned = True
                break
            if poisoned:
                break
            portion.settle()
            end += 5
        disk.refuse = lambda what, path: 0
        judge(disk.crashed(Random(at), 1.0), end)
        assert not poisoned or operation in ("sync", "syncdir")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("operation", ["open", "write", "sync", "create", "remove", "rename"])
def test_rows_before_the_end_of_a_segment_are_durable_despite_damage_at_the_end(
    operation: str, number: int
) -> None:
    """A write appends rows that fill the segment; one operation on the disk fails at any point.

    Rows before the failure must stay durable. The next rows need a new segment.
    """
    poisoned_count = rolls = 0
    for at in range(1, 10):
        disk = SimulatedDisk()
        stream = local_segments(disk)
        stream.segment_writer.segment_size = 400_000
        calls = 0

        def refuse(what: str, path: str, at: int = at) -> int:
            nonlocal calls
            calls += what == operation
            return number if what == operation and calls == at else 0

        disk.refuse = refuse
        end = 0
        try:
            for count in (5, 700, 5):
                portion = RowsWrite(stream, captured(end, count), 0)
                for _ in range(3):
                    try:
                        portion.write()
                    except WriteFailed:
                        continue
                    portion.settle()
                    end += count
                    break
        except Poisoned:
            poisoned_count += 1
        disk.refuse = lambda what, path: 0
        rolls = max(rolls, len(stream.segments))
        for kept in (0.0, 1.0):
            judge(disk.crashed(Random(at), kept), end)
    assert rolls > 1
    assert poisoned_count == 0 or operation == "sync" or number == errno.EIO


def test_a_start_on_a_full_disk_finds_all_rows() -> None:
    """A start that cannot write an index still finds all rows; the next start writes the index."""
    disk = SimulatedDisk()
    stream = local_segments(disk)
    for base in range(0, 30, 5):
        portion = RowsWrite(stream, captured(base, 5), 0)
        portion.write()
        portion.settle()
    disk.refuse = lambda operation, path: errno.ENOSPC if operation in ("write", "create") else 0
    judge(disk, 30)
    disk.refuse = lambda operation, path: 0
    judge(disk, 30)
    assert f"{stream.segments[-1].name}.index" in disk.list(DIRECTORY)
