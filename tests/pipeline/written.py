"""Segments as the broker writes them, written with pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

_INSTANT, _SECOND = pa.timestamp("us", tz="UTC"), pa.timestamp("s", tz="UTC")
COLUMNS: Final = (
    ("offset", pa.int64(), False), ("published_at", _INSTANT, False), ("vhost", pa.string(), False), ("exchange", pa.string(), False),
    ("topic", pa.string(), False), ("protocol", pa.string(), False), ("qos", pa.uint8(), False), ("publisher", pa.string(), False),
    ("routed", pa.int32(), False), ("size", pa.int64(), False), ("content_type", pa.string(), True),
    ("content_encoding", pa.string(), True), ("delivery_mode", pa.uint8(), True), ("priority", pa.uint8(), True),
    ("correlation_id", pa.string(), True), ("reply_to", pa.string(), True), ("expiration", pa.string(), True),
    ("message_id", pa.string(), True), ("timestamp", _SECOND, True), ("type", pa.string(), True), ("user_id", pa.string(), True),
    ("app_id", pa.string(), True), ("cluster_id", pa.string(), True), ("headers", pa.string(), True),
    ("content_header", pa.binary(), False), ("routing_key", pa.binary(), True), ("body", pa.binary(), False))
SCHEMA: Final = pa.schema([pa.field(name, kind, nullable) for name, kind, nullable in COLUMNS])
START: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
_DEFAULTS: Final = {"vhost": "/", "exchange": "amq.topic", "protocol": "amqp", "qos": 1, "publisher": "guest", "routed": 1,
                    "content_header": b"\0\x3c\0\0", "body": b""}

Row = dict[str, Any]


def row(offset: int, topic: str, **others: Any) -> Row:
    """A row: what is not said has a plain value; published a second an offset."""
    made: Row = {name: None for name, _, _ in COLUMNS} | _DEFAULTS | {
        "offset": offset, "topic": topic, "published_at": START + timedelta(seconds=offset)} | others
    return made | {"size": len(made["body"])}


def message(rows: Sequence[Row]) -> bytes:
    """One record batch."""
    batch = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
    octets: bytes = batch.serialize().to_pybytes()
    return octets


class Writer:
    """Writes one segment, batch by batch."""

    def __init__(self, directory: Path, epoch: int = 1, base: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{epoch:010d}-{base:020d}.arrow"
        self.path.write_bytes(SCHEMA.serialize().to_pybytes())

    def write(self, rows: Sequence[Row], torn: int = 0) -> None:
        """Append a batch, but for the last `torn` octets."""
        octets = message(rows)
        with self.path.open("ab") as file:
            file.write(octets[:len(octets) - torn])

    def finish(self) -> None:
        """It is full."""
        with self.path.open("ab") as file:
            file.write(b"\xff\xff\xff\xff\0\0\0\0")


def journal(directory: Path, rows: Iterable[Row], a_batch: int = 7, a_segment: int = 40, epoch: int = 1) -> list[Row]:
    """A whole journal of these rows; returns them."""
    found = list(rows)
    for start in range(0, len(found), a_segment):
        part = found[start:start + a_segment]
        writer = Writer(directory, epoch, part[0]["offset"])
        for at in range(0, len(part), a_batch):
            writer.write(part[at:at + a_batch])
        if start + a_segment < len(found):
            writer.finish()
    return found
