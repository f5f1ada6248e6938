"""Streams over HTTP: list them and their segments, and read segments, with read permission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from trellis.http import stream_files
from trellis.http.management.answers import ApiRefusal, Call, not_found
from trellis.http.server import RangeResponse, Response

Result = TypeVar("Result")

_ERRORS: Final = {403: "not_authorised", 410: "gone", 416: "range_not_satisfiable"}


async def list_streams(call: Call) -> object:
    """List the streams that the user may read."""
    return stream_files.list_streams(call.broker, call.identity)


async def list_segments(call: Call) -> object:
    """List the segments of a stream."""
    return _call(lambda: stream_files.list_segments(call.broker, call.identity, call.query))


async def read_segment(call: Call) -> Response:
    """Return a range of a segment, which the kernel sends."""
    part = _call(lambda: stream_files.open_range(call.broker, call.identity, call.query))
    return RangeResponse(part, call.sender, stream_files.CONTENT_TYPE)


def _call(find: Callable[[], Result]) -> Result:
    """Call a function and return its result; raise its StreamRefusal as an ApiRefusal."""
    try:
        return find()
    except stream_files.StreamRefusal as refusal:
        if refusal.status == 404:
            raise not_found(str(refusal)) from None
        raise ApiRefusal(
            refusal.status, _ERRORS.get(refusal.status, "bad_request"), str(refusal)
        ) from None
