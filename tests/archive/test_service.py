"""Each request of the broker to the archive worker ends, whatever the worker answers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.agenda import Agenda
from broker.store.disk import RealDisk
from broker.stream.archived import ArchivedRows
from broker.stream.open_files import OpenFiles
from tests.archive.test_files import Archive
from tests.archive.writing import Writing
from tests.broker import ROOT
from trellis import worker_process
from trellis.archive import contract, service
from trellis.archive.service import ArchiveService
from trellis.archive.worker import Worker

#: A worker of another version: it refuses each kind of search with three kinds of failures that the
#: broker does not expect, and then answers.
OTHER_WORKER = """
import socket, sys
from collections import Counter
from trellis.archive import contract
lines = socket.socket(fileno=int(sys.argv[1])).makefile("rwb")
contract.to_worker.decode(lines.readline())
refused = Counter()
def send(message):
    lines.write(contract.line(message))
    lines.flush()
send(contract.Ready())
for line in lines:
    message = contract.to_worker.decode(line)
    failures = contract.BAD, contract.MISSING, contract.GONE
    if refused[type(message)] < len(failures):
        kind = failures[refused[type(message)]]
        refused[type(message)] += 1
        send(contract.RequestFailed(message.number, kind, "another reason"))
    elif isinstance(message, contract.ListFiles):
        send(contract.Listed(message.number, [contract.FileRow(0, 5, 1, 2, 3, "file")]))
    else:
        send(contract.Found(message.number, 7))
"""


async def test_a_search_that_fails_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: str, descriptors: list[int]) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", OTHER_WORKER, str(descriptors[0])]
        return subprocess.Popen(words, pass_fds=descriptors, cwd=ROOT)

    monkeypatch.setattr(worker_process, "start_program", start)
    monkeypatch.setattr(service, "RETRY_MIN", 0.01)
    opening = contract.Open("file:///archive", str(tmp_path / "archive"), 0)
    archive = ArchiveService(opening, 1, 1, 60, RealDisk())
    archive.start(Agenda())
    try:
        rows = ArchivedRows(archive, "/", "s", OpenFiles())
        assert await archive.retried(rows, lambda: rows.offset_since(1)) == 7
        assert len(await archive.files(rows, 0, 10)) == 1
        assert await archive.retried(rows, rows.first_offset) == 7
        assert archive.counters.fetch_failures == 9 and archive.up
        assert len(archive.fetches) == 0
    finally:
        archive.close()


class RunningWorker:
    """An archive worker that runs in a thread of this process."""

    def __init__(self, directory: Path, archive: Path) -> None:
        ours, theirs = socket.socketpair()
        self._lines = ours.makefile("rwb")
        self.send(contract.Open(f"file://{archive}", str(directory), 0))
        worker = Worker(theirs)
        threading.Thread(target=worker.run, daemon=True).start()
        assert self.answer() == contract.Ready()

    def send(self, message: contract.ToWorker) -> None:
        self._lines.write(contract.line(message))
        self._lines.flush()

    def answer(self) -> contract.FromWorker:
        answer: contract.FromWorker = contract.from_worker.decode(self._lines.readline())
        return answer

    def failure(self, message: contract.ToWorker) -> contract.RequestFailed:
        self.send(message)
        failed = self.answer()
        assert isinstance(failed, contract.RequestFailed)
        return failed

    def kind_of_failure(self, message: contract.ToWorker) -> str:
        return self.failure(message).kind


def test_only_an_upload_fails_because_its_segment_is_gone(tmp_path: Path) -> None:
    writing, archive = Writing(tmp_path / "data"), Archive(tmp_path)
    segment, stream = writing.segments[0], archive.listing.stream
    archive.upload(segment, writing.number)
    directory = tmp_path / "worker"
    worker = RunningWorker(directory, archive.path)
    worker.send(contract.FindFirst(1, stream))
    assert worker.answer() == contract.Found(1, 0)
    fetch = contract.FetchFile(2, stream, writing.number, 0)
    assert worker.kind_of_failure(contract.FetchFile(3, stream, 1, 1 << 40)) == contract.MISSING
    shutil.rmtree(directory / "cache")
    assert worker.kind_of_failure(fetch) == contract.AWAY
    gone = contract.Upload(4, stream, 1, f"{tmp_path}/gone", 1 << 40, (1 << 40) + 1, 9, 1, 1)
    assert worker.kind_of_failure(gone) == contract.GONE
    shutil.rmtree(archive.path)
    for search in (
        contract.FindTime(5, "other", 1),
        contract.FindFirst(6, "other"),
        contract.ListFiles(7, "other", 0, 9),
    ):
        assert worker.kind_of_failure(search) == contract.AWAY


def test_a_damaged_file_of_the_archive_is_named(tmp_path: Path) -> None:
    writing, archive = Writing(tmp_path / "data"), Archive(tmp_path)
    archive.upload(writing.segments[0], writing.number)
    [file] = archive.path.rglob("*.parquet")
    pq.write_table(pa.table({"other": [1]}), file)
    worker = RunningWorker(tmp_path / "worker", archive.path)
    fetch = contract.FetchFile(1, archive.listing.stream, writing.number, 0)
    failed = worker.failure(fetch)
    name = file.relative_to(archive.path).as_posix()
    assert failed.kind == contract.BAD
    assert failed.reason.startswith(f"{name}: the archived file cannot be decoded: ")
