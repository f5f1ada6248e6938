"""Tests of positions, limits and tasks, without Spark: properties of pure functions, and journals
in directories.
"""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import LongType, StringType, StructType

from pyspark_trellis import offsets
from pyspark_trellis.columns import projection
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import Directory, directory_name, journal_name, name_parts
from pyspark_trellis.journals import QueryJournals
from pyspark_trellis.offsets import Position
from pyspark_trellis.options import READING, WRITING, known, markdown
from pyspark_trellis.pushdown import PushedConditions
from pyspark_trellis.query_lag import JournalLag, lag
from pyspark_trellis.rows import SelectedRows, read_table
from pyspark_trellis.source import JournalReader, JournalStreamReader, JournalTask
from pyspark_trellis.trigger import OffsetSpan, rows_of_a_task, shares, tasks_of
from tests.pipeline.written import START, Row, journal, row

NAMES = st.text("ab/,% $", min_size=1, max_size=4)
THIN = StructType().add("journal", StringType()).add("offset", LongType())


def some(count: int, base: int = 0) -> list[Row]:
    return [row(base + at, f"t.{at % 3}", body=b"%d" % at) for at in range(count)]


def streams(tmp_path: Path, **sizes: int) -> Path:
    """Write a journal for each name of `sizes`, with that number of rows; return the directory
    `streams`.
    """
    for name, count in sizes.items():
        vhost, queue = name_parts(name)
        journal(tmp_path / directory_name(vhost) / directory_name(queue), some(count))
    return tmp_path


def follower(path: Path, **options: Any) -> JournalStreamReader:
    named = {name: str(value) for name, value in options.items()} | {"path": str(path)}
    return JournalStreamReader(THIN, known(named, READING))


def read(reader: JournalStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    """Return (journal, offset) of all rows of a batch, task by task."""
    return [
        pair
        for task in reader.partitions(start, end)
        for batch in reader.read(task)
        for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


# -- arithmetic


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 100)), st.integers(1, 150))
def test_shares_use_the_limit_and_no_journal_gets_more_than_it_has(
    backlog: dict[str, int], most: int
) -> None:
    share_of = shares(backlog, most)
    assert share_of.keys() == backlog.keys()
    assert all(0 <= share_of[name] <= backlog[name] for name in backlog)
    assert sum(share_of.values()) == min(most, sum(backlog.values()))


def test_a_journal_with_one_row_is_not_held_up_by_a_long_one() -> None:
    assert shares({"long": 1_000_000, "short": 1}, 10) == {"long": 9, "short": 1}


@given(st.integers(0, 10_000), st.integers(1, 500), st.integers(0, 50))
def test_there_are_at_least_as_many_tasks_as_asked_for(total: int, rows: int, least: int) -> None:
    size = rows_of_a_task(total, rows, least)
    assert 1 <= size <= rows
    assert -(-total // size) >= min(least, total)


@given(vhost=NAMES, queue=NAMES)
def test_the_name_of_a_journal_names_its_vhost_and_queue(vhost: str, queue: str) -> None:
    name = journal_name(vhost, queue)
    assert name_parts(name) == (vhost, queue)
    assert "," not in name


@given(
    st.dictionaries(
        NAMES, st.builds(Position, st.integers(0), st.integers(0), st.none() | st.integers(0))
    )
)
def test_an_offset_json_holds_every_position(positions: dict[str, Position]) -> None:
    document = offsets.document_of(positions, single=False)
    assert offsets.positions_of(document, positions) == positions
    if len(positions) == 1:
        document = offsets.document_of(positions, single=True)
        assert offsets.positions_of(document, positions) == positions
        assert offsets.positions_of(document, ["other", *positions]) == positions


def test_a_checkpoint_without_the_name_of_its_journal_is_of_the_only_journal() -> None:
    document = {"next": 7, "epoch": 1}
    assert offsets.positions_of(document, ["orders"]) == {"orders": Position(7, 1)}
    with pytest.raises(
        PipelineError, match="without the name of its journal, but the query now reads a, b"
    ):
        offsets.positions_of(document, ["a", "b"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", {"a": "7", "b": "7"}),
        ('{"a": 3, "b": -1}', {"a": "3", "b": "latest"}),
        ('{"a": -2, "b": "latest"}', {"a": "earliest", "b": "latest"}),
        ('{"a": {"next": 4, "epoch": 1}, "b": "5"}', {"a": "4", "b": "5"}),
    ],
)
def test_an_option_has_one_value_or_one_for_each_journal(
    text: str, expected: dict[str, str]
) -> None:
    assert offsets.by_journal(text, "startingOffsets", ["a", "b"]) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": 1}', "has no entry for journal 'b': add an entry for each of a, b"),
        ('{"a": 1, "bb": 1}', "names journal 'bb', which the query does not read; the nearest is"),
        ("{a: 1}", "option startingOffsets is .*, which is not JSON"),
    ],
)
def test_a_wrong_entry_is_named(text: str, line: str) -> None:
    with pytest.raises(PipelineError, match=line):
        offsets.by_journal(text, "startingOffsets", ["a", "b"])


