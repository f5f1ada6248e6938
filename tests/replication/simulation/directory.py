"""A data directory of a simulated node: a log of entries, and a catalog that is written later."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from broker.replication.contract import Apply, ReceivedBatch, ReplicaDiverged
from broker.replication.records import ClusterState

#: An entry: its kind ("define", "store", "settle"), position, queue, and the identity of a message
#: or the position of the settled message.
Entry = tuple[str, int, int, int]


def encode_entries(entries: list[Entry]) -> bytes:
    """Return entries as the payload of a batch."""
    return json.dumps(entries).encode()


@lru_cache(maxsize=1000)
def decode_entries(payload: bytes) -> tuple[Entry, ...]:
    """Return the entries in the payload of a batch.

    Several nodes decode each batch, and each node decodes it twice: the results are cached.
    """
    return tuple(_entry(row) for row in json.loads(payload))


class Directory:
    """A model of a data directory: a catalog, and a log with entries of which some are synced.

    The catalog holds the definitions, and the state of the log after the last applied batch. A
    crash never leaves a partly written catalog.
    """

    #: True if the node that is copied may make a checkpoint between the copies of its catalog and
    #: of its log. A model cannot: the copied log must hold all entries that follow the copied
    #: catalog. The real directory can, since it finds out which of its records are live.
    copied_any_time = False

    def __init__(self, name: str) -> None:
        self.log: list[Entry] = []
        self.synced = 0
        self.queues: set[int] = set()
        self.state = ClusterState(name)
        self.salt = 0
        #: Number of checkpoints made.
        self.checkpoints = 0
        #: Number of the batch that was begun last since the last crash.
        self._begun = 0

    @property
    def log_end(self) -> int:
        """The last position in the log."""
        return self.log[-1][1] if self.log else 0

    @property
    def restart_offset(self) -> int:
        """The offset of the replicated log at which a node with this directory begins to read."""
        return self.state.last + 1

    def apply(self, step: Apply) -> Iterator[None]:
        """Make a batch and the state after it durable; yield where a crash may happen."""
        batch, state = step.batch, step.state
        if batch is not None and batch.number > self.state.number:
            if batch.number == self._begun:
                self.open()  # An earlier attempt to write this batch ended at a full disk.
            self._begun = batch.number
            yield from self.write_log(batch)
            yield  # A crash may happen here, between the log and the catalog.
            self.write_catalog(batch, state)
        else:
            self.state = state
        if not self.salt:
            self.salt = state.salt

    def entries_of(self, payload: bytes) -> tuple[Entry, ...]:
        """Return the entries in the payload of a batch."""
        return decode_entries(payload)

    def write_log(self, batch: ReceivedBatch) -> Iterator[None]:
        """Append the entries of a batch, and sync them."""
        if self.log_end != batch.position_before:
            raise ReplicaDiverged(
                f"the log of the directory ends at {self.log_end}, and batch {batch.number} "
                f"follows {batch.position_before}"
            )
        entries = self.entries_of(batch.payload)
        half = len(entries) // 2
        yield
        self.log += entries[:half]
        yield
        self.log += entries[half:]
        yield
        self.synced = len(self.log)

    def write_catalog(self, batch: ReceivedBatch, state: ClusterState) -> None:
        """Write the definitions of a batch, and the state after it."""
        entries = self.entries_of(batch.payload)
        self.queues |= {position for kind, position, _, _ in entries if kind == "define"}
        self.state = state

    def crash(self, chance: random.Random) -> None:
        """Lose some or all of the log entries that were not synced, as in a crash."""
        kept = chance.randint(min(self.synced, len(self.log)), len(self.log))
        del self.log[kept:]
        self.synced = len(self.log)
        self._begun = 0

    def open(self) -> None:
        """Remove the log entries after the batch that the catalog's state names as the last one.

        The node reads these entries from the replicated log again.
        """
        self.log = [entry for entry in self.log if entry[1] <= self.state.position]
        self.synced = len(self.log)

    def may_checkpoint(self) -> bool:
        """True if the catalog has the state after the last entry of the log."""
        return self.log_end == self.state.position

    def checkpoint(self) -> None:
        """Drop settled messages, and messages of queues that are not in the catalog."""
        last = self.log_end
        live = self.live()
        self.log = [entry for entry in self.log if entry[0] == "store" and entry[1] in live]
        self.checkpoints += 1
        # The position of a checkpoint is part of its name.
        self.log.append(("end", last, 0, 0))
        self.synced = len(self.log)

    def live(self) -> dict[int, int]:
        """Return the identities of the messages in queues, by position."""
        messages: dict[int, int] = {}
        for kind, position, queue, what in self.log:
            if kind == "store" and queue in self.queues:
                messages[position] = what
            elif kind == "settle":
                messages.pop(what, None)
        return messages

    def warm_differences(self) -> list[str]:
        """Return no differences: this model does not keep its live records (survivors) up to date.

        A real directory compares the survivors with a scan.
        """
        return []

    def copy_catalog(self) -> Any:
        """Return a copy of the catalog, the first part of the data that seeds another node."""
        return {"queues": set(self.queues), "state": self.state, "salt": self.salt}

    def copy_log(self) -> Any:
        """Return a copy of the log, the second part of the data that seeds another node."""
        return list(self.log)

    def seed(self, catalog: Any, log: Any) -> None:
        """Replace this directory by a copied catalog, and a log that was copied later."""
        self.queues, self.state, self.salt = catalog["queues"], catalog["state"], catalog["salt"]
        self.log = list(log)
        self.synced = len(log)


def _entry(row: list[Any]) -> Entry:
    kind, position, queue, what = row
    return kind, position, queue, what
