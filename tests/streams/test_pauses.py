"""Tests of the pauses of the writer's thread between long batches of a stream."""

from __future__ import annotations

import pytest
from librt.strings import write_i32_le

from broker.messages.message import Address, Message
from broker.stream.captured_rows import CapturedRows
from broker.stream.rows import BATCH_ROWS
from broker.stream.rows_write import PAUSE_ROWS, PAUSE_ROWS_MAX, RowsWrite
from tests.store.simulated import SimulatedDisk
from tests.streams.test_powerloss import local_segments
from tests.streams.test_template import FRAMES, content

ROWS, LEAST, MOST = int(BATCH_ROWS), int(PAUSE_ROWS), int(PAUSE_ROWS_MAX)


class PausingDisk(SimulatedDisk):
    """A simulated disk that counts the pauses of the writer's thread."""

    pauses = 0

    def pause(self) -> None:
        self.pauses += 1


@pytest.mark.parametrize(
    ("rows", "pauses"),
    [
        (LEAST - 1, 0),
        (LEAST, 1),
        (3 * ROWS, 3),
        (3 * ROWS + LEAST - 1, 3),
        (MOST, MOST // ROWS),
        (MOST + 1, 0),
    ],
)
def test_the_writer_pauses_after_long_batches_unless_it_is_far_behind(
    rows: int, pauses: int
) -> None:
    disk = PausingDisk()
    captured = CapturedRows(0)
    captured.times = [(0, 1_700_000_000_000_000)]
    message = Message(Address("", "s"), content(b""), FRAMES, 1)
    for _ in range(rows):
        captured.items.append(message)
        write_i32_le(captured.routed, 1)
    captured.end = rows
    RowsWrite(local_segments(disk), captured, 0).write()
    assert disk.pauses == pauses
