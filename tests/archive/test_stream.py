"""Tests of retention and readers of a stream whose archive answers only when a test calls it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pamqp.commands as spec
import pytest
from mypy_extensions import i64

from broker.broker import Broker
from broker.store.disk import RealDisk
from broker.stream.archived import ArchiveBackend, ArchivedRows
from broker.stream.segments import Segment
from tests.clients import Amqp
from tests.store.homes import Home
from tests.streams.tables import stream
from tests.streams.test_stream_queues import consume, offsets, reason

#: The stream keeps one full segment and the active segment.
SEGMENT = 5_000


class SlowArchive(ArchiveBackend):
    """An archive in memory, which uploads and answers only when the test calls it.

    The test calls `upload` for each segment, and `answer` for each request of the broker.
    """

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self.full = False
        self.waiting: list[tuple[ArchivedRows, Segment]] = []
        self.dropped: list[tuple[Segment, bool]] = []
        self.stored: list[Segment] = []
        self.requests: list[tuple[str, ArchivedRows, int]] = []
        self.known: dict[int, tuple[int, int]] = {}

    def progress(self, number: int) -> tuple[int, int]:
        return self.known.get(number, (-1, 0))

    def add_waiting(self, rows: ArchivedRows, segment: Segment) -> None:
        self.waiting.append((rows, segment))

    def drop_waiting(self, rows: ArchivedRows, segment: Segment, deleted: bool) -> None:
        self.waiting.remove((rows, segment))
        self.dropped.append((segment, deleted))

    def backlog_full(self) -> bool:
        return self.full and len(self.waiting) > 2

    def fetch(self, rows: ArchivedRows, offset: i64) -> None:
        self.ask("fetch", rows, int(offset))

    def find_time(self, rows: ArchivedRows, moment: i64) -> None:
        self.ask("time", rows, int(moment))

    def find_first(self, rows: ArchivedRows) -> None:
        self.ask("first", rows, 0)

    def remove_stream(self, rows: ArchivedRows) -> None:
        self.requests = []

    def ask(self, kind: str, rows: ArchivedRows, value: int) -> None:
        if (kind, rows, value) not in self.requests:
            self.requests.append((kind, rows, value))

    # -- what the test does

    def upload(self) -> None:
        """Upload the oldest segment that waits."""
        rows, segment = self.waiting.pop(0)
        path = self.directory / f"{segment.base}"
        path.write_bytes(Path(segment.path).read_bytes())
        copy = Segment(RealDisk(), str(path), 0, int(segment.base))
        copy.load_index(segment.encode_index(), int(segment.size))
        self.stored.append(copy)
        rows.on_uploaded(segment, int(self.stored[0].base))
        self._changed(rows)

    def answer(self, failure: str = "") -> None:
        """Answer the oldest request of the broker; `failure` is the error, "" for success."""
        kind, rows, value = self.requests.pop(0)
        if failure:
            rows.keep_failure(value, failure)
        elif kind == "first":
            rows.first, rows.first_known = (self.stored[0].base if self.stored else -1), True
        elif kind == "time":
            bases = [int(one.base) for one in self.stored if one.last_at >= value]
            rows.keep_start(value, bases[0] if bases else -1)
        else:
            [segment] = [one for one in self.stored if one.base <= value < one.end]
            if segment not in rows.restored:
                segment.waits = False
                rows.on_fetched(segment)
        self._changed(rows)

    def _changed(self, rows: ArchivedRows) -> None:
        assert rows.changed is not None
        self.broker.agenda.add(rows.changed)


class Archived:
    """A broker with a stream `s`, and its slow archive."""

    def __init__(self, directory: Path) -> None:
        self.home = Home(directory / "data")
        (directory / "archive").mkdir()
        self.archive = SlowArchive(self.home.broker, directory / "archive")
        self.home.broker.streams.archive = self.archive
        self.client = self.home.amqp()
        self.client.send(
            spec.Queue.Declare(
                queue="s",
                durable=True,
                arguments={
                    "x-queue-type": "stream",
                    "x-stream-max-segment-size-bytes": SEGMENT,
                    "x-max-length-bytes": 2 * SEGMENT,
                },
            )
        )
        self.sent = 0

    @property
    def first(self) -> int:
        """The first offset of the stream `s` that is on the disk."""
        return int(stream(self.home.broker, "s").local.first_offset)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.home.broker.agenda.wall += 1
            self.client.publish("", "s", b"%d" % self.sent)
            self.sent += 1

    def upload_all(self) -> None:
        while self.archive.waiting:
            self.archive.upload()
        self.client.send()


@pytest.fixture
def archived(tmp_path: Path) -> Archived:
    return Archived(tmp_path)


def test_retention_waits_for_the_upload(archived: Archived) -> None:
    archived.publish(50)
    assert archived.first == 0 and len(archived.archive.waiting) > 10
    for _ in range(5):
        segment = archived.archive.waiting[0][1]
        archived.archive.upload()
        archived.client.send()
        assert archived.first == segment.end
    archived.publish(10)
    assert archived.first == archived.archive.stored[-1].end


def test_a_full_backlog_lets_retention_remove_the_oldest_segments(archived: Archived) -> None:
    archived.publish(30)
    assert archived.first == 0
    archived.archive.full = True
    archived.publish(10)
    assert len(archived.archive.waiting) <= 3
    dropped = [segment for segment, _ in archived.archive.dropped]
    assert archived.first == dropped[-1].end > 0
    assert [segment.base for segment in dropped] == [0, *(one.end for one in dropped[:-1])]


def test_a_reader_continues_from_the_archive_to_the_disk(archived: Archived) -> None:
    archived.publish(60)
    archived.upload_all()
    assert archived.first > 20
    client = archived.home.amqp()
    received = offsets(consume(client, "first", 1_000))
    assert received == []
    while archived.archive.requests:
        archived.archive.answer()
        received += offsets(client.send())
    assert received == list(range(60))
    archived.publish(1)
    assert offsets(client.send()) == [60]


@pytest.mark.parametrize("seed", range(2))
def test_readers_get_their_rows_in_any_order_of_answers(archived: Archived, seed: int) -> None:
    random = Random(seed)
    readers: dict[Amqp, list[int]] = {}
    begins: dict[Amqp, int] = {}
    for _ in range(120):
        step = random.randrange(6)
        if step == 0 and len(readers) < 6 and archived.sent:
            client = archived.home.amqp()
            begin = random.randrange(archived.sent)
            readers[client] = offsets(consume(client, begin, 10_000))
            begins[client] = begin
        elif step == 1 and archived.archive.waiting:
            archived.archive.upload()
        elif step == 2 and archived.archive.requests:
            archived.archive.requests.sort(key=lambda _: random.random())
            archived.archive.answer()
        elif step == 3:
            for rows in {rows for _, rows, _ in archived.archive.requests}:
                for segment in list(rows.restored):  # The cache is full.
                    rows.drop_restored(segment)
        else:
            archived.publish(random.randrange(4))
        for client, received in readers.items():
            received += offsets(client.send())
    archived.upload_all()
    while archived.archive.requests:
        archived.archive.answer()
        for client, received in readers.items():
            received += offsets(client.send())
    for client, received in readers.items():
        assert received == list(range(begins[client], archived.sent))
    assert archived.first > 0


def test_a_time_is_found_in_the_archive(archived: Archived) -> None:
    archived.publish(40)
    archived.upload_all()
    published = archived.home.broker.agenda.wall - archived.sent  # One second before row 0.
    client = archived.home.amqp()
    archived.home.broker.agenda.wall = published + 60 + 10
    assert offsets(consume(client, "1m", 1_000)) == []
    received: list[int] = []
    while archived.archive.requests:
        archived.archive.answer()
        received += offsets(client.send())
    assert received == list(range(9, 40))


def test_a_row_that_cannot_be_fetched_ends_the_reader(archived: Archived) -> None:
    archived.publish(40)
    archived.upload_all()
    client = archived.home.amqp()
    consume(client, 3, 1_000)
    archived.archive.answer("offset 3 cannot be read: the file is damaged")
    code, text = reason(client.send())
    assert code == 406 and text.endswith("offset 3 cannot be read: the file is damaged")
    other = archived.home.amqp()
    consume(other, 3, 1_000)
    archived.archive.answer()
    assert offsets(other.send())[:1] == [3], "a later reader tries again"


def test_an_offset_before_the_archive_is_refused(archived: Archived) -> None:
    archived.archive.full = True
    archived.publish(40)
    archived.archive.full = False
    archived.upload_all()
    first = int(archived.archive.stored[0].base)
    assert 0 < first < archived.first
    code, text = reason(consume(archived.client, first - 1))
    assert code == 406 and f"the first available offset is {first}" in text


def test_a_deleted_stream_asks_for_nothing_more(archived: Archived) -> None:
    archived.publish(40)
    for _ in range(3):
        archived.archive.upload()
    client = archived.home.amqp()
    consume(client, 0, 1_000)
    assert archived.archive.requests
    waiting = len(archived.archive.waiting)
    archived.client.send(spec.Queue.Delete(queue="s"))
    assert archived.archive.waiting == [] and archived.archive.requests == []
    assert [deleted for _, deleted in archived.archive.dropped] == [True] * waiting
