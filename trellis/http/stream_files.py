"""Streams over HTTP: list streams and their segments, and open ranges of segment files.

Only durable rows are served. The broker opens a range; the gateway gets the file descriptor, and
reads and sends the file. A StreamRefusal has the HTTP status of a request that cannot be served.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from broker.access.identity import Identity
from broker.broker import Broker
from broker.errors import BrokerError
from broker.store.disk import OutOfDescriptors, RealFile, StoreError
from broker.stream.queue import StreamQueue
from broker.stream.segments import Segment

Row = dict[str, object]


class StreamRefusal(Exception):
    """The refusal of a request for a stream: the HTTP status and the reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class SegmentRange:
    """A range of bytes of a segment file.

    The range has its own file descriptor, so it can be read after retention has removed the file.
    """

    def __init__(self, descriptor: int, start: int, end: int, durable: int) -> None:
        self.descriptor = descriptor
        self.start = start
        self.end = end
        #: The offset after the last durable row of the stream, at the time of the request.
        self.durable = durable

    def close(self) -> None:
        """Close the file descriptor of the range."""
        os.close(self.descriptor)


def list_streams(broker: Broker, identity: Identity) -> Iterator[Row | None]:
    """Yield a row for each stream that the identity may read, and None for every other queue."""
    for vhost in list(broker.vhosts.values()):
        within = identity.for_vhost(vhost.name)
        for queue in list(vhost.queues.values()):
            if (
                within is not None
                and isinstance(queue, StreamQueue)
                and within.allows("read", "queue", queue.name, vhost.name)
            ):
                archive = queue.archive
                yield {
                    "vhost": vhost.name,
                    "name": queue.name,
                    "first": int(archive.first_offset),
                    "durable": int(archive.end),
                    "messages": int(archive.rows),
                    "bytes": int(archive.size),
                    "segments": len(archive.segments),
                    "epoch": archive.epoch,
                    "readers": len(queue.readers),
                    "served": int(queue.served),
                    "journal": queue.arguments.journal
                    or queue.name == vhost.declarations.journals.name,
                }
            else:
                yield None


def list_segments(broker: Broker, identity: Identity, query: Mapping[str, str]) -> list[Row]:
    """Return a row for each segment of a stream; the query has `vhost` and `queue`.

    With `offset` in the query, the list begins with the segment that contains this offset. Raises
    StreamRefusal.
    """
    _check_parameters(query, "offset")
    archive = find_stream(broker, identity, query).archive
    wanted = _number(query, "offset", -1)
    if 0 <= wanted < int(archive.end) and archive.segment_with(wanted) is None:
        raise StreamRefusal(410, str(archive.unavailable_error(wanted)))
    return [
        {
            "name": segment.name,
            "epoch": segment.epoch,
            "first": int(segment.base),
            "end": int(segment.end),
            "bytes": int(segment.size),
            "from": int(segment.first_at),
            "to": int(segment.last_at),
            "full": segment.full,
            "durable": int(archive.end),
        }
        for segment in archive.segments
        if int(segment.end) > wanted
    ]


def open_range(broker: Broker, identity: Identity, query: Mapping[str, str]) -> SegmentRange:
    """Open a range of a segment; the query has `vhost`, `queue` and `segment`.

    The query may have `start` and `end`, the offsets of the range in bytes; by default the range is
    the durable part of the segment. Runs in the event loop. Raises StreamRefusal.
    """
    _check_parameters(query, "segment", "start", "end")
    archive = find_stream(broker, identity, query).archive
    name = query.get("segment", "")
    if not name:
        text = "segment=NAME is missing: /api/streams/segments lists the segments"
        raise StreamRefusal(400, text)
    segment: Segment | None = next((one for one in archive.segments if one.name == name), None)
    if segment is None:
        raise StreamRefusal(
            410 if name.endswith(".arrow") else 404,
            f"segment '{name}' of stream '{archive.name}' in vhost '{archive.vhost}' "
            f"does not exist (any more): the first offset is {int(archive.first_offset)}",
        )
    size = int(segment.size)
    start, end = _number(query, "start", 0), _number(query, "end", size)
    if start > end:
        raise StreamRefusal(
            416,
            f"start={start} is greater than end={end} for segment '{name}', "
            f"of which {size} bytes are durable",
        )
    if end > size:
        raise StreamRefusal(
            416, f"segment '{name}' has no bytes {start} to {end}: only {size} bytes are durable"
        )
    try:
        file = segment.file()
    except OutOfDescriptors as shortage:
        raise StreamRefusal(503, f"{shortage}; try again later") from shortage
    except StoreError as error:
        raise StreamRefusal(500, str(error)) from error
    if not isinstance(file, RealFile):
        raise StreamRefusal(
            501,
            "the broker holds its streams in memory (data.dir is :memory:); read them over AMQP",
        )
    try:
        descriptor = file.duplicate()
    except OSError as refusal:
        raise StreamRefusal(
            503, f"cannot read '{segment.path}': {refusal.strerror}; try again later"
        ) from refusal
    return SegmentRange(descriptor, start, end, int(archive.end))


def find_stream(broker: Broker, identity: Identity, query: Mapping[str, str]) -> StreamQueue:
    """Return the stream that a query names by `vhost` and `queue`. Raises StreamRefusal."""
    vhost, name = query.get("vhost", "/"), query.get("queue", "")
    if not name:
        raise StreamRefusal(400, "queue=NAME is missing: /api/streams lists the streams")
    within = identity.for_vhost(vhost)
    known = broker.vhosts.get(vhost)
    queue = None if known is None else known.queues.get(name)
    if within is None:
        raise StreamRefusal(
            403,
            f"access to vhost '{vhost}' refused for user '{identity.name}': grant permissions with "
            "`trellis permissions set`",
        )
    try:
        within.may("read", "queue", name, vhost)
    except BrokerError as error:
        raise StreamRefusal(403, str(error)) from error
    if known is None:
        raise StreamRefusal(404, f"there is no vhost '{vhost}'")
    if not isinstance(queue, StreamQueue):
        raise StreamRefusal(
            404,
            f"no stream '{name}' in vhost '{vhost}'"
            + ("" if queue is None else ": this queue is of another type"),
        )
    return queue


def _check_parameters(query: Mapping[str, str], *known: str) -> None:
    """Raise StreamRefusal for an unknown parameter.

    Without this check, a client that mistypes `offset` would get all segments.
    """
    for name in query:
        if name not in ("vhost", "queue", *known):
            raise StreamRefusal(
                400, f"unknown parameter '{name}'; known are vhost, queue, {', '.join(known)}"
            )


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    value = query.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise StreamRefusal(400, f"'{name}' is '{value}', must be a number, 0 or larger")
    return int(value)
