"""The fetches and searches that readers of streams need: those that the worker has, and the rest.

A reader that waits asks again whenever the archived rows of its stream change. So a request can be
dropped if the stream is told later that its rows changed: only readers that still wait ask again.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from broker.stream.archived import ArchivedRows
from broker.stream.segments import Segment

#: Largest number of requests that the worker gets at once; further requests wait.
SENT_MAX: Final = 4
#: Largest number of requests. A stream whose reader needs more is told later to ask again.
WANTED_MAX: Final = 1_000


class Wanted(NamedTuple):
    """A request of a stream: `kind` is "fetch", "time" or "first"; `value` an offset or a time."""

    rows: ArchivedRows
    kind: str
    value: int


class FetchQueue:
    """The requests without an answer. Two equal requests are one."""

    def __init__(self) -> None:
        self._wanted: set[Wanted] = set()
        self._unsent: deque[Wanted] = deque()
        #: The streams with dropped requests.
        self._dropped: set[ArchivedRows] = set()

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, wanted: Wanted) -> None:
        """Add a request, unless the queue has it or is full."""
        if wanted in self._wanted:
            return
        if len(self._wanted) >= WANTED_MAX:
            self._dropped.add(wanted.rows)
            return
        self._wanted.add(wanted)
        self._unsent.append(wanted)

    def next(self) -> Wanted | None:
        """Return the next request to send; None if there is none, or the worker has enough."""
        if not self._unsent or len(self._wanted) - len(self._unsent) >= SENT_MAX:
            return None
        return self._unsent.popleft()

    def put_back(self, wanted: Wanted) -> None:
        """Let a request that was sent be sent again, before the others."""
        self._unsent.appendleft(wanted)

    def finish(self, wanted: Wanted) -> None:
        """Remove a request that was answered."""
        self._wanted.discard(wanted)

    def finish_fetched(self, rows: ArchivedRows, segment: Segment) -> None:
        """Remove the requests for other rows of a segment that was fetched."""
        for wanted in list(self._unsent):
            if (
                wanted.rows is rows
                and wanted.kind == "fetch"
                and segment.base <= wanted.value < segment.end
            ):
                self._unsent.remove(wanted)
                self._wanted.discard(wanted)

    def drop_stale(self) -> None:
        """Drop all requests that were not sent, except the first one, which tries the archive.

        Called after a time without an archive: many readers of these requests may have gone.
        """
        while len(self._unsent) > 1:
            wanted = self._unsent.pop()
            self._wanted.discard(wanted)
            self._dropped.add(wanted.rows)

    def take_dropped(self) -> set[ArchivedRows]:
        """Return the streams with dropped requests if no request waits now; else an empty set."""
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