@pytest.mark.parametrize(
    "text", ["2026-03-01T12:00:05Z", "2026-03-01T13:00:05+01:00", "2026-03-01 12:00:05", "{}"]
)
def test_times_are_iso_8601_or_milliseconds(text: str) -> None:
    micros = int(START.timestamp() + 5) * 1_000_000
    assert offsets.micros_of(str(micros // 1_000), "t") == micros
    if text == "{}":
        with pytest.raises(PipelineError, match="must be a time like"):
            offsets.micros_of(text, "startingTimestamp")
    else:
        assert offsets.micros_of(text, "startingTimestamp") == micros


# -- options


def test_an_unknown_option_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(PipelineError, match="no option 'patern'; the nearest is 'pattern'"):
        known({"path": "p", "patern": "a"}, READING)
    with pytest.raises(PipelineError, match="the nearest is 'maxRowsPerTrigger'"):
        known({"maxOfsetsPerTrigger": "1"}, READING)


def test_aliases_are_other_names_of_the_same_option() -> None:
    assert known({"subscribe": "a", "MaxOffsetsPerTrigger": "5"}, READING) == {
        "journal": "a",
        "maxrowspertrigger": "5",
    }
    with pytest.raises(PipelineError, match="option journal has two values, 'a' and 'b'"):
        known({"stream": "a", "journal": "b"}, READING)


def test_the_guide_has_the_tables_of_options() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    assert markdown(READING) in guide
    assert markdown(WRITING) in guide


# -- journals in directories


def test_offsets_of_times_are_exact(tmp_path: Path) -> None:
    at = [0, 0, 1, 1, 1, 4, 9, 9, 30, 31]
    rows = [row(n, "t", published_at=START.replace(second=time)) for n, time in enumerate(at)]
    journal(tmp_path, rows, a_batch=3, a_segment=5)
    stream = Directory(str(tmp_path))
    begin = int(START.timestamp()) * 1_000_000
    for time in range(33):
        expected = next((n for n, each in enumerate(at) if each >= time), len(at))
        assert stream.offset_at(begin + time * 1_000_000) == expected
    assert [(stream.time_of(n) - begin) // 1_000_000 for n in range(10)] == at


def test_times_select_rows(tmp_path: Path) -> None:
    journal(tmp_path, some(90))
    table = read_table(
        str(tmp_path),
        ["offset"],
        startingTimestamp="2026-03-01T12:00:13Z",
        endingTimestamp=str(int(START.timestamp() + 50) * 1_000),
    )
    assert table.column("offset").to_pylist() == list(range(13, 50))
    with pytest.raises(PipelineError, match="startingOffsets and startingTimestamp are both set"):
        read_table(str(tmp_path), ["offset"], startingTimestamp="0", startingOffsets="1")


def test_one_task_reads_segments_of_several_files_and_journals(tmp_path: Path) -> None:
    path = streams(tmp_path, a=90, **{"eu/b": 50})
    known_streams = QueryJournals({"path": str(path), "journal": "a,eu/b"}).streams()
    spans = {"a": OffsetSpan(10, 90), "eu/b": OffsetSpan(0, 50)}
    for rows, least in ((100, 1), (1_000, 1), (7, 1), (1_000, 6), (60, 0)):
        tasks = tasks_of(known_streams, spans, rows, least)
        sizes = [sum(each.cut.high - each.cut.low for each in task) for task in tasks]
        assert sum(sizes) == 130
        assert len(tasks) >= max(least, 1)
        assert set(sizes[:-1]) <= {rows_of_a_task(130, rows, least)}
        cuts = [(each.journal, each.cut.low, each.cut.high) for task in tasks for each in task]
        for name, span in spans.items():
            mine = [(low, high) for of, low, high in cuts if of == name]
            assert mine[0][0] == span.low
            assert mine[-1][1] == span.high
            assert all(one[1] == other[0] for one, other in pairwise(mine))
    [task] = tasks_of(known_streams, spans, 1_000)
    assert len(task) == 5, "three segments of a, two of b"


def test_several_journals_are_read_in_turns_and_named(tmp_path: Path) -> None:
    path = streams(tmp_path, a=90, b=20, **{"$topology": 5, "eu/c": 10})
    reader = follower(path, journalPattern=".*", maxRowsPerTrigger=30)
    start = reader.initialOffset()
    assert start == {name: {"next": 0, "epoch": 1} for name in ("a", "b", "eu/c")}
    all_rows: list[Any] = []
    batches = 0
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        batch = read(reader, start, end)
        assert len(batch) <= 30
        assert read(follower(path, journalPattern=".*"), start, end) == batch
        all_rows += batch
        batches += 1
        rows = [each.rows for each in lag({"sources": [{"latestOffset": str_of(reader)}]})]
        assert sum(rows) == 120 - len(all_rows)
        start = end
    assert sorted(all_rows) == sorted(
        (name, at) for name, rows in (("a", 90), ("b", 20), ("eu/c", 10)) for at in range(rows)
    )
    assert batches == 4


def str_of(reader: JournalStreamReader) -> str:
    return json.dumps(reader.reportLatestOffset())


def test_a_journal_that_appears_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = streams(tmp_path, a=10)
    reader = follower(path, subscribePattern="[ab]", startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {"a": {"next": 10, "epoch": 1}}
    streams(tmp_path, b=5)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"a": {"next": 10, "epoch": 1}, "b": {"next": 5, "epoch": 1, "from": 0}}
    assert read(reader, start, end) == [("b", at) for at in range(5)]
    assert reader.latestOffset(end, ReadAllAvailable()) is end


def test_a_query_of_one_journal_can_go_on_with_several(tmp_path: Path) -> None:
    path = streams(tmp_path, a=10, b=5)
    alone = follower(path, journal="a")
    start = alone.latestOffset(alone.initialOffset(), ReadAllAvailable())
    assert start == {"next": 10, "epoch": 1, "journal": "a"}
    both = follower(path, journal="a,b")
    end = both.latestOffset(start, ReadAllAvailable())
    assert read(both, start, end) == [("b", at) for at in range(5)]


def test_bytes_limit_a_batch_which_has_one_batch_of_rows_at_least(tmp_path: Path) -> None:
    journal(tmp_path, [row(at, "t", body=bytes(1_000)) for at in range(60)], 6, 30)
    reader = follower(tmp_path, maxBytesPerTrigger=30_000)
    start = reader.initialOffset()
    ends = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        ends.append(end["next"])
        start = end
    assert ends == [18, 36, 54, 60]
    tiny = follower(tmp_path, maxBytesPerTrigger=1)
    assert tiny.latestOffset(tiny.initialOffset(), tiny.getDefaultReadLimit())["next"] == 6
    both = follower(tmp_path, maxBytesPerTrigger=30_000, maxRowsPerTrigger=10)
    assert both.latestOffset(both.initialOffset(), both.getDefaultReadLimit())["next"] == 10
    every = tiny.latestOffset(tiny.initialOffset(), ReadAllAvailable())
    assert every["next"] == 60, "Trigger.Once has no limit"


class Unlimited(ReadLimit):
    """A read limit of an unknown kind, as a later version of Spark may have."""


def test_available_now_ends_at_the_rows_that_exist_at_its_start(tmp_path: Path) -> None:
    journal(tmp_path, some(20))
    reader = follower(tmp_path, maxRowsPerTrigger=15)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    journal(tmp_path, some(20, 20), epoch=2)
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    last = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert (first["next"], last["next"]) == (15, 20)
    assert reader.latestOffset(last, Unlimited()) is last


def test_lost_rows_end_a_query_or_are_left_out(tmp_path: Path) -> None:
    journal(tmp_path, some(40))
    journal(tmp_path, some(40, 60))
    (tmp_path / "0000000001-00000000000000000000.arrow").unlink()
    journal(tmp_path, some(10, 20))
    start = {"next": 5, "epoch": 1}
    with pytest.raises(
        PipelineError, match=r"continues at offset 5 of .*, which retention removed"
    ):
        follower(tmp_path).latestOffset(start, ReadAllAvailable())
    reader = follower(tmp_path, failOnDataLoss="false")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (end["next"], end["from"]) == (100, 20)
    there = [*range(20, 30), *range(60, 100)]
    assert [offset for _, offset in read(reader, start, end)] == there
    tasks = reader.partitions(start, end)
    (tmp_path / "0000000001-00000000000000000060.arrow").unlink()
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert [each["offset"] for each in rows] == there[:10]
    options = {"path": str(tmp_path), "startingoffsets": "3", "failondataloss": "false"}
    assert len(JournalReader(THIN, options).partitions()) == 1


def test_rows_that_replaced_lost_rows_are_read_if_loss_is_permitted(tmp_path: Path) -> None:
    journal(tmp_path, some(30))
    start = {"next": 30, "epoch": 1}
    journal(tmp_path, some(10, 25), epoch=2)
    with pytest.raises(PipelineError, match="the journal no longer has these rows"):
        follower(tmp_path).latestOffset(start, ReadAllAvailable())
    reader = follower(tmp_path, failOnDataLoss="false")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [offset for _, offset in read(reader, start, end)] == list(range(25, 35))


def test_the_lag_is_in_the_progress(tmp_path: Path) -> None:
    journal(tmp_path, some(50))
    reader = follower(tmp_path, maxRowsPerTrigger=20)
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    [journal_lag] = lag({"sources": [{"latestOffset": str_of(reader)}, {"latestOffset": "5"}]})
    assert (journal_lag.journal, journal_lag.rows) == (Directory(str(tmp_path)).journal, 30)
    assert journal_lag.seconds is not None
    assert journal_lag.seconds > 0
    reader.latestOffset({"next": 50, "epoch": 1}, reader.getDefaultReadLimit())
    assert lag({"sources": [{"latestOffset": str_of(reader)}]}) == [
        JournalLag(journal_lag.journal, 0, 0.0)
    ]


def test_one_journal_has_its_name_in_a_column_that_a_schema_asks_for(tmp_path: Path) -> None:
    path = streams(tmp_path, a=3)
    [task] = JournalReader(THIN, {"path": str(path), "journal": "a"}).partitions()
    assert isinstance(task, JournalTask)
    table = read_table(str(path), ["journal", "offset"], journal="a")
    assert table.to_pylist() == [{"journal": "a", "offset": at} for at in range(3)]
    only = read_table(str(path / "%2F" / "a"), ["journal"])
    assert only.column("journal").to_pylist() == ["a"] * 3


def test_a_table_leaves_out_rows_that_are_lost_while_it_is_read(tmp_path: Path) -> None:
    journal(tmp_path, some(40), a_segment=20)
    selected = SelectedRows(projection(["offset"]), {"failondataloss": "false"})
    pieces = Directory(str(tmp_path)).pieces(0, 40)
    (tmp_path / "0000000001-00000000000000000000.arrow").unlink()
    offset_values = [
        each for piece in pieces for batch in selected.batches(piece) for each in batch[0]
    ]
    assert [each.as_py() for each in offset_values] == list(range(20, 40))


def test_a_task_has_at_least_one_row(tmp_path: Path) -> None:
    path = streams(tmp_path, a=3)
    reader = follower(path, journal="a", rowsPerTask=0)
    with pytest.raises(
        PipelineError, match="option rowsPerTask is '0', but must be a whole number, at least 1"
    ):
        reader.partitions(reader.initialOffset(), {"next": 3, "epoch": 1, "journal": "a"})


# -- conditions while reading


def conditions(*filters: Any) -> PushedConditions:
    pushed = PushedConditions()
    left = list(pushed.take(filters))
    # Spark checks times again, because the clock of the broker's machine may be set back.
    assert left == [each for each in filters if each.attribute[0] in ("published_at", "size")]
    return pushed


def test_times_skip_files(tmp_path: Path) -> None:
    """Check that a query with a condition on times reads at most 3 % of the bytes.

    The condition holds for the rows of 1 % of the segments.
    """
    rows = [
        row(at, "t", body=bytes(300), published_at=START + timedelta(minutes=at))
        for at in range(2_000)
    ]
    journal(tmp_path, rows, a_batch=5, a_segment=20)
    streams = QueryJournals({"path": str(tmp_path)}).streams()
    [(name, stream)] = streams.items()
    begin, end = (START + timedelta(minutes=at) for at in (1_000, 1_020))
    pushed = conditions(
        GreaterThanOrEqual(("published_at",), begin),
        LessThan(("published_at",), end),
        GreaterThan(("size",), 0),
    )
    span = pushed.within(stream, OffsetSpan(0, 2_000))
    assert span.low <= 1_000
    assert span.high >= 1_020
    pieces = [each for task in tasks_of(streams, {name: span}) for each in task]
    read_bytes = sum(each.cut.end - each.cut.start for each in pieces)
    assert read_bytes <= 0.03 * sum(file.stat().st_size for file in tmp_path.iterdir())
    offsets_read = [
        offset
        for piece in pieces
        for batch in piece.batches(["offset"])
        for offset in batch.column("offset").to_pylist()
    ]
    assert set(range(1_000, 1_020)) <= set(offsets_read)


def test_conditions_on_offset_topic_and_journal_are_applied_whole(tmp_path: Path) -> None:
    path = streams(tmp_path, a=50, b=50)
    pushed = conditions(
        GreaterThan(("offset",), 9),
        LessThanOrEqual(("offset",), 20),
        EqualTo(("journal",), "a"),
        In(("topic",), ("t.1", "t.2")),
        EqualTo(("topic",), "t.1"),
    )
    assert pushed.topics == frozenset({"t.1"})
    assert conditions(In(("topic",), ("t.1", None))).topics == frozenset({"t.1"})
    known_streams = QueryJournals({"path": str(path), "journal": "a,b"}).streams()
    spans = {name: pushed.within(each, OffsetSpan(0, 50)) for name, each in known_streams.items()}
    assert spans == {"a": OffsetSpan(10, 21), "b": OffsetSpan(0, 0)}
