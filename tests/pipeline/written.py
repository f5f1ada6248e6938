"""Writes segments as the broker does, with pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from broker.stream.arrow import END_OF_STREAM, encode_schema
from pyspark_trellis.bench import summed

#: The Arrow schema of the segments that the broker writes.
SCHEMA: Final = pa.ipc.read_schema(pa.BufferReader(encode_schema(1, 1, 0)))
START: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
_DEFAULTS: Final = {
    "vhost": "/",
    "exchange": "amq.topic",
    "protocol": "amqp",
    "qos": 1,
    "publisher": "guest",
    "routed": 1,
    "content_header": b"\0\x3c\0\0",
    "body": b"",
}

Row = dict[str, Any]


def row(offset: int, topic: str, **others: Any) -> Row:
    """Return a row published `offset` seconds after START; `others` replace the default values."""
    fields: Row = (
        dict.fromkeys(SCHEMA.names)
        | _DEFAULTS
        | {"offset": offset, "topic": topic, "published_at": START + timedelta(seconds=offset)}
        | others
    )
    return fields | {"size": len(fields["body"])}


def message(rows: Sequence[Row]) -> bytes:
    """Return one record batch as an Arrow message."""
    return summed(pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA))


class Writer:
    """Writes one segment, batch by batch."""

    def __init__(self, directory: Path, epoch: int = 1, base: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{epoch:010d}-{base:020d}.arrow"
        self.path.write_bytes(encode_schema(1, epoch, base))

    def write(self, rows: Sequence[Row], torn: int = 0) -> None:
        """Append a batch, without its last `torn` bytes."""
        data = message(rows)
        with self.path.open("ab") as file:
            file.write(data[: len(data) - torn])

    def finish(self) -> None:
        """Write the end of a full segment."""
        with self.path.open("ab") as file:
            file.write(END_OF_STREAM)


def journal(
    directory: Path, rows: Iterable[Row], a_batch: int = 7, a_segment: int = 40, epoch: int = 1
) -> list[Row]:
    """Write a whole journal of these rows, in segments of `a_segment` rows and batches of `a_batch`
    rows; return the rows."""
    all_rows = list(rows)
    for start in range(0, len(all_rows), a_segment):
        part = all_rows[start : start + a_segment]
        writer = Writer(directory, epoch, part[0]["offset"])
        for at in range(0, len(part), a_batch):
            writer.write(part[at : at + a_batch])
        if start + a_segment < len(all_rows):
            writer.finish()
    return all_rows
