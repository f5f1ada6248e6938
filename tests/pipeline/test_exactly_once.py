"""Kills queries (driver, JVM and workers) at chosen states of their commit logs: every row is
delivered exactly once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pika
import pyarrow.parquet as pq
import pytest

from tests.broker import BrokerProcess
from tests.pipeline import spark_places
from tests.pipeline.written import journal, row
from trellis.parent_process import end_with_parent

#: Seconds that a process may take to reach the state at which it is killed.
PATIENCE: Final = 600
QUEUE: Final = "out"


def session_of(leader: int) -> list[int]:
    """Return the ids of all processes in the session of the process `leader`.

    The process group is not enough: Spark's workers have groups of their own.
    """
    process_ids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[3]) == leader:
                process_ids.append(int(entry.name))
    return process_ids


def committed(table: Path) -> list[Path]:
    """Return the files of a table that Spark has committed; `spark.read` reads no other files."""
    logs = {
        int(path.name.partition(".")[0]): path
        for path in sorted((table / "_spark_metadata").glob("[0-9]*"))
    }
    first = max((number for number, path in logs.items() if path.suffix == ".compact"), default=0)
    lines = [
        line
        for number, path in sorted(logs.items())
        if number >= first
        for line in path.read_text().splitlines()[1:]
    ]
    return [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]


class Log:
    """The commit log of a query."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def count(self, kind: str) -> int:
        """Return the number of started (`kind` = "offsets") or finished ("commits") batches."""
        return len(
            [path for path in (self._checkpoint / kind).glob("[0-9]*") if path.name.isdecimal()]
        )

    def in_a_batch(self, number: int) -> bool:
        return self.count("offsets") > number and self.count("commits") <= number


class Scene:
    """A journal, a broker with a queue for the sink's messages, and the process to kill."""

    def __init__(self, directory: Path, master: str, count: int, a_batch: int) -> None:
        self.directory = directory
        self.master = master
        self.count = count
        self.a_batch = a_batch
        self.running: subprocess.Popen[bytes] | None = None
        self.write(0)
        self.logs = [Log(directory / f"{name}.checkpoint") for name in ("lake", "sink")]
        self.port = 0
        self.broker = self.new_broker()
        with self.channel() as channel:
            channel.exchange_declare("out", "topic", durable=True)
            channel.queue_declare(QUEUE, durable=True)
            channel.queue_bind(QUEUE, "out", "#")

    def write(self, base: int) -> None:
        """Append the rows with the offsets from `base` to `self.count` - 1, in new segments."""
        journal(
            self.directory / "journal",
            [
                row(at, f"t.{at % 5}", body=b"%d" % at, message_id=str(at))
                for at in range(base, self.count)
            ],
            50,
            1000,
        )

    def new_broker(self) -> BrokerProcess:
        return BrokerProcess(
            "--data-dir", str(self.directory / "broker"), "--amqp-port", str(self.port)
        )

    def kill_broker(self) -> None:
        """Kill the broker and start another one on its data, at the same address."""
        self.port = self.broker.amqp.port
        self.broker.kill()
        self.broker = self.new_broker()

    def channel(self) -> Any:
        return _Channel(self.broker.amqp_url)

    def process(self) -> subprocess.Popen[bytes]:
        log = (self.directory / "query.log").open("ab")
        with log:
            self.running = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.pipeline.query",
                    str(self.directory),
                    self.broker.amqp_url,
                    str(self.a_batch),
                    self.master,
                ],
                preexec_fn=end_with_parent,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.running

    def kill_at(self, log: Log, number: int) -> None:
        """Run the queries until the one with this log works on batch `number`; then kill them."""
        process = self.process()
        end = time.monotonic() + PATIENCE
        while not log.in_a_batch(number):
            # The query finished the batch before the kill, so it needs more rows.
            if process.poll() == 0:
                base, self.count = self.count, self.count + 8 * self.a_batch
                self.write(base)
                process = self.process()
            assert process.poll() is None, (self.directory / "query.log").read_text()[-4000:]
            assert time.monotonic() < end, "the query did not reach that batch"
            time.sleep(0.002)
        self.end()

    def end(self) -> None:
        """Kill driver, JVM and workers if they still run, and wait for the end of the driver."""
        process = self.running
        if process is not None:
            for process_id in session_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            process.wait()

    def finish(self) -> None:
        assert self.process().wait(PATIENCE) == 0, (self.directory / "query.log").read_text()[
            -4000:
        ]

    def check(self) -> None:
        """Assert that every row is in the lake once and was published once."""
        files = committed(self.directory / "lake")
        rows = [
            offset
            for file in files
            for offset in pq.read_table(file, columns=["offset"]).column("offset").to_pylist()
        ]
        assert sorted(rows) == list(range(self.count))
        published = []
        with self.channel() as channel:
            for _, properties, _ in channel.consume(QUEUE, auto_ack=True, inactivity_timeout=5):
                if properties is None:
                    break
                published.append(int(properties.message_id))
                if (
                    len(published) >= self.count
                    and not channel.queue_declare(QUEUE, passive=True).method.message_count
                ):
                    break
            channel.cancel()
        assert sorted(published) == list(range(self.count))


class _Channel:
    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Any:
        self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
        return self._connection.channel()

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    own_server = spark_places.KIND == "connect"
    master = spark_places.OWN_SERVER if own_server else request.getfixturevalue("spark_master")
    scene = Scene(tmp_path, master, *request.param)
    yield scene
    scene.end()
    scene.broker.kill()


@pytest.mark.spark
@pytest.mark.parametrize("scene", [(400, 100)], indirect=True)
def test_two_kills_lose_nothing_and_repeat_nothing(scene: Scene) -> None:
    scene.kill_at(scene.logs[0], 1)
    scene.kill_at(scene.logs[1], 2)
    scene.finish()
    scene.check()


@pytest.mark.spark
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("scene", [(1500, 200)], indirect=True)
def test_twenty_kills_of_query_and_broker_lose_nothing_and_repeat_nothing(
    scene: Scene, first: int
) -> None:
    """Kill the query five times, then the broker; each row must be delivered exactly once.

    The sink has published to this broker. Four such runs make twenty kills, and each run stays far
    below the time limit of a test.
    """
    for number in range(5):
        log = scene.logs[(first + number) % 2]
        scene.kill_at(log, max(log.count("commits") + 1, 1))
    scene.kill_broker()
    scene.finish()
    scene.check()
