"""Tests of checkpoints on two real file systems of Hadoop: an object store (`s3a`), and HDFS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pika
import pyarrow as pa
import pytest
from pyspark import SparkFiles

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.sink import StagedRows, StreamWriter
from pyspark_trellis.staging import stage, staged_rows
from pyspark_trellis.storage import HadoopStorage, Storage
from tests.broker import BrokerProcess, environment
from tests.pipeline import hadoop_systems, spark_places
from tests.pipeline.hadoop_systems import HDFS_USER, HadoopSystem
from tests.pipeline.sink_query import SinkQuery
from tests.pipeline.test_exactly_once import session_of
from tests.pipeline.test_sink import SCHEMA, listening
from tests.pipeline.written import journal, row
from trellis.parent_process import end_with_parent

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["s3a", "hdfs"])
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HadoopSystem]:
    scratch = tmp_path_factory.mktemp("hadoop")
    chosen = hadoop_systems.s3a() if request.param == "s3a" else hadoop_systems.hdfs(scratch)
    with chosen as system:
        yield system


@pytest.fixture
def storage(system: HadoopSystem, monkeypatch: pytest.MonkeyPatch, unique: str) -> HadoopStorage:
    """The storage of a directory on the tested file system; the directory does not exist yet."""
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", ":".join(system.jars))
    return HadoopStorage(f"{system.root}/{unique}", json.dumps(system.settings))


def files_of(storage: HadoopStorage, directory: str) -> list[str]:
    """Return the names of the files in a directory."""
    return [
        each.getPath().getName() for each in storage._files.listStatus(storage._path(directory))
    ]


def test_a_file_is_created_whole_and_once(storage: HadoopStorage) -> None:
    storage.write("1/manifest.json", "one \N{SNOWMAN}")
    for text in ("two", "one \N{SNOWMAN}"):
        with pytest.raises(PipelineError, match="the file exists, so another process has written"):
            storage.write("1/manifest.json", text)
    assert storage.read("1/manifest.json") == "one \N{SNOWMAN}"
    storage.write("1/published", "")
    assert storage.read("1/published") == ""
    assert sorted(files_of(storage, "1")) == ["manifest.json", "published"]


def test_a_file_is_created_once_on_an_s3_server_without_conditions(
    monkeypatch: pytest.MonkeyPatch, unique: str
) -> None:
    """An S3 server that does not know `If-None-Match` gets the file by a rename."""
    with hadoop_systems.s3a() as system:
        monkeypatch.setenv("SPARK_DIST_CLASSPATH", ":".join(system.jars))
        settings = system.settings | {"fs.s3a.create.conditional.enabled": "false"}
        storage = HadoopStorage(f"{system.root}/{unique}", json.dumps(settings))
        storage.write("1/manifest.json", "one")
        with pytest.raises(PipelineError, match="the file exists, so another process has written"):
            storage.write("1/manifest.json", "two")
        assert storage.read("1/manifest.json") == "one"
        assert files_of(storage, "1") == ["manifest.json"]


def test_one_of_several_writers_at_once_creates_the_file(storage: HadoopStorage) -> None:
    """If six threads create the same file at the same time, one succeeds and five get an error."""
    count, start = 6, threading.Barrier(6)
    created: dict[int, list[int]] = {number: [] for number in range(10)}
    refusals: list[str] = []

    def write(writer: int) -> None:
        for number in created:
            start.wait()
            try:
                storage.write(f"{number}/manifest.json", str(writer))
                created[number].append(writer)
            except PipelineError as error:
                refusals.append(str(error))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, writers in created.items():
        assert [storage.read(f"{number}/manifest.json")] == [str(writer) for writer in writers]
        assert files_of(storage, str(number)) == ["manifest.json"]
    assert len(refusals) == len(created) * (count - 1)
    assert [text for text in refusals if "the file exists" not in text] == []


def test_rows_go_through_a_file(
    storage: HadoopStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "with a space and %20"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    table = pa.table({"n": list(range(300_000)), "text": ["\N{SNOWMAN}"] * 300_000})
    name = stage(iter(table.to_batches(100_000)), storage, "1")
    assert name is not None
    assert files_of(storage, "1") == [name]
    assert [each["n"] for each in staged_rows(storage, "1", name)] == list(range(300_000))
    assert not list(scratch.iterdir())


def test_what_does_not_exist(storage: HadoopStorage, tmp_path: Path) -> None:
    assert storage.directories() == []
    assert storage.read("1/manifest.json") is None
    assert not storage.exists("1")
    storage.delete("1/manifest.json")
    storage.delete()
    with pytest.raises(PipelineError, match=r"cannot read .*/1/a: .*FileNotFoundException"):
        storage.fetched("1/a", tmp_path)


def test_names_may_have_any_character_that_the_file_system_allows(storage: HadoopStorage) -> None:
    directory = "B\N{LATIN SMALL LETTER U WITH DIAERESIS}cher \N{SNOWMAN} %20 a+b#c?d"
    storage.write(f"{directory}/{directory}", directory)
    assert storage.read(f"{directory}/{directory}") == directory
    assert storage.directories() == [directory]
    assert files_of(storage, directory) == [directory]
    storage.delete(directory)
    assert storage.directories() == []


def test_directories_are_created_and_deleted(storage: HadoopStorage) -> None:
    storage.make()
    storage.make()
    assert storage.exists("")
    assert storage.directories() == []
    for name in ("1/a", "1/b", "2/a", "file"):
        storage.write(name, name)
    assert storage.directories() == ["1", "2"]
    storage.delete("1/a")
    assert storage.read("1/a") is None
    assert storage.read("1/b") == "1/b"
    storage.delete("1")
    assert storage.directories() == ["2"]
    assert storage.read("1/b") is None
    storage.delete()
    assert not storage.exists("")


def staged(storage: Storage, query: str, batch: int, bodies: list[str], tasks: int) -> list[Any]:
    """Stage rows in this number of tasks; return what the tasks report to Spark."""
    reports: list[Any] = []
    for number in range(tasks):
        part = bodies[number::tasks]
        table = pa.table({"topic": ["k"] * len(part), "body": pa.array(part, pa.string())})
        file = stage(iter(table.to_batches(4)), storage, str(batch))
        reports.append(StagedRows(query, file))
    return reports


def test_a_repeated_batch_is_published_once_and_old_batches_are_deleted(
    system: HadoopSystem, storage: HadoopStorage, broker: BrokerProcess, unique: str
) -> None:
    texts = [str(at) for at in range(30)]
    with listening(broker) as (exchange, bodies):
        options = {
            "url": broker.amqp_url,
            "exchange": exchange,
            "checkpointLocation": storage._url,
            "hadoopSecrets": json.dumps(system.settings),
        }
        writer = StreamWriter(SCHEMA, options)
        beside = writer._sink.storage()
        for batch in range(3):
            writer.abort([*staged(beside, unique, batch, texts, 2), None], batch)
            for tasks in (3, 2):  # The batch is repeated after it was published.
                writer.commit(staged(beside, unique, batch, texts, tasks), batch)
            assert sorted(bodies(), key=int) == texts
            assert beside.directories() == [str(batch)]
            left = files_of(storage, f"trellis/{batch}")
            assert sorted(left) == ["manifest.json", "published"]


def test_two_queries_use_one_bucket_with_settings_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that one query writes to its server is not found by a query with other settings.

    The other query's settings name a second server, which has a bucket of the same name.
    """
    with hadoop_systems.s3a() as one, hadoop_systems.s3a() as other:
        monkeypatch.setenv("SPARK_DIST_CLASSPATH", ":".join(one.jars))
        HadoopStorage(f"{one.root}/c", json.dumps(one.settings)).write("a", "one")
        assert HadoopStorage(f"{other.root}/c", json.dumps(other.settings)).read("a") is None


