"""The store of a broker without a data directory: all data is lost when the process ends.

This store follows the contract (tickets, batches), so publishers get confirms as with a durable
store.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import Message
from broker.store.contract import Store, Ticket, WriteBatch, bounded
from broker.store.disk import Disk
from broker.store.entries import MessageSettled, StoreEntry
from broker.store.ram import MemoryDisk
from broker.store.state import State


class MemoryBatch(WriteBatch):
    """A batch with nothing to write except the rows of streams."""

    def __init__(self, tickets: list[Ticket], last: i64, disk: Disk, root: str) -> None:
        super().__init__(tickets, last)
        self._disk = disk
        self._root = root

    def write(self) -> None:
        """Write the rows of streams to the disk in memory."""
        self.write_streams()
        for garbage in self.garbage:
            garbage.remove(self._disk, self._root)


class MemoryStore(Store):
    """A store that keeps the durable state in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.stream_disk = MemoryDisk()

    def apply(self, position: i64, entry: StoreEntry) -> None:
        self.state.apply(position, entry)

    def batch(self, tickets: list[Ticket]) -> WriteBatch:
        return MemoryBatch(tickets, self.position, self.stream_disk, self.stream_root)

    def page_out(self, message: Message) -> None:
        """Do nothing: the state in memory still has the message."""

    def written(self, batch: WriteBatch) -> None:
        super().written(batch)
        if self.state.remove_links() and not self.unbatched:
            self.unbatched = True
            # The next slice of links is removed when the next batch is written.
            self.request_batch()

    def fetch(
        self, queue: i64, positions: list[int], expiring: bool = False
    ) -> list[Message | None]:
        messages = self.state.messages
        return bounded(
            messages[position].message if position in messages else None for position in positions
        )

    def release(self, queue: i64, position: i64) -> None:
        self.state.apply(0, MessageSettled(queue, position))
