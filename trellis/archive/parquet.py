"""Writes rows as Parquet. Used by the worker only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

#: Number of rows and size in bytes at which a row group is complete. Memory holds one row group.
GROUP_ROWS: Final = 100_000
GROUP_BYTES: Final = 32 << 20
#: Largest number of seconds in a timestamp of Parquet, which counts milliseconds in 64 bits.
_SECONDS_MAX: Final = ((1 << 63) - 1) // 1000


def write_parquet(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches of rows, of which there is at least one, to a new file; Zstandard, statistics.

    A publisher may send any number as `timestamp`. If Parquet cannot represent it, it becomes null;
    the column `content_header` still has it. Raises OSError.
    """
    writer: Any = None
    group: list[pa.RecordBatch] = []
    rows = size = 0
    with path.open("wb") as out:
        try:
            for batch in batches:
                if group and (rows + batch.num_rows > GROUP_ROWS or size >= GROUP_BYTES):
                    writer = _write_group(out, writer, group)
                    group, rows, size = [], 0, 0
                group.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
            writer = _write_group(out, writer, group)
        finally:
            if writer is not None:
                writer.close()


def _write_group(out: Any, writer: Any, group: list[pa.RecordBatch]) -> Any:
    """Write a row group, and return the writer of the file."""
    table = pa.Table.from_batches(group).replace_schema_metadata(None)
    at = table.schema.get_field_index("timestamp")
    seconds = table.column(at).cast(pa.int64())
    valid = pc.and_(
        pc.greater_equal(seconds, -_SECONDS_MAX), pc.less_equal(seconds, _SECONDS_MAX)
    )
    table = table.set_column(at, table.schema.field(at), pc.if_else(valid, table.column(at), None))
    if writer is None:
        writer = parquet.ParquetWriter(
            out,
            table.schema,
            compression="zstd",
            write_page_checksum=True,
            sorting_columns=[parquet.SortingColumn(table.schema.get_field_index("offset"))],
        )
    writer.write_table(table, row_group_size=table.num_rows)
    return writer
