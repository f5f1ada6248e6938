"""Defines the columns of a journal with the types of Spark and Arrow, and their projection."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis.errors import PipelineError

#: The Spark type of each column. (Spark has no unsigned numbers; timestamps are microseconds.)
COLUMNS: Final = {
    "offset": "long",
    "published_at": "timestamp",
    "vhost": "string",
    "exchange": "string",
    "topic": "string",
    "protocol": "string",
    "qos": "short",
    "publisher": "string",
    "routed": "int",
    "size": "long",
    "content_type": "string",
    "content_encoding": "string",
    "delivery_mode": "short",
    "priority": "short",
    "correlation_id": "string",
    "reply_to": "string",
    "expiration": "string",
    "message_id": "string",
    "timestamp": "timestamp",
    "type": "string",
    "user_id": "string",
    "app_id": "string",
    "cluster_id": "string",
    "headers": "string",
    "content_header": "binary",
    "routing_key": "binary",
    "body": "binary",
}
#: The column with the name of the journal. Segments do not contain this column. A query of several
#: journals always has this column; a query of one journal has it only if the query's schema names
#: it.
JOURNAL: Final = "journal"
_ALL: Final = COLUMNS | {JOURNAL: "string"}
DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
DDL_OF_SEVERAL: Final = f"{DDL}, `{JOURNAL}` string"
#: The Arrow type of each Spark type.
ARROW: Final = {
    "long": pa.int64(),
    "int": pa.int32(),
    "short": pa.int16(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
}
#: The first second that a Spark timestamp can hold (year 1), as Unix time.
_FIRST_SECOND: Final = -62_135_596_800
#: The last second that a Spark timestamp can hold (year 9999), as Unix time.
_LAST_SECOND: Final = 253_402_300_799


def check_column(name: str) -> str:
    """Return the Spark type of a column. Raises PipelineError if a journal has no such column."""
    if name not in _ALL:
        near = get_close_matches(name, _ALL, n=1, cutoff=0)[0]
        raise PipelineError(f"a journal has no column '{name}'; the nearest is '{near}'")
    return _ALL[name]


def projection(names: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns of a journal, with the types that Spark uses."""
    return pa.schema([(name, ARROW[_ALL[name]]) for name in names])


def conform(batch: pa.RecordBatch, wanted: pa.Schema, journal: str = "") -> pa.RecordBatch:
    """Return the batch with the columns that the schema `wanted` has, and no others.

    The columns get the order and the types of this schema. `journal` is the name of the journal.
    """
    columns = []
    for field in wanted:
        if field.name == JOURNAL:
            columns.append(pa.repeat(pa.scalar(journal, field.type), batch.num_rows))
            continue
        column = batch.column(field.name)
        columns.append(
            column if column.type == field.type else pc.cast(_valid_timestamps(column), field.type)
        )
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _valid_timestamps(column: pa.Array) -> pa.Array:
    """Return the column with null in place of timestamps that Spark cannot represent.

    Spark's years are 1 to 9999. A publisher may send any number as a timestamp, often milliseconds
    instead of seconds.
    """
    if not pa.types.is_timestamp(column.type) or column.null_count == len(column):
        return column
    seconds = pc.cast(column, pa.int64())
    return pc.if_else(
        pc.and_(pc.greater_equal(seconds, _FIRST_SECOND), pc.less_equal(seconds, _LAST_SECOND)),
        column,
        None,
    )


def check_segment(schema: pa.Schema, names: Sequence[str], path: str) -> None:
    """Raise PipelineError if the schema of a segment lacks one of the columns `names`.

    Such a file is not a journal segment, or was written by another version.
    """
    for name in names:
        if schema.get_field_index(name) < 0:
            raise PipelineError(
                f"{path} has no column '{name}': the file is not a journal segment, or was "
                "written by another version of Trellis"
            )
