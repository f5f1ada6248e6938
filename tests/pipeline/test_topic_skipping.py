"""Readers skip segments in which no topic matches, and never a segment with a matching topic."""

from __future__ import annotations

import base64
import shutil
import struct
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, In
from pyspark.sql.types import LongType, StringType, StructType

from broker.store.disk import RealDisk
from broker.stream.arrow import SCHEMA_SIZE
from broker.stream.recovery import StreamRecovery
from matching import AMQP, MQTT, Grammar, swap
from pyspark_trellis.arrow_feed import JournalFeed
from pyspark_trellis.counts import KEYS
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.exporting import RowSelection
from pyspark_trellis.journal import Directory, JournalStream
from pyspark_trellis.remote import Remote, RemoteBroker
from pyspark_trellis.rows import read_table
from pyspark_trellis.segment_topics import condition_of
from pyspark_trellis.source import JournalReader, JournalStreamReader
from tests.broker import BrokerProcess
from tests.matching.words import GRAMMARS, patterns, topics
from tests.pipeline.written import Row, journal, row
from trellis.topic_summaries.summarizing import summarize

COLUMNS: Final = ["offset", "topic"]
SCHEMA: Final = StructType().add("offset", LongType()).add("topic", StringType())
#: FILTERS match the rows of one segment only, of SEGMENTS segments; they are in both notations.
SEGMENTS: Final = 100
ROWS: Final = 20
FILTERS: Final = [
    ("line.42.#", "amqp"),
    ("*.42.temp", "amqp"),
    ("line/42/+", "mqtt"),
    ("line/42/temp", "mqtt"),
]
WANTED: Final = [(42 * ROWS + at, "line.42.temp") for at in range(ROWS)]


def summarized(directory: Path, rows: list[Row], a_segment: int = 4) -> None:
    """Write a journal of these rows, with an index and a summary of each segment."""
    journal(directory, rows, a_batch=5, a_segment=a_segment)
    StreamRecovery(RealDisk(), str(directory), 1, 0, False)
    summarize([str(directory)])
    segments = len(list(directory.glob("*.arrow")))
    assert segments == len(list(directory.glob("*.topics"))) == -(-len(rows) // a_segment)


def lines(body: int) -> list[Row]:
    return [row(at, f"line.{at // ROWS}.temp", body=bytes(body)) for at in range(SEGMENTS * ROWS)]


def pairs(table: Any) -> list[tuple[int, str]]:
    columns = (table.column(name).to_pylist() for name in COLUMNS)
    return list(zip(*columns, strict=True))


def matching(rows: list[Row], pattern: str, grammar: Grammar) -> list[tuple[int, str]]:
    """Return offset and topic of the rows that match a pattern, by the definition of a match."""
    return [
        (each["offset"], each["topic"])
        for each in rows
        if grammar.matches(pattern, swap(each["topic"]) if grammar is MQTT else each["topic"])
    ]


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=8)
@given(data=st.data())
def test_no_segment_with_a_matching_topic_is_skipped(
    tmp_path_factory: pytest.TempPathFactory, grammar: Grammar, data: st.DataObject
) -> None:
    texts = data.draw(st.lists(topics(AMQP), min_size=12, max_size=12))
    rows = [row(at, topic) for at, topic in enumerate(texts)]
    directory = tmp_path_factory.mktemp("journal")
    summarized(directory, rows)
    for pattern in data.draw(st.lists(patterns(grammar), min_size=10, max_size=10)):
        table = read_table(str(directory), COLUMNS, pattern=pattern, grammar=grammar.name)
        assert pairs(table) == matching(rows, pattern, grammar)


def test_a_filter_that_hits_one_percent_of_the_segments_reads_three_percent_of_the_bytes(
    tmp_path: Path,
) -> None:
    summarized(tmp_path, lines(16_000), ROWS)
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    # To find the segments, a reader reads each schema, index and summary.
    planning = sum(
        int(SCHEMA_SIZE) if file.suffix == ".arrow" else file.stat().st_size for file in files
    )
    for pattern, grammar in FILTERS:
        stream = Directory(str(tmp_path))
        low, high, _ = stream.bounds()
        pieces = stream.pieces(low, high, topics=condition_of(pattern, grammar))
        read = planning + sum(piece.cut.end - piece.cut.start for piece in pieces)
        assert read <= 0.03 * sum(file.stat().st_size for file in files)
        table = read_table(str(tmp_path), COLUMNS, pattern=pattern, grammar=grammar)
        assert pairs(table) == WANTED


# -- all readers skip


