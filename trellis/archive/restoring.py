"""Turns a Parquet file of the archive into a segment, as the broker writes it. Used by the worker.

At most one row group of the file is in memory at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from broker.store.disk import RealDisk
from broker.stream.arrow import END_OF_STREAM, BatchBuilder, encode_schema, view_batch
from broker.stream.segments import Segment

#: Largest number of rows of a batch, and size of the bodies at which a batch is full, in bytes.
BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 256 << 10


class DamagedFile(Exception):
    """Raised if a file of the archive cannot be decoded, or lacks the rows that its name says."""


def restore_file(source: Any, path: Path, stream: int, first: int, end: int) -> Segment:
    """Write the rows of a Parquet file to a segment file at `path`.

    `source` is the open Parquet file with the offsets from `first` up to, not including, `end`.
    `stream` is the number of the stream. Raises DamagedFile, OSError.
    """
    segment = Segment(RealDisk(), str(path), 0, first)
    partial = path.with_name(path.name + ".partial")
    schema = encode_schema(stream, 0, first)
    types = pa.ipc.read_schema(pa.py_buffer(schema)).remove_metadata()
    try:
        with partial.open("wb") as out:
            out.write(schema)
            for batch in _batches(source, types):
                data = encode_batch(batch)
                view = view_batch(data, 0)
                if view is None or view.base != segment.end:
                    raise DamagedFile(f"the archived file has no offset {int(segment.end)}")
                rows = view.rows
                times = view.published_at(0), view.published_at(rows - 1)
                segment.add_batch(view.base, rows, segment.size, len(data), *times)
                out.write(data)
            out.write(END_OF_STREAM)
        if segment.end != end:
            raise DamagedFile(
                f"the archived file ends at offset {int(segment.end) - 1} instead of {end - 1}"
            )
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # The disk may be full.
        raise
    segment.full = True
    return segment


def _batches(source: Any, types: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows in batches of the size that the broker writes. Raises DamagedFile."""
    try:
        file = parquet.ParquetFile(source, page_checksum_verification=True, pre_buffer=True)
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=types.names, use_threads=False)
            columns = [rows.column(field.name).cast(field.type) for field in types]
            table = pa.Table.from_arrays(columns, schema=types).combine_chunks()
            for batch in table.to_batches():
                yield from _cut(batch)
    except (pa.ArrowException, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise DamagedFile(f"the archived file cannot be decoded: {reason}") from None


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch at BATCH_ROWS rows or BATCH_BYTES of bodies."""
    body = batch.column("body")
    ends = memoryview(body.buffers()[1]).cast("i")[body.offset : body.offset + len(body) + 1]
    row = 0
    while row < batch.num_rows:
        after = bisect_right(ends, ends[row] + BATCH_BYTES) - 1
        count = min(max(after - row, 1), BATCH_ROWS, batch.num_rows - row)
        yield batch.slice(row, count)
        row += count


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """Encode rows as the broker writes them to a segment: an Arrow message with a checksum."""
    # A slice shares the buffers of its whole batch. Arrow's encoder copies the part that the slice
    # uses.
    whole = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    builder = BatchBuilder(whole.num_rows)
    for column in whole.columns:
        buffers = [b"" if buffer is None else buffer.to_pybytes() for buffer in column.buffers()]
        builder.add_encoded(column.null_count, buffers)
    return bytes(builder.build())
