"""Event loops whose clock a test sets, so that time passes without a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.top.running import Running, settings
from trellis.server.turn import DEADLINE_INTERVAL

#: Number of event loop turns that suffice for a check of deadlines and the work of a few clients.
TURNS: Final = 40


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock the test can set forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


async def jump(seconds: float) -> None:
    """Set the clock forward, and run the check of deadlines twice."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.ahead += seconds
    for _ in range(2):
        for _ in range(TURNS):
            await asyncio.sleep(0)
        loop.ahead += DEADLINE_INTERVAL


def in_jumping_loop(steps: Callable[[Running], Coroutine[Any, Any, None]], **given: Any) -> None:
    """Run a coroutine function with a broker in an event loop whose clock jumps.

    `given` are the settings of the broker.
    """

    async def main() -> None:
        running = Running(settings(**given))
        await running.start()
        try:
            await steps(running)
        finally:
            await running.stop()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main())


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock only the test moves."""

    now = 1_000.0

    def time(self) -> float:
        return self.now


def in_still_loop(steps: Callable[[StillLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine function in an event loop with a still clock."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)
        await steps(loop)

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(main())


async def turns(count: int = TURNS) -> None:
    """Let the event loop run for a number of turns."""
    for _ in range(count):
        await asyncio.sleep(0)
