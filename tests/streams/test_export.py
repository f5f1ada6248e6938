"""`trellis stream export` writes the rows that its arguments select; a failed export leaves no
file.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.disk import RealDisk
from broker.stream.arrow import SCHEMA_SIZE, view_batch
from broker.stream.segments import Segment
from matching.grammar import AMQP, MQTT, swap
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.exporting import RowSelection
from pyspark_trellis.journal import Directory
from tests import forks
from tests.broker import environment, run_command
from tests.pipeline.written import SCHEMA, START, Row, journal, row
from trellis.cli import main
from trellis.table_files import FORMATS

NAMES: Final = tuple(SCHEMA.names)
TOPICS: Final = ("a.b", "a.c", "a.b.c", "b", "", "$x.b", "a/b.c")
KEYS: Final = ("a.*", "#", "a.#", "*.b", "b", "none")
FILTERS: Final = ("a/+", "#", "a/#", "+/b", "b", "none", "a.b/c")


def data_directory(path: Path, rows: list[Row], a_batch: int = 7, a_segment: int = 40) -> Path:
    """Write the data directory of a stopped broker with the stream `s`; return the directory.

    The full segments of the stream have indexes.
    """
    place = path / "data" / "streams" / "%2F" / "s"
    journal(place, rows, a_batch, a_segment)
    files = sorted(place.glob("*.arrow"))
    for file in files[:-1]:
        write_index(file)
    return path / "data"


def write_index(path: Path) -> None:
    data = path.read_bytes()
    segment = Segment(RealDisk(), str(path), 1, int(path.stem.partition("-")[2]))
    at = int(SCHEMA_SIZE)
    while (batch := view_batch(data, at)) is not None:
        last = batch.published_at(batch.rows - 1)
        size = batch.end - batch.at
        segment.add_batch(batch.base, batch.rows, at, size, batch.published_at(0), last)
        at = int(batch.end)
    path.with_name(f"{path.name}.index").write_bytes(segment.encode_index())


def read(path: Path, kind: str) -> tuple[list[int], pa.Table]:
    """Return the number of rows in each row group or record batch of a file, and all rows."""
    if kind == "parquet":
        file = pq.ParquetFile(path)
        return [
            file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)
        ], file.read()
    data = path.read_bytes()
    table = (pa.ipc.open_file(data) if kind == "arrow" else pa.ipc.open_stream(data)).read_all()
    return [len(chunk) for chunk in table.column(0).chunks], table


def text_of(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


@st.composite
def journals(draw: st.DrawFn) -> list[Row]:
    rng = random.Random(draw(st.integers(0, 1_000)))
    rows, at = [], START
    first = rng.choice([0, 1_000])
    for offset in range(first, first + rng.randrange(1, 60)):
        at += timedelta(microseconds=rng.choice([0, 1, 1_000_000]))
        others: Row = {"published_at": at, "body": rng.randbytes(rng.randrange(30))}
        if rng.random() < 0.5:
            others |= {"message_id": str(offset), "timestamp": at.replace(microsecond=0)}
        rows.append(row(offset, rng.choice(TOPICS), **others))
    return rows


@st.composite
def bounds(draw: st.DrawFn, rows: list[Row]) -> tuple[list[str], list[Row]]:
    """Return arguments that select rows by offset or time, and the rows that they select."""
    arguments: list[str] = []
    chosen = rows
    low, high = sorted(draw(st.lists(st.sampled_from(rows), min_size=2, max_size=2)), key=_offset)
    if draw(st.booleans()):
        by_time = draw(st.booleans())
        arguments += ["--from", text_of(low["published_at"]) if by_time else str(low["offset"])]
        name = "published_at" if by_time else "offset"
        chosen = [each for each in chosen if each[name] >= low[name]]
    if draw(st.booleans()):
        by_time = draw(st.booleans())
        flag = draw(st.sampled_from(["--until", "--to"]))
        arguments += [flag, text_of(high["published_at"]) if by_time else str(high["offset"])]
        name = "published_at" if by_time else "offset"
        chosen = [each for each in chosen if each[name] < high[name]]
    return arguments, chosen


def _offset(one: Row) -> int:
    return int(one["offset"])


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=15)
@given(data=st.data(), rows=journals())
def test_an_export_has_the_selected_rows(
    kind: str, data: st.DataObject, rows: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("export")
    directory = data_directory(
        here, rows, data.draw(st.integers(1, 9)), data.draw(st.integers(10, 40))
    )
    arguments, chosen = data.draw(bounds(rows))
    which = data.draw(st.sampled_from(["", "--key", "--topic"]))
    if which:
        pattern = data.draw(st.sampled_from(KEYS if which == "--key" else FILTERS))
        arguments += [which, pattern]
        chosen = [
            each
            for each in chosen
            if (
                AMQP.matches(pattern, each["topic"])
                if which == "--key"
                else MQTT.matches(pattern, swap(each["topic"]))
            )
        ]
    names: Sequence[str] = NAMES
    if data.draw(st.booleans()):
        names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
        arguments += ["--columns", ",".join(names)]
    path = here / f"rows.{kind}"
    code = exported(directory, path, *arguments)
    assert [each.name for each in here.iterdir() if each.name != "data"] == (
        [path.name] if chosen else []
    )
    assert code == (0 if chosen else 1)
    if chosen:
        groups, table = read(path, kind)
        assert groups == [len(chosen)]
        assert table.to_pylist() == [{name: each[name] for name in names} for each in chosen]


def exported(directory: Path, path: Path, *arguments: str) -> int:
    """Export the stream `s` of a data directory, and return the exit code."""
    return main(["stream", "export", "s", str(path), "--directory", str(directory), *arguments])


@pytest.mark.filterwarnings("error")
def test_segments_outside_the_range_of_times_are_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage the segments before and after the range: an export that reads these segments would
    report the damage.
    """
    directory = data_directory(tmp_path, [row(n, "t") for n in range(200)])
    files = sorted((directory / "streams" / "%2F" / "s").glob("*.arrow"))
    for file in (files[0], files[1], files[3]):
        data = bytearray(file.read_bytes())
        data[-200] ^= 1
        file.write_bytes(data)
    arguments = ("--from", text_of(START + timedelta(seconds=85)))
    until = ("--until", text_of(START + timedelta(seconds=115)))
    path = tmp_path / "part.parquet"
    assert exported(directory, path, *arguments, *until) == 0
    assert pq.read_table(path).column("offset").to_pylist() == list(range(85, 115))
    capsys.readouterr()
    assert exported(directory, tmp_path / "damaged.parquet", *arguments) == 1
    assert "is damaged: the batch at byte" in capsys.readouterr().err
    assert not list(tmp_path.glob("damaged*"))


