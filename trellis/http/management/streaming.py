"""Streams over HTTP: list them and their segments, and read segments, with read permission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from trellis.http import contract, stream_files
from trellis.http.management.answers import ApiRefusal, Call, Listing, iterate, not_found
from trellis.http.stream_files import SegmentRange

Result = TypeVar("Result")

_ERRORS: Final = {403: "not_authorised", 410: "gone", 416: "range_not_satisfiable"}


async def list_streams(call: Call) -> Listing:
    """List the streams that the user may read."""
    return Listing(iterate(stream_files.list_streams(call.broker, call.identity)), contract.PLAIN)


async def list_segments(call: Call) -> Listing:
    """List the segments of the stream that the query names."""
    rows = stream_result(lambda: stream_files.list_segments(call.broker, call.identity, call.query))
    return Listing(iterate(rows), contract.PLAIN)


async def read_segment(call: Call) -> SegmentRange:
    """Return a range of the stream segment that the query names; the gateway sends the bytes."""
    return stream_result(lambda: stream_files.open_range(call.broker, call.identity, call.query))


def stream_result(find: Callable[[], Result]) -> Result:
    """Call a function and return its result; raise its StreamRefusal as an ApiRefusal."""
    try:
        return find()
    except stream_files.StreamRefusal as refusal:
        if refusal.status == 404:
            raise not_found(str(refusal)) from None
        raise ApiRefusal(
            refusal.status, _ERRORS.get(refusal.status, "bad_request"), str(refusal)
        ) from None
