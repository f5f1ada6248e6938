"""The broker's end of the archive: sends uploads and fetches to the worker, and counts them.

One segment at a time is uploaded, in the order in which the segments became full. While the archive
is unreachable, uploads and fetches are repeated at growing intervals, and readers of its rows wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.store.disk import Disk
from broker.stream.archived import ArchiveBackend, ArchivedRows, RowsPending
from broker.stream.segments import Segment
from trellis import logs
from trellis.archive import contract
from trellis.archive.cache import SegmentCache
from trellis.archive.counters import Counters
from trellis.archive.fetch_queue import FetchQueue, Wanted
from trellis.archive.names import stream_path
from trellis.archive.progress import read_progress
from trellis.worker_process import WorkerProcess

#: Seconds between two attempts while the archive is unreachable: doubled from RETRY_MIN on.
RETRY_MIN: Final = 1.0
RETRY_MAX: Final = 30.0
#: Shortest time in seconds between two log lines about an unreachable archive.
LOG_INTERVAL: Final = 60.0

Result = TypeVar("Result")


class ArchiveUnavailable(Exception):
    """Raised if the archive does not deliver rows in time. The text has the reason."""


class ArchiveService(ArchiveBackend):
    """The archive of a broker. Built before the broker restores its streams."""

    def __init__(
        self,
        opening: contract.Open,
        backlog: int,
        cache: int,
        patience: float,
        disk: Disk,
    ) -> None:
        """Create the archive; the settings stream.archive_* give `backlog` and `cache`.

        `opening` names the archive, and the directory for its files in the data directory. A
        request over HTTP waits up to `patience` seconds for the archive. Raises OSError.
        """
        directory = Path(opening.directory)
        directory.mkdir(mode=0o700, exist_ok=True)
        self.url = opening.url
        self.counters = Counters()
        #: True unless the last attempt failed because the archive is unreachable.
        self.up = True
        self._opening = opening
        self.backlog = backlog
        self._patience = patience
        self._disk = disk
        self._progress = read_progress(directory, opening.url)
        self._agenda: Agenda | None = None
        #: The worker; None before `start`.
        self.worker: WorkerProcess | None = None
        #: The segments that wait for their upload; the first one may be under way.
        self._uploads: deque[tuple[ArchivedRows, Segment]] = deque()
        #: The messages without an answer, by number.
        self._open: dict[int, tuple[contract.Request, ArchivedRows]] = {}
        self._number = 0
        self._upload_number = 0
        #: The fetches and searches that readers need.
        self.fetches = FetchQueue()
        self._retry: asyncio.TimerHandle | None = None
        self._delay = RETRY_MIN
        self._logged_at = -LOG_INTERVAL
        self.cache = SegmentCache(cache, lambda path: self._send(contract.Remove(path)))
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._listings: dict[int, asyncio.Future[list[contract.FileRow]]] = {}

    # -- start and end

    def start(self, agenda: Agenda) -> None:
        """Start the worker. Called in the event loop, after the broker is restored."""
        self._agenda = agenda
        self.worker = WorkerProcess(
            "trellis.archive", contract.line(self._opening), self._on_line, _log_lost
        )

    def close(self) -> None:
        """End the worker."""
        if self._retry is not None:
            self._retry.cancel()
        if self.worker is not None:
            self.worker.close()

    # -- the stream's side

    def progress(self, number: int) -> tuple[int, int]:
        return self._progress.get(number, (-1, 0))

    def add_waiting(self, rows: ArchivedRows, segment: Segment) -> None:
        self.counters.waiting_segments += 1
        self.counters.waiting_bytes += int(segment.size)
        if not rows.refused:
            self._uploads.append((rows, segment))
            self._send_upload()

    def drop_waiting(self, rows: ArchivedRows, segment: Segment, deleted: bool) -> None:
        counters = self.counters
        self._count_gone(segment)
        if not deleted:
            counters.dropped_segments += 1
            counters.dropped_rows += int(segment.end - segment.base)
            logs.error(
                "archive_rows_dropped",
                vhost=rows.vhost,
                stream=rows.name,
                first=int(segment.base),
                end=int(segment.end),
                note="stream.archive_backlog was full, so retention removed rows before their "
                "upload: check the archive (`trellis stream archive`)",
            )

    def backlog_full(self) -> bool:
        return self.counters.waiting_bytes > self.backlog

    def fetch(self, rows: ArchivedRows, offset: i64) -> None:
        self._want(Wanted(rows, "fetch", int(offset)))

    def find_time(self, rows: ArchivedRows, moment: i64) -> None:
        self._want(Wanted(rows, "time", int(moment)))

    def find_first(self, rows: ArchivedRows) -> None:
        self._want(Wanted(rows, "first", 0))

    def remove_stream(self, rows: ArchivedRows) -> None:
        for segment in list(rows.restored):
            self.cache.evict(segment)
        self.fetches.remove_stream(rows)
        if rows.refused:
            self.counters.refused_streams -= 1
        self._send(contract.Forget(rows.number))

    # -- HTTP requests

    async def retried(self, rows: ArchivedRows, attempt: Callable[[], Result]) -> Result:
        """Call `attempt`, and repeat the call at each change of `rows` while it raises RowsPending.

        Raises ArchiveUnavailable if no call has returned a result after `patience` seconds.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while True:
            try:
                return attempt()
            except RowsPending:
                changed: asyncio.Future[None] = loop.create_future()
            waiters = self._waiters.setdefault(rows.number, [])
            waiters.append(changed)
            try:
                async with asyncio.timeout(max(0.0, end - loop.time())):
                    await changed
            except TimeoutError:
                raise ArchiveUnavailable(self._unavailable(rows)) from None
            finally:
                if changed in waiters:
                    waiters.remove(changed)

    async def files(self, rows: ArchivedRows, offset: int, count: int) -> list[contract.FileRow]:
        """Return at most `count` files of a stream, from the file with the row at `offset` on.

        Raises ArchiveUnavailable if the worker does not answer within `patience` seconds.
        """
        number = self._next_number()
        answer: asyncio.Future[list[contract.FileRow]]
        answer = self._listings[number] = asyncio.get_running_loop().create_future()
        path = stream_path(rows.vhost, rows.name, rows.number)
        self._open[number] = contract.ListFiles(number, path, offset, count), rows
        self._send(self._open[number][0])
        try:
            async with asyncio.timeout(self._patience):
                return await answer
        except TimeoutError:
            raise ArchiveUnavailable(self._unavailable(rows)) from None
        finally:
            self._listings.pop(number, None)
            self._open.pop(number, None)

    def _unavailable(self, rows: ArchivedRows) -> str:
        reason = self.counters.last_error or "the archive worker does not answer"
        return (
            f"the archive {self.url} did not deliver rows of stream '{rows.name}' in vhost "
            f"'{rows.vhost}' within {self._patience:g} s ({reason})"
        )

    # -- messages to the worker

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _send(self, message: contract.ToWorker) -> None:
        if self.worker is not None:
            self.worker.send(contract.line(message))

    def _send_upload(self) -> None:
        """Send the next segment to the worker, unless an upload runs or a retry is scheduled."""
        if self._upload_number or self._retry is not None or self.worker is None:
            return
        while self._uploads and not self._uploads[0][1].waits:
            self._uploads.popleft()
        if not self._uploads:
            return
        rows, segment = self._uploads[0]
        number = self._upload_number = self._next_number()
        message = contract.Upload(
            number,
            stream_path(rows.vhost, rows.name, rows.number),
            rows.number,
            segment.path,
            int(segment.base),
            int(segment.end),
            int(segment.size),
            int(segment.first_at),
            int(segment.last_at),
        )
        self._open[number] = message, rows
        self._send(message)

    def _want(self, wanted: Wanted) -> None:
        self.fetches.add(wanted)
        self._send_fetches()

    def _send_fetches(self) -> None:
        """Send the next fetches and searches to the worker."""
        if self.worker is None or self._retry is not None:
            return
        while (wanted := self.fetches.next()) is not None:
            rows, kind, value = wanted
            path, number = stream_path(rows.vhost, rows.name, rows.number), self._next_number()
            message: contract.Request = (
                contract.FetchFile(number, path, rows.number, value)
                if kind == "fetch"
                else contract.FindTime(number, path, value)
                if kind == "time"
                else contract.FindFirst(number, path)
            )
            self._open[number] = message, rows
            self._send(message)
        for rows in self.fetches.take_dropped():
            self._changed(rows)

    # -- messages from the worker

    def _on_line(self, line: bytes) -> None:
        message = contract.from_worker.decode(line)
        if isinstance(message, contract.Ready):
            assert self.worker is not None
            self.worker.ready = True
            for request, _ in list(self._open.values()):
                self._send(request)  # The worker that ended has not answered these requests.
            self.cache.clear()  # The worker begins with an empty cache.
            self._send_upload()
            self._send_fetches()
            return
        known = self._open.pop(message.number, None)
        if known is None:
            return
        request, rows = known
        if isinstance(message, contract.RequestFailed):
            self._on_failed(request, rows, message)
            return
        self._on_answer()
        if isinstance(request, contract.Upload):
            assert isinstance(message, contract.Uploaded)
            self._on_uploaded(rows, message)
        elif isinstance(message, contract.Listed):
            listing = self._listings.get(message.number)
            if listing is not None and not listing.done():
                listing.set_result(message.files)
            return
        else:
            self._finish(request, rows)
            if isinstance(message, contract.Fetched):
                self._on_fetched(rows, message)
            elif isinstance(message, contract.Found):
                if isinstance(request, contract.FindTime):
                    rows.keep_start(request.moment, message.offset)
                elif not rows.first_known:
                    rows.first, rows.first_known = message.offset, True
        self._changed(rows)
        self._send_upload()
        self._send_fetches()

    def _on_answer(self) -> None:
        """Record that the archive is reachable."""
        self._delay = RETRY_MIN
        if not self.up:
            self.up = True
            logs.info("archive_back", url=self.url)

    def _on_uploaded(self, rows: ArchivedRows, message: contract.Uploaded) -> None:
        self._upload_number = 0
        counters = self.counters
        counters.uploaded_segments += 1
        counters.uploaded_files += message.files
        counters.uploaded_bytes += message.size
        _, segment = self._uploads.popleft()
        if segment.waits:
            self._count_gone(segment)
        rows.on_uploaded(segment, message.first)

    def _on_fetched(self, rows: ArchivedRows, message: contract.Fetched) -> None:
        segment = Segment(self._disk, message.path, 0, message.base)
        loaded = segment.load_index(message.index, message.size)
        same = any(other.base == segment.base for other in rows.restored)
        if rows.changed is None or same or not loaded:
            # The stream was deleted meanwhile, or two readers needed this file.
            self._send(contract.Remove(message.path))
            return
        segment.written_here = True
        counters = self.counters
        counters.fetched_files += 1
        counters.fetched_bytes += message.archived
        self.cache.add(segment, rows)
        rows.on_fetched(segment)
        self.fetches.finish_fetched(rows, segment)

    def _on_failed(
        self, request: contract.Request, rows: ArchivedRows, failure: contract.RequestFailed
    ) -> None:
        upload = isinstance(request, contract.Upload)
        if upload:
            self._upload_number = 0
        if not upload or failure.kind != contract.GONE:
            self.counters.last_error = failure.reason
            self.counters.upload_failures += upload
            self.counters.fetch_failures += not upload
        searches = contract.FindTime | contract.FindFirst | contract.ListFiles
        if failure.kind == contract.AWAY or isinstance(request, searches):
            self._wait(request, rows, failure.reason)
            return
        self._on_answer()
        if upload:
            _, segment = self._uploads.popleft()
            if failure.kind == contract.BAD:
                self._refuse(rows, failure.reason)
            elif segment.waits:
                # Another program removed the file; the stream learns it at the next start.
                self._refuse(rows, f"the segment {segment.path} is missing")
        elif isinstance(request, contract.FetchFile):
            self._finish(request, rows)
            if failure.kind == contract.MISSING:
                rows.first_known = False  # Files may have been removed from the archive.
            rows.keep_failure(
                request.offset,
                f"offset {request.offset} of stream '{rows.name}' in vhost '{rows.vhost}' cannot "
                f"be read from the archive {self.url}: {failure.reason}",
            )
            logs.warning(
                "archive_fetch_failed",
                vhost=rows.vhost,
                stream=rows.name,
                offset=request.offset,
                reason=failure.reason,
            )
            self._changed(rows)
        self._send_upload()
        self._send_fetches()

    def _wait(self, request: contract.Request, rows: ArchivedRows, reason: str) -> None:
        """Schedule a retry of all waiting requests, because the archive is unreachable."""
        if isinstance(request, contract.ListFiles):
            self._open[request.number] = request, rows
        elif not isinstance(request, contract.Upload):
            self.fetches.put_back(_wanted(request, rows))
        loop = asyncio.get_running_loop()
        if self.up or loop.time() - self._logged_at >= LOG_INTERVAL:
            self._logged_at = loop.time()
            logs.warning(
                "archive_away",
                url=self.url,
                reason=reason,
                waiting=self.counters.waiting_segments,
                note="full segments stay on the disk, and readers of archived rows wait",
            )
        self.up = False
        if self._retry is None:
            self._retry = loop.call_later(self._delay, self._try_again)
            self._delay = min(2 * self._delay, RETRY_MAX)

    def _try_again(self) -> None:
        self._retry = None
        self.fetches.drop_stale()
        for number in self._listings:
            if number in self._open:
                self._send(self._open[number][0])
        self._send_upload()
        self._send_fetches()

    def _refuse(self, rows: ArchivedRows, reason: str) -> None:
        """Stop the uploads of a stream until the broker starts again, and log the reason."""
        rows.refused = reason
        self.counters.refused_streams += 1
        self._uploads = deque(entry for entry in self._uploads if entry[0] is not rows)
        logs.error(
            "archive_stream_refused",
            vhost=rows.vhost,
            stream=rows.name,
            reason=reason,
            note="no more rows are uploaded: remove the cause in `reason`, and restart the broker",
        )

    def _finish(self, request: contract.Request, rows: ArchivedRows) -> None:
        self.fetches.finish(_wanted(request, rows))

    def _changed(self, rows: ArchivedRows) -> None:
        """Notify a stream, and waiting HTTP requests, that its archived rows have changed."""
        if rows.changed is not None and self._agenda is not None:
            self._agenda.add(rows.changed)
        for waiter in self._waiters.pop(rows.number, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _count_gone(self, segment: Segment) -> None:
        self.counters.waiting_segments -= 1
        self.counters.waiting_bytes -= int(segment.size)


def _wanted(request: contract.Request, rows: ArchivedRows) -> Wanted:
    """Return the entry of the fetch queue for a request that was sent to the worker."""
    if isinstance(request, contract.FetchFile):
        return Wanted(rows, "fetch", request.offset)
    if isinstance(request, contract.FindTime):
        return Wanted(rows, "time", request.moment)
    return Wanted(rows, "first", 0)


def _log_lost(reason: str, delay: float) -> None:
    """Log the unexpected end of the worker; a new worker is started after `delay` seconds."""
    note = f"uploads and fetches wait; the worker starts again in {delay:g} s"
    logs.warning("archive_worker_lost", reason=reason, note=note)
