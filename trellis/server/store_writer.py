"""The interface of store writers, and the writer of a store without files (`:memory:`).

The writer of a durable store is in durable_store_writer.py. A broker in memory does not load it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from broker.store.contract import Store

#: Seconds of a pause of the writer's thread (broker/stream/rows_write.py).
PAUSE_SECONDS: Final = 0.000_05


def _do_nothing() -> None:
    """Do nothing: the default of `StoreWriter.wake` and `StoreWriter.wrote_much`."""


def pause_writer() -> None:
    """Pause the writer's thread, so that the event loop can run."""
    time.sleep(PAUSE_SECONDS)


class StoreWriter:
    """The writer of a store without files (`:memory:`); the base class of DurableStoreWriter."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Called before confirms are sent for entries that have become durable.
        self.wake: Callable[[], None] = _do_nothing
        #: Called when LOOK_BYTES were written or the disk is full: the free space has changed.
        self.wrote_much: Callable[[], None] = _do_nothing
        #: True if a thread still waits for the disk after `close`. Its write may end at any time.
        self.stuck = False

    def sync(self) -> None:
        """Write the appended entries: now if one is urgent or they are many, else up to
        LAZY_SECONDS later.
        """
        self.store.sync()

    @property
    def unwritten_bytes(self) -> int:
        """The size of all entries and rows that are not durable yet, in bytes."""
        return 0

    def on_free_space(self, free: int, short: bool) -> None:
        """Record the disk's `free` bytes; `short` is True while the disk alarm is on."""

    @property
    def backlogged(self) -> bool:
        """True if more than BACKLOG_BYTES wait for the disk, so publishers must wait too."""
        return False

    def set_clocks(self, now: int, wall: float) -> None:
        """Set the store's clocks: `now` in ms of the monotonic clock, `wall` in seconds of UTC."""

    async def close(self) -> None:
        """Write the remaining entries, and close the files."""
