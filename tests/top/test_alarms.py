"""Alarms of a running broker: their causes, and the end of each alarm."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pamqp.body
import pamqp.commands as spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients import marshal, publication
from tests.top.conftest import Start
from tests.top.disks import SmallDisk
from tests.top.running import Amqp0, Running
from trellis import process
from trellis.server import alarms, disk_reserve, heap
from trellis.server import durable_store_writer as storing
from trellis.server.durable_store_writer import DurableStoreWriter
from trellis.server.heap import HeapTrimmer
from trellis.server.memory import MemoryEstimate

MB = 1 << 20
#: The smallest segments that settings allow.
SMALL = {"segment": 65_536}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


glibc = pytest.mark.skipif(
    not hasattr(__import__("ctypes").CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or later"
)


@glibc
def test_freed_memory_is_given_back_after_enough_was_freed_and_not_too_often() -> None:
    clock = Clock()
    trimmer = HeapTrimmer(clock)
    trimmer.trim()
    clock.now += heap.TRIM_INTERVAL
    # Each block is below the size at which glibc maps memory for a single block.
    blocks = [bytes(20_000) for _ in range(16_000)]
    # This block stays at the end of the heap, so freeing the other blocks alone returns no memory
    # to the system.
    stays = bytes(20_000)
    full = process.resident_bytes()
    assert not trimmer.trim_if_worthwhile()
    blocks.clear()
    assert process.resident_bytes() > full - 40 * MB
    clock.now += heap.TRIM_INTERVAL
    assert trimmer.trim_if_worthwhile()
    assert process.resident_bytes() < full - 200 * MB
    blocks = [bytes(20_000) for _ in range(16_000)]
    assert not trimmer.trim_if_worthwhile()
    blocks.clear()
    assert not trimmer.trim_if_worthwhile(), "the heap is not examined again so soon"
    clock.now += heap.TRIM_INTERVAL
    assert trimmer.trim_if_worthwhile()
    clock.now += heap.TRIM_INTERVAL
    assert not trimmer.trim_if_worthwhile(), "no memory was freed"
    assert trimmer.trims == 3 and len(stays)


class SlowClock(Clock):
    """A clock that advances by 0.05 s at each reading, so that examining the heap takes long."""

    def __call__(self) -> float:
        self.now += 0.05
        return self.now


@glibc
def test_the_heap_is_looked_at_rarely_and_more_rarely_if_that_takes_long() -> None:
    clock = Clock()
    trimmer = HeapTrimmer(clock)
    for _ in range(30):
        assert not trimmer.trim_if_worthwhile()
        clock.now += 1.0
    assert trimmer.looks == 3, "the heap is locked while it is examined"
    slow = SlowClock()
    trimmer = HeapTrimmer(slow)
    for _ in range(100):
        assert not trimmer.trim_if_worthwhile()
        slow.now += 1.0
    assert 1 <= trimmer.looks <= 3
    assert trimmer.longest_trim > 0.04 and trimmer.trim_seconds > 0.04 * trimmer.looks


@given(st.lists(st.tuples(st.integers(-400, 400), st.integers(-50, 50)), max_size=60))
def test_estimate_follows_held_objects_although_freed_memory_stays(
    steps: list[tuple[int, int]],
) -> None:
    """Check the broker's estimate of its used memory, with a process whose RSS never falls.

    The broker knows the size of a part of its memory, such as messages. The estimate must fall when
    this part becomes smaller, although the process keeps the freed memory. The estimate must never
    be below this part plus the other memory that the process used at the beginning.
    """
    held, uncounted = 600, 300
    resident = held + uncounted
    estimate = MemoryEstimate()
    assert estimate.update(resident, held) == resident
    for change, growth in steps:
        held = max(0, held + change)
        uncounted += abs(growth)
        resident = max(resident, held + uncounted)
        used = estimate.update(resident, held)
        assert used <= resident
        # Growth that fits into freed memory cannot be seen; the estimate includes all other growth.
        assert used >= min(held + 300, resident)
        if resident == held + uncounted:
            assert used <= resident
    assert estimate.update(resident, 0) <= 300 + sum(abs(growth) for _, growth in steps)


def test_the_estimate_begins_anew_once_memory_was_below_the_limit() -> None:
    estimate = MemoryEstimate()
    estimate.update(1_000, 100)
    assert estimate.update(1_000, 0) == 900
    estimate.end()
    assert not estimate.begun
    estimate.update(1_000, 900)
    assert estimate.update(1_000, 0) == 100


async def _body_count(client: Amqp0, count: int) -> None:
    while count:
        count -= isinstance(await client.frame(), pamqp.body.ContentBody)


async def test_the_memory_alarm_ends_when_the_queue_is_empty_although_freed_memory_stays(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the memory alarm ends although the memory of the process stays above the limit.

    A process may keep the memory of freed messages, so its size (RSS) stays high.
    """
    resident = 1_000 * MB
    monkeypatch.setattr(process, "resident_bytes", lambda: resident)
    monkeypatch.setattr(alarms, "CHECK_INTERVAL", 0.01)
    monkeypatch.setattr("trellis.server.memory.COUNT_PAUSE", 0)
    running = await start()
    watch, on = running.node.alarm_watch, running.node.broker.alarms.on
    publisher, reader = await running.amqp(), await running.amqp()
    await publisher.queue("q")
    body = bytes(64_000)
    count = 2_000
    await publisher.socket.send(publication("", "q", body) * count)
    await running.until(lambda: running.node.broker.vhosts["/"].queues["q"].depth == count)
    held = await watch.account.count()
    assert count * len(body) < held < 1.1 * count * len(body)
    watch.memory_limit = resident - 20 * MB
    await running.until(lambda: "memory" in on)
    await publisher.socket.send(publication("", "q", b"waits") * 2)
    await running.until(lambda: len(running.node.broker.alarms.waiting) == 1)

    await reader.socket.send(marshal(1, spec.Basic.Consume(queue="q", consumer_tag="c")))
    await _body_count(reader, count)
    # Messages count as held while their consumer has not acknowledged them.
    assert await watch.account.count() > count * len(body)
    assert "memory" in on
    await reader.socket.send(marshal(1, spec.Basic.Ack(count, True)))
    await running.until(lambda: "memory" not in on)
    await _body_count(reader, 2)
    assert await watch.account.count() < 10 * MB

    # New messages, which use the freed memory again, raise the alarm again.
    await publisher.queue("p")
    sending = asyncio.create_task(publisher.socket.send(publication("", "p", body) * count))
    await running.until(lambda: "memory" in on)
    await reader.call(spec.Queue.Purge(queue="p"), spec.Queue.PurgeOk)
    await sending  # The blocked publisher continues.
    await running.until(lambda: "memory" not in on)
    resident = 1 * MB


