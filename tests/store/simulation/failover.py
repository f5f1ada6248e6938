"""The simulation of a whole broker, in which a standby takes over after each crash and each stop.

The standby gets each batch before the broker writes the batch to the broker's disk. The standby
reads batches late, and sometimes crashes at the takeover. After a takeover, the simulation makes
the same checks as schedule.py makes after a restart.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.replication import payload
from broker.replication.contract import Apply, ReceivedBatch
from broker.replication.directory import ReplicaDirectory
from broker.store.durable_batch import BatchShipping, DurableBatch
from broker.store.opening import OpenedStore
from tests.replication.survivors import compare
from tests.store.simulated import SimulatedDisk
from tests.store.simulation.life import Faults, Life
from tests.store.simulation.schedule import Simulation
from trellis.server.recovery import codecs


class StandbyDirectory(BatchShipping):
    """The directory of a standby, which begins as a copy of the broker's directory."""

    def __init__(
        self, life: Life, source: str, path: Path, random: Random, segment_size: int
    ) -> None:
        self.path = str(path)
        self._random = random
        self._segment = segment_size
        path.mkdir()
        for name in ("catalog.sqlite", "catalog.sqlite-wal"):
            (path / name).write_bytes(Path(source, name).read_bytes())
        contents = life.disk.contents()
        self.disk = SimulatedDisk(
            {name.replace(source, self.path, 1): data for name, data in contents.items()}
        )
        self._replica = self._open()
        self._state = self._replica.state
        if not self._state.epoch:
            salt = int(life.durable_store.log.salt)
            self._state = replace(self._state, epoch=1, nonce=1, last=0, salt=salt, format=1)
        self._steps: list[Apply] = []

    def _open(self) -> ReplicaDirectory:
        replica = ReplicaDirectory(self.disk, self.path, "broker", codecs(), self._segment)
        if replica._log is not None:
            replica._log.unstored_batches_max = self._random.choice((1, 5, 100))
        return replica

    def ship(self, batch: DurableBatch) -> bytes:
        state = self._state
        content = self.encode(batch)
        number, offset, position = state.number + 1, state.last + 1, int(batch.last)
        received = ReceivedBatch(number, offset, state.position, position, content)
        self._state = replace(
            state, number=number, last=offset, batch_offset=offset, position=position
        )
        self._steps.append(Apply(received, self._state))
        if self._random.random() < 0.6:
            self._catch_up()
        return self._state.encode()

    def encode(self, batch: DurableBatch) -> bytes:
        """Return the payload of a batch."""
        return payload.encode(batch.changes, batch.records.parts)

    def written(self) -> None:
        """Do nothing when the batch is on the broker's disk: the standby has the batch already."""

    def _catch_up(self) -> None:
        for step in self._steps:
            if step.state.number > self._replica.state.number:
                self._replica.apply(step)
        while self._random.random() < 0.5 and self._replica.compact():
            pass

    def take_over(self) -> OpenedStore | None:
        """Apply all batches, perhaps after a crash, and compare the live records with a scan.

        Return the open store, with which the broker continues. At random, return None: then the
        broker starts on the directory, and reads the log again.
        """
        if self._random.random() < 0.5:
            self._replica.catalog.close()
            self.disk = self.disk.crashed(self._random, self._random.choice((0.0, 0.5, 1.0)))
            self._replica = self._open()
        self._catch_up()
        different = compare(self._replica, self.disk, self._segment)
        assert not different, "\n".join(different)
        if self._random.random() < 0.5:
            return self._replica.take_over(pytest.fail)
        self._replica.finish()
        self._replica.close()
        return None


class FailoverSimulation(Simulation):
    """A simulation in which each start of the broker is the takeover of a standby."""

    standby_type: type[StandbyDirectory] = StandbyDirectory

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        #: Random numbers for the standby alone, so that the clients act as without a standby.
        self._fate = Random(-seed - 1)
        self._standby: StandbyDirectory | None = None
        #: Number of standbys so far. Their directories are in the first broker's directory.
        self._standbys = 0

    def run(self) -> Counter[str]:
        try:
            return super().run()
        finally:
            self._standby = None

    def _begin(self, faults: Faults) -> None:
        if self._standby is not None:
            self._taken_over = self._standby.take_over()
            self._disk, self._directory = self._standby.disk, self._standby.path
            self._standby = None
        try:
            super()._begin(faults)
        finally:
            self._taken_over = None
        root = Path(self._directory)
        root = root if self._standbys == 0 else root.parent
        self._standbys += 1
        self._standby = self.standby_type(
            self.life, self._directory, root / str(self._standbys), self._fate, self._segment
        )
        self.life.durable_store.shipping = self._standby
