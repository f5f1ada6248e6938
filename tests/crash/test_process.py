"""Faults as an operator meets them: messages and exit codes of the broker process."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pamqp.commands as spec
import pytest

from tests.broker import BrokerProcess, command, environment
from tests.crash.ledger import body_of
from tests.crash.wire import (
    GONE,
    PATIENCE,
    Amqp,
    Confirmed,
    Delivered,
    Refused,
    acknowledgement,
    persistent,
    until,
)
from tests.top.test_start import as_anybody
from trellis.parent_process import end_with_parent


def refused(directory: Path) -> str:
    """Check that a broker refuses to start with exit code 2; return the line that it prints."""
    ended = subprocess.run(
        command("--data-dir", str(directory)),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=30,
        preexec_fn=as_anybody,
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    return ended.stderr.rstrip("\n")


async def confirming(port: int, queue: str = "q") -> Amqp:
    client = await Amqp.connect(port)
    await client.call(spec.Queue.Declare(queue=queue, durable=True), (50, 11))
    await client.call(spec.Confirm.Select(), (85, 11))
    return client


async def publish(client: Amqp, first: int, end: int, size: int = 60, queue: str = "q") -> None:
    await client.send(
        b"".join(persistent("", queue, body_of("p", number, size)) for number in range(first, end))
    )


async def confirmed(client: Amqp, end: int) -> None:
    """Wait until the messages with the numbers below `end` are confirmed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            event = await client.event()
            assert isinstance(event, Confirmed), event
            if event.number >= end:
                return


async def take(port: int, count: int, queue: str = "q") -> list[bytes]:
    """Consume and acknowledge `count` messages of a queue; return their bodies."""
    client = await Amqp.connect(port)
    assert await client.depth(queue) >= count
    await client.consume(queue, prefetch=count)
    deliveries: list[Delivered] = []
    async with asyncio.timeout(PATIENCE):
        while len(deliveries) < count:
            event = await client.event()
            assert isinstance(event, Delivered), event
            deliveries.append(event)
        await client.send(acknowledgement(deliveries[-1].tag, True))
        await client.leave()
    return [one.body for one in deliveries]


