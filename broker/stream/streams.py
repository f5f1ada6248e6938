"""All streams of a broker: where they are kept, how far the log says they are, and who makes rows
of messages.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.queues.arguments import QueueArguments
from broker.store.contract import Store
from broker.store.findings import Finding
from broker.stream.archive import Archive
from broker.stream.leftover import remove_deleted_streams
from broker.stream.queue import StreamQueue
from broker.stream.recovery import StreamRecovery
from broker.stream.rows import RowCodecs


class Streams:
    """Made once for a broker, on the disk of its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.codecs = RowCodecs()
        #: Rows that readers of deleted streams were given.
        self.served: i64 = 0
        #: What was not as it should be at the start.
        self.findings: list[Finding] = []

    def make(self, vhost: str, name: str, agenda: Agenda, terms: QueueArguments) -> StreamQueue:
        """A stream that nobody has numbered yet."""
        store = self._store
        archive = Archive(store.stream_disk, store.stream_root, vhost, name, 0, self.codecs)
        return StreamQueue(vhost, name, agenda, store, terms, archive)

    def assign_number(self, queue: StreamQueue, number: int, known: bool) -> None:
        """The stream has this number; it is new, or was there before. Raises StoreError."""
        archive = queue.archive
        queue.number = queue.pending_rows.number = archive.number = (
            archive.segment_writer.number
        ) = number
        archive.segment_writer.is_new = not known
        if known:
            store = self._store
            end = store.stream_ends.pop(number, 0)
            found = StreamRecovery(
                store.stream_disk,
                archive.segment_writer.directory,
                number,
                end,
                store.stream_ends_exact,
            )
            self.findings += found.findings
            archive.restore(found.segments)
            queue.begin_at(found.end)

    def remove_deleted(self, names: list[tuple[str, str]], newest: int) -> None:
        """Remove what is left of streams that are deleted: `names` are the (virtual host, name) of
        all that are not, `newest` is the last number that the catalog knows."""
        self.findings += remove_deleted_streams(
            self._store.stream_disk, self._store.stream_root, names, newest
        )
