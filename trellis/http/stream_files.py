"""Streams over HTTP: list streams and their segments, and open ranges of segment files.

Only durable rows are served. The broker opens a range; the gateway gets the file descriptor, and
reads and sends the file. A StreamRefusal has the HTTP status of a request that cannot be served.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from broker.access.identity import Identity
from broker.broker import Broker
from broker.errors import BrokerError
from broker.store.disk import OutOfDescriptors, RealFile, StoreError
from broker.stream.archived import RowsPending
from broker.stream.local_segments import LocalSegments
from broker.stream.offsets import first_available
from broker.stream.queue import StreamQueue
from broker.stream.segment_topics import HEAD_SIZE, encode_head
from broker.stream.segments import TOPICS, Segment, parse_segment
from trellis.archive.contract import FileRow

Row = dict[str, object]

#: The beginning of the names of segments in the archive.
ARCHIVED: Final = "archived-"
_ARCHIVED_NAME: Final = re.compile(ARCHIVED + r"([0-9]{20})\.arrow")
#: Highest offset of a row.
OFFSET_MAX: Final = (1 << 63) - 1


class StreamRefusal(Exception):
    """Raised if a request for a stream is refused, with an HTTP status and a reason."""

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
                local = queue.local
                yield {
                    "vhost": vhost.name,
                    "name": queue.name,
                    "first": _first_offset(local),
                    "local": int(local.first_offset),
                    "durable": int(local.end),
                    "messages": int(local.rows),
                    "bytes": int(local.size),
                    "segments": len(local.segments),
                    "epoch": local.epoch,
                    "readers": len(queue.readers),
                    "served": int(queue.served),
                    "journal": queue.arguments.journal
                    or queue.name == vhost.declarations.journals.name,
                }
            else:
                yield None


def _first_offset(local: LocalSegments) -> int:
    """Return the offset of the stream's first row, on the disk or in the archive.

    If the first offset in the archive is not known yet, return the offset of the first row on the
    disk.
    """
    try:
        return int(first_available(local))
    except RowsPending:
        return int(local.first_offset)


def wanted_segments(
    broker: Broker, identity: Identity, query: Mapping[str, str]
) -> tuple[LocalSegments, int]:
    """Return a stream and the offset with which the list of its segments begins.

    The query has `vhost` and `queue`, and may have `offset`; the default offset is 0. Raises
    StreamRefusal.
    """
    _check_parameters(query, "offset")
    local = find_stream(broker, identity, query).local
    wanted = _number(query, "offset", -1)
    if (
        0 <= wanted < int(local.end)
        and local.segment_with(wanted) is None
        and (local.archived is None or local.archived.lacks(wanted))
    ):
        raise StreamRefusal(410, str(local.unavailable_error(wanted)))
    return local, max(wanted, 0)


def local_segments(local: LocalSegments, wanted: int) -> list[Row]:
    """Return a row for each segment on the disk with rows from the offset `wanted` on."""
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
            "durable": int(local.end),
            "archived": False,
        }
        for segment in local.segments
        if int(segment.end) > wanted
    ]


def archived_segment(local: LocalSegments, file: FileRow) -> Row:
    """Return the row of a segment that is a file in the archive.

    The broker fetches the file when a client reads the segment. The field `bytes` is the size of
    the file in the archive.
    """
    return {
        "name": f"{ARCHIVED}{file.first:020d}.arrow",
        "epoch": 0,
        "first": file.first,
        "end": min(file.end, int(local.first_offset)),
        "bytes": file.size,
        "from": file.from_us,
        "to": file.to_us,
        "full": True,
        "durable": int(local.end),
        "archived": True,
        "file": file.path,
    }


def wanted_segment(
    broker: Broker, identity: Identity, query: Mapping[str, str]
) -> tuple[LocalSegments, str]:
    """Return a stream and the name of its segment; the query has `vhost`, `queue` and `segment`.

    Raises StreamRefusal.
    """
    _check_parameters(query, "segment", "start", "end")
    local = find_stream(broker, identity, query).local
    name = query.get("segment", "")
    if not name:
        text = "the parameter segment=NAME is missing: /api/streams/segments lists the segments"
        raise StreamRefusal(400, text)
    return local, name


def archived_offset(local: LocalSegments, name: str, query: Mapping[str, str]) -> int:
    """Return the first offset of the segment `name` if it must be read from the archive, else -1.

    Two kinds of names lead to the archive: names of archived segments, and names of segments that
    retention has removed from the disk after a client got the name. The archive stores rows in
    another file format than the disk. So if the query has `start` or `end`, offsets in bytes, the
    result for a removed segment is -1.
    """
    match = _ARCHIVED_NAME.fullmatch(name)
    if match is not None:
        first = int(match[1])
        return first if first <= OFFSET_MAX else -1
    known = parse_segment(name)
    if known is None or "start" in query or "end" in query or known[1] >= int(local.first_offset):
        return -1
    return known[1]


def open_range(
    local: LocalSegments, segment: Segment | None, query: Mapping[str, str]
) -> SegmentRange:
    """Open a range of a segment: of `segment`, or if `segment` is None, of the segment on the disk
    that the query names.

    The query may have `start` and `end`, the offsets of the range in bytes; by default the range is
    the durable part of the segment. Runs in the event loop. Raises StreamRefusal.
    """
    name = query.get("segment", "")
    if segment is None:
        segment = next((one for one in local.segments if one.name == name), None)
    if segment is None:
        raise StreamRefusal(
            410 if name.endswith(".arrow") else 404,
            f"segment '{name}' of stream '{local.name}' in vhost '{local.vhost}' "
            f"does not exist, or retention has removed it: the stream begins at offset "
            f"{int(local.first_offset)}; /api/streams/segments lists its segments",
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
    return SegmentRange(descriptor, start, end, int(local.end))


def open_summary(broker: Broker, identity: Identity, query: Mapping[str, str]) -> SegmentRange:
    """Open the summary of the topics of a segment on the disk.

    `query` names the stream and the segment, as for `wanted_segment`; the query has no range. Runs
    in the event loop. Raises StreamRefusal. The status 404 means that the segment has no summary
    (yet), so that the client must read the segment itself.
    """
    _check_parameters(query, "segment")
    local, name = wanted_segment(broker, identity, query)
    segment = next((one for one in local.segments if one.name == name), None)
    if segment is None:
        return open_range(local, None, query)  # Raises the StreamRefusal of a missing segment.
    try:
        file = segment.disk.open(f"{segment.path}{TOPICS}", False)
        head = encode_head(local.number, segment.epoch, int(segment.base), int(segment.end))
        # A deleted stream of the same name may have left the file.
        if isinstance(file, RealFile) and file.read(0, HEAD_SIZE) == head:
            return SegmentRange(file.duplicate(), 0, int(file.size()), int(local.end))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StreamRefusal(
            503, f"cannot read '{segment.path}{TOPICS}': {error.strerror}; try again later"
        ) from error
    raise StreamRefusal(
        404,
        f"segment '{name}' of stream '{local.name}' in vhost '{local.vhost}' has no summary of its "
        "topics now: read the segment itself",
    )


def find_stream(broker: Broker, identity: Identity, query: Mapping[str, str]) -> StreamQueue:
    """Return the stream that a query names by `vhost` and `queue`. Raises StreamRefusal."""
    vhost, name = query.get("vhost", "/"), query.get("queue", "")
    if not name:
        text = "the parameter queue=NAME is missing: /api/streams lists the streams"
        raise StreamRefusal(400, text)
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
            f"there is no stream '{name}' in vhost '{vhost}'"
            + ("" if queue is None else f": the queue '{name}' is not a stream"),
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
        raise StreamRefusal(400, f"the parameter '{name}' must be a number from 0, not '{value}'")
    return int(value)
