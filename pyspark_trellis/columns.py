"""Defines the columns of a journal with their types in Spark and Arrow, and selects columns."""

from __future__ import annotations

from collections.abc import Sequence
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
DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
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


def projection(names: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns of a journal, with the types that Spark uses."""
    return pa.schema([(name, ARROW[COLUMNS[name]]) for name in names])


def conform(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the columns of the schema `wanted`, in its order and with its
    types.
    """
    columns = []
    for field in wanted:
        column = batch.column(field.name)
        columns.append(
            column if column.type == field.type else pc.cast(_instants(column), field.type)
        )
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _instants(column: pa.Array) -> pa.Array:
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
    """Raise PipelineError if a segment lacks one of the columns `names`.

    Such a file is not a journal segment, or was written by another version.
    """
    for name in names:
        if schema.get_field_index(name) < 0:
            raise PipelineError(
                f"{path} has no column '{name}': the file is not a journal segment, or was "
                "written by another version of Trellis"
            )
