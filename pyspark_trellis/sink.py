"""`write.format("trellis")` and `writeStream.format("trellis")`: publish each row as a message,
confirmed and exactly once.

    (df.select("topic", "body").writeStream.format("trellis")
        .option("url", "amqp://127.0.0.1:5672/").start())

Spark repeats tasks after failures, runs some tasks twice at once, and repeats a batch after a
crash, perhaps with other tasks. So the tasks only stage their rows in files beside the checkpoint
(`staging`). When all tasks of a batch have ended, Spark calls `commit` in one process, which
publishes the staged rows. Each message carries an identity in two headers, by which the broker
deduplicates: `x-trellis-producer` is query and file, `x-trellis-sequence` is batch number << 32 |
row. The broker stores the last sequence number of each producer in the same log record as the
message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_trellis import credentials, offsets
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.options import WRITING, known
from pyspark_trellis.publisher import Outgoing, SinkPublisher
from pyspark_trellis.staging import BatchManifest, published, set_published, stage, staged_rows
from pyspark_trellis.storage import Storage, storage_at

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
PRODUCER, SEQUENCE = "x-trellis-producer", "x-trellis-sequence"
#: The largest number of rows in a file: the sequence number has 32 bits for the row.
_ROWS_MAX: Final = 1 << 32
#: The directory of the sink beside a checkpoint.
_DIRECTORY: Final = "trellis"


@dataclass
class StagedRows(WriterCommitMessage):
    """The result of a task: the query, and the file with the rows (None if there are no rows)."""

    query: str
    file: str | None


class MessageSink:
    """The options of a query that publishes, and its work for one batch.

    Spark sends the object, pickled, to the tasks.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        """Check the columns of the query and the options of the sink.

        Raises PipelineError if a column or option is invalid or missing.
        """
        self.options: Final = known(options, WRITING)
        url = self.options.get("url", "amqp://127.0.0.1:5672/")
        parts = urlsplit(url)
        #: Spark redacts the option `url`, so a password in the URL is accepted. A password file is
        #: safer.
        self._credentials: Final = (
            None if parts.password is not None else credentials.credentials_of(parts, self.options)
        )
        self._url: Final = url
        self._exchange: Final = self.options.get("exchange", "amq.topic")
        self._checkpoint: Final = self.options.get("checkpointlocation", "")
        self._patience: Final = offsets.number(self.options, "publishTimeout", 60, least=1)
        if not self._checkpoint:
            raise PipelineError(
                "option checkpointLocation is missing: set it to a directory that all workers can "
                "read and write; the sink stages the rows of a batch there before it publishes them"
            )
        self._check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        self.publisher()

    def _check_columns(self, columns: dict[str, str]) -> None:
        for name in REQUIRED:
            if name not in columns:
                raise PipelineError(
                    f"the query has no column '{name}', which messages require; it has only "
                    f"{', '.join(columns)}"
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
                    f"column '{name}' of a message must be {' or '.join(allowed)}, not {kind}: "
                    "cast the column"
                )

    def storage(self, directory: str = "") -> Storage:
        """Return the sink's directory beside the checkpoint, or its subdirectory `directory`.

        Raises PipelineError.
        """
        location = "/".join(
            [self._checkpoint.rstrip("/"), _DIRECTORY, *([directory] if directory else [])]
        )
        return storage_at(location, self.options.get("hadoopsecrets", "{}"))

    def publisher(self) -> SinkPublisher:
        """Return a publisher that has published nothing yet. Raises PipelineError."""
        ca_file = self.options.get("cafile", "")
        return SinkPublisher(self._url, self._credentials, ca_file, self._patience)

    def publish(self, storage: Storage, query: str, batch: int, files: Sequence[str]) -> None:
        """Publish the rows in the files that the manifest of the batch names.

        If the batch has no manifest yet, first store a manifest that names `files`. Raises
        PipelineError.
        """
        name = str(batch)
        manifest = BatchManifest.read(storage, name)
        if manifest is None:
            manifest = BatchManifest(tuple(files))
            manifest.write(storage, name)
        if not published(storage, name):
            rows = (
                message
                for number, file in enumerate(manifest.files)
                for message in self.messages(
                    staged_rows(storage, name, file), f"{query}/{number}", batch << 32
                )
            )
            self.publisher().publish(rows)
            # If the batch is repeated after this, nothing is published, and no file is needed.
            set_published(storage, name)
        for file in {*manifest.files, *files}:
            with suppress(PipelineError):
                storage.delete(f"{name}/{file}")
        for other in storage.directories():
            if other.isdecimal() and int(other) < batch:
                with suppress(PipelineError):
                    storage.delete(other)

    def discard(
        self, storage: Storage, batch: int, messages: Iterable[WriterCommitMessage | None]
    ) -> None:
        """Delete the staged rows of a failed batch, except the rows that its manifest names.

        Spark also calls this method after a failed `commit`. The batch then has a manifest: a
        repetition of the batch publishes the rows that the manifest names.
        """
        manifest = BatchManifest.read(storage, str(batch))
        kept = () if manifest is None else manifest.files
        for each in _files(messages):
            if each.file not in kept:
                with suppress(PipelineError):
                    storage.delete(f"{batch}/{each.file}")

    def messages(
        self, rows: Iterator[dict[str, Any]], producer: str, first: int
    ) -> Iterator[Outgoing]:
        """Iterate over the messages of rows, numbered from `first` on. Raises PipelineError."""
        import pika

        for number, row in enumerate(rows):
            body = row["body"]
            if row["topic"] is None or body is None:
                raise PipelineError(
                    "a row has null as topic or body, so it cannot become a message: "
                    "filter out such rows"
                )
            if number >= _ROWS_MAX:
                raise PipelineError("a task has more than 2**32 rows: repartition the query")
            headers = _headers_of(row.get("headers"))
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