@pytest.fixture(scope="module")
def readable_in_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal in which the rows of all segments without `line.42.temp` are damaged.

    A reader that reads such a segment fails.
    """
    directory = tmp_path_factory.mktemp("damaged")
    summarized(directory, lines(10), ROWS)
    for file in directory.glob("*.arrow"):
        if file.name != f"0000000001-{42 * ROWS:020d}.arrow":
            with file.open("r+b") as segment:
                segment.seek(SCHEMA_SIZE + 4_000)
                segment.write(b"damage")
    with pytest.raises(PipelineError, match="is damaged"):
        read_table(str(directory), COLUMNS)
    return directory


def rows_of(reader: JournalReader) -> list[tuple[int, str]]:
    return [
        pair for task in reader.partitions() for batch in reader.read(task) for pair in pairs(batch)
    ]


@pytest.mark.parametrize(("pattern", "grammar"), FILTERS)
def test_each_reader_skips_segments_without_a_matching_topic(
    readable_in_part: Path, pattern: str, grammar: str
) -> None:
    path = str(readable_in_part)
    options = {"path": path, "pattern": pattern, "grammar": grammar}
    assert pairs(read_table(path, COLUMNS, pattern=pattern, grammar=grammar)) == WANTED
    assert rows_of(JournalReader(SCHEMA, options)) == WANTED
    following = JournalStreamReader(SCHEMA, options)
    start = following.initialOffset()
    end = {**start, "next": SEGMENTS * ROWS}
    [task] = following.partitions(start, end)
    assert [pair for batch in following.read(task) for pair in pairs(batch)] == WANTED
    sums = JournalFeed(options, KEYS).sums()
    assert sums.column("topic").to_pylist() == ["line.42.temp"]
    assert sums.column("messages").to_pylist() == [ROWS]
    exported = RowSelection(Directory(path), COLUMNS, pattern=(pattern, grammar)).batches()
    assert [pair for batch in exported for pair in pairs(batch)] == WANTED


@pytest.mark.parametrize(
    "condition",
    [EqualTo(("topic",), "line.42.temp"), In(("topic",), ("line.42.temp", "line.42.pressure"))],
)
def test_conditions_of_a_query_skip_segments(readable_in_part: Path, condition: Filter) -> None:
    reader = JournalReader(SCHEMA, {"path": str(readable_in_part)})
    assert list(reader.pushFilters([condition])) == []
    assert rows_of(reader) == WANTED


def test_tasks_are_made_for_the_rows_that_are_read(readable_in_part: Path) -> None:
    options = {"path": str(readable_in_part), "pattern": "line.42.#", "minPartitions": "4"}
    options = {name.lower(): value for name, value in options.items()}
    tasks = JournalReader(SCHEMA, options).partitions()
    assert len(tasks) == 4


def test_a_filter_that_hits_no_segment_reads_none(readable_in_part: Path) -> None:
    path = str(readable_in_part)
    assert read_table(path, COLUMNS, pattern="line.42.pressure").num_rows == 0
    selection = RowSelection(Directory(path), COLUMNS, pattern=("line/x/#", "mqtt"))
    assert list(selection.batches()) == []


# -- summaries that must not be used


def missing(summary: Path, other: Path) -> None:
    summary.unlink()


def empty(summary: Path, other: Path) -> None:
    summary.write_bytes(b"")


def cut(summary: Path, other: Path) -> None:
    summary.write_bytes(summary.read_bytes()[:-1])


def flipped(summary: Path, other: Path) -> None:
    data = bytearray(summary.read_bytes())
    data[60] ^= 1
    summary.write_bytes(data)


def of_another_segment(summary: Path, other: Path) -> None:
    shutil.copy(other, summary)


def of_another_stream(summary: Path, other: Path) -> None:
    """Replace the file `summary` by the summary of other rows in a stream with another number.

    A deleted stream with the same name may leave such a file.
    """
    elsewhere = summary.parent / "elsewhere"
    rows = [row(at, "other") for at in range(8)]
    summarized(elsewhere, rows)
    summary.write_bytes(with_number((elsewhere / summary.name).read_bytes(), 2))


def with_number(data: bytes, stream: int) -> bytes:
    """Return the summary `data`, changed so that it names the stream number `stream`."""
    changed = data[:8] + struct.pack("<q", stream) + data[16:-8]
    return changed + struct.pack("<Q", crc32(changed))


@pytest.mark.parametrize(
    "change", [missing, empty, cut, flipped, of_another_segment, of_another_stream]
)
def test_a_segment_without_a_valid_summary_is_read(
    tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    rows = [row(at, f"line.{at // 4}") for at in range(12)]
    summarized(tmp_path, rows)
    first, second, _ = sorted(tmp_path.glob("*.topics"))
    change(second, first)
    table = read_table(str(tmp_path), COLUMNS, pattern="line.1")
    assert pairs(table) == matching(rows, "line.1", AMQP)


# -- over HTTP


#: Number of segments that the broker serves: with 3 % of the bytes, one of them can be read.
SERVED: Final = 40


@dataclass(frozen=True)
class CountingBroker(RemoteBroker):
    """A client of a broker that records the size in bytes of each answer."""

    sizes: tuple[list[int], ...] = ()

    def fetch(self, path: str, attempts: int = 1) -> bytes:
        data = super().fetch(path, attempts)
        self.sizes[0].append(len(data))
        return data


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A running broker with a stream `s` of SERVED segments: its URL, and the directory of `s`.

    The broker has restarted after the messages, and has written a summary of each segment.
    """
    data = tmp_path_factory.mktemp("served") / "data"
    first = BrokerProcess("--data-dir", str(data))
    try:
        with pika.BlockingConnection(pika.URLParameters(first.amqp_url)) as connection:
            arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 450_000}
            channel = connection.channel()
            channel.queue_declare("s", durable=True, arguments=arguments)
            channel.queue_bind("s", "amq.topic", "#")
            channel.confirm_delivery()
            for number in range(SERVED):
                # Each message is a batch. A batch that does not fit begins the next segment.
                channel.basic_publish("amq.topic", f"line.{number}.temp", bytes(400_000))
    finally:
        first.stop()
    broker = BrokerProcess("--data-dir", str(data))
    http = broker.addresses["http"]
    directory = data / "streams" / "%2F" / "s"
    try:
        url = f"http://{http.host}:{http.port}"
        client = RemoteBroker.of(url)
        while len(list(directory.glob("*.topics"))) < SERVED:
            client.document("/api/streams")  # Fails if the broker has ended.
        yield url, directory
    finally:
        broker.stop()


