"""The store that forgets everything when the process ends.

It keeps the contract, so confirms wait as they will.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import Message
from broker.store.contract import MessageSettled, Store, StoreEntry, Ticket, WriteBatch
from broker.store.disk import Disk, remove_files
from broker.store.ram import MemoryDisk
from broker.store.state import State


class MemoryBatch(WriteBatch):
    """Durable as soon as it is written, which is nothing, but for streams."""

    def __init__(self, tickets: list[Ticket], last: i64, disk: Disk) -> None:
        super().__init__(tickets, last)
        self._disk = disk

    def write(self) -> None:
        """Streams have a disk of their own there; all else is where it is."""
        self.write_streams()
        remove_files(self._disk, self.garbage)


class MemoryStore(Store):
    """Keeps the durable state of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.stream_disk = MemoryDisk()

    def apply(self, position: i64, entry: StoreEntry) -> None:
        self.state.apply(position, entry)

    def batch(self, tickets: list[Ticket]) -> WriteBatch:
        return MemoryBatch(tickets, self.position, self.stream_disk)

    def page(self, message: Message) -> None:
        """It is kept here already."""

    def fetch(
        self, queue: i64, positions: list[int], lapsing: bool = False
    ) -> list[Message | None]:
        messages = self.state.messages
        return [
            messages[position].message if position in messages else None for position in positions
        ]

    def abandon(self, queue: i64, position: i64) -> None:
        self.state.apply(0, MessageSettled(queue, position))
