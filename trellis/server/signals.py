"""Signal handlers of a running node."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


class SignalHandlers:
    """Signal handlers for the duration of this context: SIGTERM and SIGINT stop, SIGHUP reloads.

    In threads other than the main thread, no handler is installed.
    """

    def __init__(self, stop: Callable[[], None], reload: Callable[[], None]) -> None:
        self._handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        for signum, handler in self._handlers.items():
            try:
                self._loop.add_signal_handler(signum, handler)
            except (NotImplementedError, RuntimeError, ValueError):
                return

    def __exit__(self, *_: object) -> None:
        for signum in self._handlers:
            try:
                self._loop.remove_signal_handler(signum)
            except (NotImplementedError, RuntimeError, ValueError):
                return
