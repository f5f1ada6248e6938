"""Where a reader of a stream begins: what `x-stream-offset` may say, and the offset that this means
now.

first, last, next     the first row there is, the last batch, what comes from now on (if nothing is
said) a number              that offset
a timestamp           the first row that was published then or later
30s, 5m, 1h, 7D, ...  the same, so long ago (Y, M, D, h, m, s, as RabbitMQ)
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from mypy_extensions import i64

from broker.errors import PreconditionFailed
from broker.stream.archive import Archive
from broker.stream.pages import StreamPages

WORDS: Final = ("first", "last", "next")
#: Seconds of each unit of an interval.
_UNITS: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_INTERVAL: Final = re.compile(r"(\d{1,10})([YMDhms])")
#: Offsets have 63 bits.
_OFFSET_MAX: Final = (1 << 63) - 1


def seconds_of(interval: str) -> int:
    """Seconds of `1h` and the like; -1 for what is no interval."""
    found = _INTERVAL.fullmatch(interval)
    return int(found[1]) * _UNITS[found[2]] if found is not None else -1


def resolve_offset(
    archive: Archive, pages: StreamPages, wanted: object, end: i64, now_us: i64, thing: str
) -> i64:
    """The first offset for a reader that says this; `end` is what comes next.

    Raises PreconditionFailed, Gone, StoreError.
    """
    if isinstance(wanted, bytes):  # A text that the client calls octets: RabbitMQ does not mind.
        wanted = wanted.decode(errors="replace")
    if wanted is None or wanted == "next":
        return end
    if wanted == "first":
        return archive.first_offset
    if wanted == "last":
        return pages.page_with(archive.end - 1).views[-1].base if archive.rows else archive.end
    if isinstance(wanted, datetime):
        return offset_since(archive, pages, i64(wanted.timestamp() * 1_000_000))
    if isinstance(wanted, str):
        seconds = seconds_of(wanted)
        if seconds >= 0:
            return offset_since(archive, pages, now_us - i64(seconds) * 1_000_000)
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted <= _OFFSET_MAX:
        offset: i64 = wanted
        if offset < archive.end and archive.segment_with(offset) is None:
            raise archive.unavailable_error(offset)
        return offset
    raise PreconditionFailed(
        f"invalid arg 'x-stream-offset' for {thing}: {wanted!r} is none of {', '.join(WORDS)}, an offset from 0, "
        "a timestamp, or an interval such as '1h' (Y, M, D, h, m, s)"
    )


def offset_since(archive: Archive, pages: StreamPages, moment: i64) -> i64:
    """The first offset that was published at this microsecond or later; the end when none was."""
    for segment in archive.segments:
        if segment.last_at < moment:
            continue
        offset: i64 = segment.offset_before(moment)
        while offset < segment.end:
            page = pages.page_with(offset)
            for batch in page.views:
                row: i64 = 0
                while row < batch.rows:
                    if batch.published_at(row) >= moment:
                        return batch.base + row
                    row += 1
            offset = page.end
    return archive.end
