"""The refused publications of each connection: which of them are logged, and how many are not.

    the first refused publication of each topic    a line; at most TOPICS_MAX topics of a connection
    all further refused publications               counted; one line with their number each
                                                   WINDOW_MS, and one at the end of the connection

A connection without a refused publication has no entry here, and costs nothing. An entry keeps at
most TOPICS_MAX topics, which the callers cut to TOPIC_MAX characters.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

#: Largest number of topics of a connection whose refusal is logged.
TOPICS_MAX: Final = 10
#: Largest number of characters, or bytes, of a topic that are logged and compared.
TOPIC_MAX: Final = 200
#: Shortest time between two lines with the number of a connection's further refusals, in ms.
WINDOW_MS: Final = 60_000


class RefusedPublications:
    """The refused publications of one connection: the topics with a log line, and a counter.

    `left_out` counts the refused publications without a log line of their own, since the last line
    that reported this count. `counted_at` is the time of that line, or of the first refusal if
    there is no such line yet, in ms of the agenda.
    """

    def __init__(self, now: i64) -> None:
        self._topics: set[str] = set()
        self.left_out: i64 = 0
        self.counted_at = now

    def add(self, topic: str) -> bool:
        """Return True if the caller must log a refused publication to `topic`.

        A publication that the caller must not log is counted in `left_out`.
        """
        if topic in self._topics or len(self._topics) >= TOPICS_MAX:
            self.left_out += 1
            return False
        self._topics.add(topic)
        return True
