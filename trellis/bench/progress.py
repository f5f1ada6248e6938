"""A line on the terminal that says what is going on: nothing where stderr is none."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Final, TextIO

_CELLS: Final = 24


class BenchProgress:
    """Writes over its own line.

    Interpreted on purpose: being called is what lets Ctrl-C into the compiled loop.
    """

    def __init__(self, stream: TextIO | None = None, shown: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() if shown is None else shown
        self._title = ""
        self._state = ""
        self._began = 0.0
        self._messages = 0
        self._seconds = 0.0

    def begin(self, title: str, messages: int = 0, seconds: float = 0.0) -> None:
        """A new part of the work, which takes so many messages or seconds (0: not known)."""
        self._title, self._messages, self._seconds = title, messages, seconds
        self._began = time.perf_counter()

    def say(self, state: str) -> None:
        """What is done now, beside the messages."""
        self._state = state
        self._draw(self._state)

    def tick(self, messages: int) -> None:
        """So many messages of this part have gone all the way."""
        if not self._shown:
            return
        passed = time.perf_counter() - self._began
        share = (
            messages / self._messages
            if self._messages
            else passed / self._seconds
            if self._seconds
            else 0.0
        )
        full = min(_CELLS, int(share * _CELLS))
        self._draw(f"[{'#' * full}{'.' * (_CELLS - full)}] {messages:,} messages")

    def end(self) -> None:
        """Take the line away."""
        self._write("\r\x1b[K")

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._write("\r" + f"{self._title}  {text}"[:width] + "\x1b[K")

    def _write(self, text: str) -> None:
        if self._shown:
            self._stream.write(text)
            self._stream.flush()
