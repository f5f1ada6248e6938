"""Signal handlers of a running node."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress


class SignalHandlers:
    """Signal handlers of a broker's process: SIGTERM and SIGINT stop, SIGHUP reloads.

    The handlers are called in the event loop, so a signal that arrives in a long turn is handled
    after the turn. In threads other than the main thread, no handler is installed.
    """

    def __init__(self, stop: Callable[[], None], reload: Callable[[], None]) -> None:
        self._handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}

    def install(self) -> None:
        """Install the handlers. Does nothing if they are installed already."""
        loop = asyncio.get_running_loop()
        for signum, handler in self._handlers.items():
            try:
                loop.add_signal_handler(signum, handler)
            except (NotImplementedError, RuntimeError, ValueError):
                return

    def remove(self) -> None:
        """Remove the handlers: SIGTERM and SIGINT then end the process, and SIGHUP is ignored."""
        loop = asyncio.get_running_loop()
        for signum in self._handlers:
            try:
                loop.remove_signal_handler(signum)
            except (NotImplementedError, RuntimeError, ValueError):
                return
        with suppress(ValueError):  # In threads other than the main thread.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
