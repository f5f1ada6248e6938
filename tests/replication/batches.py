"""Batches of entries as an active node sends them, for tests of a standby's data directory."""

from __future__ import annotations

from dataclasses import replace

from broker.messages.message import PLAIN, Address, Message
from broker.replication import payload
from broker.replication.contract import Apply, ReceivedBatch
from broker.replication.payload import Change
from broker.replication.records import ClusterState
from broker.store.codecs import Codecs
from broker.store.entries import Defined, EntryGroup, StoreEntry, Undefined
from broker.store.files import seed_of
from broker.store.records import Recorder
from tests.store.simulated import SimulatedDisk


class Killed(BaseException):
    """Raised when the simulated disk reaches the operation at which the process is killed."""


def kill_at(disk: SimulatedDisk, operation: int) -> None:
    """Make the disk raise Killed at an operation, counted from 1."""
    left = [operation]

    def count(operation: str, path: str) -> int:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return 0

    def done(operation: str, path: str) -> None:
        count(operation, path)

    disk.refuse, disk.done = count, done


def message(content: bytes, key: str = "key") -> Message:
    return Message(Address("amq.topic", key), content, PLAIN, 1)


def encode_entries(entries: list[tuple[int, StoreEntry]], salt: int) -> bytes:
    """Return the payload of a batch of entries at their positions."""
    recorder = Recorder(Codecs(), int(seed_of(salt)))
    changes: list[Change] = []
    for position, entry in entries:
        if isinstance(entry, (Defined, Undefined)):
            changes.append((position, entry))
        else:
            recorder.add(position, entry)
    records = recorder.take()
    records.complete(int(seed_of(salt)))
    return payload.encode(changes, records.parts)


class Batches:
    """Makes the batches of one owner, one after another.

    `state` is the state of the replicated log after the last batch that was made.
    """

    def __init__(self, salt: int = 99) -> None:
        self.state = ClusterState("broker", epoch=1, nonce=5, last=0, salt=salt, format=1)

    def make(self, *entries: StoreEntry) -> Apply:
        """Return the step that writes these entries to a directory, at the next positions."""
        state, position = self.state, self.state.position
        placed: list[tuple[int, StoreEntry]] = []
        for entry in entries:
            placed.append((position + 1, entry))
            position += len(entry.entries) if isinstance(entry, EntryGroup) else 1
        number, offset = state.number + 1, state.last + 1
        content = encode_entries(placed, state.salt)
        batch = ReceivedBatch(number, offset, state.position, position, content)
        self.state = replace(
            state, number=number, last=offset, batch_offset=offset, position=position
        )
        return Apply(batch, self.state)
