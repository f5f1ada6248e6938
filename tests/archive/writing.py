"""Streams with full segments of random messages, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pamqp.commands as spec
import pyarrow.dataset

from broker.stream.segments import Segment
from tests.store.homes import Home
from tests.streams.tables import stream

DAY: Final = 86_400_000_000
_BEGIN: Final = datetime(2026, 11, 25, 1, tzinfo=UTC)


class Writing:
    """A stream `s` with several full segments of random messages.

    For each number in `days`, a group of messages is published at this number of days after a fixed
    start time.
    """

    def __init__(self, directory: Path, seed: int = 1, days: Sequence[float] = (0,)) -> None:
        random = Random(seed)
        home = Home(directory)
        client = home.amqp()
        client.send(
            spec.Queue.Declare(
                queue="s",
                durable=True,
                arguments={
                    "x-queue-type": "stream",
                    "x-stream-max-segment-size-bytes": 40_000,
                },
            )
        )
        for day in days:
            home.broker.agenda.wall = (_BEGIN + timedelta(days=day)).timestamp()
            for _ in range(160 // len(days)):
                client.publish("", "s", random.randbytes(random.randrange(600)), **_some(random))
        self.queue = stream(home.broker, "s")
        self.number = self.queue.local.number
        self.segments = [segment for segment in self.queue.local.segments if segment.full]

    def read(self, segment: Segment) -> list[bytes]:
        """Return the bodies of a segment, read through the stream's page cache."""
        local = self.queue.local
        kept, local.segments = local.segments, [segment]
        try:
            bodies: list[bytes] = []
            offset = segment.base
            while offset < segment.end:
                page = self.queue.pages.page_with(offset)
                for view in page.views:
                    bodies += [view.text("body", row) for row in range(int(view.rows))]
                offset = page.end
            return bodies
        finally:
            self.queue.pages.clear()
            local.segments = kept


def _some(random: Random) -> dict[str, Any]:
    """Return random properties of a message."""
    known: dict[str, Any] = {
        "content_type": "text/plain",
        "headers": {"a": random.randrange(9), "b": "ü"},
        "delivery_mode": 2,
        "priority": random.randrange(10),
        "message_id": str(random.random()),
        "timestamp": datetime(2024, 2, 29, tzinfo=UTC),
        "app_id": "",
    }
    return {name: value for name, value in known.items() if random.random() < 0.4}


def rows_of_files(directory: Path) -> list[tuple[int, bytes]]:
    """Return offset and body of all rows in the files of an archive, sorted."""
    table = pyarrow.dataset.dataset(directory, format="parquet").to_table(["offset", "body"])
    return sorted(zip(table["offset"].to_pylist(), table["body"].to_pylist(), strict=True))
