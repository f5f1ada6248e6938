"""Counts the turns of an event loop, to test that work is divided over several turns."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TurnCounter:
    """A context manager that counts the turns of the running event loop in the field `turns`."""

    def __init__(self) -> None:
        self.turns = 0

    async def _count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def __enter__(self) -> TurnCounter:
        self._counting = asyncio.create_task(self._count())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._counting.cancel()