_OWNER = """
from pyspark_trellis.storage import HadoopStorage
storage = HadoopStorage({url!r})
storage.write("a", "text")
print(storage._files.getFileStatus(storage._path("a")).getOwner())
"""


@pytest.mark.parametrize("system", ["hdfs"], indirect=True)
def test_files_in_hdfs_belong_to_the_user_of_the_query(system: HadoopSystem) -> None:
    """Check that files belong to the user of the query, even if an executor runs as another user.

    Spark names the user of the query in the environment variable SPARK_USER.
    """
    url = f"{system.root}/user/{HDFS_USER}/checkpoint"
    printed = hadoop_systems.python(_OWNER.format(url=url), SPARK_USER=HDFS_USER)
    assert printed.split() == [HDFS_USER]


# -- a streaming query that is killed

ROWS, A_BATCH = 60, 20
#: Number of messages of a batch that the queue accepts. It then refuses messages until it is
#: emptied.
FULL = 7
#: Seconds in which a query must reach the middle of a batch.
PATIENCE = 600


class KilledQuery:
    """A query whose messages go to a short queue, so that the test decides when a batch ends."""

    def __init__(self, query: SinkQuery, log: Path, channel: Any, queue: str) -> None:
        self._query = query
        self._log = log
        self._channel = channel
        self._queue = queue
        #: The bodies of all messages that the queue has delivered.
        self.received: list[str] = []

    def _start(self, rows_per_task: int) -> subprocess.Popen[bytes]:
        query = replace(self._query, rows_per_task=rows_per_task)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.sink_query", json.dumps(asdict(query))],
                preexec_fn=end_with_parent,
                start_new_session=True,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _receive(self) -> bool:
        """Receive a message and return True, or return False if the queue is empty."""
        method, _, body = self._channel.basic_get(self._queue, auto_ack=True)
        if method is not None:
            self.received.append(body.decode())
        return method is not None

    def _wait(self) -> None:
        """Wait at most 0.1 s before the next look at the queue, so that the query can continue."""
        self._channel.connection.process_data_events(time_limit=0.1)

    def kill_in_batch(self, number: int, rows_per_task: int) -> None:
        """Run the query until it has published a part of batch `number`; then kill all of it."""
        process = self._start(rows_per_task)
        try:
            end = time.monotonic() + PATIENCE
            waiting = 0
            while len(self.received) < number * A_BATCH or waiting < FULL:
                assert process.poll() is None, self._log.read_text()[-4000:]
                assert time.monotonic() < end, self._log.read_text()[-4000:]
                if len(self.received) < number * A_BATCH and self._receive():
                    continue
                queue = self._channel.queue_declare(self._queue, passive=True)
                waiting = queue.method.message_count
                self._wait()
        finally:
            kill_session(process)
        while self._receive():
            pass

    def finish(self, rows_per_task: int) -> None:
        """Run the query until it has published all rows."""
        process = self._start(rows_per_task)
        try:
            while process.poll() is None:
                if not self._receive():
                    self._wait()
            assert process.returncode == 0, self._log.read_text()[-4000:]
        finally:
            kill_session(process)
        while self._receive():
            pass


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill driver, JVM and workers if they still run."""
    for process_id in session_of(process.pid):
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    process.wait()


@pytest.mark.spark
def test_a_batch_that_a_kill_interrupted_is_published_once(
    system: HadoopSystem,
    storage: HadoopStorage,
    broker: BrokerProcess,
    request: pytest.FixtureRequest,
    unique: str,
    tmp_path: Path,
) -> None:
    """Kill a query in the middle of its second batch, and check that it publishes each row once.

    The restarted query divides the rows of the batch among other tasks.
    Spark's checkpoint and the sink's files are on the tested file system.
    """
    journal(tmp_path / "s", [row(at, "k", body=b"%d" % at) for at in range(ROWS)], 10)
    own_server = spark_places.KIND == "connect"
    query = SinkQuery(
        str(tmp_path / "s"),
        A_BATCH,
        A_BATCH,
        broker.amqp_url,
        unique,
        storage._url,
        json.dumps(system.settings),
        spark_places.OWN_SERVER if own_server else request.getfixturevalue("spark_master"),
        system.spark_settings(),
    )
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        arguments = {"x-max-length": FULL, "x-overflow": "reject-publish"}
        channel.exchange_declare(unique, "topic", auto_delete=True)
        channel.queue_declare(unique, exclusive=True, arguments=arguments)
        channel.queue_bind(unique, unique, "#")
        killed = KilledQuery(query, tmp_path / "query.log", channel, unique)
        killed.kill_in_batch(1, rows_per_task=7)
        assert len(killed.received) == A_BATCH + FULL
        assert storage.read("trellis/1/manifest.json") is not None
        assert not storage.exists("trellis/1/published")
        assert not storage.exists("commits/1")
        killed.finish(rows_per_task=20)
    assert sorted(killed.received, key=int) == [str(at) for at in range(ROWS)]
    last = str(ROWS // A_BATCH - 1)
    assert storage.exists(f"commits/{last}")
    assert sorted(files_of(storage, f"trellis/{last}")) == ["manifest.json", "published"]


@pytest.mark.parametrize("scheme", ["s3a", "unknown"])
def test_missing_classes_are_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_DIST_CLASSPATH", raising=False)
    storage = HadoopStorage(f"{scheme}://bucket/checkpoint")
    with pytest.raises(
        PipelineError, match=r"name the jar files of this file system in spark\.jars"
    ):
        storage.read("a")


def test_jar_files_that_spark_copies_later_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that Hadoop's classes are found after Spark has copied their jar files to the worker.

    The first attempt, without jar files, fails. A Python worker of Spark may outlive a session, and
    the next session may have other jar files. Under Spark Connect, some jar files are in the
    session's directory, others in the server's directory.
    """
    session = tmp_path / str(uuid4())
    session.mkdir()
    monkeypatch.delenv("SPARK_DIST_CLASSPATH", raising=False)
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(session))
    with hadoop_systems.s3a() as system:
        settings = json.dumps(system.settings)
        with pytest.raises(PipelineError, match="ClassNotFoundException"):
            HadoopStorage(system.root, settings).read("a")
        for number, jar in enumerate(map(Path, system.jars)):
            ((session, tmp_path)[number % 2] / jar.name).symlink_to(jar)
        HadoopStorage(system.root, settings).write("a", "text")
        assert HadoopStorage(system.root, settings).read("a") == "text"