def run(work: Callable[[], object]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


# -- the lock of the directory


def test_a_second_process_is_refused_and_the_first_is_not_disturbed(tmp_path: Path) -> None:
    broker = BrokerProcess("--data-dir", str(tmp_path))

    async def work() -> None:
        client = await confirming(broker.amqp.port)
        await publish(client, 0, 10)
        await confirmed(client, 10)
        output = await asyncio.to_thread(refused, tmp_path)
        assert output == (
            f"trellis: the data directory '{tmp_path}' is in use by process {broker.process.pid}; "
            "stop that process, or choose another data directory"
        )
        await publish(client, 10, 20)
        await confirmed(client, 20)
        await client.leave()

    try:
        run(work)
        broker.stop()
    finally:
        broker.kill()
    # The lock of the directory ends with the process that holds it.
    again = BrokerProcess("--data-dir", str(tmp_path))
    try:
        run(lambda: _all(again.amqp.port, 20))
        again.stop()
    finally:
        again.kill()


async def _all(port: int, count: int, size: int = 60) -> None:
    assert await take(port, count) == [body_of("p", number, size) for number in range(count)]


def catalog_is_read_only(directory: Path) -> str:
    (directory / "catalog.sqlite").touch(0o400)
    return (
        f"trellis: cannot use the catalog {directory}/catalog.sqlite: "
        "attempt to write a readonly database; check the disk, and the owner and the permissions "
        "of the file"
    )


def lock_is_not_writable(directory: Path) -> str:
    (directory / "lock").touch(0o400)
    return (
        f"trellis: cannot write '{directory}/lock' in the data directory '{directory}': Permission "
        "denied; check the owner and the permissions of this file"
    )


def log_is_a_file(directory: Path) -> str:
    (directory / "log").touch()
    return f"trellis: cannot read '{directory}/log': Not a directory"


@pytest.mark.parametrize("make", [catalog_is_read_only, lock_is_not_writable, log_is_a_file])
def test_unusable_data_directory_is_reported(make: Callable[[Path], str], tmp_path: Path) -> None:
    says = make(tmp_path)
    assert refused(tmp_path).startswith(says)


def mount(*arguments: str) -> bool:
    try:
        return (
            subprocess.run(["mount", *arguments], capture_output=True, timeout=10).returncode == 0
        )
    except OSError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB for the test, and yield its path; skip the test without root."""
    there = tmp_path / "disk"
    there.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=4m", "none", str(there)):
        pytest.skip("mounting a file system needs root")
    try:
        yield there
    finally:
        subprocess.run(["umount", "--lazy", str(there)], check=True)


def test_a_read_only_file_system_is_named(small_disk: Path) -> None:
    assert mount("-o", "remount,ro", str(small_disk))
    assert refused(small_disk).startswith(
        f"trellis: data.dir: {small_disk} cannot be written to: Read-only file system; "
    )


# -- full and broken disks


def test_on_a_full_disk_nothing_is_confirmed_until_there_is_room_and_nothing_is_lost(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    broker = BrokerProcess(
        "--data-dir",
        str(small_disk / "data"),
        "--store-segment",
        "65536",
        "--limits-disk-free",
        "0",
    )
    # The messages do not fit onto the disk beside the ballast, but they fit without the ballast.
    count, size = (600, 6_000)

    async def work() -> None:
        client = await confirming(broker.amqp.port)
        await publish(client, 0, count // 2, size)
        await confirmed(client, count // 2)
        await publish(client, count // 2, count, size)
        await until(lambda: "store_blocked" in broker.log)
        # While its store is blocked, the broker still serves other clients.
        other = await Amqp.connect(broker.amqp.port)
        assert await other.depth("q") == count
        await other.leave()
        ballast.unlink()
        await confirmed(client, count)
        await client.leave()

    try:
        run(work)
        broker.process.kill()
        log = broker.log
        assert log.count("store_blocked") == log.count("store_unblocked") == 1
        assert f"cannot write '{small_disk}/data/log/" in log and "No space left on device" in log
    finally:
        broker.kill()
    again = BrokerProcess(
        "--data-dir",
        str(small_disk / "data"),
        "--store-segment",
        "65536",
        "--limits-disk-free",
        "0",
    )
    try:
        run(lambda: _all(again.amqp.port, count, size))
        again.stop()
    finally:
        again.kill()


def test_a_file_that_may_not_grow_ends_the_broker_with_one_line(tmp_path: Path) -> None:
    """Check that the broker ends with one line of error if a file reaches a limit of its size.

    A write fails if it would make the file larger than RLIMIT_FSIZE.
    """
    process = subprocess.Popen(
        command("--data-dir", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
    )
    _breaks(process, lambda: None, "File too large", 6_000, tmp_path)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_disk_that_breaks_ends_the_broker_with_one_line_and_nothing_is_confirmed_any_more(
    operation: str, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.faulty", str(errno.EIO), operation, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=end_with_parent,
    )
    _breaks(process, (tmp_path / "data.breaks").touch, "Input/output error", 60, directory)


def _breaks(
    process: subprocess.Popen[str],
    do: Callable[[], object],
    reason: str,
    size: int,
    directory: Path,
) -> None:
    """Publish messages, cause a fault by a call of `do`, and check how the broker ends.

    The broker must end with an error that contains `reason`. After a restart, it must have all
    confirmed messages.
    """
    heard: list[int] = [0]

    async def work() -> None:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        client = await confirming(int(ready[1].rpartition(":")[2]))
        await publish(client, 0, 10, size)
        await confirmed(client, 10)
        do()
        heard[0] = 10
        try:
            async with asyncio.timeout(PATIENCE):
                for first in range(10, 210, 10):
                    await publish(client, first, first + 10, size)
                while True:
                    event = await client.event()
                    assert isinstance(event, Confirmed), event
                    heard[0] = event.number
        except Refused as error:
            if "CONNECTION_FORCED" not in str(error):
                raise
        except GONE:
            pass

    try:
        run(work)
        output = process.communicate(timeout=PATIENCE)[1].splitlines()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert [line for line in output if "Traceback" in line] == []
    assert (
        output[-1].startswith("trellis: stopped: cannot write to the data directory: cannot ")
        and reason in output[-1]
    ), output
    assert sum(line.startswith("trellis:") for line in output) == 1
    if reason != "File too large":
        assert heard[0] == 10
    again = BrokerProcess("--data-dir", str(directory))
    try:
        run(lambda: _first(again.amqp.port, heard[0], size))
        again.stop()
    finally:
        again.kill()


async def _first(port: int, count: int, size: int) -> None:
    """Check that the queue has the first `count` messages, in order.

    Further messages, which were published and not confirmed, may follow.
    """
    client = await Amqp.connect(port)
    there = await client.depth("q")
    await client.leave()
    assert there >= count
    await _all(port, there, size)
