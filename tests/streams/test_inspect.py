"""`trellis store verify` and `repair` for streams."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pamqp.commands as spec
import pytest

from broker.store import inspect
from broker.store.catalog import Catalog
from broker.store.disk import RealDisk
from broker.store.findings import Finding
from broker.store.opening import CATALOG, LOG, STREAMS
from broker.stream import inspect as streams
from broker.stream.arrow import SCHEMA_SIZE
from tests.store.homes import Home
from tests.streams.test_restart import bodies, fill, segments
from tests.streams.test_stream_queues import consume, declare, offsets

#: Number of rows of the stream, and size of each body in bytes.
ROWS, SIZE = 12, 3_000


def tree(directory: Path) -> dict[str, bytes]:
    """Return path -> content of all files except the catalog, which SQLite changes on reading."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in directory.rglob("*")
        if CATALOG not in path.name
    }


def look(directory: Path, repairing: bool = False) -> list[Finding]:
    """Return the problems that `verify` finds, or `repair` if `repairing`.

    Check that `verify` changes no file.
    """
    before = tree(directory)
    catalog = Catalog(str(directory / CATALOG))
    definitions = list(catalog.load())
    catalog.close()
    checking = inspect.EntryCheck()
    of_log = inspect.repair if repairing else inspect.verify
    of_streams = streams.repair if repairing else streams.verify
    findings = [
        one
        for one in of_log(RealDisk(), str(directory / LOG), check=checking)
        if one.kind not in ("fine", "cut")
    ]
    findings += of_streams(
        RealDisk(), str(directory / STREAMS), definitions, checking.ends, not findings
    )
    assert repairing or tree(directory) == before
    return [one for one in findings if one.kind != "fine"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a killed broker with a stream: two rows in each segment, the last segment active."""
    killed = Home(tmp_path / "d")
    declare(killed.amqp(), x_stream_max_segment_size_bytes=16_384)
    fill(killed.amqp(), 0, ROWS, SIZE)
    killed.crash()
    return killed


def numbers(home: Home) -> list[int]:
    """Return the numbers of the rows that a new broker finds in the directory."""
    again = Home(home.directory)
    row_numbers = [int(body.rstrip(b"\0")) for body in bodies(again)]
    queue = again.broker.vhosts["/"].queues["s"]
    assert queue.depth == len(row_numbers)
    again.crash()
    return row_numbers


def test_a_stream_that_is_whole_is_said_to_be_fine(home: Home) -> None:
    assert look(home.directory) == []
    catalog = Catalog(str(home.directory / CATALOG))
    [line] = [
        str(one)
        for one in streams.verify(
            RealDisk(), str(home.directory / STREAMS), catalog.load(), {1: ROWS}, True
        )
    ]
    catalog.close()
    assert line.startswith(
        f"fine: streams/%2F/s: {len(segments(home))} segments, {ROWS} rows up to offset {ROWS}, "
    )
    assert numbers(home) == list(range(ROWS))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def in_a_full_segment(home: Home) -> str:
    path = segments(home)[1]
    flip(path, int(SCHEMA_SIZE) + 2_500)
    return path.name


def in_the_last_segment(home: Home) -> str:
    path = segments(home)[-1]
    flip(path, int(SCHEMA_SIZE) + 2_500)
    return path.name


def in_a_schema(home: Home) -> str:
    path = segments(home)[1]
    flip(path, 40)
    return path.name


def under_another_name(home: Home) -> str:
    path = segments(home)[1]
    other = path.with_name(path.name.replace("0000000001-", "0000000003-"))
    path.rename(other)
    path.with_name(f"{path.name}.index").unlink()
    return other.name


def in_a_gap(home: Home) -> str:
    path = segments(home)[1]
    path.unlink()
    return segments(home)[0].name


def in_a_missing_end(home: Home) -> str:
    segments(home)[-1].unlink()
    return segments(home)[-1].name


def in_an_index(home: Home) -> str:
    path = segments(home)[1]
    flip(path.with_name(f"{path.name}.index"), 30)
    return f"{path.name}.index"


def in_the_index_of_another(home: Home) -> str:
    first, second, *_ = segments(home)
    second.with_name(f"{second.name}.index").write_bytes(
        first.with_name(f"{first.name}.index").read_bytes()
    )
    return f"{second.name}.index"


@pytest.mark.parametrize(
    ("harm", "what", "lost"),
    [
        (in_a_full_segment, "quarantined", 1),
        (in_the_last_segment, "quarantined", 1),
        (in_a_schema, "quarantined", 2),
        (under_another_name, "quarantined", 2),
        (in_a_gap, "missing", 2),
        (in_a_missing_end, "missing", 2),
        (in_an_index, "wrong", 0),
        (in_the_index_of_another, "wrong", 0),
    ],
)
def test_damage_is_named_in_a_line_and_repaired_once(
    home: Home, harm: Callable[[Home], str], what: str, lost: int
) -> None:
    name = harm(home)
    [finding] = look(home.directory)
    assert finding.kind == what and finding.file == f"streams/%2F/s/{name}", str(finding)
    assert "`trellis store repair`" in str(finding) and "\n" not in str(finding)
    [finding] = look(home.directory, repairing=True)
    assert finding.kind == what
    assert look(home.directory) == []
    there = numbers(home)
    assert there == sorted(there) and len(there) == ROWS - lost
    again = Home(home.directory)
    assert not again.broker.streams.findings
    fill(again.amqp(), ROWS, 1)
    assert offsets(consume(again.amqp(), ROWS)) == [ROWS]
    again.crash()


def test_rows_behind_damage_are_kept(home: Home) -> None:
    path = segments(home)[2]
    first = int(path.name[11:31])
    in_a_full_segment(home)
    flip(path, int(SCHEMA_SIZE) + 2_500)
    look(home.directory, repairing=True)
    there = numbers(home)
    assert first not in there and first + 1 in there
    assert len(list((path.parent / "quarantine").glob(f"{path.name}-*.bad"))) == 1


def test_files_of_a_deleted_stream_are_removed_by_the_next_start(home: Home) -> None:
    left = home.directory / STREAMS / "gone" / "q"
    left.mkdir(parents=True)
    for path in segments(home):
        (left / path.name).write_bytes(path.read_bytes())
    [finding] = look(home.directory)
    assert (finding.kind, finding.file) == ("cut", "streams/gone/q") and "deleted" in finding.reason
    assert numbers(home) == list(range(ROWS))
    assert not left.parent.exists() and look(home.directory) == []


def test_foreign_files_are_reported_and_stay(home: Home) -> None:
    stray, other = (
        segments(home)[0].with_name("notes.txt"),
        home.directory / STREAMS / "%2F" / "q" / "x.arrow",
    )
    other.parent.mkdir()
    for path in (stray, other):
        path.write_bytes(b"mine")
    assert sorted((one.kind, one.file) for one in look(home.directory, True)) == [
        ("cut", "streams/%2F/q"),
        ("ignored", "streams/%2F/s/notes.txt"),
    ]
    assert stray.exists()


def test_a_segment_with_a_damaged_schema_stays(home: Home) -> None:
    left = home.directory / STREAMS / "%2F" / "q" / segments(home)[0].name
    left.parent.mkdir()
    left.write_bytes(b"x" * (int(SCHEMA_SIZE) + 1))
    [finding] = look(home.directory, True)
    assert (
        finding.kind == "ignored"
        and "schema is damaged: move the file away" in finding.reason
        and left.exists()
    )


def without_the_last_records(home: Home) -> None:
    """Damage the log: lose the records that say how many rows of each stream are durable."""
    log = max((home.directory / LOG).glob("0*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    data[-20] ^= 1
    log.write_bytes(data + bytes(100))


@pytest.mark.parametrize("mended", [False, True])
def test_rows_stay_when_the_log_lost_how_far_they_are(home: Home, mended: bool) -> None:
    """The log has a record of the last durable row of a stream; a start cuts the later rows.

    If damage or a repair has removed this record, a start must keep all rows.
    """
    without_the_last_records(home)
    if mended:
        assert [one.kind for one in look(home.directory, repairing=True)]
        assert look(home.directory) == []
    for _ in range(2):
        later = Home(home.directory)
        assert [int(body.rstrip(b"\0")) for body in bodies(later)] == list(range(ROWS))
        later.crash()
    later = Home(home.directory)
    fill(later.amqp(), ROWS, 1)
    later.crash()
    assert numbers(home) == list(range(ROWS + 1))
    client = Home(home.directory)
    client.amqp().send(spec.Queue.Delete(queue="s"))
    client.crash()
    Home(home.directory).crash()
    assert not (home.directory / STREAMS / "%2F").exists(), "notes are deleted with their stream"


def test_a_stream_whose_directory_is_gone_is_missing_and_goes_on(home: Home) -> None:
    shutil.rmtree(home.directory / STREAMS)
    [finding] = look(home.directory)
    assert finding.kind == "missing" and f"was written up to offset {ROWS - 1};" in finding.reason
    again = Home(home.directory)
    assert [one.kind for one in again.broker.streams.findings] == ["missing"]
    fill(again.amqp(), ROWS, 1)
    assert offsets(consume(again.amqp(), ROWS)) == [ROWS]
    again.crash()
    assert look(home.directory) == []


def test_a_deleted_stream_leaves_no_directory(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    root = tmp_path / "d" / STREAMS
    for name in ("s", "t"):
        declare(client, name)
        client.publish("", name, b"x")
    client.send(spec.Queue.Delete(queue="s"))
    home.turn()
    assert [path.name for path in (root / "%2F").iterdir()] == ["t"]
    client.send(spec.Queue.Delete(queue="t"))
    home.turn()
    assert list(root.iterdir()) == []
    declare(client)
    fill(client, 0, 2)
    home.crash()
    assert bodies(Home(tmp_path / "d")) == [b"0", b"1"]


def test_a_deleted_virtual_host_leaves_no_directory(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    home.broker.create_vhost("other")
    client = home.amqp(vhost="other")
    declare(client)
    fill(client, 0, 2)
    client.connection.on_closed()
    assert (tmp_path / "d" / STREAMS / "other" / "s").is_dir()
    home.broker.close_vhost("other")
    home.turn()
    home.broker.agenda.advance(2_000, 1_700_000_001.0)
    home.turn()
    assert "other" not in home.broker.vhosts
    assert list((tmp_path / "d" / STREAMS).iterdir()) == []


def test_a_new_stream_has_no_unconfirmed_rows_of_its_name(
    tmp_path: Path,
) -> None:
    """A stream has rows in its files, and the broker crashes before the log has the stream.

    A start removes these files; here the test puts them back. The next stream of this name gets the
    same number. Its declaration must remove the old files.
    """
    home = Home(tmp_path / "d")
    home.slow_disk = True
    client = home.amqp()
    client.send(spec.Queue.Declare(queue="s", durable=True, arguments={"x-queue-type": "stream"}))
    fill(home.amqp(), 0, 3)
    home.store.take().write_streams()
    home.crash()
    [left] = segments(home)
    data = left.read_bytes()
    home = Home(tmp_path / "d")
    assert not left.parent.exists()
    left.parent.mkdir(parents=True)
    left.write_bytes(data)
    declare(home.amqp())
    fill(home.amqp(), 7, 4)
    home.crash()
    home = Home(tmp_path / "d")
    assert bodies(home) == [b"7", b"8", b"9", b"10"]


def test_a_dump_shows_how_far_streams_are(home: Home) -> None:
    assert f" extended stream=1 end={ROWS}" in "\n".join(home.records())
