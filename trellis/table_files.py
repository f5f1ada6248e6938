"""Writes the rows of a stream to a file that other programs read: Parquet or Arrow's IPC format.

    parquet   Parquet: a row group for each group of rows, compressed with Zstandard
    arrow     Arrow IPC file: a record batch for each group of rows, not compressed
    arrows    Arrow IPC stream: the same record batches, without the index at the end of the file

A group ends at GROUP_ROWS rows or GROUP_BYTES bytes. The rows of one group are in memory. The
module needs pyarrow, so import it only where pyarrow is known to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

#: Number of rows of a group. Readers of Parquet skip whole row groups, and pay for each of them.
GROUP_ROWS: Final = 100_000
#: Size in bytes, uncompressed, at which a group ends although it has fewer rows.
GROUP_BYTES: Final = 64 << 20
#: The format of each suffix of a file's name.
FORMATS: Final = ("parquet", "arrow", "arrows")

#: Columns that nearly always increase from row to row: Parquet stores their differences.
_INCREASING: Final = ("offset", "published_at")
#: Columns whose values seldom repeat: no dictionary.
_DISTINCT: Final = ("message_id", "correlation_id", "body")
#: Columns of bytes, whose smallest and largest value help no query: no statistics.
_WITHOUT_STATISTICS: Final = ("content_header", "body")
#: The first and the last second of the years 1 to 9999, as Unix time. A publisher may send any
#: 64-bit number as a timestamp, and readers of Parquet fail at other years.
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799


class TableFile:
    """A file that is being written, in one of FORMATS; `close` completes the file, `cancel`
    abandons it.

    `rows` and `groups` are the numbers of rows and of groups that were written so far. Errors of
    `out` are raised as they are.
    """

    def __init__(
        self,
        out: BinaryIO,
        kind: str,
        schema: pa.Schema,
        group_rows: int = GROUP_ROWS,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        self.rows = 0
        self.groups = 0
        self._schema: Final = schema
        self._group_rows: Final = group_rows
        self._group_bytes: Final = group_bytes
        self._parquet: Final = kind == "parquet"
        self._writer: Final[Any] = _WRITERS[kind](out, schema)
        #: The rows of the group that is not written yet, their number and their size in bytes.
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a record batch, which has the schema of the file."""
        while batch.num_rows:
            part = batch.slice(0, self._group_rows - self._waiting_rows)
            batch = batch.slice(part.num_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += part.nbytes
            if self._waiting_rows >= self._group_rows or self._waiting_bytes >= self._group_bytes:
                self._write_group()

    def close(self) -> None:
        """Write the remaining rows and the end of the file. `out` stays open."""
        if self._waiting:
            self._write_group()
        self._writer.close()

    def cancel(self) -> None:
        """Abandon an incomplete file, so that nothing is written to `out` any more.

        Without this call, pyarrow would try to complete a Parquet file when its writer is freed,
        and print an error if `out` is closed.
        """
        self._waiting.clear()
        if self._parquet:
            self._writer.is_open = False

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0
        if self._parquet:
            self._writer.write_table(_with_valid_times(group), row_group_size=group.num_rows)
        else:
            # A group is smaller than the 2 GiB that a column of texts may have, so it is one batch.
            for batch in group.combine_chunks().to_batches():
                self._writer.write_batch(batch)
        self.rows += group.num_rows
        self.groups += 1


def _parquet_writer(out: BinaryIO, schema: pa.Schema) -> Any:
    def without(names: Sequence[str]) -> list[str]:
        return [name for name in schema.names if name not in names]

    return parquet.ParquetWriter(
        out,
        schema,
        compression="zstd",
        write_page_checksum=True,
        write_statistics=without(_WITHOUT_STATISTICS),
        use_dictionary=without((*_INCREASING, *_DISTINCT)),
        column_encoding={
            name: "DELTA_BINARY_PACKED" for name in _INCREASING if name in schema.names
        },
    )


_WRITERS: Final[dict[str, Callable[[BinaryIO, pa.Schema], Any]]] = {
    "parquet": _parquet_writer,
    "arrow": pa.ipc.new_file,
    "arrows": pa.ipc.new_stream,
}


def _with_valid_times(table: pa.Table) -> pa.Table:
    """Return the table, with null for each time before the year 1 or after the year 9999.

    Only columns of times in seconds are changed.
    """
    for number, field in enumerate(table.schema):
        column = table.column(number)
        if (
            pa.types.is_timestamp(field.type)
            and field.type.unit == "s"
            and len(column) > column.null_count
        ):
            seconds = column.cast(pa.int64())
            valid = pc.and_(
                pc.greater_equal(seconds, _FIRST_SECOND), pc.less_equal(seconds, _LAST_SECOND)
            )
            table = table.set_column(number, field, pc.if_else(valid, column, None))
    return table
