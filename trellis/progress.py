"""Progress of long work: a line on the terminal that is rewritten, or lines at intervals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

#: Characters of a progress bar.
_CELLS: Final = 24


class Interval:
    """The time of the next periodic report: at most one report in a number of seconds (the
    interval).

    The first report is due one interval after the creation of the object.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = self._last = clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the interval was created."""
        return self._clock() - self._began

    def due(self) -> bool:
        """True if a report is due. The next report is due one interval after this call."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class ProgressLine:
    """One line on stderr that is rewritten during the work; no output if stderr is not a terminal.

    This module must stay uncompiled, so that Python can handle Ctrl-C while a compiled loop calls
    this module.
    """

    def __init__(self, stream: TextIO | None = None, shown: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() if shown is None else shown
        self._title = ""
        self._began = 0.0
        self._messages = 0
        self._seconds = 0.0

    def begin(self, title: str, messages: int = 0, seconds: float = 0.0) -> None:
        """Begin a part of the work, which the progress line shows with its title.

        The size of the part is a number of messages, or else of seconds; 0 is unknown.
        """
        self._title, self._messages, self._seconds = title, messages, seconds
        self._began = time.perf_counter()

    def say(self, state: str) -> None:
        """Show the state of this part of the work, such as `connecting`."""
        # Imported here, because `shutil` loads compressors, and a broker shows no progress bars.
        import shutil

        width = shutil.get_terminal_size().columns - 1
        self._write("\r" + "  ".join(filter(None, (self._title, state)))[:width] + "\x1b[K")

    def bar(self, share: float, text: str) -> None:
        """Show a progress bar, filled to `share` (0 to 1), followed by a text."""
        full = min(_CELLS, int(share * _CELLS))
        self.say(f"[{'#' * full}{'.' * (_CELLS - full)}] {text}")

    def tick(self, messages: int) -> None:
        """Show how many messages of this part have been delivered."""
        if not self._shown:
            return
        share = 0.0
        if self._messages:
            share = messages / self._messages
        elif self._seconds:
            share = (time.perf_counter() - self._began) / self._seconds
        self.bar(share, f"{messages:,} messages")

    def end(self) -> None:
        """Erase the progress line."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._shown:
            self._stream.write(text)
            self._stream.flush()
