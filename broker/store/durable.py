"""The store that remembers: the log for what changes at message rate, the catalog for definitions.

append --> Recorder, changes --> take --> DurableBatch.write: log, its sync, catalog --> written
fetch <-- what is not written yet, else the log
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from broker.messages.message import Message
from broker.store.catalog import Catalog
from broker.store.codecs import Codecs
from broker.store.contract import (
    HOLDERS,
    Defined,
    MessageStored,
    RetainedSet,
    Store,
    StoreEntry,
    Ticket,
    Undefined,
    WriteBatch,
)
from broker.store.disk import StoreError, remove_files
from broker.store.reading import Decoder
from broker.store.records import Recorder, Records
from broker.store.segments import LogReader, SegmentLog


class DurableBatch(WriteBatch):
    """Records for the log, then changes for the catalog. `write` may be called again after it
    raised WriteFailed or CatalogUnwritten; after any other StoreError nothing is written any more.
    """

    def __init__(
        self,
        tickets: list[Ticket],
        last: i64,
        records: Records,
        changes: list[tuple[int, StoreEntry]],
        log: SegmentLog,
        catalog: Catalog,
    ) -> None:
        super().__init__(tickets, last)
        self.records = records
        self.changes = changes
        #: Messages that were paged before they were durable.
        self.paged: dict[int, Message] = {}
        self._log = log
        self._catalog = catalog
        self._logged = False
        #: Octets of streams.
        self.streamed = 0

    @property
    def octets(self) -> int:
        """What it holds in memory, about."""
        return int(self.records.octets) + self.streamed

    def write(self) -> None:
        if not self._logged:
            self.write_streams()
            self._log.append(self.records)
            self._log.sync()
            self._logged = True
        if self.changes:
            self._catalog.write(self.changes, int(self._log.last))
        remove_files(self._log.disk, self.garbage)


class DurableStore(Store):
    """A log that is open, and a catalog. `report` is told what cannot be read."""

    def __init__(
        self,
        log: SegmentLog,
        catalog: Catalog,
        codecs: Codecs,
        position: i64,
        exist: set[int],
        report: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.position = self.durable = position
        self.log = log
        self.catalog = catalog
        self.stream_disk = log.disk
        self.stream_root = f"{log.directory.rpartition('/')[0]}/streams"
        #: Numbers of what may hold messages. One whose end is not durable is among them: after a
        #: crash it would be there.
        self.exist = exist
        self._report = report
        self._recorder = Recorder(codecs, log.seed)
        self._decoder = Decoder(codecs)
        self._changes: list[tuple[int, StoreEntry]] = []
        self._paged: dict[int, Message] = {}
        self._flying: DurableBatch | None = None

    def tell_time(self, now: i64, wall: float) -> None:
        """Clocks of the agenda: times of messages are stored as times of the wall clock."""
        self._recorder.clock = self._decoder.clock = i64(wall * 1000) - now

    @property
    def octets(self) -> int:
        """Octets that wait to be written. Asked for with every chunk that comes in."""
        octets: i64 = self._recorder.octets + self._streamed()
        return int(octets) if self._flying is None else int(octets) + self._flying.octets

    def _streamed(self) -> i64:
        octets: i64 = 0
        for stream in self.streams:
            octets += stream.pending()
        return octets

    def apply(self, position: i64, entry: StoreEntry) -> None:
        if isinstance(entry, Defined):
            self._changes.append((position, entry))
            if entry.kind in HOLDERS:
                number = entry.definition.get("number")
                self.exist.add(number if isinstance(number, int) else position)
        elif isinstance(entry, Undefined):
            self._changes.append((position, entry))
        else:
            self._recorder.add(position, entry)

    def batch(self, tickets: list[Ticket]) -> WriteBatch:
        assert self._flying is None, "one batch at a time"
        changes, self._changes = self._changes, []
        batch = self._flying = DurableBatch(
            tickets, self.position, self._recorder.take(), changes, self.log, self.catalog
        )
        batch.paged, self._paged = self._paged, {}
        batch.streamed = int(self._streamed())
        return batch

    def _await(self, position: i64, ticket: Ticket) -> None:
        flying = self._flying
        if flying is None or position > flying.last:
            super()._await(position, ticket)
        else:
            flying.tickets.append(ticket)

    def written(self, batch: WriteBatch) -> None:
        flying, self._flying = self._flying, None
        assert flying is batch and flying is not None
        for _, entry in flying.changes:
            if isinstance(entry, Undefined):
                self.exist.discard(entry.number)
        super().written(batch)

    def close(self) -> None:
        """Nothing may be waiting. Raises StoreError."""
        self.catalog.close()
        self.log.close()

    # -- long queues

    def page(self, message: Message) -> None:
        if message.position > self.durable:
            self._paged[message.position] = message

    def fetch(
        self, queue: i64, positions: list[int], lapsing: bool = False
    ) -> list[Message | None]:
        reader = self.log.reader()
        return [self._fetch(reader, queue, position, lapsing) for position in positions]

    def _fetch(self, reader: LogReader, queue: i64, position: i64, lapsing: bool) -> Message | None:
        if position > self.durable:
            message = self._paged.get(position)
            if message is None and self._flying is not None:
                message = self._flying.paged.get(position)
            if message is not None:
                return message
        kept = self.kept(reader, position)
        if kept is None:
            return None
        return kept.lapses(queue, self._decoder.clock) if lapsing else kept.taken_by(queue)

    def kept(self, reader: LogReader, position: i64) -> MessageStored | None:
        """The message at a position, and who held it; None, and a report, when it cannot be read."""
        try:
            if reader.read(position):
                entry = self._decoder.entry(
                    reader.kind, position, reader.octets, reader.start, reader.end
                )
                if isinstance(entry, MessageStored):
                    return entry
            reason = f"there is no message at position {position} in the log"
        except StoreError as error:
            reason = str(error)
        self._report(f"a message is lost: {reason}")
        return None

    def retained(self, reader: LogReader, position: i64) -> Message | None:
        """The retained message at a position; None, and a report, when it cannot be read."""
        try:
            if reader.read(position):
                entry = self._decoder.entry(
                    reader.kind, position, reader.octets, reader.start, reader.end
                )
                if isinstance(entry, RetainedSet):
                    return entry.message
            reason = f"there is no retained message at position {position} in the log"
        except StoreError as error:
            reason = str(error)
        self._report(f"a retained message is lost: {reason}")
        return None

    def abandon(self, queue: i64, position: i64) -> None:
        self.log.settle(position)
