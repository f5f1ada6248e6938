"""The log of refusals: one line for each refusal, and one line for all its repetitions in a minute.

A client that is refused usually tries again, often several times a second. The first refusal is
logged at once. Equal refusals in the next minute are counted, and one line then gives their number.
So the log shows why a client fails, and thousands of failing clients do not fill the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from trellis import logs

#: Seconds for which equal refusals are counted instead of logged.
REPEAT_SECONDS: Final = 60.0
#: Largest number of different refusals that are logged within REPEAT_SECONDS.
LINES_MAX: Final = 300
#: Largest number of characters of a field in the log.
FIELD_MAX: Final = 300

Fields = dict[str, object]


class LoggedRefusal:
    """One refusal, with the time when it was first logged (Unix time), and its repetitions since.

    Each field is cut to FIELD_MAX characters, so that the memory of LINES_MAX refusals is bounded.
    """

    def __init__(self, event: str, fields: dict[str, str]) -> None:
        self.event = event
        self.fields = fields
        self.at = time.time()
        self.repetitions = 0


class RefusalLog:
    """Logs new refusals at once, and numbers of repetitions at most REPEAT_SECONDS later.

    The memory of the log and the number of lines are bounded (LINES_MAX).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, write: Callable[..., None] = logs.info
    ) -> None:
        """Begin an empty log. `write(event, **fields)` writes a line to the broker's log."""
        #: Number of refusals by event.
        self.counts: dict[str, int] = {}
        #: Number of refusals without a line in the log, because there were more than LINES_MAX
        #: different refusals within REPEAT_SECONDS.
        self.left_out = 0
        self._loop = loop
        self._write = write
        #: The last refusals that were logged, in the order of time, for `trellis why client`.
        self.recent: deque[LoggedRefusal] = deque(maxlen=LINES_MAX)
        #: The different refusals of this minute, by event and fields.
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], LoggedRefusal] = {}
        self._unreported = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, event: str, fields: Fields) -> None:
        """Log a refusal with its event and fields, or count it as a repetition of an equal refusal.

        Above LINES_MAX different refusals, only count the refusal.
        """
        self.counts[event] = self.counts.get(event, 0) + 1
        shown = {name: _shown(name, value) for name, value in fields.items()}
        key = (event, tuple(shown.items()))
        known = self._known.get(key)
        if known is not None:
            known.repetitions += 1
            return
        if len(self._known) >= LINES_MAX:
            self.left_out += 1
            self._unreported += 1
            return
        self._known[key] = refusal = LoggedRefusal(event, shown)
        self.recent.append(refusal)
        self._write(event, **shown)
        if self._timer is None:
            self._timer = self._loop.call_later(REPEAT_SECONDS, self.report)

    def report(self) -> None:
        """Log the numbers of repetitions, and begin a new minute."""
        known, self._known = self._known, {}
        unreported, self._unreported = self._unreported, 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for refusal in known.values():
            if refusal.repetitions:
                self._write(refusal.event, **refusal.fields, repeated=refusal.repetitions)
        if unreported:
            self._write(
                "refusals_left_out",
                count=unreported,
                note=f"more than {LINES_MAX} different refusals came within {REPEAT_SECONDS:g} s, "
                "and only the first ones are logged",
            )


def _shown(name: str, value: object) -> str:
    """Return a field for the log. A token in place of a user name is masked.

    The log must not show tokens, because another broker or service may accept a refused token.
    """
    text = str(value)
    if name == "user" and text.startswith("eyJ") and text.count(".") >= 2:
        return "(a token)"
    return text[:FIELD_MAX]
