"""The segments of a stream, read with pyarrow."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from broker.broker import Broker
from broker.stream.queue import StreamQueue


def stream(broker: Broker, name: str, vhost: str = "/") -> StreamQueue:
    queue = broker.vhosts[vhost].queues[name]
    assert isinstance(queue, StreamQueue)
    return queue


def durable_bytes_of(queue: StreamQueue) -> list[bytes]:
    """Return the durable bytes of each segment."""
    return [segment.file().read(0, segment.size) for segment in queue.local.segments]


def rows_of(queue: StreamQueue) -> list[dict[str, Any]]:
    """Return all rows of a stream, read from its segments by pyarrow."""
    rows: list[dict[str, Any]] = []
    for data in durable_bytes_of(queue):
        rows += rows_in(data)
    return rows


def rows_in(data: bytes) -> list[dict[str, Any]]:
    table = pa.ipc.open_stream(io.BytesIO(data)).read_all()
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
