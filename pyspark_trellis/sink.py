"""`writeStream.format("trellis")`: publishes each row as a message, confirmed and exactly once.

    (df.select("topic", "body").writeStream.format("trellis")
        .option("url", "amqp://127.0.0.1:5672/").start())

Spark repeats a task after a failure and a batch after a crash. So each message carries an identity
in two headers, by which the broker deduplicates: `x-trellis-producer` is query and partition,
`x-trellis-sequence` is batch number << 32 | row. The broker stores the last sequence number of each
producer in the same log record as the message.

When a batch is repeated, each row must be in the same partition and have the same number as before.
So the rows of a partition are sorted before they are numbered. Before a partition is published, a
digest of its rows is stored in the checkpoint; a repeated batch with other digests (because
spark.sql.shuffle.partitions, rowsPerTask or the query changed) is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_trellis import credentials
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.publisher import Outgoing, SinkPublisher

#: The columns that a query must have.
REQUIRED: Final = ("topic", "body")
#: The columns that become message properties, if a query has them.
PROPERTIES: Final = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
)
_KINDS: Final = {
    "topic": ("string",),
    "body": ("string", "binary"),
    "exchange": ("string",),
    "headers": ("string",),
    "delivery_mode": ("smallint", "int"),
    "priority": ("smallint", "int"),
}
OPTIONS: Final = (
    "url",
    "exchange",
    "checkpointLocation",
    "user",
    "password",
    "passwordFile",
    "path",
)
PRODUCER, SEQUENCE = "x-trellis-producer", "x-trellis-sequence"


@dataclass
class PublishedPartition(WriterCommitMessage):
    """The result of a task: the number of messages that it published."""

    messages: int


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer that publishes the rows of a batch. Spark sends it, pickled, to the tasks."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        """Check the columns of the query and the options of the sink.

        Raises PipelineError if a column or option is invalid or missing.
        """
        url = options.get("url", "amqp://127.0.0.1:5672/")
        parts = urlsplit(url)
        #: Spark redacts the option `url`, so a password in the URL is accepted. A password file is
        #: safer.
        self._credentials: Final = (
            None if parts.password is not None else credentials.credentials_of(parts, options)
        )
        self._url: Final = url
        self._exchange: Final = options.get("exchange", "amq.topic")
        self._checkpoint: Final = options.get("checkpointlocation", "")
        known = [name.lower() for name in OPTIONS]
        for name in options:
            if name not in known:
                raise PipelineError(
                    f"writing with format(\"trellis\") has no option '{name}'; the options are "
                    f"{', '.join(OPTIONS[:-1])}"
                )
        if not self._checkpoint:
            raise PipelineError(
                "option checkpointLocation is missing: set it to a directory; the sink stores "
                "there how a batch was partitioned"
            )
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name in REQUIRED:
            if name not in columns:
                raise PipelineError(
                    f"a message needs a column '{name}'; the query has only {', '.join(columns)}"
                )
        for name, kind in columns.items():
            allowed = _KINDS.get(name, ("string",) if name in PROPERTIES else ())
            if not allowed:
                raise PipelineError(
                    f"a message has no field for the column '{name}'; select only "
                    f"{', '.join([*REQUIRED, 'exchange', 'headers', *PROPERTIES])}"
                )
            if kind not in allowed:
                raise PipelineError(
                    f"column '{name}' of a message is {' or '.join(allowed)}, not {kind}"
                )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish the rows of one partition, and wait for the confirms of all of them.

        Raises PipelineError if a row cannot become a message, or if publishing fails.
        """
        context = TaskContext.get()
        assert context is not None
        query, number = (
            context.getLocalProperty("sql.streaming.queryId"),
            context.getLocalProperty("streaming.sql.batchId"),
        )
        # Without query and batch, all batches would have one identity, and the broker would drop
        # every batch after the first as a duplicate.
        if query is None or number is None:
            raise PipelineError("Spark names no query and batch: this sink is for writeStream only")
        batch = int(number)
        rows = [row for part in iterator for row in part.to_pylist()]
        rows.sort(key=_order)
        _claim(self._checkpoint, batch, context.partitionId(), rows)
        if not rows:
            return PublishedPartition(0)
        producer = f"{query}/{context.partitionId()}"
        return PublishedPartition(
            SinkPublisher(self._url, self._credentials).publish(
                self._messages(rows, producer, batch << 32)
            )
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the digests of earlier batches, because all messages of this batch are confirmed.

        This method publishes no messages. The messages became durable when the tasks got their
        confirms; if Spark repeats the batch, the broker deduplicates them.
        """
        files, root = _place(self._checkpoint)
        for each in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            if each.base_name.isdecimal() and int(each.base_name) < batchId:
                with suppress(OSError):
                    files.delete_dir(each.path)

    def _messages(
        self, rows: list[dict[str, Any]], producer: str, first: int
    ) -> Iterator[Outgoing]:
        import pika

        for number, row in enumerate(rows):
            body = row["body"]
            if row["topic"] is None or body is None:
                raise PipelineError(
                    "a row has null as topic or body, so it cannot become a message: "
                    "filter out such rows"
                )
            headers = json.loads(row["headers"]) if row.get("headers") else {}
            if not isinstance(headers, dict):
                raise PipelineError(
                    "column 'headers' must hold JSON objects, but a row has another JSON value"
                )
            properties = {name: row[name] for name in PROPERTIES if row.get(name) is not None}
            properties.setdefault("delivery_mode", 2)
            yield Outgoing(
                row.get("exchange") or self._exchange,
                row["topic"],
                body.encode() if isinstance(body, str) else body,
                pika.BasicProperties(
                    headers={**headers, PRODUCER: producer, SEQUENCE: first | number}, **properties
                ),
            )


def _place(checkpoint: str) -> tuple[Any, str]:
    """Return the file system of a checkpoint, and the directory of the sink's digests in it."""
    place = (
        checkpoint
        if "://" in checkpoint
        else str(Path(checkpoint.removeprefix("file:")).absolute())
    )
    files, path = fs.FileSystem.from_uri(place)
    return files, f"{path.rstrip('/')}/trellis"


def _claim(checkpoint: str, batch: int, partition: int, rows: list[dict[str, Any]]) -> None:
    """Store the digest of this partition's rows in the checkpoint.

    Raises PipelineError if the checkpoint has another digest for this partition of the batch.
    """
    digest = (
        hashlib.sha256(repr([_order(row) for row in rows]).encode("utf-8", "surrogatepass"))
        .hexdigest()
        .encode()
    )
    files, root = _place(checkpoint)
    path = f"{root}/{batch}/{partition}"
    if files.get_file_info(path).type == fs.FileType.File:
        with files.open_input_stream(path) as known:
            if known.read() != digest:
                raise PipelineError(
                    f"batch {batch} is repeated with other partitions than before (partition "
                    f"{partition}), so the broker cannot "
                    "deduplicate it; restart the query with its former plan, number of partitions "
                    "and settings"
                )
        return
    files.create_dir(f"{root}/{batch}", recursive=True)
    draft = f"{path}.{uuid4().hex}"
    with files.open_output_stream(draft) as note:
        note.write(digest)
    files.move(draft, path)


def _order(row: dict[str, Any]) -> tuple[tuple[bool, str], ...]:
    """Return the sort key of a row. Rows with equal keys have equal values."""
    return tuple((value is not None, repr(value)) for value in row.values())
