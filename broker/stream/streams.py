"""All streams of a broker: creates them, restores them at the start, holds their codecs."""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.queues.arguments import QueueArguments
from broker.store.contract import Store
from broker.store.findings import Finding
from broker.stream.archived import ArchiveBackend, ArchivedRows
from broker.stream.full_segments import FullSegments
from broker.stream.leftover import remove_deleted_streams
from broker.stream.local_segments import LocalSegments
from broker.stream.open_files import OpenFiles
from broker.stream.queue import StreamQueue
from broker.stream.recovery import StreamRecovery
from broker.stream.row_codecs import RowCodecs


class Streams:
    """The streams of a broker, on the disk of its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.codecs = RowCodecs()
        #: The open files of all streams, for the writer's thread and for readers.
        self.writing = OpenFiles()
        self.reading = OpenFiles()
        #: Number of rows delivered to readers of streams that are deleted now.
        self.served: i64 = 0
        #: Damaged, missing or removed files that were found at the start of the broker.
        self.findings: list[Finding] = []
        #: The archive of all streams (setting `stream.archive`); None without an archive.
        self.archive: ArchiveBackend | None = None
        #: The receiver of notices of full segments of all streams; None if there is none.
        self.full_segments: FullSegments | None = None

    def make(self, vhost: str, name: str, agenda: Agenda, terms: QueueArguments) -> StreamQueue:
        """Return a new stream. `assign_number` must then set its number."""
        store = self._store
        local = LocalSegments(
            store.stream_disk,
            store.stream_root,
            vhost,
            name,
            0,
            self.codecs,
            self.writing,
            self.reading,
        )
        local.full_segments = self.full_segments
        if self.archive is not None:
            local.archived = ArchivedRows(self.archive, vhost, name, self.reading)
        return StreamQueue(vhost, name, agenda, store, terms, local)

    def assign_number(self, queue: StreamQueue, number: int, known: bool) -> None:
        """Set the number of a stream.

        If `known` is True, the stream existed before this start: recover its segments.
        Raises StoreError if a segment cannot be read or written.
        """
        local = queue.local
        queue.number = queue.pending_rows.number = local.number = local.segment_writer.number = (
            number
        )
        local.segment_writer.is_new = not known
        if local.archived is not None:
            local.archived.begin(number)
        if known:
            store = self._store
            end = store.stream_ends.pop(number, 0)
            recovery = StreamRecovery(
                store.stream_disk,
                local.segment_writer.directory,
                number,
                end,
                store.stream_ends_exact,
            )
            self.findings += recovery.findings
            local.restore(recovery.segments)
            if recovery.lacks_summary and self.full_segments is not None:
                self.full_segments.add(local.segment_writer.directory)
            queue.begin_at(recovery.end)

    def remove_deleted(self, names: list[tuple[str, str]], newest: int) -> None:
        """Remove the files of deleted streams.

        `names` has the pair (virtual host, name) of each existing queue. `newest` is the highest
        number of a definition in the catalog: if the catalog is damaged, definitions with higher
        numbers may be missing.
        """
        self.findings += remove_deleted_streams(
            self._store.stream_disk, self._store.stream_root, names, newest
        )
