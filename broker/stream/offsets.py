"""Finds the offset at which a reader of a stream begins, from the argument `x-stream-offset`.

first                   the first available row
last                    the first row of the last batch
next, or no argument    the next row to be published
a number                that offset
a timestamp             the first row published at that time or later
30s, 5m, 1h, 7D, ...    the first row published at most that long ago (Y, M, D, h, m, s)
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from mypy_extensions import i64

from broker.errors import PreconditionFailed
from broker.stream.local_segments import LocalSegments
from broker.stream.pages import StreamPages

#: The words that `x-stream-offset` accepts.
WORDS: Final = ("first", "last", "next")
#: The units of an interval in seconds.
_UNITS: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_INTERVAL: Final = re.compile(r"(\d{1,10})([YMDhms])")
#: The highest offset; offsets have 63 bits.
_OFFSET_MAX: Final = (1 << 63) - 1


def seconds_of(interval: str) -> int:
    """Return an interval such as `1h` in seconds; -1 if the text is not an interval."""
    match = _INTERVAL.fullmatch(interval)
    return int(match[1]) * _UNITS[match[2]] if match is not None else -1


def resolve_offset(
    local: LocalSegments, pages: StreamPages, wanted: object, end: i64, now_us: i64, thing: str
) -> i64:
    """Return the offset at which a reader with the argument `wanted` begins.

    `end` is the offset of the next row, `now_us` the time in microseconds; `thing` names the queue
    in error texts. Raises PreconditionFailed if `wanted` is invalid, RowsUnavailable if the row has
    been removed, RowsPending if the archive must be asked first, StoreError if the stream cannot be
    read.
    """
    if isinstance(wanted, bytes):  # RabbitMQ accepts texts of AMQP's type byte array, too.
        wanted = wanted.decode(errors="replace")
    if wanted is None or wanted == "next":
        return end
    if wanted == "first":
        return first_available(local)
    if wanted == "last":
        return pages.page_with(local.end - 1).views[-1].base if local.rows else local.end
    if isinstance(wanted, datetime):
        return offset_since(local, pages, i64(wanted.timestamp() * 1_000_000))
    if isinstance(wanted, str):
        seconds = seconds_of(wanted)
        if seconds >= 0:
            return offset_since(local, pages, now_us - i64(seconds) * 1_000_000)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted <= _OFFSET_MAX:
        offset: i64 = wanted
        if (
            offset < local.end
            and local.segment_with(offset) is None
            and (local.archived is None or local.archived.lacks(offset))
        ):
            raise local.unavailable_error(offset)
        return offset
    raise PreconditionFailed(
        f"invalid arg 'x-stream-offset' for {thing}: must be {', '.join(WORDS)}, an offset from 0,"
        f" a timestamp, or an interval such as '1h' (Y, M, D, h, m, s), not {wanted!r}"
    )


def first_available(local: LocalSegments) -> i64:
    """Return the first offset with a row, on the disk or in the archive.

    Raises RowsPending if the archive must be asked first.
    """
    local_first = local.first_offset
    if local.archived is None or local_first == 0:
        return local_first
    first = local.archived.first_offset()
    return first if 0 <= first < local_first else local_first


def offset_since(local: LocalSegments, pages: StreamPages, moment: i64) -> i64:
    """Return the offset of the first row published at `moment` or later, else the end.

    `moment` is a Unix time in microseconds. Raises RowsPending if the archive must be asked first.
    """
    archived, local_first = local.archived, local.first_offset
    if (
        archived is not None
        and local_first > 0
        and (not local.segments or moment <= local.segments[0].first_at)
    ):
        begin = archived.offset_since(moment)
        if 0 <= begin < local_first:
            offset = _row_since(pages, begin, local_first, moment)
            if offset < local_first:
                return offset
    for segment in local.segments:
        if segment.last_at < moment:
            continue
        offset = _row_since(pages, segment.offset_before(moment), segment.end, moment)
        if offset < segment.end:
            return offset
    return local.end


def _row_since(pages: StreamPages, offset: i64, end: i64, moment: i64) -> i64:
    """Return the first offset from `offset` on whose row was published at `moment` or later.

    Return `end` if there is no such row before `end`.
    """
    while offset < end:
        page = pages.page_with(offset)
        for batch in page.views:
            row: i64 = 0
            while row < batch.rows:
                if batch.published_at(row) >= moment:
                    return batch.base + row
                row += 1
        offset = page.end
    return end
