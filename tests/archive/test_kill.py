"""Kills of the broker and the worker: each confirmed row is in the archive or on the disk, once.

The test repeats: start the broker, publish numbered messages, kill -9 the worker or the broker at a
random time. At the end it reads all rows, over AMQP and from the files of the archive.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow.fs
import pytest
from pika.exceptions import AMQPError
from pyarrow import parquet

from tests.archive.running import ArchivingBroker
from tests.archive.s3_server import BUCKET, S3Server

Row = tuple[int, bytes]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


class Publishing(threading.Thread):
    """A thread that publishes numbered messages until the broker is killed.

    The publisher uses deduplication. Its first number is `first`: if the preceding publisher got no
    confirm of this number, the broker may have the message already.
    """

    def __init__(self, broker: ArchivingBroker, first: int) -> None:
        super().__init__(daemon=True)
        self._channel = broker.channel()
        #: The number after the last confirmed message.
        self.confirmed = first

    def run(self) -> None:
        from pika import BasicProperties

        try:
            self._channel.confirm_delivery()
            while True:
                number = self.confirmed
                headers = {"x-trellis-producer": "p", "x-trellis-sequence": number}
                properties = BasicProperties(headers=headers, delivery_mode=2)
                self._channel.basic_publish("", "s", b"%06d" % number * 100, properties)
                self.confirmed = number + 1
        except (AMQPError, OSError):
            return  # The broker was killed.


def archived_rows(filesystem: pyarrow.fs.FileSystem, root: str) -> list[Row]:
    """Return all rows of all files in the archive, in the order of the files' names."""
    selector = pyarrow.fs.FileSelector(root, recursive=True)
    files = [
        info.path
        for info in filesystem.get_file_info(selector)
        if info.is_file and not info.base_name.startswith(".")
    ]
    rows: list[Row] = []
    for path in sorted(files):
        table = parquet.read_table(path, filesystem=filesystem, partitioning=None)
        rows += zip(table["offset"].to_pylist(), table["body"].to_pylist(), strict=True)
    return rows


def survive(data: Path, url: str, kills: int, random: Random) -> tuple[int, list[Row]]:
    """Kill the broker `kills` times, and sometimes the archive worker, during publishing.

    Afterwards, return the number of confirmed messages, and the rows of the stream with offsets
    below this number. `data` is the broker's data directory, `url` the archive's URL.
    """
    confirmed = 0
    for life in range(kills + 1):
        broker = ArchivingBroker(data, url)
        try:
            if life == 0:
                broker.declare()
            publishing = Publishing(broker, confirmed)
            publishing.start()
            target = random.randrange(1, 6)
            if random.random() < 0.4:
                state = broker.wait(lambda state: state["worker_pid"] > 0)
                os.kill(state["worker_pid"], signal.SIGKILL)
            next(state for state in broker.states() if state["uploaded_segments"] >= target)
            if life < kills:
                broker.kill()
                publishing.join()
                confirmed = publishing.confirmed
                continue
            confirmed = publishing.confirmed
            rows = broker.read(confirmed)
            publishing.join(0)
            return confirmed, rows
        finally:
            broker.kill()
    raise AssertionError


def check(confirmed: int, rows: list[Row], archived: list[Row]) -> None:
    assert [offset for offset, _ in rows] == list(range(len(rows))) and len(rows) >= confirmed
    assert [body for _, body in rows] == [b"%06d" % number * 100 for number in range(len(rows))]
    known = len(archived)
    assert [offset for offset, _ in archived] == list(range(known))
    assert [body for _, body in archived] == [b"%06d" % number * 100 for number in range(known)]
    assert known > 0


SEED = int(os.environ.get("TRELLIS_CRASH_SEED", "1"))


def test_kills_with_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    directory.mkdir()
    confirmed, rows = survive(tmp_path / "data", f"file://{directory}", 1, Random(SEED))
    check(confirmed, rows, archived_rows(pyarrow.fs.LocalFileSystem(), str(directory)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_many_kills_with_a_directory(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "archive"
    directory.mkdir()
    confirmed, rows = survive(tmp_path / "data", f"file://{directory}", 10, Random(seed))
    check(confirmed, rows, archived_rows(pyarrow.fs.LocalFileSystem(), str(directory)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_many_kills_with_an_object_store(tmp_path: Path, seed: int, s3: S3Server) -> None:
    confirmed, rows = survive(tmp_path / "data", s3.url(f"kills-{seed}"), 10, Random(seed))
    filesystem = pyarrow.fs.S3FileSystem(
        access_key="test",
        secret_key="test",
        region="us-east-1",
        scheme="http",
        endpoint_override=f"127.0.0.1:{s3.port}",
    )
    check(confirmed, rows, archived_rows(filesystem, f"{BUCKET}/kills-{seed}"))
