"""The largest amounts of work that a queue does in one turn."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

#: Largest number of messages of a queue that one slice of bulk work releases after a purge, or
#: discards because they have expired or the queue is above a limit.
MESSAGES_PER_SLICE: Final[i64] = 2_000
#: Largest number of messages that a drain of a queue delivers in one turn. This takes up to 2 ms.
#: Without this bound, a drain would end only when no consumer is ready.
DELIVERIES_PER_DRAIN: Final[i64] = 2_000
#: Number of expired messages that a drain discards before it continues as bulk work.
DISCARDS_PER_DRAIN: Final[i64] = 500
#: Largest number of consumers of a deleted queue that are cancelled in one slice.
CONSUMERS_PER_SLICE: Final = 500