async def _durable(running: Running, queue: str = "q") -> Amqp0:
    client = await running.amqp()
    await client.queue(queue, durable=True)
    await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    return client


async def _publish(client: Amqp0, publications: bytes, count: int, times: int) -> None:
    """Publish `times` groups of `count` messages; wait for the confirms after each group.

    This keeps the batches of the store and the segments of its log small.
    """
    for number in range(1, times + 1):
        await client.socket.send(publications)
        while (await client.expect(spec.Basic.Ack)).delivery_tag < count * number:
            pass


async def test_a_full_disk_takes_the_reserve_for_settlements_and_makes_it_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that clients can still settle messages after publishers have filled the disk.

    When the disk is full, the broker deletes its reserve file. The freed space is enough to settle
    messages, which frees more space. Then the broker must make the reserve file again.
    """
    monkeypatch.setattr(storing, "RETRY_SECONDS", 0.005)
    monkeypatch.setattr(alarms, "CHECK_INTERVAL", 0.01)
    disk = SmallDisk(str(tmp_path), 64 * MB)
    running = await start(
        disk=disk,
        data={"dir": str(tmp_path)},
        store={"segment": 1 * MB, "reserve": True},
        limits={"disk_free": 0},
    )
    reserve, on = running.node.reserve, running.node.broker.alarms.on
    assert reserve is not None and reserve.size >= 2 * MB
    assert os.stat(tmp_path / "reserve").st_blocks * 512 >= reserve.size
    publisher, reader = await _durable(running), await running.amqp()
    body, count = bytes(50_000), 200
    await _publish(publisher, publication("", "q", body, delivery_mode=2) * 5, 5, count // 5)
    disk.ballast = disk.free("")
    assert "disk" not in on
    await publisher.socket.send(publication("", "q", body, delivery_mode=2))
    last = (await publisher.expect(spec.Basic.Ack)).delivery_tag
    assert last == count + 1, "the settlement is confirmed: it uses the space of the reserve"
    assert "reserve" not in os.listdir(tmp_path) and reserve.missing
    await running.until(lambda: "disk" in on)
    await publisher.socket.send(publication("", "q", b"waits", delivery_mode=2) * 2)
    await running.until(lambda: len(running.node.broker.alarms.waiting) == 1)

    # Messages can still be read and settled, and the broker frees the space of dead messages.
    await reader.socket.send(marshal(1, spec.Basic.Consume(queue="q", consumer_tag="c")))
    await _body_count(reader, count + 1)
    await reader.socket.send(marshal(1, spec.Basic.Ack(count + 1, True)))
    await running.until(lambda: "disk" not in on)
    assert not reserve.missing and "reserve" in os.listdir(tmp_path)
    last = 0
    while last < count + 3:
        last = (await publisher.expect(spec.Basic.Ack)).delivery_tag
    writer = running.node.store_writer
    assert isinstance(writer, DurableStoreWriter) and writer.blocked_reason == ""
    assert reserve.given_up == 1
    await running.stop()
    assert "reserve" not in os.listdir(tmp_path), "a stopped broker needs no reserve"


async def test_the_disk_is_looked_at_when_much_was_written(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "CHECK_INTERVAL", 1_000.0)
    monkeypatch.setattr(storing, "LOOK_BYTES", 1 * MB)
    disk = SmallDisk(str(tmp_path), 64 * MB)
    running = await start(
        disk=disk, data={"dir": str(tmp_path)}, limits={"disk_free": 60 * MB}, store=SMALL
    )
    on = running.node.broker.alarms.on
    client = await _durable(running)
    body = bytes(100_000)
    assert "disk" not in on
    published = 0
    while "disk" not in on:
        assert published < 600, "the disk's space was not examined"
        published += 5
        await client.socket.send(publication("", "q", body, delivery_mode=2) * 5)
        while (await client.expect(spec.Basic.Ack)).delivery_tag < published:
            pass
    assert running.node.alarm_watch.disk_free > 56 * MB
    await client.socket.send(publication("", "q", body, delivery_mode=2) * 2)
    await running.until(lambda: len(running.node.broker.alarms.waiting) == 1)
    # Messages of a deleted queue give their space back although no message is published any more.
    monkeypatch.setattr(alarms, "CHECK_INTERVAL", 0.01)
    running.node.store_writer.wrote_much()
    reader = await running.amqp()
    await reader.call(spec.Queue.Delete(queue="q"), spec.Queue.DeleteOk)
    await running.until(lambda: "disk" not in on)
    while (await client.expect(spec.Basic.Ack)).delivery_tag < published + 2:
        pass


async def test_reserve_is_a_threshold_on_file_systems_that_copy_on_write(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "copies_on_write", lambda path: True)
    running = await start(
        data={"dir": str(tmp_path)},
        store={"segment": 1 * MB, "reserve": True},
        limits={"disk_free": 1},
    )
    assert running.node.alarm_watch.disk_limit == 2 * MB + disk_reserve.CATALOG_BYTES
    assert "reserve" not in os.listdir(tmp_path)
    assert running.node.reserve is not None and not running.node.reserve.missing


def test_the_file_system_of_a_directory_is_the_one_of_its_closest_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(process, "_MOUNTS", mounts)
    line = "1 0 0:1 / {} rw shared:1 - {} none rw\n"
    mounted = [("/", "ext4"), ("/srv", "btrfs"), (r"/srv/a\040b", "xfs"), ("/srv/\u00e0", "ext4")]
    lines = "".join(line.format(*mount) for mount in mounted).encode()
    mounts.write_bytes(lines + line.format("/", "ext4").encode().replace(b"/ /", b"/ /\xff"))
    assert not process.copies_on_write(Path("/var"))
    assert process.copies_on_write(Path("/srv/x"))
    assert not process.copies_on_write(Path("/srv/a b/c"))
    assert not process.copies_on_write(Path("/srv/\u00e0/c"))
    mounts.unlink()
    assert process.copies_on_write(Path("/var")), (
        "an unknown file system counts as copying on write"
    )


async def test_no_checkpoint_is_begun_that_does_not_fit(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "CHECK_INTERVAL", 0.01)
    disk = SmallDisk(str(tmp_path), 64 * MB)
    running = await start(
        disk=disk, data={"dir": str(tmp_path)}, limits={"disk_free": 1 * MB}, store=SMALL
    )
    on = running.node.broker.alarms.on
    client = await _durable(running)
    await client.queue("stays", durable=True)
    body = bytes(10_000)
    # Every file has live and dead messages, so only a checkpoint gives space back.
    both = publication("", "q", body, delivery_mode=2) * 4 + publication(
        "", "stays", body, delivery_mode=2
    )
    await _publish(client, both, 5, 40)
    created: list[str] = []
    small = disk.refuse

    def refuse(operation: str, path: str) -> int:
        if operation == "create" and path.endswith(".tmp"):
            created.append(path)
        return small(operation, path)

    disk.refuse = refuse
    disk.ballast = disk.free("") - 300_000
    await running.until(lambda: "disk" in on)
    await client.call(spec.Queue.Delete(queue="q"), spec.Queue.DeleteOk)
    for _ in range(20):
        running.node.store_writer.wrote_much()
        await asyncio.sleep(0.01)
    assert not created
    disk.ballast -= 500_000
    await running.until(lambda: bool(created))
    await running.until(lambda: "disk" not in on)


@given(used=st.integers(0, 1 << 40), limit=st.integers(0, 1 << 40))
def test_memory_is_checked_before_it_can_exceed_its_limit_by_much(used: int, limit: int) -> None:
    pause = alarms.seconds_to_check(used, limit)
    assert alarms.CHECK_PAUSE <= pause <= alarms.CHECK_INTERVAL
    if used < limit:
        most = used + pause * alarms.GROWTH_MAX
        assert most <= limit + alarms.CHECK_PAUSE * alarms.GROWTH_MAX
    else:
        assert pause == alarms.CHECK_INTERVAL
