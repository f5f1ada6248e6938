"""Compares the live records that a standby knows with the live records that a scan finds.

A standby keeps the live records of its local log (the survivors) up to date with each batch. They
must equal the live records that a start of a broker on the same directory finds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from broker.replication.directory import ReplicaDirectory
from broker.store.codecs import Codecs
from broker.store.entries import HOLDERS
from broker.store.opening import open_store
from broker.store.survivors import Survivors
from tests.store.simulated import SimulatedDisk


def live(survivors: Survivors) -> dict[str, object]:
    """Return the live records in a form that can be compared: a dict by kind.

    PUBRECs of messages that are not live are left out, and so are sessions without a packet
    identifier.
    """
    held = survivors.copies.is_held
    return {
        "messages": {
            queue: list(positions) for queue, positions in survivors.copies.by_queue().items()
        },
        "pubrecs": {copy for copy in survivors.pubrec_received if held(*copy)},
        "packet ids": {key: ids for key, ids in survivors.held_packet_ids.items() if ids},
        "retained": survivors.retained,
        "streams": survivors.streams,
        "sequences": survivors.sequences,
        "marks": {queue: ranks for queue, ranks in survivors.marks.items() if ranks},
        "counts": survivors.counts,
        "last number": survivors.known_number(),
    }


def scanned(disk: SimulatedDisk, path: str, catalog: str, segment_size: int) -> dict[str, object]:
    """Copy a data directory, and return the live records that a broker finds when it starts there.

    `catalog` is the path of the directory's catalog.
    """
    with tempfile.TemporaryDirectory(dir=path) as copy:
        for end in ("", "-wal"):
            source = Path(catalog + end)
            if source.exists():
                Path(copy, source.name).write_bytes(source.read_bytes())
        files = {name.replace(path, copy, 1): data for name, data in disk.contents().items()}
        opened = open_store(
            SimulatedDisk(files), copy, Codecs(), 0, pytest.fail, lambda _: None, segment_size
        )
        live_records = live(opened.survivors)
        opened.store.close()
    return live_records


def compare(replica: ReplicaDirectory, disk: SimulatedDisk, segment_size: int) -> list[str]:
    """Compare the live records that a standby knows with the live records that a scan of its log
    finds.

    Return a text for each kind of records that differs.
    """
    numbers = {number for number, entry in replica.catalog.load() if entry.kind in HOLDERS}
    warm = live(replica._warmed(numbers)[1].survivors)
    cold = scanned(disk, replica.path, replica.catalog.path, segment_size)
    return [
        f"{kind}: warm {warm[kind]}, scanned {records}"
        for kind, records in cold.items()
        if warm[kind] != records
    ]
