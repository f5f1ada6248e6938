"""Streams: which there are, their segments, and the octets of these.

Who may read the stream may have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from trellis.http import stream_files as segments
from trellis.http.management.answers import ApiRefusal, Call, not_found
from trellis.http.server import RangeResponse, Response

Found = TypeVar("Found")

_WORDS: Final = {403: "not_authorised", 410: "gone", 416: "range_not_satisfiable"}


async def list_streams(call: Call) -> object:
    return segments.list_streams(call.broker, call.identity)


async def list_segments(call: Call) -> object:
    """The segments of a stream, from the one with an offset on."""
    return _call(lambda: segments.list_segments(call.broker, call.identity, call.query))


async def read_segment(call: Call) -> Response:
    """A range of a segment, sent by the kernel."""
    part = _call(lambda: segments.open_range(call.broker, call.identity, call.query))
    return RangeResponse(part, call.sender, segments.CONTENT_TYPE)


def _call(find: Callable[[], Found]) -> Found:
    """Raises Refusal."""
    try:
        return find()
    except segments.StreamRefusal as refusal:
        if refusal.status == 404:
            raise not_found(str(refusal)) from None
        raise ApiRefusal(
            refusal.status, _WORDS.get(refusal.status, "bad_request"), str(refusal)
        ) from None
