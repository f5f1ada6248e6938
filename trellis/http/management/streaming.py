"""Streams over HTTP: list them and their segments, and read segments, with read permission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, TypeVar

from broker.store.disk import OutOfDescriptors, StoreError
from broker.stream.archived import ArchivedRows, RowsPending, RowsUnavailable
from broker.stream.local_segments import LocalSegments
from broker.stream.segments import Segment
from trellis.archive.contract import FileRow
from trellis.archive.service import ArchiveService, ArchiveUnavailable
from trellis.http import contract, stream_files
from trellis.http.management.answers import ApiRefusal, Call, Listing, Row, iterate, not_found
from trellis.http.stream_files import SegmentRange

Result = TypeVar("Result")

#: Largest number of files in one answer of the archive.
FILES: Final = 500

_ERRORS: Final = {403: "not_authorised", 410: "gone", 416: "range_not_satisfiable"}


async def list_streams(call: Call) -> Listing:
    """List the streams that the user may read."""
    return Listing(iterate(stream_files.list_streams(call.broker, call.identity)), contract.PLAIN)


async def show_archive(call: Call) -> Row:
    """Return the state of the archive: waiting and uploaded segments, fetches, the last error."""
    archive = call.node.archive
    if archive is None:
        raise not_found("this broker has no archive: the setting stream.archive is empty")
    counters = archive.counters
    return {
        "url": archive.url,
        "up": archive.up,
        "last_error": counters.last_error,
        "waiting_segments": counters.waiting_segments,
        "waiting_bytes": counters.waiting_bytes,
        "backlog": archive.backlog,
        "uploaded_segments": counters.uploaded_segments,
        "uploaded_files": counters.uploaded_files,
        "uploaded_bytes": counters.uploaded_bytes,
        "upload_failures": counters.upload_failures,
        "fetched_files": counters.fetched_files,
        "fetched_bytes": counters.fetched_bytes,
        "fetch_failures": counters.fetch_failures,
        "cached_bytes": archive.cache.size,
        "dropped_segments": counters.dropped_segments,
        "dropped_rows": counters.dropped_rows,
        "refused_streams": counters.refused_streams,
        "workers_lost": 0 if archive.worker is None else archive.worker.lost,
        "worker_pid": 0 if archive.worker is None else archive.worker.pid,
    }


async def list_segments(call: Call) -> Listing:
    """List the segments of the stream that the query names: first the segments in the archive."""
    local, wanted = stream_result(
        lambda: stream_files.wanted_segments(call.broker, call.identity, call.query)
    )
    service = call.node.archive
    if local.archived is None or service is None or wanted >= local.first_offset:
        rows = stream_files.local_segments(local, wanted)
        return Listing(iterate(rows), contract.PLAIN)
    try:
        files = await service.files(local.archived, wanted, FILES)
    except ArchiveUnavailable as error:
        raise ApiRefusal(503, "busy", f"{error}; try again later") from None
    if "offset" in call.query and (not files or files[0].first > wanted):
        raise ApiRefusal(410, "gone", str(local.unavailable_error(wanted)))
    return Listing(_all_segments(local, local.archived, service, wanted, files), contract.PLAIN)


async def _all_segments(
    local: LocalSegments, rows: ArchivedRows, service: ArchiveService, at: int, files: list[FileRow]
) -> AsyncIterator[Row | asyncio.Event]:
    """Yield the segments of a stream from the offset `at` on: first the segments in the archive.

    `files` are the first files of the archive. While further files are being requested, yield an
    event: the caller waits for the event outside a slice before it asks for the next item. Segments
    that retention removes from the disk during this wait are listed from the archive. Raises
    ApiRefusal if the list of files cannot be read.
    """
    while files and files[0].first < local.first_offset:
        for file in files:
            if file.first < local.first_offset:
                yield stream_files.archived_segment(local, file)
                at = file.end
        if at >= local.first_offset:
            break
        arrived = asyncio.Event()
        request = asyncio.ensure_future(service.files(rows, at, FILES))
        request.add_done_callback(partial(_set, arrived))
        yield arrived
        try:
            files = await request
        except ArchiveUnavailable as error:
            raise ApiRefusal(503, "busy", f"{error}; try again later") from None
    for row in stream_files.local_segments(local, at):
        yield row


def _set(arrived: asyncio.Event, _: object) -> None:
    arrived.set()


async def read_segment(call: Call) -> SegmentRange:
    """Return a range of the stream segment that the query names; the gateway sends the bytes."""
    local, name = stream_result(
        lambda: stream_files.wanted_segment(call.broker, call.identity, call.query)
    )
    segment: Segment | None = None
    archived = local.archived
    first = stream_files.archived_offset(local, name, call.query)
    if archived is not None and first >= 0:
        segment = await archived_result(call, local, partial(archived.segment_with, first))
    return stream_result(lambda: stream_files.open_range(local, segment, call.query))


async def read_topics(call: Call) -> SegmentRange:
    """Return the summary of the topics of the segment that the query names."""
    return stream_result(lambda: stream_files.open_summary(call.broker, call.identity, call.query))


async def fetch_rows(call: Call, local: LocalSegments, offset: int, count: int) -> None:
    """Make `count` rows of a stream readable, from the offset `offset` on.

    Rows that are not on the disk are fetched from the archive, if there is one. Raises ApiRefusal.
    """
    archived = local.archived
    end = min(offset + count, int(local.first_offset))
    while archived is not None and offset < end:
        read = partial(archived.segment_with, offset)
        segment = await archived_result(call, local, read)
        if segment is None:
            return
        offset = int(segment.end)


async def archived_result(call: Call, local: LocalSegments, read: Callable[[], Result]) -> Result:
    """Call a function that reads a stream, and return its result.

    If `read` raises RowsPending, wait until the archive has delivered the rows, and call `read`
    again. Do not await this coroutine within a slice, because it may wait for seconds. Raises
    ApiRefusal if the rows cannot be read.
    """
    service, rows = call.node.archive, local.archived
    if service is None or rows is None:
        return read_result(local.name, read)
    try:
        return await service.retried(rows, lambda: _converted(read))
    except ArchiveUnavailable as error:
        raise ApiRefusal(503, "busy", f"{error}; try again later") from None


def read_result(stream: str, read: Callable[[], Result]) -> Result:
    """Call a function that reads the stream of this name, and return its result.

    Raises ApiRefusal if the rows cannot be read now.
    """
    try:
        return _converted(read)
    except RowsPending:
        raise ApiRefusal(
            503,
            "busy",
            f"rows of the stream '{stream}' are not fetched from the archive yet; try again later",
        ) from None


def _converted(read: Callable[[], Result]) -> Result:
    """Call a function that reads a stream, and return its result.

    Raises ApiRefusal in place of the stream's errors, except RowsPending.
    """
    try:
        return read()
    except OutOfDescriptors as shortage:
        raise ApiRefusal(503, "busy", f"{shortage}; try again later") from None
    except (RowsUnavailable, StoreError) as error:
        raise ApiRefusal(410, "gone", str(error)) from None


def stream_result(find: Callable[[], Result]) -> Result:
    """Return the result of `find`. Raises ApiRefusal in place of a StreamRefusal of `find`."""
    try:
        return find()
    except stream_files.StreamRefusal as refusal:
        if refusal.status == 404:
            raise not_found(str(refusal)) from None
        raise ApiRefusal(
            refusal.status, _ERRORS.get(refusal.status, "bad_request"), str(refusal)
        ) from None