def _headers_of(text: str | None) -> dict[str, Any]:
    """Return the headers in a row. Raises PipelineError unless they are a JSON object."""
    try:
        headers = (
            json.loads(text, parse_float=_no_fraction, parse_constant=_no_fraction) if text else {}
        )
    except ValueError as error:
        raise PipelineError(
            f"column 'headers' must hold JSON objects, but a row has text that is not JSON: {error}"
        ) from None
    if not isinstance(headers, dict):
        raise PipelineError(
            "column 'headers' must hold JSON objects, but a row has another JSON value"
        )
    return headers


def _no_fraction(text: str) -> NoReturn:
    raise PipelineError(
        f"column 'headers' has the number {text} in a row, but the sink can send only whole "
        "numbers: write the number as a JSON string"
    )


def _files(messages: Iterable[WriterCommitMessage | None]) -> list[StagedRows]:
    return [each for each in messages if isinstance(each, StagedRows) and each.file is not None]


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        """Check columns and options. Raises PipelineError."""
        self._sink: Final = MessageSink(schema, options)
        for name in ("txnAppId", "txnVersion"):
            if name.lower() in self._sink.options:
                raise PipelineError(
                    f"option {name} is for df.write only: remove it, because the checkpoint "
                    "identifies a streaming query"
                )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task; return the name of their file (StagedRows).

        Raises PipelineError.
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
            raise PipelineError(
                "the sink cannot stage the rows: this version of Spark does not tell its tasks the "
                "query and the batch (sql.streaming.queryId, streaming.sql.batchId); install "
                "pyspark 4.2, or a later 4.x version"
            )
        return StagedRows(query, stage(iterator, self._sink.storage(), number))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the rows of the batch, and wait for the confirms of all of them.

        If the batch is a repetition, the rows that were staged first are published, and the broker
        drops the rows that it has already. Raises PipelineError.
        """
        queries = [each.query for each in messages if isinstance(each, StagedRows)]
        if queries:
            files = [each.file for each in _files(messages) if each.file is not None]
            self._sink.publish(self._sink.storage(), queries[0], batchId, files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the staged rows of a failed batch, except rows that its repetition needs."""
        self._sink.discard(self._sink.storage(), batchId, messages)


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch query.

    The options txnAppId and txnVersion identify the query, as in Delta: if the same query is run
    again with the same values and checkpointLocation, no message is published twice.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Check columns and options. Raises PipelineError."""
        self._sink: Final = MessageSink(schema, options)
        if overwrite:
            raise PipelineError(
                "published messages cannot be overwritten: use .mode('append') to publish rows"
            )
        named = self._sink.options.get("txnappid")
        if named is not None and not 0 < len(named.encode()) <= 200:
            raise PipelineError("option txnAppId must have 1 to 200 bytes")
        if named is None and "txnversion" in self._sink.options:
            raise PipelineError(
                "option txnVersion is set without txnAppId: set txnAppId to the name of the job"
            )
        self._named: Final = named is not None
        self._query: Final = named or uuid4().hex
        self._version: Final = offsets.number(self._sink.options, "txnVersion", 0)
        if self._version >= 1 << 31:
            raise PipelineError("option txnVersion must be below 2147483648 (2**31)")

    @property
    def _storage(self) -> Storage:
        return self._sink.storage(f"jobs/{self._query.encode().hex()}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task; return the name of their file (StagedRows).

        Raises PipelineError.
        """
        return StagedRows(self._query, stage(iterator, self._storage, str(self._version)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows, and wait for the confirms of all of them. Raises PipelineError."""
        files = [each.file for each in _files(messages) if each.file is not None]
        storage = self._storage
        self._sink.publish(storage, self._query, self._version, files)
        if not self._named:
            storage.delete()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the staged rows of a failed query, except rows that its repetition needs."""
        storage = self._storage
        self._sink.discard(storage, self._version, messages)
        if not self._named:
            with suppress(PipelineError):
                storage.delete()
