"""The files of trellis.table_files hold the rows that were written, in groups of the right size."""

from __future__ import annotations

import gc
import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.table_files import FORMATS, TableFile

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("timestamp", pa.timestamp("s", tz="UTC")),
        ("content_header", pa.binary()),
        ("body", pa.binary()),
    ]
)
#: Seconds that a publisher may send as a timestamp, and the seconds that Parquet then has.
SECONDS = st.sampled_from([None, 0, 1_700_000_000, -62_135_596_800, 253_402_300_799])
WRONG = st.sampled_from([-62_135_596_801, 253_402_300_800, (1 << 63) - 1, -(1 << 63)])


def read(kind: str, data: bytes) -> tuple[list[int], pa.Table]:
    """Return the number of rows in each row group or record batch of a file, and all rows."""
    if kind == "parquet":
        file = pq.ParquetFile(io.BytesIO(data))
        groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        return groups, file.read()
    reader = pa.ipc.open_file(data) if kind == "arrow" else pa.ipc.open_stream(data)
    table = reader.read_all()
    return [len(chunk) for chunk in table.column("offset").chunks], table


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    drawn_batches, offset = [], 0
    for size in draw(st.lists(st.integers(0, 9), max_size=6)):

        def drawn(values: st.SearchStrategy[Any], size: int = size) -> list[Any]:
            return draw(st.lists(values, min_size=size, max_size=size))

        columns = [
            pa.array(range(offset, offset + size), pa.int64()),
            pa.array(drawn(st.sampled_from(["a.b", "a.c", ""])), pa.string()),
            pa.array(drawn(SECONDS | WRONG), pa.int64()).cast(SCHEMA.field("timestamp").type),
            pa.array([b"\0\x3c"] * size, pa.binary()),
            pa.array(drawn(st.binary(max_size=20)), pa.binary()),
        ]
        drawn_batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        offset += size
    return drawn_batches


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=30)
@given(parts=batches(), group_rows=st.integers(1, 12), group_bytes=st.sampled_from([40, 1 << 20]))
def test_groups_hold_all_rows(
    kind: str, parts: list[pa.RecordBatch], group_rows: int, group_bytes: int
) -> None:
    out = io.BytesIO()
    file = TableFile(out, kind, SCHEMA, group_rows, group_bytes)
    for part in parts:
        file.write(part)
    file.close()
    written = pa.Table.from_batches(parts, SCHEMA)
    groups, table = read(kind, out.getvalue())
    assert (file.rows, file.groups) == (written.num_rows, len(groups)) == (sum(groups), len(groups))
    assert all(0 < group <= group_rows for group in groups)
    if group_bytes > 1_000:
        assert all(group == group_rows for group in groups[:-1])
    for name in SCHEMA.names:
        expected: list[Any] = plain(written.column(name))
        if kind == "parquet" and name == "timestamp":
            expected = [
                None if at is None or not -62_135_596_800 <= at <= 253_402_300_799 else at * 1_000
                for at in expected
            ]
        assert plain(table.column(name)) == expected


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, times as numbers."""
    values: list[Any] = (
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    ).to_pylist()
    return values


def test_parquet_has_statistics_and_dictionaries_where_they_help() -> None:
    out = io.BytesIO()
    file = TableFile(out, "parquet", SCHEMA)
    topics = [f"a.{n % 7}" for n in range(1_000)]
    file.write(
        pa.RecordBatch.from_pydict(
            {
                "offset": list(range(1_000)),
                "topic": topics,
                "timestamp": [None] * 1_000,
                "content_header": [b"\0\x3c"] * 1_000,
                "body": [b"%d" % n for n in range(1_000)],
            },
            schema=SCHEMA,
        )
    )
    file.close()
    group = pq.ParquetFile(io.BytesIO(out.getvalue())).metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert (columns["topic"].statistics.min, columns["topic"].statistics.max) == ("a.0", "a.6")
    assert columns["offset"].statistics.max == 999 and not columns["body"].is_stats_set
    assert "RLE_DICTIONARY" in columns["topic"].encodings
    assert not columns["offset"].has_dictionary_page and not columns["body"].has_dictionary_page
    assert columns["content_header"].has_dictionary_page


class Full(io.BytesIO):
    """A file on a full disk."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 4_096:
            raise OSError(28, "No space left on device")
        return super().write(data)


def fill(out: io.BytesIO, kind: str) -> None:
    schema = pa.schema([("body", pa.binary())])
    rng = random.Random(1)
    file = TableFile(out, kind, schema, 100)
    try:
        for _ in range(20):
            bodies = [rng.randbytes(50) for _ in range(10)]
            file.write(pa.RecordBatch.from_pydict({"body": bodies}, schema=schema))
        file.close()
    except OSError:
        file.cancel()
        raise


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("error")
def test_an_error_of_the_file_is_raised_as_it_is(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = Full()
    with pytest.raises(OSError, match="No space left on device") as raised:
        fill(out, kind)
    assert raised.value.errno == 28
    out.close()
    del raised
    gc.collect()
    assert capfd.readouterr().err == ""