def test_an_error_in_a_data_directory_asks_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRELLIS_URL", "not a URL")
    directory = data_directory(tmp_path, [row(0, "t")])
    assert exported(directory, tmp_path / "rows.arrow", "--from", "2") == 1
    assert "is not written yet: begin with --from 1 or lower" in capsys.readouterr().err


def test_a_relative_age_selects_the_newest_rows(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    rows = [row(n, "t", published_at=now - timedelta(hours=10 - n)) for n in range(10)]
    path = tmp_path / "newest.arrows"
    assert exported(data_directory(tmp_path, rows), path, "--from", "150m", "--until", "90m") == 0
    assert read(path, "arrows")[1].column("offset").to_pylist() == [8]


def test_a_closing_line_and_a_json_object_name_rows_groups_and_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = data_directory(tmp_path, [row(n, "t") for n in range(10)])
    path = tmp_path / "rows"
    assert exported(directory, path, "--format", "arrow", "--from", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(path),
        "format": "arrow",
        "rows": 6,
        "groups": 1,
        "bytes": path.stat().st_size,
        "first_offset": 4,
        "last_offset": 9,
    }
    path = tmp_path / "rows.parquet"
    assert exported(directory, path) == 0
    answer = capsys.readouterr()
    assert answer.out == (
        f"10 rows in 1 row group, {path.stat().st_size / 1024:.1f} KiB, written to {path}\n"
    )
    assert answer.err == ""


def test_a_terminal_shows_the_progress_and_at_the_end_only_the_closing_line(tmp_path: Path) -> None:
    directory = data_directory(tmp_path, [row(n, "t") for n in range(10)])
    path = tmp_path / "rows.arrows"
    master, terminal = os.openpty()
    words = ("stream", "export", "s", str(path), "--directory", str(directory))
    process = forks.start(
        "trellis", *words, stdout=terminal, stderr=terminal, environment=environment()
    )
    assert process.wait(30) == 0
    shown = os.read(master, 10_000).decode()
    os.close(terminal)
    os.close(master)
    assert shown.startswith(f"\rexport  [{'.' * 24}] 0 rows\x1b[K\r")
    assert re.fullmatch(
        rf"10 rows in 1 batch, \d.* written to {path}\r\n", shown.split("\x1b[K")[-1]
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--from", "yesterday"], 2, "'yesterday' must be an offset or a time: give an offset"),
        (["--from", "9", "--until", "3"], 2, "trellis: --until 3 is before --from 9"),
        (["--from", "1h", "--until", "2h"], 2, "trellis: --until 2h is before --from 1h"),
        (["--from", "11"], 1, "is not written yet: begin with --from 10 or lower"),
        (
            ["--topic", "a/b#"],
            2,
            "trellis: --topic: invalid pattern 'a/b#': '#' must be a whole level",
        ),
        (["--key", "k" * 256], 2, "must not be longer than 255 bytes"),
        (["--topic", "a", "--key", "a"], 2, "not allowed with argument"),
        (["--columns", "topic,boddy"], 2, "no column 'boddy'; the nearest is body"),
        (["--columns", "topic,topic"], 2, "column 'topic' is named twice"),
        (["--format", "csv"], 2, 'unknown value "csv"; the nearest is'),
        (["--vhost", "v"], 1, "has no stream 's' in vhost 'v': there is no directory"),
        (["--url", "http://127.0.0.1:1"], 2, "give one of them"),
        (["--key", "none"], 1, "has no row that the arguments select; no file was written"),
    ],
)
def test_an_error_is_one_line_and_leaves_no_file(
    arguments: list[str],
    code: int,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = data_directory(tmp_path, [row(n, "t") for n in range(10)])
    assert exported(directory, tmp_path / "rows.parquet", *arguments) == code
    answer = capsys.readouterr()
    assert text in answer.err and answer.err.count("\n") == 1 and answer.out == "", answer.err
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_lost_rows_are_an_error_that_names_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = data_directory(tmp_path, [row(n, "t") for n in range(200)])
    sorted((directory / "streams" / "%2F" / "s").glob("*.arrow"))[2].unlink()
    path = tmp_path / "rows.parquet"
    assert exported(directory, path) == 1
    error = capsys.readouterr().err
    assert "offsets 80 to 119 of" in error and "--until 80" in error and "--from 120" in error
    assert exported(directory, path, "--from", "120") == 0
    path.unlink()
    assert exported(directory, path, "--until", "80") == 0
    path.unlink()
    assert exported(directory, path, "--until", "2026-03-01T12:01") == 0


@pytest.mark.parametrize(
    "words", [("--from", "100"), ("--until", "100"), ("--from", "90", "--until", "110")]
)
def test_a_bound_within_lost_rows_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    directory = data_directory(tmp_path, [row(n, "t") for n in range(200)])
    sorted((directory / "streams" / "%2F" / "s").glob("*.arrow"))[2].unlink()
    path = tmp_path / "rows.parquet"
    assert exported(directory, path, *words) == 1
    assert "offsets 80 to 119 of" in capsys.readouterr().err
    assert not path.exists()


def test_rows_that_retention_removes_meanwhile_are_an_error(tmp_path: Path) -> None:
    place = data_directory(tmp_path, [row(n, "t") for n in range(200)]) / "streams" / "%2F" / "s"
    batches = RowSelection(Directory(str(place)), ["topic"]).batches()
    assert next(batches).num_rows == 40
    for file in sorted(place.glob("*"))[:4]:  # Two segments and their indexes.
        file.unlink()
    text = f"retention removed offsets 40 to 79 of {re.escape(str(place))} while it was exported"
    with pytest.raises(PipelineError, match=text):
        next(batches)


def test_an_error_names_the_file_that_cannot_be_read_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = data_directory(tmp_path, [row(0, "t")])
    [segment] = (directory / "streams" / "%2F" / "s").iterdir()
    segment.unlink()
    segment.symlink_to(segment)
    path = tmp_path / "rows.parquet"
    assert exported(directory, path) == 1
    assert "cannot read" in (error := capsys.readouterr().err) and str(segment.parent) in error
    assert exported(directory, tmp_path / f"{'long' * 100}.parquet") == 1
    assert "cannot write" in (error := capsys.readouterr().err) and "too long" in error
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_no_file_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = data_directory(tmp_path, [row(0, "t")])
    path = tmp_path / "rows.parquet"
    path.touch()
    assert exported(directory, path) == 1
    assert "exists already; name a new file" in capsys.readouterr().err
    path.rename(tmp_path / "rows.parquet.partial")
    assert exported(directory, path) == 1
    assert "another export is writing this file" in capsys.readouterr().err
    assert not path.exists()


class Stalling(BaseHTTPRequestHandler):
    """A broker whose answer to a request for a segment never ends."""

    requested: ClassVar = threading.Event()
    ended: ClassVar = threading.Event()

    def do_GET(self) -> None:
        body = b'[{"name":"x","epoch":1,"first":0,"end":9,"bytes":9999,"from":0,"to":0}]'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if "segments" in self.path:
            self.wfile.write(body)
        else:
            self.requested.set()
            self.ended.wait(30)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def stalling() -> Iterator[str]:
    Stalling.requested.clear()
    Stalling.ended.clear()
    server = HTTPServer(("127.0.0.1", 0), Stalling)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Stalling.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("number", "left"), [(signal.SIGINT, []), (signal.SIGKILL, ["rows.parquet.partial"])]
)
def test_an_interrupted_export_leaves_no_file_under_its_name(
    number: int, left: list[str], stalling: str, tmp_path: Path
) -> None:
    words = ("stream", "export", "s", str(tmp_path / "rows.parquet"), "--url", stalling)
    with open(os.devnull, "w") as nothing:
        process = forks.start(
            "trellis",
            *words,
            stdout=nothing.fileno(),
            stderr=nothing.fileno(),
            environment=environment(),
        )
    assert Stalling.requested.wait(30)
    process.send_signal(number)
    assert process.wait(30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert [each.name for each in tmp_path.iterdir()] == left


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB, and yield its path; skip the test without root."""
    there = tmp_path / "disk"
    there.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(there)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield there
    finally:
        subprocess.run(["umount", "--lazy", str(there)], check=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_is_named_and_no_file_stays(
    kind: str, small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(1)
    rows = [row(n, "t", body=rng.randbytes(1_000)) for n in range(200)]
    path = small_disk / f"rows.{kind}"
    assert exported(data_directory(tmp_path, rows), path) == 1
    assert capsys.readouterr().err == f"trellis: cannot write {path}: No space left on device\n"
    assert list(small_disk.iterdir()) == []


@pytest.mark.long
def test_a_large_export_has_groups_of_100_000_rows_or_64_mib(tmp_path: Path) -> None:
    from pyspark_trellis.bench import write

    write(tmp_path / "data" / "streams" / "%2F" / "s", 210_000)
    for kind in FORMATS:
        assert exported(tmp_path / "data", tmp_path / f"rows.{kind}") == 0
        assert read(tmp_path / f"rows.{kind}", kind)[0] == [100_000, 100_000, 10_000]
    done = run_command(
        *("stream", "export", "s", str(tmp_path / "topics.parquet"), "--columns", "topic"),
        *("--directory", str(tmp_path / "data")),
    )
    assert done.returncode == 0, done.stderr
    bodies = [row(n, "t", body=bytes(1 << 20)) for n in range(100)]
    path = tmp_path / "bodies.arrow"
    assert exported(data_directory(tmp_path / "large", bodies, 3), path) == 0
    assert read(path, "arrow")[0] == [64, 36]
