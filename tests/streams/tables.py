"""The segments of a stream, read with pyarrow."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from broker.broker import Broker
from broker.stream.queue import StreamQueue


def stream(broker: Broker, name: str, vhost: str = "/") -> StreamQueue:
    found = broker.vhosts[vhost].queues[name]
    assert isinstance(found, StreamQueue)
    return found


def durable_bytes_of(queue: StreamQueue) -> list[bytes]:
    """Return the durable bytes of each segment."""
    return [segment.file().read(0, segment.size) for segment in queue.local.segments]


def rows_of(queue: StreamQueue) -> list[dict[str, Any]]:
    """Return all rows of a stream, read from its segments by pyarrow."""
    found: list[dict[str, Any]] = []
    for data in durable_bytes_of(queue):
        found += rows_in(data)
    return found


def rows_in(data: bytes) -> list[dict[str, Any]]:
    table = pa.ipc.open_stream(io.BytesIO(data)).read_all()
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