def remote(url: str) -> tuple[JournalStream, list[int]]:
    sizes: list[int] = []
    plain = RemoteBroker.of(url)
    broker = CountingBroker(plain.url, plain.user, plain.password, sizes=(sizes,))
    return Remote(broker, "/", "s"), sizes


def most_of(directory: Path) -> float:
    """Return the most bytes that a reader may fetch if its filter matches in only one segment.

    The result is 3 % of the size of all SERVED segments.
    """
    return 0.03 * sum(file.stat().st_size for file in directory.glob("*.arrow"))


def test_a_filter_over_http_reads_one_segment(served: tuple[str, Path]) -> None:
    url, directory = served
    stream, sizes = remote(url)
    pieces = stream.pieces(0, SERVED, topics=condition_of("*.17.#", "amqp"))
    rows = [pair for piece in pieces for batch in piece.batches(COLUMNS) for pair in pairs(batch)]
    assert rows == [(17, "line.17.temp")]
    assert sum(sizes) <= most_of(directory)


def test_an_export_over_http_reads_one_segment(served: tuple[str, Path]) -> None:
    url, directory = served
    stream, sizes = remote(url)
    exported = RowSelection(stream, COLUMNS, pattern=("line/17/+", "mqtt")).batches()
    assert [pair for batch in exported for pair in pairs(batch)] == [(17, "line.17.temp")]
    assert sum(sizes) <= most_of(directory)


def test_the_api_serves_the_summary_of_a_full_segment(served: tuple[str, Path]) -> None:
    url, directory = served
    client = RemoteBroker.of(url)
    first, second, *_ = sorted(directory.glob("*.arrow"))
    path = f"/api/streams/topics?queue=s&segment={first.name}"
    summary = first.with_name(f"{first.name}.topics")
    assert client.fetch(path) == summary.read_bytes()
    request = urllib.request.Request(url + path)
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"] == "application/octet-stream"
    kept = summary.read_bytes()
    try:
        summary.write_bytes(second.with_name(f"{second.name}.topics").read_bytes())
        with pytest.raises(PipelineError, match=r"status 404: .* has no summary of its topics"):
            client.fetch(path)
        summary.unlink()
        with pytest.raises(PipelineError, match=r"status 404: .* has no summary of its topics"):
            client.fetch(path)
        table = read_table(url, COLUMNS, journal="s", pattern="line.0.#", endingOffsets="2")
        assert pairs(table) == [(0, "line.0.temp")]
    finally:
        summary.write_bytes(kept)
    with pytest.raises(PipelineError, match="with status 410"):
        client.fetch("/api/streams/topics?queue=s&segment=0000000009-00000000000000000000.arrow")
    with pytest.raises(PipelineError, match=r"with status 400: .*unknown parameter 'start'"):
        client.fetch(f"{path}&start=0")
