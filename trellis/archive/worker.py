"""The worker of the archive: a process that uploads segments and fetches files for the broker."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from broker.eviction import evict_oldest
from trellis.archive import contract
from trellis.archive.listing import StreamListing
from trellis.archive.names import ArchivedFile
from trellis.archive.progress import ProgressFile
from trellis.archive.restoring import DamagedFile, restore_file
from trellis.archive.storage import ArchiveAway, ArchiveStorage, FileMissing
from trellis.archive.uploading import UnfitRows, Uploader
from trellis.settings.archive_location import parse_location

#: Number of threads that fetch files; one further thread uploads segments.
FETCH_THREADS: Final = 2
#: Largest number of streams whose listings are remembered.
LISTINGS_MAX: Final = 64
#: The priority of the process is lowered by this number, so that the broker goes first.
NICE: Final = 5
#: Files of an archive in a directory can be read by the group of the directory, not by all users.
UMASK: Final = 0o027

Message = TypeVar(
    "Message",
    contract.Upload,
    contract.FetchFile,
    contract.FindTime | contract.FindFirst | contract.ListFiles,
)


class Worker:
    """Serves the messages that the broker sends over a socket, until the socket is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        opened = contract.to_worker.decode(self._lines.readline())
        assert isinstance(opened, contract.Open)
        directory = Path(opened.directory)
        self._cache = directory / "cache"
        shutil.rmtree(self._cache, ignore_errors=True)
        self._cache.mkdir(parents=True)
        self._disk_free = opened.disk_free
        self._progress = ProgressFile(directory, opened.url)
        self._storage = ArchiveStorage(parse_location(opened.url))
        self._uploader = Uploader(self._storage, directory)
        self._listings: dict[str, StreamListing] = {}
        self._uploads = ThreadPoolExecutor(1)
        self._fetches = ThreadPoolExecutor(FETCH_THREADS)
        self._sending = threading.Lock()

    def run(self) -> None:
        """Serve messages until the broker closes the connection."""
        self._send(contract.Ready())
        for text in self._lines:
            message = contract.to_worker.decode(text)
            if isinstance(message, contract.Remove):
                self._fetches.submit(Path(message.path).unlink, missing_ok=True)
            elif isinstance(message, contract.Forget):
                self._uploads.submit(self._progress.add, message.stream_number, -1, -1)
            elif isinstance(message, contract.Upload):
                self._uploads.submit(self._serve, message, self._upload)
            elif isinstance(message, contract.FetchFile):
                self._fetches.submit(self._serve, message, self._fetch)
            elif not isinstance(message, contract.Open):
                self._fetches.submit(self._serve, message, self._find)

    def _send(self, message: contract.FromWorker) -> None:
        with self._sending:
            self._connection.sendall(contract.line(message))

    def _serve(
        self, message: Message, answer: Callable[[Message, StreamListing], contract.FromWorker]
    ) -> None:
        """Call `answer` with a request, and send its result (a message) to the broker.

        If `answer` raises an error, send a RequestFailed.
        """
        listing = self._listing(message.stream)
        try:
            reply = answer(message, listing)
        except ArchiveAway as error:
            listing.clear()
            reply = contract.RequestFailed(message.number, contract.AWAY, str(error))
        except FileMissing as error:
            listing.clear()
            reply = contract.RequestFailed(message.number, contract.MISSING, str(error))
        except (UnfitRows, DamagedFile) as error:
            listing.clear()
            reply = contract.RequestFailed(message.number, contract.BAD, str(error))
        except Exception as error:  # noqa: BLE001 - the broker logs it, and tries again
            reply = contract.RequestFailed(
                message.number, contract.AWAY, f"{type(error).__name__}: {error}"
            )
        self._send(reply)

    def _listing(self, stream: str) -> StreamListing:
        with self._sending:
            known = self._listings.pop(stream, None) or StreamListing(self._storage, stream)
            if len(self._listings) >= LISTINGS_MAX:
                evict_oldest(self._listings)
            self._listings[stream] = known
            return known

    def _upload(self, message: contract.Upload, listing: StreamListing) -> contract.FromWorker:
        try:
            written = self._uploader.upload(message, listing)
        except FileNotFoundError as error:
            return contract.RequestFailed(message.number, contract.GONE, str(error))
        first = listing.first_offset()
        self._progress.add(message.stream_number, first, message.end)
        pa.default_memory_pool().release_unused()
        return contract.Uploaded(message.number, first, *written)

    def _fetch(self, message: contract.FetchFile, listing: StreamListing) -> contract.FromWorker:
        file = listing.covering(message.offset)
        if file is None:
            later = listing.page(message.offset, 1)
            return contract.RequestFailed(
                message.number,
                contract.MISSING,
                f"the archive has no row with offset {message.offset}"
                + (f"; the next row has offset {later[0].first}" if later else ""),
            )
        if shutil.disk_usage(self._cache).free < self._disk_free:
            raise ArchiveAway(
                f"cannot fetch a file: the disk of {self._cache} has less than {self._disk_free} "
                "free bytes (limits.disk_free, and room for a few files): free some space there"
            )
        path = self._cache / f"{message.stream_number}-{file.first:020d}-{message.number}.arrow"
        name = f"{listing.stream}/{file.path}"
        with self._storage.open(name) as source:
            try:
                segment = restore_file(source, path, message.stream_number, file.first, file.end)
            except DamagedFile as error:
                raise DamagedFile(f"{name}: {error}") from None
        pa.default_memory_pool().release_unused()
        return contract.Fetched(
            message.number,
            file.first,
            str(path),
            int(segment.size),
            segment.encode_index(),
            file.size,
        )

    def _find(
        self,
        message: contract.FindTime | contract.FindFirst | contract.ListFiles,
        listing: StreamListing,
    ) -> contract.FromWorker:
        if isinstance(message, contract.FindTime):
            return contract.Found(message.number, listing.since_time(message.moment))
        if isinstance(message, contract.FindFirst):
            return contract.Found(message.number, listing.first_offset())
        files = listing.page(message.offset, message.count)
        return contract.Listed(message.number, [_row(listing.stream, file) for file in files])


def _row(stream: str, file: ArchivedFile) -> contract.FileRow:
    return contract.FileRow(
        file.first, file.end, file.from_us, file.to_us, file.size, f"{stream}/{file.path}"
    )


def main(descriptor: int) -> None:
    """Run the worker on the inherited socket `descriptor`; end when the broker ends."""
    os.nice(NICE)
    os.umask(UMASK)
    pa.set_cpu_count(1)
    try:
        Worker(socket.socket(fileno=descriptor)).run()
    except OSError:
        pass  # The broker has ended.
    # An upload in progress is cut off: the next worker repeats it.
    os._exit(0)
