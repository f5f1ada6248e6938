"""Tests of shortages of file descriptors, at each moment in the life of a broker.

One life of a broker opens many files: for a long queue, dead letters, streams with retention,
checkpoints and dropped files. The tests repeat this life on a simulated disk, and each time another
file cannot be opened at first. No message may be lost, the store must not stop, and all work must
continue by itself once there are descriptors again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.upkeep import TAIL_RETRY_MS
from broker.store.checkpoint import DONE
from broker.store.checkpoint_schedule import begin_checkpoint
from broker.store.disk import NO_DESCRIPTORS, OutOfDescriptors, Poisoned, StoreError, WriteFailed
from broker.store.dropping import dead_files, drop_dead_files
from tests.clients import Amqp
from tests.store.homes import Home
from tests.store.simulated import SimulatedDisk
from tests.streams.tables import stream
from tests.streams.test_stream_queues import consume, declare

#: Operations of a disk that need a new file descriptor.
OPENINGS = ("open", "opendir", "create", "list")
#: Maximum number of retries until all work must be done.
RETRIES = 40
#: Number of messages that each queue and stream gets.
COUNT = 24


class Shortage:
    """A shortage of descriptors: after `first` openings, the next `times` openings fail."""

    def __init__(self, disk: SimulatedDisk, first: int, times: int, number: int) -> None:
        self.count = 0
        self.refused: list[str] = []
        self._first, self._times, self._number = first, times, number
        disk.refuse = self._refuse

    def _refuse(self, operation: str, path: str) -> int:
        if operation not in OPENINGS:
            return 0
        self.count += 1
        if self._first < self.count and len(self.refused) < self._times:
            self.refused.append(f"{operation} {path}")
            return self._number
        return 0


class ScarceHome(Home):
    """A broker on a data directory, which writes a batch again after a shortage of descriptors."""

    def __init__(self, directory: Path, disk: SimulatedDisk) -> None:
        super().__init__(directory, disk=disk, segment_size=2_000)
        self.store.window = 4

    def turn(self) -> None:
        self.broker.agenda.turn()
        batch = self.store.take()
        for _ in range(RETRIES):
            try:
                batch.write()
                break
            except WriteFailed as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
        else:
            raise AssertionError("the batch could not be written")
        self.store.written(batch)
        self.broker.agenda.turn()

    def free_space(self) -> None:
        """Drop dead files and make a checkpoint, again and again until both succeed."""
        log = self.store.log
        for _ in range(RETRIES):
            try:
                if dead_files(log):
                    drop_dead_files(log)
                checkpointing = begin_checkpoint(log, self.store.holder_numbers, True)
                break
            except Poisoned:
                raise
            except StoreError:
                continue
        else:
            raise AssertionError("no checkpoint was begun")
        failures = 0
        while checkpointing is not None and checkpointing.stage != DONE:
            try:
                checkpointing.step()
            except OutOfDescriptors:
                failures += 1
        assert failures < RETRIES


def body(name: str, number: int) -> bytes:
    return b"%s %d " % (name.encode(), number) + bytes(300)


def consumed(home: Home, reader: Amqp, first: list[Any], count: int) -> list[bytes]:
    """Read and acknowledge messages until there are `count`, and return their contents.

    `first` are the frames that the reader has got already. The queue may have to read messages
    from the disk several times, so wait for it.
    """
    messages = reader.bodies(first)
    for _ in range(RETRIES):
        while len(messages) < count:
            frames = reader.send(spec.Basic.Ack(0, True))
            if not reader.bodies(frames):
                break
            messages += reader.bodies(frames)
        if len(messages) >= count:
            break
        home.sleep(int(TAIL_RETRY_MS))
        messages += reader.bodies()
    reader.send(spec.Basic.Ack(0, True))
    return messages


def live(home: ScarceHome) -> None:
    """Do the work of one life of a broker (see this module), and check that all messages arrive."""
    client, reader, follower = home.amqp(), home.amqp(), home.amqp()
    client.queue("long", durable=True)
    client.queue(
        "short",
        durable=True,
        x_max_length=5,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    client.queue("dead", durable=True)
    declare(client, "s", x_max_length_bytes=20_000)
    declare(client, "gone")
    for name in ("s", "gone"):
        stream(home.broker, name).local.segment_writer.segment_size = 5_000
    for number in range(COUNT):
        for name in ("long", "short", "s", "gone"):
            client.publish("", name, body(name, number), delivery_mode=2)
    reader.send(spec.Basic.Qos(prefetch_count=5))
    frames = reader.send(spec.Basic.Consume(queue="long", consumer_tag="long"))
    assert consumed(home, reader, frames, COUNT) == [body("long", n) for n in range(COUNT)]
    home.free_space()
    client.send(spec.Queue.Delete(queue="gone"))
    for number in range(COUNT, 2 * COUNT):
        client.publish("", "short", body("short", number), delivery_mode=2)
    home.free_space()
    first = int(stream(home.broker, "s").local.first_offset)
    frames = consume(follower, prefetch=3, name="s")
    assert consumed(home, follower, frames, COUNT - first) == [
        body("s", number) for number in range(first, COUNT)
    ]
    home.sleep(2 * int(TAIL_RETRY_MS))
    client.publish("", "short", body("short", 2 * COUNT), delivery_mode=2)
    home.free_space()


def check(home: Home, directory: Path, disk: SimulatedDisk, kept: float = 1.0) -> None:
    """Check that the store reports no loss; crash and restart the broker, and check its messages.

    `kept` is the chance with which each unsynced change survives the crash.
    """
    assert home.complaints == [] and not home.store.log.poisoned
    assert not [path for path in disk.names if "/gone/" in path]
    home.crash()
    again = ScarceHome(directory, disk.crashed(Random(1), kept))
    assert again.complaints == []
    for finding in again.broker.streams.findings:
        assert "these files belong to a deleted stream" in str(finding), str(finding)
    assert again.queue("long").depth == 0
    last = 2 * COUNT + 1
    for name, numbers in (("short", range(last - 5, last)), ("dead", range(last - 5))):
        reader = again.amqp()
        frames = reader.send(spec.Basic.Consume(queue=name, consumer_tag=name, no_ack=True))
        assert reader.bodies(frames) == [body("short", number) for number in numbers]
    again.crash()


def openings(directory: Path) -> int:
    """Return how many files `live` and `check` open if there is no shortage."""
    disk = SimulatedDisk()
    home = ScarceHome(directory, disk)
    shortage = Shortage(disk, 0, 0, 0)
    live(home)
    check(home, directory, disk)
    return shortage.count


def shortages(directory: Path, step: int, begin: int = 0) -> set[str]:
    """Run a broker again and again, each time with a shortage of descriptors.

    The shortages begin at every `step`-th opening of a file. Return the refused operations.
    """
    count = openings(directory / "whole")
    refused: set[str] = set()
    for first in range(begin, count, step):
        for times in (1, 7):
            number = (errno.EMFILE, errno.ENFILE)[first % 2]
            below = directory / f"{first}-{times}"
            disk = SimulatedDisk()
            home = ScarceHome(below, disk)
            shortage = Shortage(disk, first, times, number)
            live(home)
            assert len(shortage.refused) == times or first + times > count
            check(home, below, disk, first % 3 / 2)
            refused |= {line.split()[0] for line in shortage.refused}
    return refused


def test_a_life_in_which_openings_fail_loses_nothing(tmp_path: Path) -> None:
    assert shortages(tmp_path, 13) == set(OPENINGS)


@pytest.mark.long
def test_a_life_in_which_any_opening_fails_loses_nothing(tmp_path: Path) -> None:
    assert shortages(tmp_path, 1) == set(OPENINGS)


def test_a_start_without_descriptors_fails_with_the_reason_and_loses_nothing(
    tmp_path: Path,
) -> None:
    disk = SimulatedDisk()
    home = ScarceHome(tmp_path, disk)
    live(home)
    home.crash()
    files = disk.contents()
    first = 0
    reasons: list[str] = []
    while True:
        there = SimulatedDisk(files)
        shortage = Shortage(there, first, 1, errno.ENFILE)
        try:
            started = ScarceHome(tmp_path, there)
        except StoreError as error:
            reasons.append(str(error))
        else:
            if not shortage.refused:
                started.crash()
                break
            assert started.complaints == []
            started.crash()
        check(ScarceHome(tmp_path, there), tmp_path, there)
        first += 1
    assert len(reasons) > 10
    assert all(os.strerror(errno.ENFILE) in reason for reason in reasons), reasons
