"""The queue of requests to the archive's worker: fetches and searches for readers of streams.

The queue may drop a request without an error. `take_dropped` later returns the stream of a dropped
request, and the archive's service reports a change of this stream's archived rows. Each report
makes the readers that still wait for rows of the stream repeat their requests.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from broker.stream.archived import ArchivedRows
from broker.stream.segments import Segment

#: Largest number of requests that the worker has at the same time; further requests wait.
SENT_MAX: Final = 4
#: Largest number of requests in the queue. Further requests are dropped.
WANTED_MAX: Final = 1_000


class Wanted(NamedTuple):
    """A request to the archive, for one stream.

    `kind` is "fetch", "time" or "first". `value` is the offset to fetch, or the time to look for in
    microseconds; 0 for "first".
    """

    rows: ArchivedRows
    kind: str
    value: int


class FetchQueue:
    """The unanswered requests, sent to the worker or not sent yet. Equal requests are kept once."""

    def __init__(self) -> None:
        self._wanted: set[Wanted] = set()
        self._unsent: deque[Wanted] = deque()
        #: The streams with dropped requests.
        self._dropped: set[ArchivedRows] = set()

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, wanted: Wanted) -> None:
        """Add a request unless the queue has it already; drop the request if the queue is full."""
        if wanted in self._wanted:
            return
        if len(self._wanted) >= WANTED_MAX:
            self._dropped.add(wanted.rows)
            return
        self._wanted.add(wanted)
        self._unsent.append(wanted)

    def next(self) -> Wanted | None:
        """Return the next request to send.

        Return None if all requests are sent, or if SENT_MAX sent requests are unanswered.
        """
        if not self._unsent or len(self._wanted) - len(self._unsent) >= SENT_MAX:
            return None
        return self._unsent.popleft()

    def put_back(self, wanted: Wanted) -> None:
        """Return a sent request to the queue, before all unsent requests."""
        self._unsent.appendleft(wanted)

    def finish(self, wanted: Wanted) -> None:
        """Remove a request that was answered."""
        self._wanted.discard(wanted)

    def finish_fetched(self, rows: ArchivedRows, segment: Segment) -> None:
        """Remove the unsent fetches of rows in a segment that another request has fetched."""
        for wanted in list(self._unsent):
            if (
                wanted.rows is rows
                and wanted.kind == "fetch"
                and segment.base <= wanted.value < segment.end
            ):
                self._unsent.remove(wanted)
                self._wanted.discard(wanted)

    def drop_stale(self) -> None:
        """Drop all unsent requests except the first, which shows whether the archive answers again.

        Called after a pause in which the archive was unreachable: many readers have given up by
        then.
        """
        while len(self._unsent) > 1:
            wanted = self._unsent.pop()
            self._wanted.discard(wanted)
            self._dropped.add(wanted.rows)

    def take_dropped(self) -> set[ArchivedRows]:
        """Return the streams with dropped requests, and forget that requests were dropped.

        Return an empty set, and forget nothing, while there are unsent requests. The caller reports
        a change of the streams' rows, so that waiting readers repeat their requests.
        """
        if self._unsent:
            return set()
        dropped, self._dropped = self._dropped, set()
        return dropped

    def remove_stream(self, rows: ArchivedRows) -> None:
        """Remove the requests of a deleted stream that were not sent."""
        self._dropped.discard(rows)
        for wanted in [wanted for wanted in self._unsent if wanted.rows is rows]:
            self._unsent.remove(wanted)
            self._wanted.discard(wanted)
